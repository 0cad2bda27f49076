#include "train/loop/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "base/trace.h"
#include "data/read/sampler.h"
#include "files/checkpoint/name.h"
#include "train/checkpoint.h"
#include "train/checks/recheck.h"
#include "train/loop/report/report.h"
#include "train/procedure/procedure.h"
#include "train/step.h"

struct run_loop {
    lks__trainer *t;
    lks__report report;
    uint64_t saved_iter; /* of the newest checkpoint; UINT64_MAX: none by this process */
    uint64_t regular;    /* the loaded checkpoint, if it was asked for by nothing and a new segment
                            writes it again; UINT64_MAX: none */
    uint64_t back_to;    /* the last rollback's target; UINT64_MAX: none */
    lks__asked wanted; /* reason of a checkpoint that isn't on the schedule; NOT: none is wanted */
    bool improved;     /* evaluation state->iter was the best so far */
    lks__eval_result eval; /* last evaluation by this process ... */
    uint64_t eval_iter;    /* ... and its iteration; UINT64_MAX: none yet */
    double loss;           /* of the last step, if `stepped` */
    bool stepped;
    int stopped;       /* signal that ends the run, agreed by all ranks; 0: none */
    void *first_draws; /* the sampler's state before evaluation 0; NULL: none, or a resume */
};

/* Iterations between checkpoints; 0: none are written on a schedule. */
static uint64_t checkpoint_interval(const lks__settings *s)
{
    if (s->checkpoint_interval != 0)
        return (uint64_t)s->checkpoint_interval;
    return s->always_save_checkpoint ? (uint64_t)s->eval_interval : 0;
}

/* True if r->eval is the evaluation of the current state. */
static bool evaluated(const struct run_loop *r)
{
    return r->t->state.eval_done && r->eval_iter == r->t->state.iter;
}

/* True if an undisturbed run writes this checkpoint on its schedule. */
static bool on_schedule(const lks__trainer *t)
{
    uint64_t interval = checkpoint_interval(&t->run.s);
    return t->state.iter > 0 && interval > 0 && t->state.iter % interval == 0;
}

static bool at_end(const lks__trainer *t)
{
    return t->state.iter >= t->run.procedure->n_steps(&t->run.s) || t->checks.out_of_time;
}

/* The reason that the checkpoint records. NOT if an undisturbed run writes it, too, or if a
 * rollback's target is written again. END at the run's end, also if the run is stopped there,
 * because a resume doesn't write it again. Else `otherwise`. */
static lks__asked reason(const struct run_loop *r, lks__asked otherwise)
{
    bool undisturbed = on_schedule(r->t) || (r->improved && evaluated(r));
    if (undisturbed || r->t->state.iter == r->back_to || r->t->state.iter == r->regular)
        return LKS__ASKED_NOT;
    return at_end(r->t) ? LKS__ASKED_END : otherwise;
}

/* Rank 0 writes. The others continue, and wait for it in their next reduction. */
static lks_status write_checkpoint(struct run_loop *r, lks__asked asked)
{
    lks__trainer *t = r->t;
    if (t->run.s.on_nan == LKS__on_nan_rollback && asked == LKS__ASKED_NOT &&
        t->state.iter != r->back_to)
        t->state.nonfinite = 0; /* the run got further than before */
    LKS__TRY(lks__memory_fetch(t->state.memory));
    if (t->ses.world.rank != 0)
        return LKS_OK;
    char name[32], hash[17];
    lks_comm_note(t->ses.comm, t->state.iter, "checkpoint");
    lks__trace_begin(LKS__SPAN_CHECKPOINT, (int64_t)t->state.iter);
    const bool counts = evaluated(r) && (asked == LKS__ASKED_NOT || asked == LKS__ASKED_END);
    const bool best = counts && lks__best_beaten(&r->report.best, r->eval.val_loss);
    /* A rollback's target that is written again keeps its value. */
    const double kept = t->state.iter == r->back_to ? t->checks.loaded_val_loss : NAN;
    const lks__save_about about = {asked, best, counts ? r->eval.val_loss : kept};
    /* After a power loss, a resume needs the lines up to this checkpoint. */
    LKS__TRY(lks__leaves_sync(&r->report.leaves));
    LKS__TRY(lks__metrics_sync(r->report.metrics)); /* last: it notices a folder that was moved */
    LKS__TRY(lks__state_save(t, &about, name, hash));
    if (best)
        lks__best_set(&r->report.best, t->state.iter, r->eval.val_loss);
    lks__memory_fetched(t->state.memory);
    lks__trace_end();
    lks__log_line(&r->report.log, "saving checkpoint to %s/%s", t->run.shown_out_dir, name);
    LKS__TRY(lks__report_checkpoint(&r->report, &t->state, asked, hash));
    lks__report_saved(&r->report, &t->state, best);
    return LKS_OK;
}

