#include "optim/adamw.h"

/* Blocks [first, end) of the tensors of one kind. `list` has the step's numbers. */
struct target {
    const lks__table *table;
    size_t first, end;
    float *params, *exp_avg, *exp_avg_sq;
    const float *grads;
};

static void update_kind(const lks__device *device, const struct target *u, lks__param_kind kind,
                        lks__adamw_list *list)
{
    const lks__table *table = u->table;
    list->n_pieces = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__tensor *t = &table->tensors[i];
        size_t first = t->first_block > u->first ? t->first_block : u->first;
        size_t end = t->first_block + t->n_blocks < u->end ? t->first_block + t->n_blocks : u->end;
        if (t->kind != kind || first >= end)
            continue;
        if (list->n_pieces == LKS__UPDATE_PIECES) {
            device->layers->update_adamw(device->ex, list);
            list->n_pieces = 0;
        }
        size_t at = table->block_start[first], p = list->n_pieces++;
        list->piece[p].params = u->params + at;
        list->piece[p].exp_avg = u->exp_avg + at;
        list->piece[p].exp_avg_sq = u->exp_avg_sq + at;
        list->piece[p].grads = u->grads + at;
        list->piece[p].n = table->block_start[end] - at;
    }
    if (list->n_pieces > 0)
        device->layers->update_adamw(device->ex, list);
}

void lks__adamw_update(const lks__device *device, const lks__table *table, size_t first, size_t end,
                       const lks__adamw_step *s, float *params, float *exp_avg, float *exp_avg_sq,
                       const float *grads)
{
    const struct target u = {table, first, end, params, exp_avg, exp_avg_sq, grads};
    lks__adamw_list list = {.lr = s->lr,
                            .beta1 = s->beta1,
                            .beta2 = s->beta2,
                            .eps = s->eps,
                            .t = s->t,
                            .clip = s->clip};
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++) {
        list.weight_decay = kind == LKS__PARAM_DECAY ? s->weight_decay : 0.0;
        update_kind(device, &u, (lks__param_kind)kind, &list);
    }
}

void lks__adam_update(const lks__device *device, const lks__table *table, size_t first, size_t end,
                      const lks__adam_step *s, float *params, float *exp_avg, float *exp_avg_sq,
                      const float *grads)
{
    const struct target u = {table, first, end, params, exp_avg, exp_avg_sq, grads};
    lks__adamw_list list = {
        .beta1 = s->beta1, .beta2 = s->beta2, .eps = s->eps, .t = s->t, .clip = s->clip};
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++) {
        list.lr = s->lr[kind];
        if (kind != LKS__PARAM_MATRIX)
            update_kind(device, &u, (lks__param_kind)kind, &list);
    }
}

double lks__clip_factor(double norm, double max)
{
    if (max == 0.0)
        return 1.0;
    double factor = max / (norm + 1e-6);
    return factor < 1.0 ? factor : 1.0;
}
