/* train/run.c - the run: evaluations, steps, checkpoints, in nanoGPT's order. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/trace.h"
#include "train/recipe.h"
#include "train/report.h"
#include "train/state.h"

struct run {
    lks__trainer *t;
    lks__report report;
    uint64_t saved_iter; /* newest checkpoint's; UINT64_MAX: none of this process's yet */
    bool wanted;         /* somebody has asked for a checkpoint */
    bool improved;       /* evaluation t->iter was the best so far */
    int stopped;         /* the signal that ends the run, as all ranks agree; 0: none */
};

static uint64_t checkpoint_interval(const lks__settings *s)
{
    return (uint64_t)(s->checkpoint_interval != 0 ? s->checkpoint_interval : s->eval_interval);
}

/* Rank 0 writes; the others go on, and wait for it at their next reduction. */
static lks_status write_checkpoint(struct run *r)
{
    lks__trainer *t = r->t;
    if (strcmp(t->s.on_nan, "rollback") == 0)
        t->nonfinite = 0; /* it has come further than before */
    LKS__TRY(lks__ddp_gather(t->ddp, t->exp_avg, true));
    LKS__TRY(lks__ddp_gather(t->ddp, t->exp_avg_sq, true));
    if (t->ses.world.rank != 0)
        return LKS_OK;
    char name[32], hash[17];
    lks_comm_note(t->ses.comm, t->iter, "checkpoint");
    lks__trace_begin(LKS__SPAN_CHECKPOINT, (int64_t)t->iter);
    LKS__TRY(lks__state_save(t, name, hash));
    lks__ddp_drop(t->ddp, t->exp_avg);
    lks__ddp_drop(t->ddp, t->exp_avg_sq);
    lks__trace_end();
    lks__log_line(&r->report.log, "saving checkpoint to %s/%s", t->shown_out_dir, name);
    return lks__report_checkpoint(&r->report, t, name, hash);
}

static lks_status save(struct run *r)
{
    lks__session *ses = &r->t->ses;
    r->saved_iter = r->t->iter;
    r->wanted = false;
    lks__session_saving(ses, true);
    LKS__TRY(write_checkpoint(r));
    lks__session_saving(ses, r->stopped != 0); /* the last one: until the process ends */
    return LKS_OK;
}

/* All ranks agree that the run ends here; `what` was under way. */
static void stop(struct run *r, int signo, const char *what)
{
    const char *name = sigabbrev_np(signo);
    r->stopped = signo;
    lks__session_saving(&r->t->ses, true);
    if (r->report.on)
        lks__log_message(&r->report.log, "stopped by signal %d (SIG%s): %s", signo,
                         name != NULL ? name : "?", what);
}

static lks_status evaluate(struct run *r)
{
    lks__trainer *t = r->t;
    lks__eval_result eval;
    lks_comm_note(t->ses.comm, t->iter, "evaluation");
    lks__trace_begin(LKS__SPAN_EVALUATION, (int64_t)t->iter);
    lks__sampler_mark(t->sampler);
    lks_status st = t->recipe->evaluate(t, &eval);
    lks__trace_end();
    if (st == LKS_ERR_STOPPED) {
        lks__sampler_back(t->sampler);
        stop(r, lks__session_asked_stop(&t->ses),
             "the evaluation under way is discarded, a resume repeats it");
        return LKS_OK;
    }
    LKS__TRY(st);
    t->eval_done = true;
    r->improved = eval.val_loss < t->best_val_loss;
    if (r->improved)
        t->best_val_loss = eval.val_loss;
    return lks__report_eval(&r->report, t, &eval);
}

static bool on_schedule(const lks__trainer *t)
{
    uint64_t interval = checkpoint_interval(&t->s);
    return interval > 0 && t->iter % interval == 0;
}

static bool checkpoint_due(const struct run *r)
{
    const lks__trainer *t = r->t;
    bool scheduled = on_schedule(t) && (t->s.always_save_checkpoint || r->improved);
    return t->iter > 0 && t->iter != r->saved_iter && (scheduled || r->wanted);
}