static lks_status save(struct run_loop *r, lks__asked otherwise)
{
    lks__session *ses = &r->t->ses;
    r->saved_iter = r->t->state.iter;
    r->wanted = LKS__ASKED_NOT;
    lks__session_saving(ses, true);
    LKS__TRY(write_checkpoint(r, reason(r, otherwise)));
    r->t->checks.saved_at = lks__sys_now();
    /* After the last save, hold second signals until the run's files are complete. */
    lks__session_saving(ses, r->stopped != 0);
    return LKS_OK;
}

/* Begin the end of the run, after all ranks have agreed on the signal. `what` happened to the
 * current work. */
static void stop(struct run_loop *r, int signo, const char *what)
{
    r->stopped = signo;
    lks__session_saving(&r->t->ses, true);
    lks__report_stopping(&r->report);
    if (r->report.on)
        lks__log_message(&r->report.log, "stopped by signal %d (SIG%s): %s", signo,
                         lks__signal_name(signo), what);
}

/* Return `st`, but turn ERR_STOPPED into the end of the run. */
static lks_status stop_if(struct run_loop *r, lks_status st, const char *what)
{
    if (st != LKS_ERR_STOPPED)
        return st;
    stop(r, lks__session_asked_stop(&r->t->ses), what);
    return LKS_OK;
}

static const char after_final_save[] = "the final checkpoint is saved; a resume does the rest";

static lks_status compute(struct run_loop *r, lks__eval_result *eval)
{
    lks__trainer *t = r->t;
    lks_comm_note(t->ses.comm, t->state.iter, "evaluation");
    lks__trace_begin(LKS__SPAN_EVALUATION, (int64_t)t->state.iter);
    lks__report_work(&r->report, t, "evaluation");
    lks_status st = t->run.procedure->evaluate(t, eval);
    r->report.eval_s = lks__sys_now() - r->report.work_began;
    lks__trace_end();
    return st;
}

static lks_status evaluate(struct run_loop *r)
{
    lks__trainer *t = r->t;
    lks__batch_sampler_mark(t->state.sampler);
    LKS__TRY(stop_if(r, compute(r, &r->eval),
                     "the unfinished evaluation is discarded, and a resume repeats it"));
    if (r->stopped != 0) {
        lks__batch_sampler_back(t->state.sampler);
        return LKS_OK;
    }
    t->state.eval_done = true;
    r->eval_iter = t->state.iter;
    r->improved = r->eval.val_loss < t->state.best_val_loss;
    if (r->improved)
        t->state.best_val_loss = r->eval.val_loss;
    LKS__TRY(lks__report_eval(&r->report, t, &r->eval));
    return lks__report_ranks(&r->report, t, NULL);
}

static lks_status evaluate_only(struct run_loop *r)
{
    LKS__TRY(stop_if(r, compute(r, &r->eval),
                     "the unfinished evaluation is discarded, and nothing was written"));
    r->report.ended = true; /* for the commands of exec_on=end */
    r->report.stop_signal = r->stopped;
    return r->stopped != 0 ? LKS_OK : lks__report_eval_only(&r->report, r->t, &r->eval);
}

/* Evaluate, then put the sampler's generators back, so that a run that continues from the final
 * checkpoint draws the same numbers. */
