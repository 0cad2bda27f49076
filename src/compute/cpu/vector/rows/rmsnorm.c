/* compute/cpu/vector/rows/rmsnorm.c - RMSNorm, and the operations on query and key heads; formulas
 * in tests/kernels/reference/ref_rmsnorm.c.
 *
 * A row fits in the first-level cache, so each row is read twice. */
#include <float.h>
#include <math.h>

#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec.h"

/* 1 / sqrt(mean of squares + eps) */
static float rms_reciprocal(const float *x, size_t n)
{
    return 1 / sqrtf(VERSION(dot)(x, x, n) / (float)n + FLT_EPSILON);
}

void VERSION(rmsnorm_fwd)(float *y, float *rms, const float *x, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n) {
        float r = rms_reciprocal(x, n);
        const vf vr = v_set1(r);
        size_t j = 0;

        for (; j + LANES <= n; j += LANES)
            v_store(y + j, v_mul(v_load(x + j), vr));
        if (j < n) {
            vmask mask = v_mask(n - j);
            v_store_mask(y + j, mask, v_mul(v_load_mask(x + j, mask), vr));
        }
        if (rms)
            rms[i] = r;
    }
}

void VERSION(rmsnorm_bwd)(float *dx, const float *dy, const float *x, const float *rms, size_t rows,
                          size_t n)
{
    for (size_t i = 0; i < rows; i++, dx += n, dy += n, x += n) {
        float r = rms[i];
        /* dx += r dy - x c */
        const vf vr = v_set1(r);
        const vf c = v_set1(r * r * (r * (VERSION(dot)(dy, x, n) / (float)n)));
        size_t j = 0;

        for (; j + LANES <= n; j += LANES) {
            vf v = v_fma(vr, v_load(dy + j), v_load(dx + j));
            v_store(dx + j, v_fnma(c, v_load(x + j), v));
        }
        if (j < n) {
            vmask mask = v_mask(n - j);
            vf v = v_fma(vr, v_load_mask(dy + j, mask), v_load_mask(dx + j, mask));
            v = v_fnma(c, v_load_mask(x + j, mask), v);
            v_store_mask(dx + j, mask, v);
        }
    }
}

void VERSION(rope_fwd)(float *y, float *rms, const float *x, const float *cosine, const float *sine,
                       const float *gain, size_t heads, size_t hs)
{
    const size_t half = hs / 2;
    for (size_t i = 0; i < heads; i++, x += hs, y += hs) {
        float r = rms_reciprocal(x, hs);
        const vf vr = v_set1(r), g = v_set1(gain ? gain[i] : 1.0f);

        for (size_t j = 0; j < half; j += LANES) {
            vmask mask = v_mask(half - j);
            vf c = v_load_mask(cosine + j, mask), s = v_load_mask(sine + j, mask);
            vf a = v_mul(v_load_mask(x + j, mask), vr);
            vf b = v_mul(v_load_mask(x + half + j, mask), vr);
            vf p = v_fma(a, c, v_mul(b, s));
            vf q = v_fms(b, c, v_mul(a, s));
            v_store_mask(y + j, mask, v_mul(p, g));
            v_store_mask(y + half + j, mask, v_mul(q, g));
        }
        rms[i] = r;
    }
}

/* LANES elements of each half of dy, rotated back. */
struct turned {
    vf u, v;
};

static inline struct turned turn_back(const float *dy, const float *cosine, const float *sine,
                                      size_t half, vmask mask)
{
    vf c = v_load_mask(cosine, mask), s = v_load_mask(sine, mask);
    vf p = v_load_mask(dy, mask), q = v_load_mask(dy + half, mask);
    return (struct turned){v_fms(p, c, v_mul(q, s)), v_fma(p, s, v_mul(q, c))};
}

void VERSION(rope_bwd)(float *dx, float *dgain, const float *dy, const float *x, const float *rms,
                       const float *cosine, const float *sine, const float *gain, size_t heads,
                       size_t hs)
{
    const size_t half = hs / 2;
    for (size_t i = 0; i < heads; i++, dx += hs, dy += hs, x += hs) {
        float r = rms[i], scale = gain ? r * gain[i] : r;
        vf sum = v_zero();

        for (size_t j = 0; j < half; j += LANES) {
            vmask mask = v_mask(half - j);
            struct turned t = turn_back(dy + j, cosine + j, sine + j, half, mask);
            sum = v_fma(t.u, v_load_mask(x + j, mask), sum);
            sum = v_fma(t.v, v_load_mask(x + half + j, mask), sum);
        }
        float m = v_hsum(sum) * r;
        const vf c = v_set1(r * (m / (float)hs)), vs = v_set1(scale);
        for (size_t j = 0; j < half; j += LANES) {
            vmask mask = v_mask(half - j);
            struct turned t = turn_back(dy + j, cosine + j, sine + j, half, mask);
            vf u = v_fnma(c, v_load_mask(x + j, mask), t.u);
            vf v = v_fnma(c, v_load_mask(x + half + j, mask), t.v);
            v_store_mask(dx + j, mask, v_mul(u, vs));
            v_store_mask(dx + half + j, mask, v_mul(v, vs));
        }
        if (dgain)
            dgain[i] += m;
    }
}