bool lks__train_saves_again(const lks__trainer *t)
{
    bool at_end = t->iter >= t->recipe->n_steps(&t->s) || t->out_of_time;
    return t->resumed && t->iter > 0 && t->recipe->evaluation_due(t) &&
           (on_schedule(t) || at_end) && !t->s.eval_only;
}

static lks_status finish(struct run *r)
{
    lks__finish_result result = {0};
    lks_status st = r->t->recipe->finish(r->t, &result);
    if (st == LKS_ERR_STOPPED) {
        stop(r, lks__session_asked_stop(&r->t->ses),
             "the final checkpoint is saved; a resume makes up what was to follow it");
        return LKS_OK;
    }
    LKS__TRY(st);
    return lks__report_finish(&r->report, r->t, &result);
}

/* The checkpoint that it goes back to is there, and its evaluation done. */
static lks_status go_back(struct run *r)
{
    LKS__TRY(lks__trainer_go_back(r->t));
    r->saved_iter = r->t->iter;
    return LKS_OK;
}

/* Stopped without an update: the checkpoint that was loaded is the state, and stays as it is. Its
 * line was cut if the checkpoint was to be written again. */
static lks_status keep_loaded(struct run *r)
{
    char name[32];
    snprintf(name, sizeof name, "ckpt-%08" PRIu64, r->t->iter);
    return r->report.on && r->saved_iter != r->t->iter
               ? lks__report_checkpoint(&r->report, r->t, name, r->t->resumed_hash)
               : LKS_OK;
}

static lks_status loop(struct run *r)
{
    lks__trainer *t = r->t;
    const uint64_t first_iter = t->iter;
    lks__step_result step;
    while (r->stopped == 0) {
        r->improved = false;
        if (t->recipe->evaluation_due(t))
            LKS__TRY(evaluate(r));
        if (t->s.eval_only)
            return LKS_OK;
        if (r->stopped != 0)
            break;
        if (t->iter >= t->recipe->n_steps(&t->s) || t->out_of_time)
            break;
        if (checkpoint_due(r))
            LKS__TRY(save(r));
        LKS__TRY(lks__train_step(t, &step));
        if (step.outcome == LKS__STEP_BACK)
            LKS__TRY(go_back(r));
        if (step.outcome != LKS__STEP_DISCARDED)
            LKS__TRY(lks__report_train(&r->report, t, &step));
        r->wanted |= step.save;
        if (step.stop_signal != 0)
            stop(r, step.stop_signal,
                 step.outcome == LKS__STEP_DISCARDED ? "the step under way is discarded"
                                                     : "the step under way was completed");
    }
    if (r->stopped != 0 && t->resumed && t->iter == first_iter)
        LKS__TRY(keep_loaded(r));
    else if (t->iter != r->saved_iter)
        LKS__TRY(save(r));
    return r->stopped == 0 && t->recipe->finish != NULL ? finish(r) : LKS_OK;
}

static lks_status write_trace(struct run *r)
{
    uint64_t dropped;
    LKS__TRY(lks__trace_file_write(&r->t->trace, &r->t->ses, &dropped));
    if (dropped > 0 && r->report.on)
        lks__log_message(&r->report.log,
                         "the trace has the newest events: %" PRIu64 " older ones were dropped",
                         dropped);
    return LKS_OK;
}

lks_status lks__train_run(lks__trainer *t, int *stopped_p)
{
    bool saved = t->resumed && !lks__train_saves_again(t);
    struct run r = {.t = t, .saved_iter = saved ? t->iter : UINT64_MAX};
    lks_status st = lks__session_agree(&t->ses, lks__report_open(&r.report, t));
    if (st == LKS_OK)
        st = loop(&r);
    *stopped_p = r.stopped;
    if (st == LKS_OK)
        st = write_trace(&r);
    if (st == LKS_OK)
        st = lks__session_agree(&t->ses, lks__report_close(&r.report, t));
    if (st != LKS_OK) {
        lks__session_fail(&t->ses, st);
        lks__report_abandon(&r.report);
    }
    return st;
}