static lks_status compute_aside(struct run_loop *r, lks__eval_result *eval)
{
    lks__batch_sampler *sampler = r->t->state.sampler;
    size_t bytes = lks__state_sampler_bytes(&r->t->state);
    void *state = malloc(bytes + 1);
    lks_status st = state == NULL ? lks__no_memory("for the generators") : LKS_OK;
    if (st == LKS_OK && bytes > 0)
        lks__batch_sampler_state_save(sampler, state);
    st = lks__session_agree(&r->t->ses, st);
    LKS__THEN(st, compute(r, eval));
    if (st == LKS_OK && bytes > 0)
        st = lks__batch_sampler_state_load(sampler, state, bytes);
    free(state);
    return st;
}

/* Evaluate the final model, unless its evaluation was due and has been made. */
static lks_status evaluate_final(struct run_loop *r)
{
    if (!evaluated(r))
        LKS__TRY(stop_if(r, compute_aside(r, &r->eval), after_final_save));
    return r->stopped != 0 ? LKS_OK : lks__report_final(&r->report, r->t, &r->eval);
}

static bool checkpoint_due(const struct run_loop *r)
{
    const lks__trainer *t = r->t;
    return t->state.iter > 0 && t->state.iter != r->saved_iter &&
           (on_schedule(t) || r->improved || r->wanted != LKS__ASKED_NOT);
}

/* True if a resume evaluates and writes the loaded checkpoint again. A run writes its final
 * checkpoint, or a stopped one's, before the evaluation that is due there, but periodic checkpoints
 * (and golf's final one) after it. */
static bool saves_loaded_again(const lks__trainer *t)
{
    return t->run.resumed && t->state.iter > 0 &&
           t->run.procedure->evaluation_due(&t->run, &t->state) && !t->run.s.eval_only;
}

static lks_status finish(struct run_loop *r)
{
    lks__trainer *t = r->t;
    lks__finish_result result = {0};
    lks__report_work(&r->report, t, "artifact");
    const lks_status st = t->run.procedure->finish(t, &result);
    LKS__TRY(stop_if(r, st, after_final_save));
    return r->stopped != 0 ? LKS_OK : lks__report_finish(&r->report, t, &result);
}

/* The target exists as a checkpoint, and was evaluated. */
static lks_status go_back(struct run_loop *r)
{
    LKS__TRY(lks__trainer_go_back(r->t));
    r->saved_iter = r->back_to = r->t->state.iter;
    return LKS_OK;
}

/* True if the last state must be saved. A checkpoint that a run by the clock went back to lacks the
 * time of the undone steps, so a resume from it would train longer. */
static bool unsaved(const struct run_loop *r)
{
    const lks__trainer *t = r->t;
    return t->state.iter != r->saved_iter ||
           (t->state.iter == r->back_to && lks__state_by_the_clock(&t->run));
}

/* Stopped without an update: the loaded checkpoint is still the state, and isn't written again. But
 * its line was cut from metrics.jsonl if it was to be written again. */
static lks_status keep_loaded(struct run_loop *r)
{
    const lks__run *run = &r->t->run;
    return r->report.on && r->saved_iter != r->t->state.iter
               ? lks__report_checkpoint(&r->report, &r->t->state, run->resumed_asked,
                                        run->resumed_hash)
               : LKS_OK;
}

/* Restore the state before evaluation 0, because a resume from checkpoint 0 begins with that
 * evaluation. */
static lks_status back_to_start(struct run_loop *r)
{
    lks__trainer *t = r->t;
    size_t bytes = lks__state_sampler_bytes(&t->state);
    if (r->first_draws != NULL)
        LKS__TRY(lks__batch_sampler_state_load(t->state.sampler, r->first_draws, bytes));
    t->state.eval_done = false;
    t->state.best_val_loss = LKS__NO_VAL_LOSS;
    return LKS_OK;
}

static lks_status keep_first_draws(struct run_loop *r)
{
    lks__trainer *t = r->t;
    size_t bytes = t->state.iter > 0 ? 0 : lks__state_sampler_bytes(&t->state);
    if (bytes == 0)
        return LKS_OK;
    r->first_draws = malloc(bytes);
    LKS__MEMORY(r->first_draws, "for the generators");
    lks__batch_sampler_state_save(t->state.sampler, r->first_draws);
    return LKS_OK;
}

