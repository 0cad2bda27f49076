/* compute/cpu/vector/rows/relu2.c - squared ReLU; formulas in compute/cpu/reference/ref_relu2.c. */
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec.h"

static inline vf relu(vf x)
{
    return v_max(v_zero(), x); /* if one is NaN, v_max gives the second: NaN stays */
}

static inline vf gradient(vf dy, vf x)
{
    vf r = relu(x);
    return v_mul(dy, v_add(r, r));
}

void VERSION(relu2_fwd)(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf r = relu(v_load(x + i));
        v_store(y + i, v_mul(r, r));
    }
    if (i < n) {
        vmask mask = v_mask(n - i);
        vf r = relu(v_load_mask(x + i, mask));
        v_store_mask(y + i, mask, v_mul(r, r));
    }
}

void VERSION(relu2_bwd)(float *dx, const float *dy, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(dx + i, gradient(v_load(dy + i), v_load(x + i)));
    if (i < n) {
        vmask mask = v_mask(n - i);
        vf v = gradient(v_load_mask(dy + i, mask), v_load_mask(x + i, mask));
        v_store_mask(dx + i, mask, v);
    }
}
