/* train/step.c - the training step. */
#include <stddef.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/trace.h"
#include "lockstep/reduce.h"
#include "session/signals.h"
#include "train/guard/nonfinite.h"
#include "train/optimizer.h"
#include "train/procedure/procedure.h"

static void beat(void *comm)
{
    lks_comm_beat(comm);
}

lks__backward lks__train_pass(const lks__trainer *t, int v, int m, float *grads)
{
    return (lks__backward){
        .grads = grads,
        .seed = (uint64_t)t->run.s.seed,
        .step = (uint32_t)t->state.iter,
        .vm = (uint32_t)v << 16 | (uint32_t)m,
        .beat = lks__device_in_call(t->ses.device) ? beat : NULL,
        .beat_ctx = t->ses.comm,
    };
}

lks_status lks__train_read(lks__trainer *t, int v, int m, lks__micro_batch *mb)
{
    int32_t *tokens, *targets;
    LKS__TRY(lks__batch_next(&t->work.batch, &tokens, &targets));
    LKS__TRY(t->run.procedure->read(t, v, m, tokens, targets));
    *mb = lks__batch_send(&t->work.batch, (int)t->run.s.batch_size, (int)t->run.s.block_size);
    return LKS_OK;
}

static lks_status micro_step(lks__trainer *t, const lks__ddp_micro *at)
{
    lks__micro_batch mb;
    float *losses = t->work.losses.dev;
    lks__trace_begin(LKS__SPAN_DATA, -1);
    LKS__TRY(lks__train_read(t, at->v, at->m, &mb));
    lks__trace_end();
    lks__backward bw = lks__train_pass(t, at->v, at->m, at->grads);
    bw.shift = lks__ddp_shift(t->work.ddp);
    bw.done = lks__ddp_group_done;
    bw.done_ctx = t->work.ddp;
    lks__model_train(t->work.model, t->state.memory->params.dev, &mb, &bw,
                     &losses[at->v * t->run.A + at->m]);
    t->work.micro_batches++;
    return LKS_OK;
}

/* The bytes of t->work.losses that are this rank's. */
static void own_losses(const lks__trainer *t, size_t *first, size_t *n)
{
    *first = (size_t)(t->run.first_v * t->run.A) * sizeof(float);
    *n = (size_t)((t->run.end_v - t->run.first_v) * t->run.A) * sizeof(float);
}

/* Compute all micro-batches of this rank, and the mean gradient of all ranks; bring this rank's
 * losses to the host. A rank that was asked to stop leaves out the rest, but joins the reductions,
 * because the others wait for it. */
static lks_status accumulate(lks__trainer *t, const float **grads_p, double *norm_p)
{
    lks__ddp_micro at;
    size_t done = 0, n_micro = (size_t)((t->run.end_v - t->run.first_v) * t->run.A);
    t->work.skipped = false;
    lks__ddp_begin(t->work.ddp);
    while (!t->work.skipped && lks__ddp_next(t->work.ddp, &at)) {
        t->work.skipped = lks__session_asked_stop(&t->ses) != 0;
        if (!t->work.skipped)
            LKS__TRY(micro_step(t, &at));
        lks__session_progress(&t->ses, ++done, n_micro);
    }
    if (t->work.skipped)
        lks__ddp_skip(t->work.ddp);
    size_t first, n;
    own_losses(t, &first, &n);
    lks__mirror_to_host(&t->work.losses, LKS__QUEUE_COMPUTE, first, n);
    LKS__TRY(lks__ddp_finish(t->work.ddp, grads_p, norm_p));
    return lks__device_finish(t->ses.device, LKS__QUEUE_COMPUTE);
}

/* Ranks notice a signal at different steps. One that arrives within 1 s or one step of an agreed
 * save is the same request. */
static const double SAME_REQUEST_S = 1.0;

static bool asks_to_save(lks__trainer *t)
{
    bool asks = lks__save_requested != 0;
    lks__save_requested = 0;
    bool just_now =
        t->guard.agreed_at > 0 && (t->state.iter <= t->guard.agreed_iter + 1 ||
                                   lks__sys_now() - t->guard.agreed_at < SAME_REQUEST_S);
    if (!asks || t->guard.asked || !just_now)
        return asks;
    t->guard.asked = true; /* another signal is another request */
    return false;
}

/* True on rank 0 if its clock asks for a checkpoint. All ranks learn so, and save at the same step.
 */
static bool clock_asks(const lks__trainer *t)
{
    const double minutes = t->run.s.checkpoint_minutes;
    return t->ses.world.rank == 0 && minutes > 0.0 &&
           lks__sys_now() - t->guard.saved_at >= 60.0 * minutes;
}