static lks_status save_stopped(struct run_loop *r, uint64_t first_iter)
{
    lks__trainer *t = r->t;
    if (t->run.resumed && t->state.iter == first_iter && t->state.iter != r->back_to)
        return keep_loaded(r);
    if (t->state.iter == 0)
        LKS__TRY(back_to_start(r));
    return unsaved(r) ? save(r, LKS__ASKED_STOP) : LKS_OK;
}

/* Make one step, report it, and remember what ranks have asked for in it. */
static lks_status make_step(struct run_loop *r)
{
    lks__trainer *t = r->t;
    lks__step_result step = {0};
    lks__report_work(&r->report, t, "iter");
    LKS__TRY(lks__train_step(t, &step));
    if (step.outcome == LKS__STEP_BACK)
        LKS__TRY(go_back(r));
    if (step.outcome != LKS__STEP_DISCARDED)
        LKS__TRY(lks__report_train(&r->report, t, &step));
    if (step.outcome == LKS__STEP_AGAIN)
        LKS__TRY(lks__session_agree(&t->ses, lks__recheck_limit(t)));
    if (step.outcome == LKS__STEP_DONE) {
        r->stepped = true;
        r->loss = step.loss;
    }
    if (step.save != LKS__ASKED_NOT && r->wanted != LKS__ASKED_SIGNAL)
        r->wanted = step.save;
    if (step.stop_signal != 0)
        stop(r, step.stop_signal,
             step.outcome >= LKS__STEP_DISCARDED ? "the unfinished step is discarded"
                                                 : "the current step was completed");
    return LKS_OK;
}

/* Save the last state, evaluate it, and print the end. */
static lks_status end(struct run_loop *r, uint64_t first_iter)
{
    lks__trainer *t = r->t;
    const struct lks__procedure *procedure = t->run.procedure;
    if (r->stopped != 0)
        LKS__TRY(save_stopped(r, first_iter));
    else if (unsaved(r))
        LKS__TRY(save(r, LKS__ASKED_END));
    const bool final = r->stopped == 0 && (procedure->evaluates_end || t->run.s.eval_interval > 0);
    if (final)
        LKS__TRY(evaluate_final(r));
    if (r->stopped == 0 && procedure->finish != NULL)
        LKS__TRY(finish(r));
    lks__report_end(&r->report, t, r->stopped, r->stepped ? &r->loss : NULL,
                    final && r->stopped == 0 ? &r->eval : NULL);
    return LKS_OK;
}

static lks_status loop(struct run_loop *r)
{
    lks__trainer *t = r->t;
    const uint64_t first_iter = t->state.iter;
    if (t->run.s.eval_only)
        return evaluate_only(r);
    while (r->stopped == 0) {
        r->improved = false;
        if (t->run.procedure->evaluation_due(&t->run, &t->state))
            LKS__TRY(evaluate(r));
        if (r->stopped != 0 || at_end(t))
            break;
        if (checkpoint_due(r))
            LKS__TRY(save(r, r->wanted));
        LKS__TRY(make_step(r));
    }
    return end(r, first_iter);
}

static lks_status write_trace(struct run_loop *r)
{
    const char *path = r->t->run.s.trace;
    uint64_t dropped;
    LKS__TRY(lks__trace_file_write(&r->t->trace, &r->t->ses, &dropped));
    if (path[0] != '\0' && r->report.on)
        lks__log_message(&r->report.log, "the trace is in %s", lks__shown(path, LKS__SETTING_STR));
    if (dropped > 0 && r->report.on)
        lks__log_message(&r->report.log,
                         "the trace has the newest events: %" PRIu64 " older ones were dropped",
                         dropped);
    return LKS_OK;
}

/* Add rank and iteration to a failure of the device. With several ranks the launcher adds them. */
static lks_status say_where(const lks__trainer *t, lks_status st)
{
    if (t->ses.world.world_size > 1 || (st != LKS_ERR_DEVICE && st != LKS_ERR_TIMEOUT))
        return st;
    return lks__fail_in(st, "rank 0, at iteration %" PRIu64, t->state.iter);
}

