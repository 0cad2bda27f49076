/* compute/cpu/vector/rows/adamw.c - one AdamW step; formulas in
 * tests/kernels/reference/ref_adamw.c.
 */
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec.h"

typedef struct factors {
    vf decay, one_m_b1, b2, one_m_b2, step_size, inv_sqrt_bc2, eps, clip;
} factors;

/* The moments of a tensor without gradient decay into subnormals, which take processors much
 * longer. So stored ones become 0. */
static inline void step(const factors *f, vf *p, vf *m, vf *v, vf g)
{
    g = v_mul(g, f->clip);
    *m = v_flush(v_fma(v_sub(g, *m), f->one_m_b1, *m));
    *v = v_flush(v_fma(v_mul(f->one_m_b2, g), g, v_mul(*v, f->b2)));
    vf denom = v_fma(v_sqrt(*v), f->inv_sqrt_bc2, f->eps);
    *p = v_fnma(f->step_size, v_div(*m, denom), v_mul(*p, f->decay));
}

void VERSION(adamw)(float *p, float *m, float *v, const float *g, size_t n, const lks__adamw *a)
{
    const factors f = {
        .decay = v_set1(a->decay),
        .one_m_b1 = v_set1(a->one_m_b1),
        .b2 = v_set1(a->b2),
        .one_m_b2 = v_set1(a->one_m_b2),
        .step_size = v_set1(a->step_size),
        .inv_sqrt_bc2 = v_set1(a->inv_sqrt_bc2),
        .eps = v_set1(a->eps),
        .clip = v_set1(a->clip),
    };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        vf vp = v_load(p + i), vm = v_load(m + i);
        vf vv = v_load(v + i);
        step(&f, &vp, &vm, &vv, v_load(g + i));
        v_store(p + i, vp);
        v_store(m + i, vm);
        v_store(v + i, vv);
    }
    if (i < n) {
        vmask mask = v_mask(n - i);
        vf vp = v_load_mask(p + i, mask), vm = v_load_mask(m + i, mask);
        vf vv = v_load_mask(v + i, mask);
        step(&f, &vp, &vm, &vv, v_load_mask(g + i, mask));
        v_store_mask(p + i, mask, vp);
        v_store_mask(m + i, mask, vm);
        v_store_mask(v + i, mask, vv);
    }
}
