/* kernels/x86/round_bf16_avx2.c - ref_round_bf16.c's steps, eight at a time. */
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

static inline __m256 round_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i y = _mm256_blendv_epi8(up, quiet, nan);
    return _mm256_castsi256_ps(_mm256_and_si256(y, _mm256_set1_epi32(-0x10000)));
}

void lks__round_bf16_avx2(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, round_bf16(_mm256_loadu_ps(x + i)));
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        _mm256_maskstore_ps(y + i, mask, round_bf16(_mm256_maskload_ps(x + i, mask)));
    }
}