/* If a file can't be written because the run's folder was moved meanwhile, say that instead. */
static lks_status say_moved(const struct run_loop *r, lks_status st)
{
    char cause[1024];
    if (st != LKS_ERR_IO || r->report.metrics == NULL)
        return st;
    snprintf(cause, sizeof cause, "%s", lks_last_error());
    return lks__metrics_check(r->report.metrics) != LKS_OK ? st : lks__fail(st, "%s", cause);
}

/* After a stop, rank 0 has saved everything, so it doesn't fail because others do. */
static lks_status close_report(struct run_loop *r)
{
    lks__session *ses = &r->t->ses;
    const lks_status st = lks__session_agree(ses, lks__report_close(&r->report, r->t));
    const bool others = st == LKS_ERR_PEER || st == LKS_ERR_TIMEOUT;
    return others && r->stopped != 0 && ses->world.rank == 0 ? LKS_OK : st;
}

/* True if the run has ended here with these settings, and its end left all that it leaves. */
static bool has_finished(const lks__run *run, const lks__state *state)
{
    return run->procedure->finish != NULL &&
           lks__settings_diff(&run->s, &run->resumed_from, LKS__CMD_TRAIN, LKS__SETTING_CONFIG,
                              NULL) == 0 &&
           run->procedure->has_finished(run, state);
}

/* Why a resume changes nothing. SOMETHING: it continues the run. */
enum nothing { SOMETHING, LONGER, FINISHED };

/* LONGER: the run is already longer, because later checkpoints exist, which would be moved away, or
 * the limit is below this checkpoint. */
static lks_status nothing_to_train(lks__trainer *t, uint8_t *nothing_p)
{
    lks__entry latest;
    *nothing_p = SOMETHING;
    if (!t->run.resumed || t->run.s.eval_only || !at_end(t))
        return LKS_OK;
    if (t->ses.world.rank == 0) {
        const bool later = lks__name_read(t->run.s.out_dir, LKS__NAME_LATEST, &latest) == LKS_OK &&
                           latest.kind == LKS__ENTRY_CKPT && latest.iter > t->state.iter;
        *nothing_p = later || t->state.iter > t->run.procedure->n_steps(&t->run.s) ? LONGER
                     : has_finished(&t->run, &t->state)                            ? FINISHED
                                                                                   : SOMETHING;
    }
    return lks__session_agree(
        &t->ses, lks_comm_broadcast(t->ses.comm, nothing_p, sizeof *nothing_p, LKS_UINT8, 0));
}

lks_status lks__train_loop(lks__trainer *t, int *stopped_p)
{
    const bool saves_again = saves_loaded_again(t);
    uint8_t nothing;
    struct run_loop r = {
        .t = t,
        .saved_iter = t->run.resumed && !saves_again ? t->state.iter : UINT64_MAX,
        .regular = t->run.begins_segment && t->run.resumed_asked == LKS__ASKED_NOT ? t->state.iter
                                                                                   : UINT64_MAX,
        .back_to = UINT64_MAX,
        .wanted = !saves_again                             ? LKS__ASKED_NOT
                  : t->run.resumed_asked != LKS__ASKED_NOT ? t->run.resumed_asked
                                                           : LKS__ASKED_STOP,
        .eval_iter = UINT64_MAX,
    };
    lks_status st = nothing_to_train(t, &nothing);
    *stopped_p = 0;
    if (st == LKS_OK && nothing != SOMETHING) {
        if (t->ses.world.rank == 0)
            lks__report_nothing(t, nothing == FINISHED);
        return LKS_OK;
    }
    if (st == LKS_OK && t->run.procedure->can_finish != NULL && !t->run.s.eval_only)
        st = lks__session_agree(&t->ses, t->run.procedure->can_finish());
    LKS__THEN(st, lks__report_open(&r.report, t, saves_again));
    LKS__THEN(st, keep_first_draws(&r));
    st = lks__session_agree(&t->ses, st);
    LKS__THEN(st, say_where(t, loop(&r)));
    free(r.first_draws);
    *stopped_p = r.stopped;
    LKS__THEN(st, write_trace(&r));
    LKS__THEN(st, close_report(&r));
    if (st != LKS_OK) {
        lks__session_fail(&t->ses, say_moved(&r, st));
        lks__report_abandon(&r.report);
    }
    t->ses.on_progress = NULL; /* belongs to the report */
    return st;
}
