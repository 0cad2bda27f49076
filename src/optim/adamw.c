#include "optim/adamw.h"

#include <math.h>

enum { BLOCKS_A_TASK = 16 };

struct update {
    const lks__exec *ex;
    const lks__table *table;
    size_t first, end;
    lks__adamw plain, decayed;
    float *params, *m, *v;
    const float *grads;
};

static void update_task(void *ctx, size_t task, int thread)
{
    const struct update *u = ctx;
    const size_t *start = u->table->block_start;
    size_t b = u->first + task * BLOCKS_A_TASK;
    for (size_t i = 0; i < BLOCKS_A_TASK && b < u->end; i++, b++) {
        size_t at = start[b], n = start[b + 1] - at;
        u->ex->k->adamw(u->params + at, u->m + at, u->v + at, u->grads + at, n,
                        u->table->block_kind[b] == LKS__PARAM_DECAY ? &u->decayed : &u->plain);
    }
}

void lks__adamw_update(const lks__exec *ex, const lks__table *table, size_t first, size_t end,
                       const lks__adamw_step *s, float *params, float *exp_avg, float *exp_avg_sq,
                       const float *grads)
{
    lks__adamw plain = {
        .decay = 1.0f,
        .one_m_b1 = (float)(1.0 - s->beta1),
        .b2 = (float)s->beta2,
        .one_m_b2 = (float)(1.0 - s->beta2),
        .step_size = (float)(s->lr / (1.0 - pow(s->beta1, (double)s->t))),
        .inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(s->beta2, (double)s->t))),
        .eps = (float)s->eps,
        .clip = (float)s->clip,
    };
    struct update u = {ex, table, first, end, plain, plain, params, exp_avg, exp_avg_sq, grads};
    u.decayed.decay = (float)(1.0 - s->lr * s->weight_decay);
    lks__pool_run(ex->pool, (end - first + BLOCKS_A_TASK - 1) / BLOCKS_A_TASK, update_task, &u);
}

double lks__clip_factor(double norm, double max)
{
    if (max == 0.0)
        return 1.0;
    double factor = max / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}
