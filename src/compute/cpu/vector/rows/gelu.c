/* compute/cpu/vector/rows/gelu.c - GELU; formulas in tests/kernels/reference/ref_gelu.c.
 *
 * tanh form: s = (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), which keeps the accuracy of small values,
 * and (1 - tanh^2 u) / 2 = 2 s (1 - s). */
#include "compute/cpu/vector/each.h"
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec_math.h"

static inline vf erf_fwd(vf x)
{
    vf e;
    return v_mul(x, v_phi(x, &e));
}

static inline vf erf_bwd(vf dy, vf x)
{
    vf e, phi = v_phi(x, &e);
    vf pdf = v_mul(e, v_set1(0.398942280401f)); /* 1 / sqrt(2 pi) */
    return v_mul(dy, v_fma(x, pdf, phi));
}

/* s = 1 / (1 + e), e = exp(-2u). For -2u >= 88, where exp would overflow, both are clamped. */
static inline vf sigmoid_2u(vf x, vf square, vf *e_p)
{
    const vf c1 = v_set1(-2 * 0.797884560803f); /* sqrt(2 / pi) */
    const vf c3 = v_set1(-2 * 0.797884560803f * 0.044715f);
    const vf one = v_set1(1.0f);
    vf minus_2u = v_mul(x, v_fma(c3, square, c1));
    minus_2u = v_min(v_set1(88.0f), minus_2u); /* in the order that keeps NaN */
    *e_p = v_exp(minus_2u);
    return v_div(one, v_add(one, *e_p));
}

static inline vf tanh_fwd(vf x)
{
    vf e;
    return v_mul(x, sigmoid_2u(x, v_mul(x, x), &e));
}

static inline vf tanh_bwd(vf dy, vf x)
{
    /* For |x| >= 64 the slope is 0 or 1, and x^3 could overflow. The order of operands keeps
     * NaN. */
    x = v_max(v_set1(-64.0f), v_min(v_set1(64.0f), x));
    const vf c1 = v_set1(2 * 0.797884560803f);
    const vf c3 = v_set1(2 * 0.797884560803f * 3 * 0.044715f);
    vf e, square = v_mul(x, x), s = sigmoid_2u(x, square, &e);
    vf slope = v_mul(s, v_mul(e, s)); /* s (1 - s), without cancellation */
    vf x_2du = v_mul(x, v_fma(c3, square, c1));
    return v_mul(dy, v_fma(slope, x_2du, s));
}

#define KERNELS(name)                                                                              \
    void VERSION(gelu_##name##_fwd)(float *y, const float *x, size_t n)                            \
    {                                                                                              \
        each(y, x, n, name##_fwd);                                                                 \
    }                                                                                              \
    void VERSION(gelu_##name##_bwd)(float *dx, const float *dy, const float *x, size_t n)          \
    {                                                                                              \
        each_pair(dx, dy, x, n, name##_bwd);                                                       \
    }

KERNELS(erf)
KERNELS(tanh)
