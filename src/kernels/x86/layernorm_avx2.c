/* kernels/x86/layernorm_avx2.c - LayerNorm; formulas in kernels/ref_layernorm.c.
 *
 * A row fits in the first cache, so each row is passed over two or three times. */
#include <math.h>

#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

static const float eps = 1e-5f;

/* Four sums side by side hide the latency of an addition. */
static inline float hsum4(const __m256 s[4])
{
    return lks__hsum_avx2(_mm256_add_ps(_mm256_add_ps(s[0], s[1]), _mm256_add_ps(s[2], s[3])));
}

static float row_sum(const float *x, size_t n)
{
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
    size_t j = 0;

    for (; j + 32 <= n; j += 32)
        for (int l = 0; l < 4; l++)
            s[l] = _mm256_add_ps(s[l], _mm256_loadu_ps(x + j + 8 * l));
    for (; j < n; j += 8)
        s[0] =
            _mm256_add_ps(s[0], _mm256_maskload_ps(x + j, lks__mask_avx2(n - j < 8 ? n - j : 8)));
    return hsum4(s);
}

/* sum of (x - m)^2 */
static float row_squares(const float *x, size_t n, float m)
{
    const __m256 vm = _mm256_set1_ps(m);
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
    size_t j = 0;

    for (; j + 32 <= n; j += 32)
        for (int l = 0; l < 4; l++) {
            __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + j + 8 * l), vm);
            s[l] = _mm256_fmadd_ps(d, d, s[l]);
        }
    for (; j < n; j += 8) {
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 d = _mm256_sub_ps(_mm256_maskload_ps(x + j, mask), vm);
        d = _mm256_and_ps(d, _mm256_castsi256_ps(mask));
        s[0] = _mm256_fmadd_ps(d, d, s[0]);
    }
    return hsum4(s);
}

void lks__layernorm_fwd_avx2(float *y, float *mean, float *rstd, const float *x, const float *gain,
                             const float *bias, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n) {
        float m = row_sum(x, n) / n;
        float r = 1 / sqrtf(row_squares(x, n, m) / n + eps);
        const __m256 vm = _mm256_set1_ps(m), vr = _mm256_set1_ps(r);
        size_t j = 0;

        for (; j + 8 <= n; j += 8) {
            __m256 xhat = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + j), vm), vr);
            __m256 b = bias ? _mm256_loadu_ps(bias + j) : _mm256_setzero_ps();
            _mm256_storeu_ps(y + j, _mm256_fmadd_ps(xhat, _mm256_loadu_ps(gain + j), b));
        }
        if (j < n) {
            __m256i mask = lks__mask_avx2(n - j);
            __m256 xhat = _mm256_mul_ps(_mm256_sub_ps(_mm256_maskload_ps(x + j, mask), vm), vr);
            __m256 b = bias ? _mm256_maskload_ps(bias + j, mask) : _mm256_setzero_ps();
            __m256 v = _mm256_fmadd_ps(xhat, _mm256_maskload_ps(gain + j, mask), b);
            _mm256_maskstore_ps(y + j, mask, v);
        }
        if (mean)
            mean[i] = m;
        if (rstd)
            rstd[i] = r;
    }
}

/* What backward knows of one row. */
typedef struct row {
    __m256 mean, rstd;
    __m256 d_mean, dxhat_mean; /* of d = dy * gain, and of d * xhat */
} row;

/* Lanes of `sum_d` and `sum_dxhat`, dgain and dbias for one vector of dy and x. */
static inline void sums(const row *r, __m256 dy, __m256 x, __m256 gain, __m256 *dgain,
                        __m256 *sum_d, __m256 *sum_dxhat)
{
    __m256 xhat = _mm256_mul_ps(_mm256_sub_ps(x, r->mean), r->rstd);
    __m256 d = _mm256_mul_ps(dy, gain);
    *dgain = _mm256_fmadd_ps(dy, xhat, *dgain);
    *sum_d = _mm256_add_ps(*sum_d, d);
    *sum_dxhat = _mm256_fmadd_ps(d, xhat, *sum_dxhat);
}

