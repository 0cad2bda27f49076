/* model/places.c - the module whose output has the first number that isn't finite. */
#include <stdio.h>
#include <stdlib.h>

#include "compute/mirror.h"
#include "model/frame.h"

/* A module's output in a forward pass: x[rows, width]. */
struct output {
    char module[LKS__PLACE];
    const lks__act *x;
    size_t width;
};

enum { MOST_OUTPUTS = LKS__MOST_ACTIVATIONS };

/* The outputs that are valid when a visitor is called for layer `l`, in the order of forward;
 * returns their number. */
static size_t outputs_of(const lks__model *m, int l, struct output out[MOST_OUTPUTS])
{
    lks__activation_row rows[LKS__MOST_ACTIVATIONS];
    const int n_rows = m->ops->activations(m, rows);
    size_t n = 0;
    if (l < 0 || l == m->c.n_layer) {
        snprintf(out->module, LKS__PLACE, "%s", l < 0 ? m->ops->first : m->ops->last);
        out->x = l < 0 ? m->x0 : m->y;
        out->width = m->C;
        return 1;
    }
    for (int i = 0; i < n_rows; i++) {
        if (rows[i].module == NULL)
            continue;
        snprintf(out[n].module, LKS__PLACE, "%s.%d.%s", m->ops->layer, l, rows[i].module);
        out[n].x = lks__model_activation(m, l, &rows[i]);
        out[n++].width = rows[i].width;
    }
    return n;
}

/* The outputs of all modules in the order of forward, and the index of the first non-finite number
 * in each: slots[i] for out[i]. */
struct search {
    const lks__pass *p;
    struct output *out;
    size_t n;
    lks__mirror slots;
};

/* Layers may share memory for their activations (--recompute), so each output is checked before the
 * next layer. */
static void look(void *ctx, int l)
{
    struct search *s = ctx;
    const lks__model *m = s->p->m;
    uint64_t *slots = s->slots.dev;
    const size_t end = s->n + outputs_of(m, l, s->out + s->n);
    for (; s->n < end; s->n++)
        m->layers->act_first_not_finite(m->ex, &slots[s->n], s->out[s->n].x,
                                        s->p->rows * s->out[s->n].width);
}

/* The first output with a non-finite number; s->n if all are finite. */
static lks_status first_bad(struct search *s, size_t *first_p)
{
    const lks__model *m = s->p->m;
    const uint64_t *at = s->slots.host;
    size_t i = 0;
    lks__mirror_to_host(&s->slots, LKS__QUEUE_COMPUTE, 0, s->n * sizeof *at);
    LKS__TRY(lks__device_finish(m->device, LKS__QUEUE_COMPUTE));
    while (i < s->n && at[i] == s->p->rows * s->out[i].width)
        i++;
    *first_p = i;
    return LKS_OK;
}

lks_status lks__model_find_bad(lks__model *m, const float *params, const lks__micro_batch *mb,
                               const lks__backward *bw, char place[LKS__PLACE])
{
    const lks__pass p = lks__pass_of(m, params, mb, bw);
    const size_t most = ((size_t)m->c.n_layer + 2) * MOST_OUTPUTS;
    size_t first = 0;
    struct search s = {.p = &p, .out = calloc(most, sizeof *s.out)};
    if (s.out == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the names of %zu modules", most);
    lks_status st = lks__mirror_open(m->device, most * sizeof(uint64_t), &s.slots);
    if (st != LKS_OK) {
        free(s.out);
        return st;
    }
    lks__model_forward(&p, &(lks__visitor){look, &s});
    st = first_bad(&s, &first);
    if (st == LKS_OK)
        snprintf(place, LKS__PLACE, "%s", first < s.n ? s.out[first].module : "lm_head");
    lks__mirror_close(&s.slots);
    free(s.out);
    return st;
}
