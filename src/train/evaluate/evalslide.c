/* train/evaluate/evalslide.c - evaluation with overlapping windows: each token but the first T is
 * predicted from at least T - stride tokens before it. */
#include <stdlib.h>
#include <string.h>

#include "train/evaluate/evaluate.h"

/* Window k predicts the tokens after [k * stride, k * stride + T). Those that window k - 1 has not
 * predicted count. A shorter last window gets its own batch. */
struct sliding {
    const lks__split_eval *e;
    uint64_t n_whole;   /* windows of T */
    size_t last;        /* length of the shorter last window; 0: none */
    lks__mirror losses; /* double [B * T] */
};

static void divide(struct sliding *s, uint64_t targets)
{
    const size_t T = s->e->T, stride = s->e->stride;
    s->n_whole = targets < T ? 0 : 1 + (targets - T) / stride;
    if (targets < T)
        s->last = (size_t)targets;
    else if ((targets - T) % stride != 0)
        s->last = (size_t)(targets - s->n_whole * stride);
}

static size_t whole_batches(const struct sliding *s)
{
    return (size_t)((s->n_whole + s->e->B - 1) / s->e->B);
}

/* Sum of losses and bytes of windows [first, first + n), `length` tokens each. */
static lks_status windows(struct sliding *s, uint64_t first, size_t n, size_t length,
                          double values[2])
{
    const lks__split_eval *e = s->e;
    int32_t *tokens, *targets;
    LKS__TRY(lks__batch_next(&e->work->batch, &tokens, &targets));
    for (size_t w = 0; w < n; w++) {
        int32_t *row = tokens + w * length; /* its last element is also the first of the next row,
                                               which overwrites it */
        LKS__TRY(lks__shards_read(e->source, (first + w) * e->stride, length + 1, row));
        memcpy(targets + w * length, row + 1, length * sizeof *row);
    }
    const lks__micro_batch mb = lks__batch_send(&e->work->batch, (int)n, (int)length);
    lks__model_row_losses(e->work->model, e->params, &mb, s->losses.dev);
    lks__mirror_to_host(&s->losses, LKS__QUEUE_COMPUTE, 0, n * length * sizeof(double));
    LKS__TRY(lks__device_finish(s->losses.device, LKS__QUEUE_COMPUTE));
    const double *losses = s->losses.host;
    for (size_t w = 0; w < n; w++) {
        const size_t row = w * length, skip = first + w == 0 ? 0 : e->T - e->stride;
        for (size_t i = skip; i < length; i++)
            values[0] += losses[row + i];
        if (e->bytes != NULL)
            values[1] += (double)lks__byte_count(e->bytes, tokens + row + skip,
                                                 targets + row + skip, length - skip);
    }
    return LKS_OK;
}

static lks_status batch(void *ctx, size_t batch, double *values)
{
    struct sliding *s = ctx;
    if (batch == whole_batches(s))
        return windows(s, s->n_whole, 1, s->last, values);
    const uint64_t first = (uint64_t)batch * s->e->B, left = s->n_whole - first;
    return windows(s, first, left < s->e->B ? (size_t)left : s->e->B, s->e->T, values);
}

lks_status lks__eval_sliding(const lks__split_eval *e, lks__split_result *result)
{
    struct sliding s = {.e = e};
    if (e->n_tokens < 2)
        return lks__fail(LKS_ERR_CONFIG, "%s has too few tokens: there is none to predict",
                         lks__shards_path(e->source, 0));
    divide(&s, e->n_tokens - 1);
    const size_t n_batches = whole_batches(&s) + (s.last > 0);
    double *values = calloc(n_batches, 2 * sizeof *values);
    lks_status st = lks__mirror_open(e->session->device, e->B * e->T * sizeof(double), &s.losses);
    if (values == NULL)
        st = lks__no_memory("for %zu batches of windows", n_batches);
    st = lks__session_agree(e->session, st);
    const lks__eval_job job = {e->session, n_batches, 2, batch, &s};
    *result = (lks__split_result){.n_windows = s.n_whole + (s.last > 0)};
    LKS__THEN(st, lks__eval_means(&job, e, e->n_tokens - 1, values, result));
    lks__mirror_close(&s.losses);
    free(values);
    return st;
}

/* A pass over that many windows, without data. */
static void rehearse(const lks__split_eval *e, uint64_t windows, size_t length)
{
    const lks__micro_batch mb = {.B = (int)windows, .T = (int)length};
    if (windows > 0 && length > 0)
        lks__model_loss(e->work->model, e->params, &mb, NULL);
}

lks_status lks__eval_rehearse(void *ctx)
{
    const lks__split_eval *e = ctx;
    struct sliding s = {.e = e, .n_whole = e->n_tokens == 0 ? 0 : (e->n_tokens - 1) / e->T};
    if (e->stride > 0 && e->n_tokens > 0)
        divide(&s, e->n_tokens - 1);
    rehearse(e, s.n_whole < e->B ? s.n_whole : e->B, e->T);
    rehearse(e, s.n_whole % e->B, e->T);
    rehearse(e, 1, s.last);
    return LKS_OK;
}
