/* compute/cpu/products/kinds.h - products by a library, if it has our order of sums.
 *
 * A library documents no order, and it may depend on everything that the library can choose its
 * code by. That is a *kind* of product: transposes, sizes, leading dimensions, alpha and beta.
 * Before the first product of each kind, the library and our own product compute drawn operands at
 * several alignments. If a bit differs, products of this kind are ours. So runs have the same bits
 * with any library and without one, and ranks needn't agree on it. lks__kernels_gemm_kinds() counts
 * them. */
#pragma once

#include "compute/cpu/kernels.h"

/* Call it before the first product. `library` computes blocks of up to LKS__GEMM_DEPTH terms. A
 * second call with other products forgets the kinds. */
void lks__kinds_open(lks__gemm_fn *library, lks__gemm_fn *own);

/* The product of tests/kernels/reference/ref_gemm.c. Any thread may call it. */
lks__gemm_fn lks__kinds_gemm;
