/* kernels/x86/x86.c - which x86 version of each kernel a level uses. */
#include "kernels/x86/x86.h"

/* The kernels that are written in LANES (vec.h), and built for each width of vectors. */
#define WRITTEN_IN_LANES(X)                                                                        \
    X(layernorm_fwd)                                                                               \
    X(layernorm_bwd)                                                                               \
    X(gelu_erf_fwd) X(gelu_erf_bwd) X(gelu_tanh_fwd) X(gelu_tanh_bwd) X(rmsnorm_fwd)               \
        X(rmsnorm_bwd) X(rope_fwd) X(rope_bwd) X(relu2_fwd) X(relu2_bwd) X(softmax_block)          \
            X(softmax_again) X(xent_row) X(softcap) X(xent_cap_row) X(dropout) X(add) X(mul)       \
                X(mul_add) X(scale) X(add_bias) X(colsum) X(round_bf16) X(dot) X(sumsq) X(adamw)   \
                    X(peak)

void lks__kernels_x86(lks__cpu_level level, lks__kernels *k)
{
    if (level >= LKS__CPU_AVX2) {
#define X(name) k->name = lks__##name##_avx2;
        WRITTEN_IN_LANES(X)
#undef X
        k->gemm_bf16 = lks__gemm_bf16_avx2;
    }
    if (level >= LKS__CPU_AVX512) {
#define X(name) k->name = lks__##name##_avx512;
        WRITTEN_IN_LANES(X)
#undef X
    }
    if (level >= LKS__CPU_AVX512_BF16)
        k->gemm_bf16 = lks__gemm_bf16_avx512_bf16;
}
