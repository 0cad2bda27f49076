/* kernels/x86/rmsnorm_avx2.c - RMSNorm, and the way of query and key heads; formulas in
 * kernels/ref_rmsnorm.c.
 *
 * A row fits in the first cache, so each row is passed over twice. */
#include <float.h>
#include <math.h>

#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

static inline __m256i mask_of(size_t left)
{
    return lks__mask_avx2(left < 8 ? left : 8);
}

/* 1 / sqrt(mean of squares + eps) */
static float rms_reciprocal(const float *x, size_t n)
{
    return 1 / sqrtf(lks__dot_avx2(x, x, n) / (float)n + FLT_EPSILON);
}

void lks__rmsnorm_fwd_avx2(float *y, float *rms, const float *x, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n) {
        float r = rms_reciprocal(x, n);
        const __m256 vr = _mm256_set1_ps(r);
        size_t j = 0;

        for (; j + 8 <= n; j += 8)
            _mm256_storeu_ps(y + j, _mm256_mul_ps(_mm256_loadu_ps(x + j), vr));
        if (j < n) {
            __m256i mask = lks__mask_avx2(n - j);
            _mm256_maskstore_ps(y + j, mask, _mm256_mul_ps(_mm256_maskload_ps(x + j, mask), vr));
        }
        if (rms)
            rms[i] = r;
    }
}

void lks__rmsnorm_bwd_avx2(float *dx, const float *dy, const float *x, const float *rms,
                           size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, dx += n, dy += n, x += n) {
        float r = rms[i];
        /* dx += r dy - x c */
        const __m256 vr = _mm256_set1_ps(r);
        const __m256 c = _mm256_set1_ps(r * r * (r * (lks__dot_avx2(dy, x, n) / (float)n)));
        size_t j = 0;

        for (; j + 8 <= n; j += 8) {
            __m256 v = _mm256_fmadd_ps(vr, _mm256_loadu_ps(dy + j), _mm256_loadu_ps(dx + j));
            _mm256_storeu_ps(dx + j, _mm256_fnmadd_ps(c, _mm256_loadu_ps(x + j), v));
        }
        if (j < n) {
            __m256i mask = lks__mask_avx2(n - j);
            __m256 v = _mm256_fmadd_ps(vr, _mm256_maskload_ps(dy + j, mask),
                                       _mm256_maskload_ps(dx + j, mask));
            v = _mm256_fnmadd_ps(c, _mm256_maskload_ps(x + j, mask), v);
            _mm256_maskstore_ps(dx + j, mask, v);
        }
    }
}

void lks__rope_fwd_avx2(float *y, float *rms, const float *x, const float *cosine,
                        const float *sine, const float *gain, size_t heads, size_t hs)
{
    const size_t half = hs / 2;
    for (size_t i = 0; i < heads; i++, x += hs, y += hs) {
        float r = rms_reciprocal(x, hs);
        const __m256 vr = _mm256_set1_ps(r), g = _mm256_set1_ps(gain ? gain[i] : 1.0f);

        for (size_t j = 0; j < half; j += 8) {
            __m256i mask = mask_of(half - j);
            __m256 c = _mm256_maskload_ps(cosine + j, mask), s = _mm256_maskload_ps(sine + j, mask);
            __m256 a = _mm256_mul_ps(_mm256_maskload_ps(x + j, mask), vr);
            __m256 b = _mm256_mul_ps(_mm256_maskload_ps(x + half + j, mask), vr);
            __m256 p = _mm256_fmadd_ps(a, c, _mm256_mul_ps(b, s));
            __m256 q = _mm256_fmsub_ps(b, c, _mm256_mul_ps(a, s));
            _mm256_maskstore_ps(y + j, mask, _mm256_mul_ps(p, g));
            _mm256_maskstore_ps(y + half + j, mask, _mm256_mul_ps(q, g));
        }
        rms[i] = r;
    }
}

/* Eight elements of each half of dy, turned back. */
struct turned {
    __m256 u, v;
};

static inline struct turned turn_back(const float *dy, const float *cosine, const float *sine,
                                      size_t half, __m256i mask)
{
    __m256 c = _mm256_maskload_ps(cosine, mask), s = _mm256_maskload_ps(sine, mask);
    __m256 p = _mm256_maskload_ps(dy, mask), q = _mm256_maskload_ps(dy + half, mask);
    return (struct turned){_mm256_fmsub_ps(p, c, _mm256_mul_ps(q, s)),
                           _mm256_fmadd_ps(p, s, _mm256_mul_ps(q, c))};
}

void lks__rope_bwd_avx2(float *dx, float *dgain, const float *dy, const float *x, const float *rms,
                        const float *cosine, const float *sine, const float *gain, size_t heads,
                        size_t hs)
{
    const size_t half = hs / 2;
    for (size_t i = 0; i < heads; i++, dx += hs, dy += hs, x += hs) {
        float r = rms[i], scale = gain ? r * gain[i] : r;
        __m256 sum = _mm256_setzero_ps();

        for (size_t j = 0; j < half; j += 8) {
            __m256i mask = mask_of(half - j);
            struct turned t = turn_back(dy + j, cosine + j, sine + j, half, mask);
            sum = _mm256_fmadd_ps(t.u, _mm256_maskload_ps(x + j, mask), sum);
            sum = _mm256_fmadd_ps(t.v, _mm256_maskload_ps(x + half + j, mask), sum);
        }
        float m = lks__hsum_avx2(sum) * r;
        const __m256 c = _mm256_set1_ps(r * (m / (float)hs)), vs = _mm256_set1_ps(scale);
        for (size_t j = 0; j < half; j += 8) {
            __m256i mask = mask_of(half - j);
            struct turned t = turn_back(dy + j, cosine + j, sine + j, half, mask);
            __m256 u = _mm256_fnmadd_ps(c, _mm256_maskload_ps(x + j, mask), t.u);
            __m256 v = _mm256_fnmadd_ps(c, _mm256_maskload_ps(x + half + j, mask), t.v);
            _mm256_maskstore_ps(dx + j, mask, _mm256_mul_ps(u, vs));
            _mm256_maskstore_ps(dx + half + j, mask, _mm256_mul_ps(v, vs));
        }
        if (dgain)
            dgain[i] += m;
    }
}
