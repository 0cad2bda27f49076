/* compute/cpu/vector/rows/relu2.c - squared ReLU; formulas in tests/kernels/reference/ref_relu2.c.
 */
#include "compute/cpu/vector/each.h"
#include "compute/cpu/vector/levels.h"

static inline vf relu(vf x)
{
    return v_max(v_zero(), x); /* if one is NaN, v_max gives the second: NaN stays */
}

static inline vf square(vf x)
{
    vf r = relu(x);
    return v_mul(r, r);
}

static inline vf gradient(vf dy, vf x)
{
    vf r = relu(x);
    return v_mul(dy, v_add(r, r));
}

void VERSION(relu2_fwd)(float *y, const float *x, size_t n)
{
    each(y, x, n, square);
}

void VERSION(relu2_bwd)(float *dx, const float *dy, const float *x, size_t n)
{
    each_pair(dx, dy, x, n, gradient);
}
