/* compute/cpu/vector/levels.c - which version of each kernel a level with vectors uses. */
#include "compute/cpu/vector/levels.h"

void lks__kernels_of_level(lks__cpu_level level, lks__kernels *k)
{
#if defined(__aarch64__)
    if (level == LKS__CPU_NEON) {
#define lks__dropout_neon lks__dropout_plain
#define X(name, type)     k->name = lks__##name##_neon;
        LKS__ROW_KERNEL_MAP(X)
#undef X
        k->gemm = lks__gemm_neon;
        k->gemm_bf16 = lks__gemm_bf16_neon;
        k->peak = k->peak_bf16 = lks__peak_neon;
    }
#elif defined(__x86_64__)
    if (level >= LKS__CPU_AVX2) {
#define X(name, type) k->name = lks__##name##_avx2;
        LKS__ROW_KERNEL_MAP(X)
#undef X
        k->gemm = lks__gemm_avx2;
        k->gemm_bf16 = lks__gemm_bf16_avx2;
        k->peak = k->peak_bf16 = lks__peak_avx2;
    }
    if (level >= LKS__CPU_AVX512) {
#define X(name, type) k->name = lks__##name##_avx512;
        LKS__ROW_KERNEL_MAP(X)
#undef X
        k->gemm = lks__gemm_avx512;
        k->gemm_bf16 = lks__gemm_bf16_avx512;
        k->peak = k->peak_bf16 = lks__peak_avx512;
    }
    if (level >= LKS__CPU_AVX512_BF16) {
        k->gemm_bf16 = lks__gemm_bf16_avx512_bf16;
        k->peak_bf16 = lks__peak_bf16_avx512_bf16;
    }
#ifdef LKS__BUILT_AMX
    if (level >= LKS__CPU_AMX) {
        k->gemm_bf16 = lks__gemm_bf16_amx;
        k->gemm_bf16_tiles = &lks__gemm_bf16_tiles_amx;
        k->peak_bf16 = lks__peak_bf16_amx;
    }
#endif
#endif
}
