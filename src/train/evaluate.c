/* train/evaluate.c - losses without gradients, dealt over ranks in whole batches. */
#include "train/evaluate.h"

#include <stdlib.h>
#include <string.h>

#include "train/batch.h"
#include "train/trainer.h"

lks_status lks__eval_batches(const lks__eval_job *job, double *losses)
{
    lks__session *ses = job->session;
    size_t W = (size_t)ses->world.world_size, rank = (size_t)ses->world.rank;
    size_t most = (job->n_batches + W - 1) / W;
    double *mine = calloc(most, sizeof *mine), *all = calloc(most * W, sizeof *all);
    lks_status st = LKS_OK;
    if (mine == NULL || all == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %zu evaluation batches", job->n_batches);
    for (size_t i = rank, n = 0; i < job->n_batches && st == LKS_OK; i += W, n++) {
        st = job->loss(job->ctx, i, &mine[n]);
        lks_comm_beat(ses->comm);
    }
    st = lks__session_agree(ses, st);
    if (st == LKS_OK)
        st = lks_comm_all_gather(ses->comm, mine, all, most * sizeof *mine);
    for (size_t i = 0; i < job->n_batches && st == LKS_OK; i++)
        losses[i] = all[i % W * most + i / W];
    free(mine);
    free(all);
    return st;
}

struct estimate {
    lks__trainer *t;
    const uint64_t *offsets; /* [2][eval_iters][B] */
};

/* Batch i of both splits' batches, train first. */
static lks_status estimate_batch(void *ctx, size_t i, double *loss_p)
{
    const struct estimate *e = ctx;
    lks__trainer *t = e->t;
    size_t B = (size_t)t->s.batch_size, T = (size_t)t->s.block_size;
    LKS__TRY(lks__batch_read(t->data[i / (size_t)t->s.eval_iters], e->offsets + i * B, B, T,
                             t->tokens, t->targets));
    lks__micro_batch mb = {t->tokens, t->targets, (int)B, (int)T};
    *loss_p = (double)lks__model_loss(t->model, t->params, &mb);
    return LKS_OK;
}

lks_status lks__evaluate(lks__trainer *t, lks__eval_result *result)
{
    size_t n = (size_t)t->s.eval_iters;
    lks_comm_note(t->ses.comm, t->iter, "evaluation");
    double *losses = calloc(2 * n, sizeof *losses);
    struct estimate e = {t, lks__sampler_eval(t->sampler, t->iter, (int)n)};
    lks_status st = LKS_OK;
    if (losses == NULL || e.offsets == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %zu evaluation batches", 2 * n);
    st = lks__session_agree(&t->ses, st);
    lks__eval_job job = {&t->ses, 2 * n, estimate_batch, &e};
    if (st == LKS_OK)
        st = lks__eval_batches(&job, losses);
    for (int split = 0; split < 2 && st == LKS_OK; split++) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++)
            sum += losses[(size_t)split * n + i];
        result->loss[split] = sum / (double)n;
    }
    free(losses);
    return st;
}
