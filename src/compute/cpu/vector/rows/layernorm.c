/* compute/cpu/vector/rows/layernorm.c - LayerNorm; formulas in
 * tests/kernels/reference/ref_layernorm.c.
 *
 * A row fits in the first-level cache, so each row is read two or three times. */
#include <math.h>

#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec.h"

static const float eps = 1e-5f;

/* Four independent sums hide the latency of an addition. */
static inline float hsum4(const vf s[4])
{
    return v_hsum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

static float row_sum(const float *x, size_t n)
{
    vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    size_t j = 0;

    for (; j + 4 * LANES <= n; j += 4 * LANES)
        for (int l = 0; l < 4; l++)
            s[l] = v_add(s[l], v_load(x + j + LANES * l));
    for (; j < n; j += LANES)
        s[0] = v_add(s[0], v_load_mask(x + j, v_mask(n - j)));
    return hsum4(s);
}

/* sum of (x - m)^2 */
static float row_squares(const float *x, size_t n, float m)
{
    const vf vm = v_set1(m);
    vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    size_t j = 0;

    for (; j + 4 * LANES <= n; j += 4 * LANES)
        for (int l = 0; l < 4; l++) {
            vf d = v_sub(v_load(x + j + LANES * l), vm);
            s[l] = v_fma(d, d, s[l]);
        }
    for (; j < n; j += LANES) {
        vmask mask = v_mask(n - j);
        vf d = v_sub(v_load_mask(x + j, mask), vm);
        d = v_keep(mask, d);
        s[0] = v_fma(d, d, s[0]);
    }
    return hsum4(s);
}

void VERSION(layernorm_fwd)(float *y, float *mean, float *rstd, const float *x, const float *gain,
                            const float *bias, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n) {
        float m = row_sum(x, n) / n;
        float r = 1 / sqrtf(row_squares(x, n, m) / n + eps);
        const vf vm = v_set1(m), vr = v_set1(r);
        size_t j = 0;

        for (; j + LANES <= n; j += LANES) {
            vf xhat = v_mul(v_sub(v_load(x + j), vm), vr);
            vf b = bias ? v_load(bias + j) : v_zero();
            v_store(y + j, v_fma(xhat, v_load(gain + j), b));
        }
        if (j < n) {
            vmask mask = v_mask(n - j);
            vf xhat = v_mul(v_sub(v_load_mask(x + j, mask), vm), vr);
            vf b = bias ? v_load_mask(bias + j, mask) : v_zero();
            vf v = v_fma(xhat, v_load_mask(gain + j, mask), b);
            v_store_mask(y + j, mask, v);
        }
        if (mean)
            mean[i] = m;
        if (rstd)
            rstd[i] = r;
    }
}

/* Values of one row that backward needs. */
typedef struct row {
    vf mean, rstd;
    vf d_mean, dxhat_mean; /* of d = dy * gain, and of d * xhat */
} row;

/* Lanes of `sum_d` and `sum_dxhat`, dgain and dbias for one vector of dy and x. */
static inline void sums(const row *r, vf dy, vf x, vf gain, vf *dgain, vf *sum_d, vf *sum_dxhat)
{
    vf xhat = v_mul(v_sub(x, r->mean), r->rstd);
    vf d = v_mul(dy, gain);
    *dgain = v_fma(dy, xhat, *dgain);
    *sum_d = v_add(*sum_d, d);
    *sum_dxhat = v_fma(d, xhat, *sum_dxhat);
}

static inline vf gradient(const row *r, vf dx, vf dy, vf x, vf gain)
{
    vf xhat = v_mul(v_sub(x, r->mean), r->rstd);
    vf d = v_fms(dy, gain, r->d_mean);
    return v_fma(r->rstd, v_fnma(xhat, r->dxhat_mean, d), dx);
}

/* First pass over a row: computes its two means, and its part of dgain and dbias. */
static inline void row_sums(row *r, float *dgain, float *dbias, const float *dy, const float *x,
                            const float *gain, size_t n)
{
    vf sum_d[2] = {v_zero(), v_zero()};
    vf sum_dxhat[2] = {v_zero(), v_zero()};
    size_t j = 0;

    for (; j + 2 * LANES <= n; j += 2 * LANES)
        for (int l = 0; l < 2; l++) {
            size_t o = j + LANES * l;
            vf vdy = v_load(dy + o), vdgain = v_load(dgain + o);
            sums(r, vdy, v_load(x + o), v_load(gain + o), &vdgain, &sum_d[l], &sum_dxhat[l]);
            v_store(dgain + o, vdgain);
            if (dbias)
                v_store(dbias + o, v_add(v_load(dbias + o), vdy));
        }
    for (; j < n; j += LANES) {
        /* lanes beyond the end have dy = 0 and so add nothing */
        vmask mask = v_mask(n - j);
        vf vdy = v_load_mask(dy + j, mask);
        vf vdgain = v_load_mask(dgain + j, mask);
        sums(r, vdy, v_load_mask(x + j, mask), v_load_mask(gain + j, mask), &vdgain, &sum_d[0],
             &sum_dxhat[0]);
        v_store_mask(dgain + j, mask, vdgain);
        if (dbias)
            v_store_mask(dbias + j, mask, v_add(v_load_mask(dbias + j, mask), vdy));
    }
    r->d_mean = v_set1(v_hsum(v_add(sum_d[0], sum_d[1])) / n);
    r->dxhat_mean = v_set1(v_hsum(v_add(sum_dxhat[0], sum_dxhat[1])) / n);
}

void VERSION(layernorm_bwd)(float *dx, float *dgain, float *dbias, const float *dy, const float *x,
                            const float *gain, const float *mean, const float *rstd, size_t rows,
                            size_t n)
{
    for (size_t i = 0; i < rows; i++, dx += n, dy += n, x += n) {
        row r = {.mean = v_set1(mean[i]), .rstd = v_set1(rstd[i])};
        size_t j = 0;

        row_sums(&r, dgain, dbias, dy, x, gain, n);
        for (; j + LANES <= n; j += LANES) {
            vf v = gradient(&r, v_load(dx + j), v_load(dy + j), v_load(x + j), v_load(gain + j));
            v_store(dx + j, v);
        }
        if (j < n) {
            vmask mask = v_mask(n - j);
            vf v = gradient(&r, v_load_mask(dx + j, mask), v_load_mask(dy + j, mask),
                            v_load_mask(x + j, mask), v_load_mask(gain + j, mask));
            v_store_mask(dx + j, mask, v);
        }
    }
}
