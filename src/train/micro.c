#include "train/micro.h"

#include "comm/liveness.h"
#include "train/procedure/procedure.h"

lks__backward lks__train_pass(const lks__run *run, const lks__session *ses, const lks__state *state,
                              int v, int m, float *grads)
{
    return (lks__backward){
        .grads = grads,
        .seed = (uint64_t)run->s.seed,
        .step = (uint32_t)state->iter,
        .vm = (uint32_t)v << 16 | (uint32_t)m,
        .beat = lks__device_in_call(ses->device) ? lks__comm_beats(ses->comm) : (lks__beat){NULL},
    };
}

lks_status lks__train_read(const lks__run *run, const lks__state *state, lks__step_work *work,
                           int v, int m, lks__micro_batch *mb)
{
    int32_t *tokens, *targets;
    lks__spans spans;
    LKS__TRY(lks__batch_next(&work->batch, &tokens, &targets));
    run->procedure->spans(run, state, work, v, m, &spans);
    LKS__TRY(lks__shards_samples(run->data[LKS__SPLIT_TRAIN], spans.at, spans.n, spans.length,
                                 tokens, targets));
    *mb = lks__batch_send(&work->batch, (int)run->s.batch_size, (int)run->s.block_size);
    return LKS_OK;
}

lks_status lks__train_alone(const lks__run *run, const lks__session *ses, const lks__state *state,
                            lks__step_work *work, int v, int m, float *grads)
{
    lks__micro_batch batch;
    LKS__TRY(lks__train_read(run, state, work, v, m, &batch));
    const lks__backward backward = lks__train_pass(run, ses, state, v, m, grads);
    lks__model_train(work->model, state->memory->params.dev, &batch, &backward, NULL);
    return LKS_OK;
}

lks_status lks__train_leaf(const lks__run *run, const lks__session *ses, const lks__state *state,
                           lks__step_work *work, int v, uint64_t *hash_p)
{
    float *grads = lks__reducer_spare(work->reducer);
    ses->device->layers->clear(ses->device->ex, grads, run->table.trained_count);
    for (int m = 0; m < run->A; m++) {
        LKS__TRY(lks__session_check_stop(ses));
        LKS__TRY(lks__train_alone(run, ses, state, work, v, m, grads));
        lks_comm_beat(ses->comm);
    }
    *hash_p = lks__reducer_hash(work->reducer, grads);
    return LKS_OK;
}
