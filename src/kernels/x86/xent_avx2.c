/* kernels/x86/xent_avx2.c - one row of cross-entropy; formulas in kernels/ref_xent.c.
 *
 * Three passes: maximum; exponentials (kept in dx) and their sum; scaling. Sums of 64 elements are
 * made in float and added up in double, so a vocabulary's length costs no accuracy.
 *
 * Capped logits stay in dx instead, as the gradient needs them; their exponentials are made twice.
 */
#include <math.h>

#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

static float row_max(const float *x, size_t n)
{
    __m256 m[4];
    size_t j = 0;

    for (int l = 0; l < 4; l++)
        m[l] = _mm256_set1_ps(-INFINITY);
    for (; j + 32 <= n; j += 32)
        for (int l = 0; l < 4; l++) /* of a NaN and m: the second, m */
            m[l] = _mm256_max_ps(_mm256_loadu_ps(x + j + 8 * l), m[l]);
    for (; j < n; j += 8) {
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 v = _mm256_maskload_ps(x + j, mask);
        v = _mm256_blendv_ps(m[0], v, _mm256_castsi256_ps(mask));
        m[0] = _mm256_max_ps(v, m[0]);
    }
    return lks__hmax_avx2(_mm256_max_ps(_mm256_max_ps(m[0], m[1]), _mm256_max_ps(m[2], m[3])));
}

static inline __m256d widen_sum(__m256 v)
{
    return _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                         _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
}

static inline double hsum_pd(__m256d v)
{
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

/* Sum of exp(x - m); each term goes to dx where there is one. */
static inline double row_exp(float *dx, const float *x, size_t n, float m)
{
    const __m256 vm = _mm256_set1_ps(m);
    __m256d total = _mm256_setzero_pd();
    size_t j = 0;

    while (j + 64 <= n) {
        __m256 sum = _mm256_setzero_ps();
        for (size_t end = j + 64; j < end; j += 8) {
            __m256 e = lks__exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + j), vm));
            if (dx)
                _mm256_storeu_ps(dx + j, e);
            sum = _mm256_add_ps(sum, e);
        }
        total = _mm256_add_pd(total, widen_sum(sum));
    }
    __m256 sum = _mm256_setzero_ps();
    for (; j < n; j += 8) {
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 e = lks__exp_avx2(_mm256_sub_ps(_mm256_maskload_ps(x + j, mask), vm));
        if (dx)
            _mm256_maskstore_ps(dx + j, mask, e);
        sum = _mm256_add_ps(sum, _mm256_and_ps(e, _mm256_castsi256_ps(mask)));
    }
    return hsum_pd(_mm256_add_pd(total, widen_sum(sum)));
}

double lks__xent_row_avx2(float *dx, const float *x, size_t n, size_t target, float scale)
{
    float m = row_max(x, n);
    double x_target = x[target]; /* dx may be x */

    if (dx == NULL)
        return log(row_exp(NULL, x, n, m)) - (x_target - m);

    double sum = row_exp(dx, x, n, m);
    float p_target = (float)(dx[target] / sum);
    lks__scale_avx2(dx, (float)(scale / sum), n);
    dx[target] = (p_target - 1) * scale;
    return log(sum) - (x_target - m);
}

static inline __m256 capped(__m256 x, __m256 cap)
{
    return _mm256_mul_ps(cap, lks__tanh_avx2(_mm256_div_ps(x, cap)));
}

void lks__softcap_avx2(float *y, const float *x, size_t n, float cap)
{
    const __m256 vcap = _mm256_set1_ps(cap);
    size_t j = 0;

    for (; j + 8 <= n; j += 8)
        _mm256_storeu_ps(y + j, capped(_mm256_loadu_ps(x + j), vcap));
    if (j < n) {
        __m256i mask = lks__mask_avx2(n - j);
        _mm256_maskstore_ps(y + j, mask, capped(_mm256_maskload_ps(x + j, mask), vcap));
    }
}

/* The loss of a row that isn't to be changed: capped piece by piece. */
static double capped_loss(const float *x, size_t n, size_t target, float cap)
{
    float piece[256], l_target, m = -INFINITY;
    double sum = 0;

    for (size_t j = 0; j < n; j += 256) {
        size_t part = n - j < 256 ? n - j : 256;
        lks__softcap_avx2(piece, x + j, part, cap);
        float top = row_max(piece, part);
        m = top > m ? top : m;
    }
    for (size_t j = 0; j < n; j += 256) {
        size_t part = n - j < 256 ? n - j : 256;
        lks__softcap_avx2(piece, x + j, part, cap);
        sum += row_exp(NULL, piece, part, m);
    }
    lks__softcap_avx2(&l_target, x + target, 1, cap);
    return log(sum) - ((double)l_target - m);
}

/* p (1 - (l / cap)^2) for p = scale exp(l - m) / sum */
static inline __m256 capped_gradient(__m256 l, __m256 m, __m256 factor, __m256 inverse_cap)
{
    __m256 t = _mm256_mul_ps(l, inverse_cap);
    __m256 p = _mm256_mul_ps(factor, lks__exp_avx2(_mm256_sub_ps(l, m)));
    return _mm256_mul_ps(p, _mm256_fnmadd_ps(t, t, _mm256_set1_ps(1.0f)));
}

double lks__xent_cap_row_avx2(float *dx, const float *x, size_t n, size_t target, float scale,
                              float cap)
{
    if (dx == NULL)
        return capped_loss(x, n, target, cap);

    lks__softcap_avx2(dx, x, n, cap);
    float m = row_max(dx, n), l_target = dx[target], t = l_target / cap;
    double sum = row_exp(NULL, dx, n, m);
    const __m256 vm = _mm256_set1_ps(m), factor = _mm256_set1_ps((float)(scale / sum));
    const __m256 inverse = _mm256_set1_ps(1.0f / cap);
    size_t j = 0;
    for (; j + 8 <= n; j += 8)
        _mm256_storeu_ps(dx + j, capped_gradient(_mm256_loadu_ps(dx + j), vm, factor, inverse));
    if (j < n) {
        __m256i mask = lks__mask_avx2(n - j);
        _mm256_maskstore_ps(dx + j, mask,
                            capped_gradient(_mm256_maskload_ps(dx + j, mask), vm, factor, inverse));
    }
    double p_target = exp((double)l_target - m) / sum;
    dx[target] = (float)((p_target - 1) * (double)scale * (1 - (double)t * t));
    return log(sum) - ((double)l_target - m);
}
