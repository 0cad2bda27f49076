#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "train/evaluate/evaluate.h"

struct split {
    const lks__split_eval *e;
    uint64_t n_windows;
};

/* Sum of losses and bytes of one batch's targets. Windows are adjacent, so a batch is one span of
 * tokens. */
static lks_status split_batch(void *ctx, size_t batch, double *values)
{
    struct split *s = ctx;
    const lks__split_eval *e = s->e;
    uint64_t first = (uint64_t)batch * e->B, left = s->n_windows - first;
    size_t rows = (left < e->B ? (size_t)left : e->B) * e->T;
    int32_t *tokens, *targets;
    LKS__TRY(lks__batch_next(&e->work->batch, &tokens, &targets));
    LKS__TRY(lks__shards_read(e->source, first * e->T, rows + 1, tokens));
    memcpy(targets, tokens + 1, rows * sizeof *tokens);
    const lks__micro_batch mb = lks__batch_send(&e->work->batch, (int)(rows / e->T), (int)e->T);
    double loss;
    LKS__TRY(lks__eval_loss(e->work, e->params, &mb, &loss));
    values[0] = (double)rows * loss;
    if (e->bytes != NULL)
        values[1] = (double)lks__byte_count(e->bytes, tokens, targets, rows);
    return LKS_OK;
}

lks_status lks__eval_split(const lks__split_eval *e, lks__split_result *result)
{
    struct split s = {.e = e, .n_windows = e->n_tokens == 0 ? 0 : (e->n_tokens - 1) / e->T};
    if (s.n_windows == 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s has %" PRIu64
                         " tokens: too few for one window of block_size + 1 = %zu",
                         lks__shards_path(e->source, 0), e->n_tokens, e->T + 1);
    size_t n_batches = (size_t)((s.n_windows + e->B - 1) / e->B);
    double *values = calloc(n_batches, 2 * sizeof *values);
    lks_status st = LKS_OK;
    if (values == NULL)
        st = lks__no_memory("for %zu batches of %zu windows", n_batches, e->B);
    st = lks__session_agree(e->session, st);
    const lks__eval_job job = {e->session, n_batches, 2, split_batch, &s};
    *result = (lks__split_result){.n_windows = s.n_windows};
    LKS__THEN(st, lks__eval_means(&job, e, s.n_windows * e->T, values, result));
    free(values);
    return st;
}
