/* model/places.c - outputs of modules by name, and the first that isn't finite. */
#include <stdio.h>
#include <stdlib.h>

#include "compute/mirror.h"
#include "model/frame.h"

void lks__outputs_visit(void *ctx, int l)
{
    const lks__outputs *o = ctx;
    const lks__model *m = o->p->m;
    lks__activation_row rows[LKS__MOST_ACTIVATIONS];
    lks__output out = {.rows = o->p->rows, .width = m->C, .bytes = m->act_bytes};
    if (l < 0 || l == m->c.n_layer) {
        snprintf(out.module, LKS__PLACE, "%s", l < 0 ? m->ops->first : m->ops->last);
        out.x = l < 0 ? m->x0 : m->y;
        o->fn(o->ctx, &out);
        return;
    }
    const int n = m->ops->activations(m, rows);
    for (int i = 0; i < n; i++) {
        if (rows[i].module == NULL)
            continue;
        snprintf(out.module, LKS__PLACE, "%s.%d.%s", m->ops->layer, l, rows[i].module);
        out.x = lks__model_activation(m, l, &rows[i]);
        out.width = rows[i].width;
        o->fn(o->ctx, &out);
    }
}

/* The outputs of all modules in the order of forward, and the index of the first non-finite number
 * in each: slots[i] for out[i]. */
struct search {
    const lks__model *m;
    lks__output *out;
    size_t n;
    lks__mirror slots;
};

/* Layers may share memory for their activations (--recompute), so each output is checked before the
 * next layer. */
static void look(void *ctx, const lks__output *out)
{
    struct search *s = ctx;
    const lks__model *m = s->m;
    uint64_t *slots = s->slots.dev;
    s->out[s->n] = *out;
    m->layers->act_first_not_finite(m->ex, &slots[s->n++], out->x, out->rows * out->width);
}

/* The first output with a non-finite number; s->n if all are finite. */
static lks_status first_bad(struct search *s, size_t *first_p)
{
    const uint64_t *at = s->slots.host;
    size_t i = 0;
    lks__mirror_to_host(&s->slots, LKS__QUEUE_COMPUTE, 0, s->n * sizeof *at);
    LKS__TRY(lks__device_finish(s->m->device, LKS__QUEUE_COMPUTE));
    while (i < s->n && at[i] == s->out[i].rows * s->out[i].width)
        i++;
    *first_p = i;
    return LKS_OK;
}

lks_status lks__model_find_bad(lks__model *m, const float *params, const lks__micro_batch *mb,
                               const lks__backward *bw, char place[LKS__PLACE])
{
    const lks__pass p = lks__pass_of(m, params, mb, bw);
    const size_t most = ((size_t)m->c.n_layer + 2) * LKS__MOST_ACTIVATIONS;
    size_t first = 0;
    struct search s = {.m = m, .out = calloc(most, sizeof *s.out)};
    LKS__MEMORY(s.out, "for the names of %zu modules", most);
    lks_status st = lks__mirror_open(m->device, most * sizeof(uint64_t), &s.slots);
    if (st != LKS_OK) {
        free(s.out);
        return st;
    }
    lks__outputs outputs = {&p, look, &s};
    lks__model_forward(&p, &(lks__visitor){lks__outputs_visit, &outputs});
    st = first_bad(&s, &first);
    if (st == LKS_OK)
        snprintf(place, LKS__PLACE, "%s", first < s.n ? s.out[first].module : "lm_head");
    lks__mirror_close(&s.slots);
    free(s.out);
    return st;
}