static inline __m256 gradient(const row *r, __m256 dx, __m256 dy, __m256 x, __m256 gain)
{
    __m256 xhat = _mm256_mul_ps(_mm256_sub_ps(x, r->mean), r->rstd);
    __m256 d = _mm256_fmsub_ps(dy, gain, r->d_mean);
    return _mm256_fmadd_ps(r->rstd, _mm256_fnmadd_ps(xhat, r->dxhat_mean, d), dx);
}

/* First pass over a row: its two means, and its part of dgain and dbias. */
static inline void row_sums(row *r, float *dgain, float *dbias, const float *dy, const float *x,
                            const float *gain, size_t n)
{
    __m256 sum_d[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 sum_dxhat[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t j = 0;

    for (; j + 16 <= n; j += 16)
        for (int l = 0; l < 2; l++) {
            size_t o = j + 8 * l;
            __m256 vdy = _mm256_loadu_ps(dy + o), vdgain = _mm256_loadu_ps(dgain + o);
            sums(r, vdy, _mm256_loadu_ps(x + o), _mm256_loadu_ps(gain + o), &vdgain, &sum_d[l],
                 &sum_dxhat[l]);
            _mm256_storeu_ps(dgain + o, vdgain);
            if (dbias)
                _mm256_storeu_ps(dbias + o, _mm256_add_ps(_mm256_loadu_ps(dbias + o), vdy));
        }
    for (; j < n; j += 8) {
        /* lanes beyond the end have dy = 0 and so add nothing */
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 vdy = _mm256_maskload_ps(dy + j, mask);
        __m256 vdgain = _mm256_maskload_ps(dgain + j, mask);
        sums(r, vdy, _mm256_maskload_ps(x + j, mask), _mm256_maskload_ps(gain + j, mask), &vdgain,
             &sum_d[0], &sum_dxhat[0]);
        _mm256_maskstore_ps(dgain + j, mask, vdgain);
        if (dbias)
            _mm256_maskstore_ps(dbias + j, mask,
                                _mm256_add_ps(_mm256_maskload_ps(dbias + j, mask), vdy));
    }
    r->d_mean = _mm256_set1_ps(lks__hsum_avx2(_mm256_add_ps(sum_d[0], sum_d[1])) / n);
    r->dxhat_mean = _mm256_set1_ps(lks__hsum_avx2(_mm256_add_ps(sum_dxhat[0], sum_dxhat[1])) / n);
}

void lks__layernorm_bwd_avx2(float *dx, float *dgain, float *dbias, const float *dy, const float *x,
                             const float *gain, const float *mean, const float *rstd, size_t rows,
                             size_t n)
{
    for (size_t i = 0; i < rows; i++, dx += n, dy += n, x += n) {
        row r = {.mean = _mm256_set1_ps(mean[i]), .rstd = _mm256_set1_ps(rstd[i])};
        size_t j = 0;

        row_sums(&r, dgain, dbias, dy, x, gain, n);
        for (; j + 8 <= n; j += 8) {
            __m256 v = gradient(&r, _mm256_loadu_ps(dx + j), _mm256_loadu_ps(dy + j),
                                _mm256_loadu_ps(x + j), _mm256_loadu_ps(gain + j));
            _mm256_storeu_ps(dx + j, v);
        }
        if (j < n) {
            __m256i mask = lks__mask_avx2(n - j);
            __m256 v =
                gradient(&r, _mm256_maskload_ps(dx + j, mask), _mm256_maskload_ps(dy + j, mask),
                         _mm256_maskload_ps(x + j, mask), _mm256_maskload_ps(gain + j, mask));
            _mm256_maskstore_ps(dx + j, mask, v);
        }
    }
}
