/* compute/cpu/layers/decode.c - passes over a few new tokens, whose keys and values are kept. A
 * row's bits depend only on its own operands, not on the number or order of rows. */
#include "compute/cpu/layers.h"

#include <math.h>
#include <string.h>

#include "compute/cpu/layers/epilogue.h"
#include "compute/cpu/row_tasks.h"

/* --- products --------------------------------------------------------------------------------- */

/* Outputs per task: a multiple of the kernels' tile. */
enum { OUTS_A_TASK = 48 };

struct product {
    const lks__exec *ex;
    float *y;
    const float *x, *w;
    size_t ldy, rows, out, in;
    const lks__epilogue *epilogue;
};

static void product_task(void *ctx, size_t task, int thread)
{
    const struct product *p = ctx;
    const size_t c0 = task * OUTS_A_TASK, c1 = lks__min(c0 + OUTS_A_TASK, p->out);
    p->ex->k->dot_rows(p->y + c0, p->ldy, p->x, p->in, p->w + c0 * p->in, p->in, p->rows, c1 - c0,
                       p->in, p->ex->bf16);
    if (p->epilogue != NULL)
        lks__epilogue_tile(p->ex->k, p->epilogue, p->y, p->ldy, 0, p->rows, c0, c1);
}

void lks__linear_rows_fwd(const lks__exec *ex, lks__act *y, size_t ldy, const lks__act *x,
                          const float *w, size_t rows, size_t out, size_t in,
                          const lks__epilogue *epilogue)
{
    struct product p = {.ex = ex,
                        .y = lks__floats(y),
                        .x = lks__floats(x),
                        .w = w,
                        .ldy = ldy,
                        .rows = rows,
                        .out = out,
                        .in = in,
                        .epilogue = epilogue};
    lks__pool_run(ex->pool, (out + OUTS_A_TASK - 1) / OUTS_A_TASK, product_task, &p);
}

/* --- attention -------------------------------------------------------------------------------- */

/* Queries per task. */
enum { QUERIES = 8 };

struct attention {
    const lks__exec *ex;
    lks__attention_shape shape; /* NKV is set */
    lks__attention_cache cache;
    lks__attention_in in;
    float *out;
    float scale; /* 1 / sqrt(hs) */
};

/* Element 0 of a position of key/value head `h` of sequence `b`, in the cache's k or v. */
static size_t cache_at(const struct attention *a, size_t b, size_t h, size_t position)
{
    return ((b * a->shape.NKV + h) * a->cache.T + position) * a->shape.hs;
}

static void keep(const struct attention *a, float *to, const float *from)
{
    if (a->ex->bf16)
        a->ex->k->round_bf16(to, from, a->shape.hs);
    else
        memcpy(to, from, a->shape.hs * sizeof *to);
}

/* Copy keys and values of some new tokens to the cache. */
static void keep_task(void *ctx, size_t task, int thread)
{
    const struct attention *a = ctx;
    const size_t T = a->shape.T, hs = a->shape.hs;
    for (size_t r = task * ROWS_A_TASK; r < lks__min((task + 1) * ROWS_A_TASK, a->shape.B * T); r++)
        for (size_t h = 0; h < a->shape.NKV; h++) {
            const size_t to = cache_at(a, r / T, h, a->cache.at + r % T);
            keep(a, lks__floats(a->cache.k) + to, lks__floats(a->in.k) + r * a->in.ldkv + h * hs);
            keep(a, lks__floats(a->cache.v) + to, lks__floats(a->in.v) + r * a->in.ldkv + h * hs);
        }
}

/* Attention of one query over the first n keys and values. */
static void attend(const struct attention *a, int thread, float *out, const float *q,
                   const float *key, const float *val, size_t n)
{
    const lks__kernels *k = a->ex->k;
    const size_t hs = a->shape.hs;
    float *s = lks__pool_scratch(a->ex->pool, thread); /* [n] */
    float max = -INFINITY, sum = 0, factor;
    k->dot_rows(s, n, q, hs, key, hs, 1, n, hs, a->ex->bf16);
    k->scale(s, a->scale, n);
    k->softmax_block(s, n, 1, n, (ptrdiff_t)n, &max, &sum, &factor);
    if (a->ex->bf16)
        k->round_bf16(s, s, n);
    k->weighted_sum(out, s, val, hs, n, hs);
    k->scale(out, 1 / sum, hs);
}

static void attend_task(void *ctx, size_t task, int thread)
{
    const struct attention *a = ctx;
    const size_t T = a->shape.T, hs = a->shape.hs, NH = a->shape.NH;
    const size_t blocks = (T + QUERIES - 1) / QUERIES;
    const size_t b = task / blocks / NH, h = task / blocks % NH;
    const size_t kv = cache_at(a, b, h / (NH / a->shape.NKV), 0);
    const size_t i0 = task % blocks * QUERIES;
    for (size_t i = i0; i < lks__min(i0 + QUERIES, T); i++)
        attend(a, thread, a->out + ((b * T + i) * NH + h) * hs,
               lks__floats(a->in.q) + (b * T + i) * a->in.ldq + h * hs,
               lks__floats(a->cache.k) + kv, lks__floats(a->cache.v) + kv, a->cache.at + i + 1);
}

void lks__attention_cached_fwd(const lks__exec *ex, const lks__attention_shape *shape,
                               lks__act *out, const lks__attention_cache *cache,
                               const lks__attention_in *in)
{
    struct attention a = {
        .ex = ex, .shape = *shape, .cache = *cache, .in = *in, .out = lks__floats(out)};
    if (shape->NKV == 0)
        a.shape.NKV = shape->NH;
    a.scale = (float)(1.0 / sqrt((double)shape->hs));
    lks__pool_run(ex->pool, row_tasks(shape->B * shape->T), keep_task, &a);
    lks__pool_run(ex->pool, shape->B * shape->NH * ((shape->T + QUERIES - 1) / QUERIES),
                  attend_task, &a);
}

_Static_assert(LKS__ATTENTION_MAX_T * sizeof(float) <= LKS__LAYER_SCRATCH_BYTES,
               "scores of one query fit for every T that check() accepts");
