#include "compute/cpu/layers.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Elements per task: enough that the cost of a task is negligible. */
enum { RANGE_FLOATS = 1 << 16 };

struct range {
    const lks__exec *ex;
    float *y;
    const float *x; /* NULL: y becomes zero */
    size_t n;
    bool add;
};

static void range_task(void *ctx, size_t task, int thread)
{
    const struct range *r = ctx;
    const size_t at = task * RANGE_FLOATS;
    const size_t n = r->n - at < RANGE_FLOATS ? r->n - at : RANGE_FLOATS;
    if (r->x == NULL)
        memset(r->y + at, 0, n * sizeof *r->y);
    else if (!r->add)
        memcpy(r->y + at, r->x + at, n * sizeof *r->y);
    else
        r->ex->k->add(r->y + at, r->x + at, n);
}

static void run_range(const lks__exec *ex, float *y, const float *x, size_t n, bool add)
{
    struct range r = {ex, y, x, n, add};
    lks__pool_run(ex->pool, (n + RANGE_FLOATS - 1) / RANGE_FLOATS, range_task, &r);
}

void lks__clear(const lks__exec *ex, float *x, size_t n)
{
    run_range(ex, x, NULL, n, false);
}

void lks__accumulate(const lks__exec *ex, float *y, const float *x, size_t n)
{
    run_range(ex, y, x, n, true);
}

void lks__copy(const lks__exec *ex, float *y, const float *x, size_t n)
{
    run_range(ex, y, x, n, false);
}

struct search {
    const float *x;
    size_t n;
    _Atomic uint64_t first;
};

/* The smallest index wins, whichever task is faster. */
static void search_task(void *ctx, size_t task, int thread)
{
    struct search *s = ctx;
    const size_t from = task * RANGE_FLOATS;
    const size_t end = s->n - from < RANGE_FLOATS ? s->n : from + RANGE_FLOATS;
    uint64_t i = from, first = s->first;
    while (i < end && i < first && isfinite(s->x[i]))
        i++;
    while (i < end && i < first && !atomic_compare_exchange_weak(&s->first, &first, i))
        ;
}

void lks__first_not_finite(const lks__exec *ex, uint64_t *first, const float *x, size_t n)
{
    struct search s = {.x = x, .n = n, .first = n};
    lks__pool_run(ex->pool, (n + RANGE_FLOATS - 1) / RANGE_FLOATS, search_task, &s);
    *first = s.first;
}

void lks__act_clear(const lks__exec *ex, lks__act *x, size_t n)
{
    lks__clear(ex, lks__floats(x), n);
}

void lks__act_accumulate(const lks__exec *ex, lks__act *y, const lks__act *x, size_t n)
{
    lks__accumulate(ex, lks__floats(y), lks__floats(x), n);
}

void lks__act_copy(const lks__exec *ex, lks__act *y, const lks__act *x, size_t n)
{
    lks__copy(ex, lks__floats(y), lks__floats(x), n);
}

void lks__act_first_not_finite(const lks__exec *ex, uint64_t *first, const lks__act *x, size_t n)
{
    lks__first_not_finite(ex, first, lks__floats(x), n);
}

void lks__mean_loss(const lks__exec *ex, float *loss, const double *row_loss, size_t rows)
{
    double sum = 0.0;
    for (size_t r = 0; r < rows; r++)
        sum += row_loss[r];
    *loss = (float)(sum / (double)rows);
}

void lks__cap_logits(const lks__exec *ex, float *y, const lks__act *logits, size_t n, float cap)
{
    const float *x = lks__floats(logits);
    if (cap != 0.0f)
        ex->k->softcap(y, x, n, cap);
    else if (y != x)
        memcpy(y, x, n * sizeof *y);
}

const lks__layers lks__layers_cpu = {
#define X(name) .name = lks__##name,
    LKS__LAYER_MAP(X) LKS__LAYER_QUESTION_MAP(X)
#undef X
};
