/* tests/kernels/reference/reference.h - the scalar reference, which defines each operation and is
 * the yardstick of the tests. No level of the tool uses it. */
#pragma once

#include "compute/cpu/kernels.h"

#define LKS__REFERENCE_MAP(X)                                                                      \
    X(gemm, lks__gemm_fn)                                                                          \
    X(gemm_bf16, lks__gemm_bf16_fn)                                                                \
    LKS__ROW_KERNEL_MAP(X)

#define X(name, type) type lks__##name##_ref;
LKS__REFERENCE_MAP(X)
#undef X
