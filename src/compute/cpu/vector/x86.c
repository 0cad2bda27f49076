/* compute/cpu/vector/x86.c - which x86 version of each kernel a level uses. */
#include "compute/cpu/vector/x86.h"

void lks__kernels_x86(lks__cpu_level level, lks__kernels *k)
{
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
        k->gemm_bf16_tiles = &lks__gemm_bf16_tiles_avx512_bf16;
        k->peak_bf16 = lks__peak_bf16_avx512_bf16;
    }
#ifdef LKS__BUILT_AMX
    if (level >= LKS__CPU_AMX) {
        k->gemm_bf16 = lks__gemm_bf16_amx;
        k->gemm_bf16_tiles = &lks__gemm_bf16_tiles_amx;
        k->peak_bf16 = lks__peak_bf16_amx;
    }
#endif
}
