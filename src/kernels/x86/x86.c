/* kernels/x86/x86.c - which x86 version of each kernel a level uses. */
#include "kernels/x86/x86.h"

void lks__kernels_x86(lks__cpu_level level, lks__kernels *k)
{
    if (level >= LKS__CPU_AVX2) {
        k->gemm_bf16 = lks__gemm_bf16_avx2;
        k->layernorm_fwd = lks__layernorm_fwd_avx2;
        k->layernorm_bwd = lks__layernorm_bwd_avx2;
        k->gelu_erf_fwd = lks__gelu_erf_fwd_avx2;
        k->gelu_erf_bwd = lks__gelu_erf_bwd_avx2;
        k->gelu_tanh_fwd = lks__gelu_tanh_fwd_avx2;
        k->gelu_tanh_bwd = lks__gelu_tanh_bwd_avx2;
        k->rmsnorm_fwd = lks__rmsnorm_fwd_avx2;
        k->rmsnorm_bwd = lks__rmsnorm_bwd_avx2;
        k->rope_fwd = lks__rope_fwd_avx2;
        k->rope_bwd = lks__rope_bwd_avx2;
        k->relu2_fwd = lks__relu2_fwd_avx2;
        k->relu2_bwd = lks__relu2_bwd_avx2;
        k->softmax_block = lks__softmax_block_avx2;
        k->softmax_again = lks__softmax_again_avx2;
        k->xent_row = lks__xent_row_avx2;
        k->softcap = lks__softcap_avx2;
        k->xent_cap_row = lks__xent_cap_row_avx2;
        k->dropout = lks__dropout_avx2;
        k->add = lks__add_avx2;
        k->mul = lks__mul_avx2;
        k->mul_add = lks__mul_add_avx2;
        k->scale = lks__scale_avx2;
        k->add_bias = lks__add_bias_avx2;
        k->colsum = lks__colsum_avx2;
        k->round_bf16 = lks__round_bf16_avx2;
        k->dot = lks__dot_avx2;
        k->sumsq = lks__sumsq_avx2;
        k->adamw = lks__adamw_avx2;
        k->peak = lks__peak_avx2;
    }
    if (level >= LKS__CPU_AVX512_BF16)
        k->gemm_bf16 = lks__gemm_bf16_avx512_bf16;
}
