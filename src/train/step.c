/* train/step.c - the training step. docs/inside/step.md walks through it. */
#include "train/step.h"

#include "base/system/sys.h"
#include "base/trace.h"
#include "lockstep/reduce.h"
#include "train/checks/divergence.h"
#include "train/checks/nonfinite.h"
#include "train/checks/recheck.h"
#include "train/checks/votes.h"
#include "train/micro.h"
#include "train/procedure/procedure.h"

/* Forward and backward of one micro-batch. Its gradient is added to micro->grads. */
static lks_status micro_step(lks__trainer *t, const lks__reducer_micro *micro)
{
    lks__micro_batch batch;
    lks__trace_begin(LKS__SPAN_DATA, -1);
    LKS__TRY(lks__train_read(t, micro->v, micro->m, &batch));
    lks__trace_end();
    lks__backward backward = lks__train_pass(t, micro->v, micro->m, micro->grads);
    backward.shift = lks__reducer_shift(t->work.reducer);
    backward.fresh = micro->fresh;
    backward.done = lks__reducer_group_done; /* starts to reduce complete buckets */
    backward.done_ctx = t->work.reducer;
    float *losses = t->work.losses.dev;
    lks__model_train(t->work.model, t->state.memory->params.dev, &batch, &backward,
                     &losses[micro->v * t->run.A + micro->m]);
    t->work.micro_batches++;
    return LKS_OK;
}

/* Compute this rank's micro-batches, and the mean gradient of all ranks with its norm. A rank that
 * was asked to stop leaves out the rest, but joins the reductions, because the others wait for it.
 */
static lks_status accumulate(lks__trainer *t, lks__step_result *r)
{
    lks__reducer_micro micro;
    size_t done = 0, n_micro = (size_t)((t->run.end_v - t->run.first_v) * t->run.A), first, bytes;
    t->work.skipped = false;
    lks__reducer_begin(t->work.reducer);
    while (!t->work.skipped && lks__reducer_next(t->work.reducer, &micro)) {
        t->work.skipped = lks__session_asked_stop(&t->ses) != 0;
        if (!t->work.skipped)
            LKS__TRY(micro_step(t, &micro));
        lks__session_progress(&t->ses, ++done, n_micro);
    }
    if (t->work.skipped)
        lks__reducer_skip(t->work.reducer);
    lks__votes_losses(&t->run, &first, &bytes);
    lks__mirror_to_host(&t->work.losses, LKS__QUEUE_COMPUTE, first, bytes);
    LKS__TRY(lks__reducer_finish(t->work.reducer, &r->grads, &r->grad_norm));
    return lks__device_finish(t->ses.device, LKS__QUEUE_COMPUTE);
}

/* Choose the step's outcome, with all ranks. ERR_STOPPED: discard the step. */
static lks_status check(lks__trainer *t, lks__step_result *r)
{
    LKS__TRY(lks__votes_exchange(t, r));
    LKS__TRY(lks__recheck_compare(t, r));
    return r->outcome == LKS__STEP_AGAIN ? LKS_OK : lks__nonfinite_check(t, r);
}

static void begin(const lks__trainer *t, lks__step_result *r)
{
    r->iter = t->state.iter;
    r->outcome = LKS__STEP_DONE;
    lks_comm_note(t->ses.comm, t->state.iter, "forward and backward");
    lks_comm_take_wait_s(t->ses.comm);
    lks__batch_sampler_mark(t->state.sampler);
}

/* Update the parameters of all ranks, unless the step is made without an update. */
static lks_status update(lks__trainer *t, lks__step_result *r)
{
    lks_comm_note(t->ses.comm, t->state.iter, "update");
    lks__trace_begin(LKS__SPAN_UPDATE, -1);
    if (r->outcome == LKS__STEP_DONE)
        LKS__TRY(lks__train_update(t, r));
    lks__trace_end();
    LKS__TRY(lks__memory_publish(t->state.memory));
    t->state.iter++;
    t->state.eval_done = false;
    return lks__divergence_record(t);
}

/* Rank 0's clock decides, so that all ranks stop at the same step. */
static lks_status keep_time(lks__trainer *t, const lks__step_result *r)
{
    if (!t->run.procedure->by_clock)
        return LKS_OK;
    t->state.elapsed_s += r->seconds;
    if (t->run.s.max_wallclock_seconds <= 0.0)
        return LKS_OK;
    LKS__TRY(lks_comm_broadcast(t->ses.comm, &t->state.elapsed_s, sizeof t->state.elapsed_s,
                                LKS_UINT8, 0));
    t->checks.out_of_time = t->state.elapsed_s >= t->run.s.max_wallclock_seconds;
    return LKS_OK;
}

lks_status lks__train_step(lks__trainer *t, lks__step_result *r)
{
    const double started = lks__sys_now();
    lks__trace_begin(LKS__SPAN_STEP, (int64_t)t->state.iter);
    begin(t, r);
    t->run.procedure->begin_step(&t->state, &t->work);
    LKS__TRY(lks__recheck_begin(t));
    LKS__TRY(accumulate(t, r));
    r->exposed_s = lks_comm_take_wait_s(t->ses.comm);
    const lks_status st = check(t, r);
    if (st == LKS_ERR_STOPPED) {
        lks__trace_end();
        lks__votes_discard(t, r);
        return LKS_OK;
    }
    LKS__TRY(st);
    if (r->outcome != LKS__STEP_AGAIN)
        LKS__TRY(update(t, r));
    r->seconds = lks__sys_now() - started;
    lks__trace_end();
    return keep_time(t, r);
}
