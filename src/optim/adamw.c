#include "optim/adamw.h"

#include <math.h>
#include <stdbool.h>

enum { BLOCKS_A_TASK = 16 };

struct update {
    const lks__exec *ex;
    const lks__table *table;
    size_t first, end;
    lks__adamw kind[LKS__N_PARAM_KINDS];
    bool skip[LKS__N_PARAM_KINDS];
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
        int kind = u->table->block_kind[b];
        if (!u->skip[kind])
            u->ex->k->adamw(u->params + at, u->m + at, u->v + at, u->grads + at, n, &u->kind[kind]);
    }
}

static void run(struct update *u)
{
    size_t n_tasks = (u->end - u->first + BLOCKS_A_TASK - 1) / BLOCKS_A_TASK;
    lks__pool_run(u->ex->pool, n_tasks, update_task, u);
}

static lks__adamw factors(double lr, double weight_decay, double beta1, double beta2, double eps,
                          uint64_t t, double clip)
{
    return (lks__adamw){
        .decay = (float)(1.0 - lr * weight_decay),
        .one_m_b1 = (float)(1.0 - beta1),
        .b2 = (float)beta2,
        .one_m_b2 = (float)(1.0 - beta2),
        .step_size = (float)(lr / (1.0 - pow(beta1, (double)t))),
        .inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)t))),
        .eps = (float)eps,
        .clip = (float)clip,
    };
}

void lks__adamw_update(const lks__exec *ex, const lks__table *table, size_t first, size_t end,
                       const lks__adamw_step *s, float *params, float *exp_avg, float *exp_avg_sq,
                       const float *grads)
{
    struct update u = {.ex = ex,
                       .table = table,
                       .first = first,
                       .end = end,
                       .params = params,
                       .m = exp_avg,
                       .v = exp_avg_sq,
                       .grads = grads};
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        u.kind[kind] = factors(s->lr, kind == LKS__PARAM_DECAY ? s->weight_decay : 0.0, s->beta1,
                               s->beta2, s->eps, s->t, s->clip);
    run(&u);
}

void lks__adam_update(const lks__exec *ex, const lks__table *table, size_t first, size_t end,
                      const lks__adam_step *s, float *params, float *exp_avg, float *exp_avg_sq,
                      const float *grads)
{
    struct update u = {.ex = ex,
                       .table = table,
                       .first = first,
                       .end = end,
                       .skip = {[LKS__PARAM_MATRIX] = true},
                       .params = params,
                       .m = exp_avg,
                       .v = exp_avg_sq,
                       .grads = grads};
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        u.kind[kind] = factors(s->lr[kind], 0.0, s->beta1, s->beta2, s->eps, s->t, s->clip);
    run(&u);
}

double lks__clip_factor(double norm, double max)
{
    if (max == 0.0)
        return 1.0;
    double factor = max / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}
