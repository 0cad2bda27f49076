/* tests/kernels/reference/ref_adamw.c - one AdamW step (Loshchilov, Hutter 2019) in the order of
 * operations of torch.optim.AdamW. `a` holds the factors that depend only on the step. */
#include <float.h>
#include <math.h>

#include "kernels/reference/reference.h"

void lks__adamw_ref(lks__real *p, lks__real *m, lks__real *v, const lks__real *g, size_t n,
                    const lks__adamw *a)
{
    for (size_t i = 0; i < n; i++) {
        lks__real grad = g[i] * a->clip;
        m[i] += (grad - m[i]) * a->one_m_b1;
        v[i] = v[i] * a->b2 + a->one_m_b2 * grad * grad;
        if (fabs(m[i]) < FLT_MIN)
            m[i] = 0;
        if (v[i] < FLT_MIN)
            v[i] = 0;
        lks__real denom = (lks__real)sqrt(v[i]) * a->inv_sqrt_bc2 + a->eps;
        p[i] = p[i] * a->decay - a->step_size * (m[i] / denom);
    }
}