/* Exchange the N losses and the ranks' notes. ERR_STOPPED if a rank has left out micro-batches. */
static lks_status gather(lks__trainer *t, lks__step_result *r)
{
    int W = t->ses.world.world_size, most = (t->run.V + W - 1) / W * t->run.A;
    size_t bytes = sizeof(lks__step_note) + (size_t)most * sizeof(float);
    char *mine = t->work.exchange, *all = t->work.exchange + bytes;
    bool asks = asks_to_save(t);
    lks__step_note note = {.stop_signal = lks__session_asked_stop(&t->ses),
                           .save = asks            ? LKS__ASKED_SIGNAL
                                   : clock_asks(t) ? LKS__ASKED_CLOCK
                                                   : LKS__ASKED_NOT,
                           .skipped = t->work.skipped};
    bool skipped = false;
    size_t first, n;
    own_losses(t, &first, &n);
    float *losses = t->work.losses.host;
    LKS__TRY(lks__divergence_look(t, &note.divergence));
    memset(mine, 0, bytes);
    memcpy(mine, &note, sizeof note);
    memcpy(mine + sizeof note, (const char *)t->work.losses.host + first, n);
    LKS__TRY(lks_comm_all_gather(t->ses.comm, mine, all, bytes, LKS_UINT8));
    r->stop_signal = 0;
    r->save = LKS__ASKED_NOT;
    for (int rank = 0; rank < W; rank++) {
        int v0 = lks__ddp_first_leaf(t->run.V, W, rank),
            v1 = lks__ddp_first_leaf(t->run.V, W, rank + 1);
        const char *theirs = all + (size_t)rank * bytes;
        memcpy(&note, theirs, sizeof note);
        if (r->stop_signal == 0)
            r->stop_signal = note.stop_signal;
        if (r->save != LKS__ASKED_SIGNAL && note.save != LKS__ASKED_NOT)
            r->save = (lks__asked)note.save;
        skipped |= note.skipped != 0;
        memcpy(losses + v0 * t->run.A, theirs + sizeof note,
               (size_t)((v1 - v0) * t->run.A) * sizeof(float));
    }
    if (r->save == LKS__ASKED_SIGNAL) {
        t->guard.asked = asks;
        t->guard.agreed_at = lks__sys_now();
        t->guard.agreed_iter = t->state.iter;
    }
    double sum = 0.0;
    for (int i = 0; i < t->run.N; i++)
        sum += (double)losses[i];
    r->loss = sum / t->run.N;
    LKS__TRY(lks__divergence_judge(t, all + offsetof(lks__step_note, divergence), bytes));
    return skipped ? LKS_ERR_STOPPED : LKS_OK;
}

/* All ranks get here: nothing has been updated, and nothing will be. */
static lks_status discard(lks__trainer *t, lks__step_result *r)
{
    if (r->stop_signal == 0) /* the signal came during the search for NaN */
        r->stop_signal = lks__session_asked_stop(&t->ses);
    r->outcome = LKS__STEP_DISCARDED;
    lks__sampler_back(t->state.sampler);
    lks__trace_end();
    return LKS_OK;
}

/* Make this rank's share of the update. */
static lks_status update(lks__trainer *t, const float *grads, lks__step_result *r)
{
    lks__train_update(t, lks__memory_begin_update(t->state.memory, grads), r);
    return lks__memory_end_update(t->state.memory);
}

lks_status lks__train_step(lks__trainer *t, lks__step_result *r)
{
    const float *grads;
    double started = lks__sys_now();
    r->iter = t->state.iter;
    lks__trace_begin(LKS__SPAN_STEP, (int64_t)t->state.iter);
    lks_comm_note(t->ses.comm, t->state.iter, "forward and backward");
    lks_comm_take_wait_s(t->ses.comm);
    lks__sampler_mark(t->state.sampler);
    LKS__TRY(t->run.procedure->begin_step(t));
    LKS__TRY(accumulate(t, &grads, &r->grad_norm));
    r->exposed_s = lks_comm_take_wait_s(t->ses.comm);
    lks_status st = gather(t, r);
    if (st == LKS_OK)
        st = lks__nonfinite_judge(t, grads, r);
    if (st != LKS_OK)
        return st == LKS_ERR_STOPPED ? discard(t, r) : st;
    lks_comm_note(t->ses.comm, t->state.iter, "update");
    lks__trace_begin(LKS__SPAN_UPDATE, -1);
    if (r->outcome == LKS__STEP_DONE)
        LKS__TRY(update(t, grads, r));
    lks__trace_end();
    LKS__TRY(lks__memory_publish(t->state.memory));
    t->state.iter++;
    LKS__TRY(lks__divergence_seal(t));
    t->state.eval_done = false;
    r->seconds = lks__sys_now() - started;
    lks__trace_end();
    return t->run.procedure->end_step(t, r);
}
