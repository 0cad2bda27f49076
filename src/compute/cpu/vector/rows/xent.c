/* compute/cpu/vector/rows/xent.c - one row of cross-entropy; formulas in
 * tests/kernels/reference/ref_xent.c.
 *
 * Three passes: maximum; exponentials (kept in dx) and their sum; scaling. Groups of 64 elements
 * are summed in float, and these sums in double, so a large vocabulary loses no accuracy.
 *
 * For capped logits dx holds the logits instead, because the gradient needs them; their
 * exponentials are computed twice. */
#include <math.h>

#include "base/number/math.h"
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec_math.h"

static float row_max(const float *x, size_t n)
{
    vf m[4];
    size_t j = 0;

    for (int l = 0; l < 4; l++)
        m[l] = v_set1(-INFINITY);
    for (; j + 4 * LANES <= n; j += 4 * LANES)
        for (int l = 0; l < 4; l++) /* if one is NaN, v_max gives the second, m */
            m[l] = v_max(v_load(x + j + LANES * l), m[l]);
    for (; j < n; j += LANES) {
        vmask mask = v_mask(n - j);
        vf v = v_load_mask(x + j, mask);
        v = v_select(mask, v, m[0]);
        m[0] = v_max(v, m[0]);
    }
    return v_hmax(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
}

static inline vd widen_sum(vf v)
{
    return vd_add(v_widen(v, 0), v_widen(v, 1));
}

/* Sum of exp(x - m); each term is stored in dx unless it is NULL. */
static inline double row_exp(float *dx, const float *x, size_t n, float m)
{
    const vf vm = v_set1(m);
    vd total = vd_zero();
    size_t j = 0;

    while (j + 64 <= n) {
        vf sum = v_zero();
        for (size_t end = j + 64; j < end; j += LANES) {
            vf e = v_exp(v_sub(v_load(x + j), vm));
            if (dx)
                v_store(dx + j, e);
            sum = v_add(sum, e);
        }
        total = vd_add(total, widen_sum(sum));
    }
    vf sum = v_zero();
    for (; j < n; j += LANES) {
        vmask mask = v_mask(n - j);
        vf e = v_exp(v_sub(v_load_mask(x + j, mask), vm));
        if (dx)
            v_store_mask(dx + j, mask, e);
        sum = v_add(sum, v_keep(mask, e));
    }
    return vd_hsum(vd_add(total, widen_sum(sum)));
}

double VERSION(xent_row)(float *dx, const float *x, size_t n, size_t target, float scale)
{
    float m = row_max(x, n);
    double x_target = x[target]; /* dx may be x */

    if (dx == NULL)
        return lks__math_log(row_exp(NULL, x, n, m)) - (x_target - m);

    double sum = row_exp(dx, x, n, m);
    float p_target = (float)(dx[target] / sum);
    VERSION(scale)(dx, (float)(scale / sum), n);
    dx[target] = (p_target - 1) * scale;
    return lks__math_log(sum) - (x_target - m);
}

static inline vf capped(vf x, vf cap)
{
    return v_mul(cap, v_tanh(v_div(x, cap)));
}

void VERSION(softcap)(float *y, const float *x, size_t n, float cap)
{
    const vf vcap = v_set1(cap);
    size_t j = 0;

    for (; j + LANES <= n; j += LANES)
        v_store(y + j, capped(v_load(x + j), vcap));
    if (j < n) {
        vmask mask = v_mask(n - j);
        v_store_mask(y + j, mask, capped(v_load_mask(x + j, mask), vcap));
    }
}

/* The loss of a row that must not be changed: capped piece by piece. */
static double capped_loss(const float *x, size_t n, size_t target, float cap)
{
    float piece[256], m = -INFINITY;
    double sum = 0;

    for (size_t j = 0; j < n; j += 256) {
        size_t part = n - j < 256 ? n - j : 256;
        VERSION(softcap)(piece, x + j, part, cap);
        float top = row_max(piece, part);
        m = top > m ? top : m;
    }
    for (size_t j = 0; j < n; j += 256) {
        size_t part = n - j < 256 ? n - j : 256;
        VERSION(softcap)(piece, x + j, part, cap);
        sum += row_exp(NULL, piece, part, m);
    }
    VERSION(softcap)(piece, x + target, 1, cap);
    return lks__math_log(sum) - ((double)piece[0] - m);
}

/* p (1 - (l / cap)^2) for p = scale exp(l - m) / sum */
static inline vf capped_gradient(vf l, vf m, vf factor, vf inverse_cap)
{
    vf t = v_mul(l, inverse_cap);
    vf p = v_mul(factor, v_exp(v_sub(l, m)));
    return v_mul(p, v_fnma(t, t, v_set1(1.0f)));
}

double VERSION(xent_cap_row)(float *dx, const float *x, size_t n, size_t target, float scale,
                             float cap)
{
    if (dx == NULL)
        return capped_loss(x, n, target, cap);

    VERSION(softcap)(dx, x, n, cap);
    float m = row_max(dx, n), l_target = dx[target], t = l_target / cap;
    double sum = row_exp(NULL, dx, n, m);
    const vf vm = v_set1(m), factor = v_set1((float)(scale / sum));
    const vf inverse = v_set1(1.0f / cap);
    size_t j = 0;
    for (; j + LANES <= n; j += LANES)
        v_store(dx + j, capped_gradient(v_load(dx + j), vm, factor, inverse));
    if (j < n) {
        vmask mask = v_mask(n - j);
        v_store_mask(dx + j, mask, capped_gradient(v_load_mask(dx + j, mask), vm, factor, inverse));
    }
    double p_target = lks__math_exp((double)l_target - m) / sum;
    dx[target] = (float)((p_target - 1) * (double)scale * (1 - (double)t * t));
    return lks__math_log(sum) - ((double)l_target - m);
}
