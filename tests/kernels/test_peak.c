/* What a burst of multiply-adds says it did: chains * lanes * rounds of its file, two operations
 * each. No test asks how fast they are: a busy machine makes any limit wrong. */
#include "compute/cpu/kernels.h"
#include "support.h"

lks__peak_fn emulated_peak_avx512_bf16, emulated_peak_amx;

static lks__kernels own;

static const double of_level[] = {
    [LKS__CPU_PLAIN] = 2.0 * 32 * 1 * (1 << 16),
    [LKS__CPU_AVX2] = 2.0 * 12 * 8 * (1 << 14),
    [LKS__CPU_AVX512] = 2.0 * 12 * 16 * (1 << 14),
};
static const double of_avx512_bf16 = 2.0 * 16 * 32 * (1 << 14);    /* pairs in 16 lanes */
static const double of_amx = 2.0 * 4 * (16 * 16 * 32) * (1 << 12); /* products of two tiles */

TEST(test_own_level)
{
    const lks__cpu_level level = own.level;
    const double fp32 = of_level[level < LKS__CPU_AVX512 ? level : LKS__CPU_AVX512];
    assert_true(own.peak() == fp32);
    assert_true(own.peak_bf16() == (level == LKS__CPU_AMX           ? of_amx
                                    : level == LKS__CPU_AVX512_BF16 ? of_avx512_bf16
                                                                    : fp32));
}

/* The instructions that few processors have. */
TEST(test_emulated)
{
    assert_true(emulated_peak_avx512_bf16() == of_avx512_bf16);
    assert_true(emulated_peak_amx() == of_amx);
}

int main(void)
{
    lks_test_need_level(&own);
    return lks_test_run_all(NULL, NULL);
}
