/* compute/cpu/vector/levels.h - versions for the levels with vectors. A kernel <name> of a
 * level is lks__<name>_<level>. The row kernels are written with vec.h, in <layer>.c, which is
 * built for each level, as are gemm.c and gemm_bf16.c. Others are in <name>_<level>.c. A build has
 * the levels of its architecture. */
#pragma once

#include "compute/cpu/kernels.h"

#define X(name, type) type lks__##name##_neon, lks__##name##_avx2, lks__##name##_avx512;
LKS__ROW_KERNEL_MAP(X)
#undef X

lks__gemm_fn lks__gemm_neon, lks__gemm_avx2, lks__gemm_avx512;
lks__gemm_bf16_fn lks__gemm_bf16_neon, lks__gemm_bf16_avx2, lks__gemm_bf16_avx512,
    lks__gemm_bf16_avx512_bf16, lks__gemm_bf16_amx;
extern const lks__tiles lks__gemm_bf16_tiles_amx;
lks__peak_fn lks__peak_neon, lks__peak_avx2, lks__peak_avx512, lks__peak_bf16_avx512_bf16,
    lks__peak_bf16_amx;

/* Replace the entries of `k` for which `level` has a version. */
void lks__kernels_of_level(lks__cpu_level level, lks__kernels *k);
