#include "train/micro.h"

#include "comm/liveness.h"
#include "train/procedure/procedure.h"

lks__backward lks__train_pass(const lks__trainer *t, int v, int m, float *grads)
{
    return (lks__backward){
        .grads = grads,
        .seed = (uint64_t)t->run.s.seed,
        .step = (uint32_t)t->state.iter,
        .vm = (uint32_t)v << 16 | (uint32_t)m,
        .beat = lks__device_in_call(t->ses.device) ? lks__comm_beats(t->ses.comm) : (lks__beat){0},
    };
}

lks_status lks__train_read(lks__trainer *t, int v, int m, lks__micro_batch *mb)
{
    int32_t *tokens, *targets;
    lks__spans spans;
    LKS__TRY(lks__batch_next(&t->work.batch, &tokens, &targets));
    t->run.procedure->spans(&t->run, &t->state, &t->work, v, m, &spans);
    LKS__TRY(lks__shards_samples(t->run.data[LKS__SPLIT_TRAIN], spans.at, spans.n, spans.length,
                                 tokens, targets));
    *mb = lks__batch_send(&t->work.batch, (int)t->run.s.batch_size, (int)t->run.s.block_size);
    return LKS_OK;
}

lks_status lks__train_alone(lks__trainer *t, int v, int m, float *grads)
{
    lks__micro_batch batch;
    LKS__TRY(lks__train_read(t, v, m, &batch));
    const lks__backward backward = lks__train_pass(t, v, m, grads);
    lks__model_train(t->work.model, t->state.memory->params.dev, &batch, &backward, NULL);
    return LKS_OK;
}

lks_status lks__train_leaf(lks__trainer *t, int v, uint64_t *hash_p)
{
    float *grads = lks__reducer_spare(t->work.reducer);
    t->ses.device->layers->clear(t->ses.device->ex, grads, t->run.table.trained_count);
    for (int m = 0; m < t->run.A; m++) {
        LKS__TRY(lks__session_check_stop(&t->ses));
        LKS__TRY(lks__train_alone(t, v, m, grads));
        lks_comm_beat(t->ses.comm);
    }
    *hash_p = lks__reducer_hash(t->work.reducer, grads);
    return LKS_OK;
}
