/* kernels/x86/elementwise_avx2.c - sums, products, rows and columns; formulas in kernels.h. */
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

void lks__add_avx2(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        __m256 v = _mm256_add_ps(_mm256_maskload_ps(y + i, mask), _mm256_maskload_ps(x + i, mask));
        _mm256_maskstore_ps(y + i, mask, v);
    }
}

void lks__mul_avx2(float *y, const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask));
        _mm256_maskstore_ps(y + i, mask, v);
    }
}

void lks__mul_add_avx2(float *y, const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), v));
    }
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask));
        _mm256_maskstore_ps(y + i, mask, _mm256_add_ps(_mm256_maskload_ps(y + i, mask), v));
    }
}

void lks__scale_avx2(float *y, float a, size_t n)
{
    const __m256 va = _mm256_set1_ps(a);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), va));
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(_mm256_maskload_ps(y + i, mask), va));
    }
}

void lks__add_bias_avx2(float *y, size_t ld, const float *bias, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++)
        lks__add_avx2(y + i * ld, bias, n);
}

void lks__colsum_avx2(float *out, const float *x, size_t ld, size_t rows, size_t n)
{
    size_t j = 0;

    for (; j + 64 <= n; j += 64) {
        __m256 sum[8];
        for (int l = 0; l < 8; l++)
            sum[l] = _mm256_setzero_ps();
        for (size_t i = 0; i < rows; i++)
            for (int l = 0; l < 8; l++)
                sum[l] = _mm256_add_ps(sum[l], _mm256_loadu_ps(x + i * ld + j + 8 * l));
        for (int l = 0; l < 8; l++)
            _mm256_storeu_ps(out + j + 8 * l,
                             _mm256_add_ps(_mm256_loadu_ps(out + j + 8 * l), sum[l]));
    }
    for (; j < n; j += 8) {
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 sum = _mm256_setzero_ps();
        for (size_t i = 0; i < rows; i++)
            sum = _mm256_add_ps(sum, _mm256_maskload_ps(x + i * ld + j, mask));
        _mm256_maskstore_ps(out + j, mask, _mm256_add_ps(_mm256_maskload_ps(out + j, mask), sum));
    }
}

float lks__dot_avx2(const float *a, const float *b, size_t n)
{
    __m256 s[4];
    size_t i = 0;

    for (int l = 0; l < 4; l++)
        s[l] = _mm256_setzero_ps();
    for (; i + 32 <= n; i += 32)
        for (int l = 0; l < 4; l++)
            s[l] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * l), _mm256_loadu_ps(b + i + 8 * l),
                                   s[l]);
    for (; i < n; i += 8) {
        __m256i mask = lks__mask_avx2(n - i < 8 ? n - i : 8);
        s[0] =
            _mm256_fmadd_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask), s[0]);
    }
    return lks__hsum_avx2(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
}

/* A float's square is exact in double, so a fused multiply-add rounds as the reference does. */
double lks__sumsq_avx2(const float *x, size_t n)
{
    __m256d lo = _mm256_setzero_pd(), hi = lo; /* lanes 0..3, 4..7 */

    for (size_t i = 0; i < n; i += 8) {
        __m256 v =
            n - i >= 8 ? _mm256_loadu_ps(x + i) : _mm256_maskload_ps(x + i, lks__mask_avx2(n - i));
        __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
        __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
        lo = _mm256_fmadd_pd(a, a, lo);
        hi = _mm256_fmadd_pd(b, b, hi);
    }
    __m256d s = _mm256_add_pd(lo, hi); /* 0+4 1+5 2+6 3+7 */
    __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}
