/* train/evalsplit.c - the mean loss over a whole split. */
#include <stdlib.h>

#include "train/batch.h"
#include "train/evaluate.h"

struct split {
    const lks__split_eval *e;
    uint64_t n_windows;
    uint64_t *offsets; /* [B] */
    int32_t *tokens, *targets;
};

static size_t windows_in(const struct split *s, size_t batch)
{
    uint64_t first = (uint64_t)batch * s->e->B, left = s->n_windows - first;
    return left < s->e->B ? (size_t)left : s->e->B;
}

/* Sum, not mean: the last batch may be smaller. */
static lks_status split_batch(void *ctx, size_t batch, double *loss_p)
{
    struct split *s = ctx;
    size_t n = windows_in(s, batch), T = (size_t)s->e->replica->config.block_size;
    for (size_t b = 0; b < n; b++)
        s->offsets[b] = ((uint64_t)batch * s->e->B + b) * T;
    LKS__TRY(lks__batch_read(s->e->data, s->offsets, n, T, s->tokens, s->targets));
    lks__micro_batch mb = {s->tokens, s->targets, (int)n, (int)T};
    *loss_p = (double)n * (double)lks__model_loss(s->e->replica->model, s->e->replica->params, &mb);
    return LKS_OK;
}

lks_status lks__eval_split(const lks__split_eval *e, double *loss_p, uint64_t *n_windows_p)
{
    size_t T = (size_t)e->replica->config.block_size, B = e->B;
    uint64_t tokens = lks__tokens_count(e->data);
    struct split s = {.e = e, .n_windows = tokens == 0 ? 0 : (tokens - 1) / T};
    if (s.n_windows == 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s has %llu tokens: too few for one window of block_size + 1 = %zu",
                         lks__tokens_path(e->data), (unsigned long long)tokens, T + 1);
    size_t n_batches = (size_t)((s.n_windows + B - 1) / B);
    s.offsets = calloc(B, sizeof *s.offsets);
    s.tokens = calloc(B * T + 1, sizeof *s.tokens);
    s.targets = calloc(B * T, sizeof *s.targets);
    double *losses = calloc(n_batches, sizeof *losses), sum = 0.0;
    lks_status st = LKS_OK;
    if (s.offsets == NULL || s.tokens == NULL || s.targets == NULL || losses == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %zu batches of %zu windows", n_batches, B);
    st = lks__session_agree(e->session, st);
    lks__eval_job job = {e->session, n_batches, 1, split_batch, &s};
    if (st == LKS_OK)
        st = lks__eval_batches(&job, losses);
    for (size_t i = 0; i < n_batches && st == LKS_OK; i++)
        sum += losses[i];
    if (st == LKS_OK) {
        *loss_p = sum / (double)s.n_windows;
        *n_windows_p = s.n_windows;
    }
    free(s.offsets);
    free(s.tokens);
    free(s.targets);
    free(losses);
    return st;
}
