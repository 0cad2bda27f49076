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
#include "train/update.h"

/* Forward and backward of one micro-batch. Its gradient is added to micro->grads. */
static lks_status micro_step(const lks__run *run, const lks__session *ses, const lks__state *state,
                             lks__step_work *work, const lks__reducer_micro *micro)
{
    lks__micro_batch batch;
    lks__trace_begin(LKS__SPAN_DATA, -1);
    LKS__TRY(lks__train_read(run, state, work, micro->v, micro->m, &batch));
    lks__trace_end();
    lks__backward backward = lks__train_pass(run, ses, state, micro->v, micro->m, micro->grads);
    backward.shift = lks__reducer_shift(work->reducer);
    backward.fresh = micro->fresh;
    backward.done = lks__reducer_group_done; /* starts to reduce complete buckets */
    backward.done_ctx = work->reducer;
    float *losses = work->losses.dev;
    lks__model_train(work->model, state->memory->params.dev, &batch, &backward,
                     &losses[micro->v * run->A + micro->m]);
    work->micro_batches++;
    return LKS_OK;
}

/* Compute this rank's micro-batches, and the mean gradient of all ranks with its norm. A rank that
 * was asked to stop leaves out the rest, but joins the reductions, because the others wait for it.
 */
static lks_status accumulate(const lks__run *run, const lks__session *ses, const lks__state *state,
                             lks__step_work *work, lks__step_result *r)
{
    lks__reducer_micro micro;
    size_t done = 0, n_micro = (size_t)((run->end_v - run->first_v) * run->A), first, bytes;
    work->skipped = false;
    lks__reducer_begin(work->reducer);
    while (!work->skipped && lks__reducer_next(work->reducer, &micro)) {
        work->skipped = lks__session_asked_stop(ses) != 0;
        if (!work->skipped)
            LKS__TRY(micro_step(run, ses, state, work, &micro));
        lks__session_progress(ses, ++done, n_micro);
    }
    if (work->skipped)
        lks__reducer_skip(work->reducer);
    lks__votes_losses(run, &first, &bytes);
    lks__mirror_to_host(&work->losses, LKS__QUEUE_COMPUTE, first, bytes);
    LKS__TRY(lks__reducer_finish(work->reducer, &r->grads, &r->grad_norm));
    return lks__device_finish(ses->device, LKS__QUEUE_COMPUTE);
}

/* Choose the step's outcome, with all ranks. ERR_STOPPED: discard the step. */
static lks_status check(const lks__run *run, lks__session *ses, lks__state *state,
                        lks__step_work *work, lks__checks *checks, lks__step_result *r)
{
    LKS__TRY(lks__votes_exchange(run, ses, state, work, checks, r));
    LKS__TRY(lks__recheck_compare(run, ses, state, work, checks, r));
    return r->outcome == LKS__STEP_AGAIN ? LKS_OK : lks__nonfinite_check(run, ses, state, work, r);
}

static void begin(const lks__session *ses, const lks__state *state, lks__step_result *r)
{
    r->iter = state->iter;
    r->outcome = LKS__STEP_DONE;
    lks_comm_note(ses->comm, state->iter, "forward and backward");
    lks_comm_take_wait_s(ses->comm);
    lks__batch_sampler_mark(state->sampler);
}

/* Update the parameters of all ranks, unless the step is made without an update. */
static lks_status update(const lks__run *run, const lks__session *ses, lks__state *state,
                         lks__step_work *work, lks__checks *checks, lks__step_result *r)
{
    lks_comm_note(ses->comm, state->iter, "update");
    lks__trace_begin(LKS__SPAN_UPDATE, -1);
    if (r->outcome == LKS__STEP_DONE)
        LKS__TRY(lks__train_update(run, state, work, r));
    lks__trace_end();
    LKS__TRY(lks__memory_publish(state->memory));
    state->iter++;
    state->eval_done = false;
    return lks__divergence_record(run, ses, state, checks);
}

/* Rank 0's clock decides, so that all ranks stop at the same step. */
static lks_status keep_time(const lks__run *run, const lks__session *ses, lks__state *state,
                            lks__checks *checks, const lks__step_result *r)
{
    if (!run->procedure->by_clock)
        return LKS_OK;
    state->elapsed_s += r->seconds;
    if (run->s.max_wallclock_seconds <= 0.0)
        return LKS_OK;
    LKS__TRY(
        lks_comm_broadcast(ses->comm, &state->elapsed_s, sizeof state->elapsed_s, LKS_UINT8, 0));
    checks->out_of_time = state->elapsed_s >= run->s.max_wallclock_seconds;
    return LKS_OK;
}

lks_status lks__train_step(const lks__run *run, lks__session *ses, lks__state *state,
                           lks__step_work *work, lks__checks *checks, lks__step_result *r)
{
    const double started = lks__sys_now();
    lks__trace_begin(LKS__SPAN_STEP, (int64_t)state->iter);
    begin(ses, state, r);
    run->procedure->begin_step(state, work);
    LKS__TRY(lks__recheck_begin(run, ses, state, work, checks));
    LKS__TRY(accumulate(run, ses, state, work, r));
    r->exposed_s = lks_comm_take_wait_s(ses->comm);
    const lks_status st = check(run, ses, state, work, checks, r);
    if (st == LKS_ERR_STOPPED) {
        lks__trace_end();
        lks__votes_discard(ses, state, r);
        return LKS_OK;
    }
    LKS__TRY(st);
    if (r->outcome != LKS__STEP_AGAIN)
        LKS__TRY(update(run, ses, state, work, checks, r));
    r->seconds = lks__sys_now() - started;
    lks__trace_end();
    return keep_time(run, ses, state, checks, r);
}
