/* kernels/x86/gelu_avx2.c - GELU; formulas in kernels/ref_gelu.c.
 *
 * tanh form: s = (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), which keeps the accuracy of small values,
 * and (1 - tanh^2 u) / 2 = 2 s (1 - s). */
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

static inline __m256 erf_fwd(__m256 x)
{
    __m256 e;
    return _mm256_mul_ps(x, lks__phi_avx2(x, &e));
}

static inline __m256 erf_bwd(__m256 x)
{
    __m256 e, phi = lks__phi_avx2(x, &e);
    __m256 pdf = _mm256_mul_ps(e, _mm256_set1_ps(0.398942280401f)); /* 1 / sqrt(2 pi) */
    return _mm256_fmadd_ps(x, pdf, phi);
}

/* s = 1 / (1 + e), e = exp(-2u). From -2u = 88 on, where exp would overflow, both stay. */
static inline __m256 sigmoid_2u(__m256 x, __m256 square, __m256 *e_p)
{
    const __m256 c1 = _mm256_set1_ps(-2 * 0.797884560803f); /* sqrt(2 / pi) */
    const __m256 c3 = _mm256_set1_ps(-2 * 0.797884560803f * 0.044715f);
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 minus_2u = _mm256_mul_ps(x, _mm256_fmadd_ps(c3, square, c1));
    minus_2u = _mm256_min_ps(_mm256_set1_ps(88.0f), minus_2u); /* second operand: NaN stays */
    *e_p = lks__exp_avx2(minus_2u);
    return _mm256_div_ps(one, _mm256_add_ps(one, *e_p));
}

static inline __m256 tanh_fwd(__m256 x)
{
    __m256 e;
    return _mm256_mul_ps(x, sigmoid_2u(x, _mm256_mul_ps(x, x), &e));
}

static inline __m256 tanh_bwd(__m256 x)
{
    /* From |x| = 64 on the slope is 0 or 1, and x^3 could overflow; second operands: NaN stays. */
    x = _mm256_max_ps(_mm256_set1_ps(-64.0f), _mm256_min_ps(_mm256_set1_ps(64.0f), x));
    const __m256 c1 = _mm256_set1_ps(2 * 0.797884560803f);
    const __m256 c3 = _mm256_set1_ps(2 * 0.797884560803f * 3 * 0.044715f);
    __m256 e, square = _mm256_mul_ps(x, x), s = sigmoid_2u(x, square, &e);
    __m256 slope = _mm256_mul_ps(s, _mm256_mul_ps(e, s)); /* s (1 - s), nothing cancels */
    __m256 x_2du = _mm256_mul_ps(x, _mm256_fmadd_ps(c3, square, c1));
    return _mm256_fmadd_ps(slope, x_2du, s);
}

#define FWD(name)                                                                                  \
    void lks__gelu_##name##_fwd_avx2(float *y, const float *x, size_t n)                           \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + 8 <= n; i += 8)                                                                 \
            _mm256_storeu_ps(y + i, name##_fwd(_mm256_loadu_ps(x + i)));                           \
        if (i < n) {                                                                               \
            __m256i mask = lks__mask_avx2(n - i);                                                  \
            _mm256_maskstore_ps(y + i, mask, name##_fwd(_mm256_maskload_ps(x + i, mask)));         \
        }                                                                                          \
    }

#define BWD(name)                                                                                  \
    void lks__gelu_##name##_bwd_avx2(float *dx, const float *dy, const float *x, size_t n)         \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + 8 <= n; i += 8) {                                                               \
            __m256 slope = name##_bwd(_mm256_loadu_ps(x + i));                                     \
            _mm256_storeu_ps(dx + i, _mm256_mul_ps(_mm256_loadu_ps(dy + i), slope));               \
        }                                                                                          \
        if (i < n) {                                                                               \
            __m256i mask = lks__mask_avx2(n - i);                                                  \
            __m256 slope = name##_bwd(_mm256_maskload_ps(x + i, mask));                            \
            __m256 d = _mm256_mul_ps(_mm256_maskload_ps(dy + i, mask), slope);                     \
            _mm256_maskstore_ps(dx + i, mask, d);                                                  \
        }                                                                                          \
    }

FWD(erf)
BWD(erf)
FWD(tanh)
BWD(tanh)
