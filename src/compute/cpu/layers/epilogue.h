/* compute/cpu/layers/epilogue.h - a product's epilogue on one finished tile of its output. */
#pragma once

#include "compute/cpu/kernels.h"
#include "compute/layers.h"

/* The kernel for an activation: GELU, GELU_TANH or RELU2. */
lks__activate_fwd_fn *lks__activation(const lks__kernels *k, lks__epilogue_kind kind);

/* Finish rows [r0, r1), columns [c0, c1) of y with leading dimension ld. For products
 * (matmul.c). */
void lks__epilogue_tile(const lks__kernels *k, const lks__epilogue *e, float *y, size_t ld,
                        size_t r0, size_t r1, size_t c0, size_t c1);
