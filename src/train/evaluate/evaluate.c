#include "train/evaluate/evaluate.h"

#include <stdlib.h>

#include "base/number/units.h"

lks_status lks__eval_batches(const lks__eval_job *job, double *values)
{
    lks__session *ses = job->session;
    size_t W = (size_t)ses->world.world_size, rank = (size_t)ses->world.rank;
    size_t n_values = job->n_values, most = (job->n_batches + W - 1) / W * n_values;
    double *mine = calloc(most, sizeof *mine), *all = calloc(most * W, sizeof *all);
    lks_status st = LKS_OK;
    if (mine == NULL || all == NULL)
        st = lks__no_memory("for %zu evaluation batches", job->n_batches);
    for (size_t i = rank, n = 0; i < job->n_batches && st == LKS_OK; i += W, n++) {
        st = lks__session_check_stop(ses);
        LKS__THEN(st, job->run(job->ctx, i, &mine[n * n_values]));
        lks_comm_beat(ses->comm);
        lks__session_progress(ses, i + W < job->n_batches ? i + W : job->n_batches, job->n_batches);
    }
    st = lks__session_agree(ses, st);
    LKS__THEN(st, lks_comm_all_gather(ses->comm, mine, all, most * sizeof *mine, LKS_UINT8));
    for (size_t i = 0; i < job->n_batches && st == LKS_OK; i++)
        for (size_t k = 0; k < n_values; k++)
            values[i * n_values + k] = lks__units_plain(all[i % W * most + i / W * n_values + k]);
    free(mine);
    free(all);
    return st;
}

lks_status lks__eval_loss(const lks__step_work *work, const float *params,
                          const lks__micro_batch *mb, double *loss_p)
{
    const lks__mirror *slot = &work->losses;
    lks__model_loss(work->model, params, mb, slot->dev);
    lks__mirror_to_host(slot, LKS__QUEUE_COMPUTE, 0, sizeof(float));
    LKS__TRY(lks__device_finish(slot->device, LKS__QUEUE_COMPUTE));
    *loss_p = (double)*(const float *)slot->host;
    return LKS_OK;
}

lks_status lks__eval_means(const lks__eval_job *job, const lks__split_eval *e, uint64_t targets,
                           double *values, lks__split_result *result)
{
    double loss = 0.0, bytes = 0.0;
    LKS__TRY(lks__eval_batches(job, values));
    for (size_t i = 0; i < job->n_batches; i++) {
        loss += values[2 * i];
        bytes += values[2 * i + 1];
    }
    result->loss = loss / (double)targets;
    result->bpb = e->bytes == NULL ? 0.0 : lks__bpb(result->loss, targets, (uint64_t)bytes);
    return LKS_OK;
}
