/* compute/cpu/layers/update.c - updates of lists of pieces, element by element. The pieces together
 * are cut into tasks of one length, which changes no bit. */
#include <math.h>
#include <string.h>

#include "base/number/math.h"
#include "compute/cpu/layers.h"

enum { TASK = 64 * 1024 };

/* The pieces in sequence: piece i is elements [start[i], start[i + 1]). */
struct run {
    size_t start[LKS__UPDATE_PIECES + 1];
    size_t total;
    const lks__kernels *k;
    union {
        const lks__blend *blend;
        const lks__adamw_list *adamw;
    } list;
    lks__adamw factors;
    /* elements [at, at + n) of a piece */
    void (*update)(const struct run *run, size_t piece, size_t at, size_t n);
};

static void update_task(void *ctx, size_t task, int thread)
{
    const struct run *run = ctx;
    size_t from = task * TASK, piece = 0;
    const size_t to = from + TASK < run->total ? from + TASK : run->total;
    while (run->start[piece + 1] <= from)
        piece++;
    for (; from < to; piece++) {
        size_t end = run->start[piece + 1] < to ? run->start[piece + 1] : to;
        run->update(run, piece, from - run->start[piece], end - from);
        from = end;
    }
}

static void run_all(const lks__exec *ex, struct run *run, size_t n_pieces)
{
    run->total = run->start[n_pieces];
    run->k = ex->k;
    lks__pool_run(ex->pool, (run->total + TASK - 1) / TASK, update_task, run);
}

/* --- y = a y + b x, or y = 0 ------------------------------------------------------------------ */

static void blend(const struct run *run, size_t piece, size_t at, size_t n)
{
    const lks__blend *list = run->list.blend;
    const float a = list->a, b = list->b;
    float *restrict y = list->piece[piece].y + at;
    if (list->piece[piece].x == NULL) {
        memset(y, 0, n * sizeof *y);
        return;
    }
    const float *restrict x = list->piece[piece].x + at;
    for (size_t i = 0; i < n; i++)
        y[i] = a * y[i] + b * x[i];
}

void lks__update_blend(const lks__exec *ex, const lks__blend *list)
{
    struct run run = {.list.blend = list, .update = blend};
    for (size_t i = 0; i < list->n_pieces; i++)
        run.start[i + 1] = run.start[i] + list->piece[i].n;
    run_all(ex, &run, list->n_pieces);
}

/* --- AdamW ----------------------------------------------------------------------------------- */

static void adamw(const struct run *run, size_t piece, size_t at, size_t n)
{
    const lks__adamw_list *list = run->list.adamw;
    run->k->adamw(list->piece[piece].params + at, list->piece[piece].exp_avg + at,
                  list->piece[piece].exp_avg_sq + at, list->piece[piece].grads + at, n,
                  &run->factors);
}

static lks__adamw factors(const lks__adamw_list *s)
{
    return (lks__adamw){
        .decay = (float)(1.0 - s->lr * s->weight_decay),
        .one_m_b1 = (float)(1.0 - s->beta1),
        .b2 = (float)s->beta2,
        .one_m_b2 = (float)(1.0 - s->beta2),
        .step_size = (float)(s->lr / (1.0 - lks__math_pow(s->beta1, (double)s->t))),
        .inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - lks__math_pow(s->beta2, (double)s->t))),
        .eps = (float)s->eps,
        .clip = (float)s->clip,
    };
}

void lks__update_adamw(const lks__exec *ex, const lks__adamw_list *list)
{
    struct run run = {.list.adamw = list, .factors = factors(list), .update = adamw};
    for (size_t i = 0; i < list->n_pieces; i++)
        run.start[i + 1] = run.start[i] + list->piece[i].n;
    run_all(ex, &run, list->n_pieces);
}
