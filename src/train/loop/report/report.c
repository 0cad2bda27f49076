#include "train/loop/report/report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "report/record/metrics/evals.h"
#include "session/signals.h"
#include "train/checkpoint.h"
#include "train/checks/nonfinite.h"
#include "train/checks/votes.h"
#include "train/procedure/procedure.h"

enum {
    MFU_AFTER = 5,      /* iterations until times have settled, as in nanoGPT */
    ESTIMATE_AFTER = 3, /* iterations until the whole time is estimated */
};

static const double ESTIMATE_FROM_S = 180.0; /* no estimate for shorter runs */
static const double SLOW_BATCH_S = 3.0;
static const double SLOW_RUN_S = 2.0 * 86400.0;

/* --- progress -------------------------------------------------------------------------------- */

static void say_time(char out[32], double s)
{
    if (s > 0.0 && s < 0.0995)
        snprintf(out, 32, "%.2g ms", s * 1e3);
    else if (s < 9.95)
        snprintf(out, 32, "%.1f s", s);
    else if (s < 90.0)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 5400.0)
        snprintf(out, 32, "%.0f min", s / 60.0);
    else if (s < 172800.0)
        snprintf(out, 32, "%.1f h", s / 3600.0);
    else
        snprintf(out, 32, "%.0f days", s / 86400.0);
}

static void on_progress(void *ctx, size_t done, size_t n)
{
    lks__report *r = ctx;
    char line[160], left[32];
    const double took = lks__sys_now() - r->work_began;
    say_time(left, took / (double)done * (double)(n - done));
    snprintf(line, sizeof line, "%s %" PRIu64 ": %zu of %zu %s, %s left", r->work, r->work_iter,
             done, n, strcmp(r->work, "iter") == 0 ? "micro-batches" : "batches", left);
    lks__log_status(&r->log, line);
    lks__report_alive(r, line);
}

/* Least seconds for these tokens, with all ranks at their peak speed. */
static double least_seconds(const lks__report *r, double tokens)
{
    return r->peak.flops > 0.0 ? tokens * r->flops_per_token / r->peak.flops : 0.0;
}

/* Announce slow work, because progress is shown only after its first batch. */
static void announce(lks__report *r, const lks__run *run, const lks__session *ses)
{
    const bool step = strcmp(r->work, "iter") == 0;
    /* In nanoGPT's evaluation, ranks share eval_iters batches of each split. */
    const bool shared = strcmp(r->work, "evaluation") == 0 && run->procedure->draws;
    const double n = shared ? 2.0 * (double)run->s.eval_iters : ses->world.world_size;
    const double tokens = n * (double)(run->s.batch_size * run->s.block_size);
    const double least = least_seconds(r, step ? tokens : tokens / 3.0);
    char line[160], text[32];
    if (least < SLOW_BATCH_S)
        return;
    say_time(text, least);
    if (shared)
        snprintf(line, sizeof line,
                 "evaluation %" PRIu64 " begins: %.0f batches take over %s; a smaller --eval_iters "
                 "takes less",
                 r->work_iter, n, text);
    else
        snprintf(line, sizeof line, "%s %" PRIu64 " begins: each %sbatch takes over %s", r->work,
                 r->work_iter, step ? "micro-" : "", text);
    r->log.status_at = 0.0;
    lks__log_status(&r->log, line);
}

void lks__report_work(lks__report *r, lks__trainer *t, const char *work)
{
    if (!r->on)
        return;
    r->work = work;
    r->work_iter = t->state.iter;
    r->work_began = lks__sys_now();
    lks__log_work(&r->log);
    lks__report_alive(r, NULL);
    announce(r, &t->run, &t->ses);
    t->ses.on_progress = on_progress;
    t->ses.on_progress_ctx = r;
}

/* Evaluations between state->iter and the end. */
static double n_evaluations(const lks__run *run, const lks__state *state, uint64_t n_steps)
{
    const uint64_t every = (uint64_t)run->s.eval_interval;
    return every == 0 ? 0.0 : (double)((n_steps - 1) / every - (state->iter - 1) / every) + 1.0;
}

void lks__report_slow_run(lks__report *r, const lks__run *run, const lks__state *state)
{
    const uint64_t n_steps = run->procedure->n_steps(&run->s);
    const double steps = n_steps > state->iter ? (double)(n_steps - state->iter) : 0.0;
    const double least = least_seconds(r, steps * r->tokens_per_step);
    char text[32];
    if (least < SLOW_RUN_S || lks__state_by_the_clock(run) || run->s.eval_only)
        return;
    say_time(text, least);
    lks__log_message(&r->log, "the run takes over %s, even at the peak speed of these ranks", text);
}

/* Print once how long the whole run will take, if it is long. The first step is left out, because
 * it touches its memory for the first time. */
static void estimate(lks__report *r, const lks__run *run, const lks__state *state, double step_s)
{
    const uint64_t n_steps = run->procedure->n_steps(&run->s);
    if (r->estimated || r->n_steps < ESTIMATE_AFTER || n_steps <= state->iter)
        return;
    r->estimated = true;
    const double steps_s = step_s * (double)(n_steps - state->iter);
    const double evals_s = n_evaluations(run, state, n_steps) * r->eval_s;
    const double limit = run->procedure->by_clock ? run->s.max_wallclock_seconds : 0.0;
    char step[32], whole[32], eval[32], with[80] = "", end[80] = "";
    if (steps_s + evals_s < ESTIMATE_FROM_S)
        return;
    say_time(step, step_s);
    say_time(whole, steps_s + evals_s);
    if (evals_s > 0.0) {
        say_time(eval, r->eval_s);
        snprintf(with, sizeof with, " with evaluations of %s", eval);
    }
    if (limit > 0.0 && steps_s > limit - state->elapsed_s)
        snprintf(end, sizeof end, ", but max_wallclock_seconds=%g ends it before", limit);
    lks__log_message(&r->log,
                     "a step takes %s, so the %" PRIu64 " steps to come take about %s%s%s; Ctrl-C "
                     "stops the run with a checkpoint",
                     step, n_steps - state->iter, whole, with, end);
}

/* --- lines ----------------------------------------------------------------------------------- */

/* Report an iteration without an update: "skip", or "rollback" if the run went back after it;
 * t->state is then already the checkpoint's. */
static lks_status report_nonfinite(lks__report *r, const lks__trainer *t,
                                   const lks__step_result *step)
{
    const lks__run *run = &t->run;
    const lks__state *state = &t->state;
    const lks__nonfinite *bad = &step->bad;
    const bool back = step->outcome == LKS__STEP_BACK;
    char text[320];
    lks__nonfinite_text(t, step, text);
    lks__jsonw *w = lks__metrics_begin(r->metrics, back ? "rollback" : "skip");
    lks__jsonw_u64(w, "iter", step->iter);
    if (bad->index >= 0) {
        lks__jsonw_int(w, "virtual_rank", bad->index / run->A);
        lks__jsonw_int(w, "micro_batch", bad->index % run->A);
    }
    lks__jsonw_str(w, "what", bad->index < 0 ? "sum" : bad->in_loss ? "loss" : "gradient");
    lks__jsonw_str(w, "place", bad->place);
    if (back) {
        lks__jsonw_u64(w, "to", state->iter);
        lks__jsonw_u64(w, "data_shift", state->data_shift);
    }
    LKS__TRY(lks__metrics_end(r->metrics));
    if (back)
        LKS__TRY(lks__leaves_back(&r->leaves, state->iter));
    if (back)
        LKS__TRY(lks__report_events_back(r, state));
    if (back)
        lks__log_message(&r->log,
                         "iteration %" PRIu64 ": %s; back to checkpoint %" PRIu64
                         ", and on with the data after it (%d of at most %" PRId64 " times)",
                         step->iter, text, state->iter, state->nonfinite, run->s.on_nan_limit);
    else
        lks__log_message(&r->log, "iteration %" PRIu64 ": %s; there is no update", step->iter,
                         text);
    return LKS_OK;
}

_Static_assert((int)LKS__LEAVES_BLOCK == (int)LKS__BLOCK, "the blocks of the reducer's hashes");

static lks_status write_hashes(lks__report *r, const lks__trainer *t, uint64_t iter)
{
    if (r->leaves.window == NULL)
        return LKS_OK;
    lks__votes_hashes(t, lks__leaves_begin(&r->leaves, iter, t->run.V, t->run.A));
    return lks__leaves_end(&r->leaves);
}

/* Add an updated step to metrics.jsonl, leaves.bin and TensorBoard's file. */
static lks_status write_step(lks__report *r, const lks__trainer *t, const lks__step_result *step,
                             double rate, double mfu)
{
    lks__jsonw *w = lks__metrics_begin(r->metrics, "train");
    lks__jsonw_u64(w, "iter", step->iter);
    lks__jsonw_float(w, "loss", step->loss);
    lks__jsonw_double(w, "lr", step->lr);
    lks__jsonw_double(w, "grad_norm", step->grad_norm);
    lks__jsonw_u64(w, "tokens", lks__state_tokens(&t->run, &t->state));
    lks__jsonw_float(w, "ms", step->seconds * 1e3);
    lks__jsonw_float(w, "tok_per_s", rate);
    lks__jsonw_float(w, "mfu", mfu);
    lks__jsonw_float(w, "comm_exposed_ms", step->exposed_s * 1e3);
    LKS__TRY(lks__metrics_end(r->metrics));
    LKS__TRY(write_hashes(r, t, step->iter));
    return lks__report_events_train(r, step, rate, mfu);
}

/* Print an updated step: a line as the procedure's script prints it, and the live line. */
static void print_step(lks__report *r, const lks__trainer *t, const lks__step_result *step)
{
    const lks__run *run = &t->run;
    const uint64_t n_steps = run->procedure->n_steps(&run->s), done = t->state.iter;
    const uint64_t to_go = n_steps > done ? n_steps - done : 0;
    char line[200], live[240], left[32];
    run->procedure->train_line(run, &t->state, step, r->mfu, line);
    say_time(left, (lks__sys_now() - r->started) / (double)r->n_steps * (double)to_go);
    snprintf(live, sizeof live,
             "iter %" PRIu64 "/%" PRIu64 "  loss %.4f  %.0f tok/s  mfu %.0f%%  %s left", step->iter,
             n_steps - 1, step->loss, r->newest.tok_per_s, r->newest.mfu * 100.0, left);
    lks__log_progress(&r->log, line[0] != '\0' ? line : NULL, live);
    lks__report_alive(r, live);
}

lks_status lks__report_train(lks__report *r, const lks__trainer *t, const lks__step_result *step)
{
    lks__report_ranks_add(r, step);
    if (!r->on)
        return LKS_OK;
    r->n_steps += step->outcome == LKS__STEP_DONE || step->outcome == LKS__STEP_SKIPPED;
    if (step->outcome == LKS__STEP_AGAIN)
        return lks__report_recheck(r, &t->checks, step);
    if (step->outcome != LKS__STEP_DONE)
        return report_nonfinite(r, t, step);
    const double rate = r->tokens_per_step / step->seconds;
    const double mfu = lks__peak_share(&r->peak, rate * r->flops_per_token);
    if (r->n_steps > MFU_AFTER)
        r->mfu = r->mfu < 0.0 ? mfu : 0.9 * r->mfu + 0.1 * mfu;
    LKS__TRY(write_step(r, t, step, rate, mfu));
    r->newest = (lks__newest){.loss = step->loss,
                              .lr = step->lr,
                              .grad_norm = step->grad_norm,
                              .tok_per_s = rate,
                              .mfu = mfu,
                              .wait_s = step->exposed_s,
                              .val_loss = r->newest.val_loss};
    lks__report_prometheus(r, &t->run, &t->state, false);
    print_step(r, t, step);
    estimate(r, &t->run, &t->state, step->seconds);
    return LKS_OK;
}

static void write_losses(lks__jsonw *w, const lks__eval_result *eval)
{
    if (eval->has_train)
        lks__jsonw_float(w, "train_loss", eval->train_loss);
    lks__jsonw_float(w, "val_loss", eval->val_loss);
    if (eval->has_bpb)
        lks__jsonw_float(w, "val_bpb", eval->val_bpb);
}

/* `text`: the sample drawn after the evaluation, or NULL. */
static lks_status evaluation_line(lks__report *r, const lks__state *state, const char *kind,
                                  const lks__eval_result *eval, const char *text)
{
    if (r->metrics == NULL)
        return LKS_OK;
    lks__jsonw *w = lks__metrics_begin(r->metrics, kind);
    lks__jsonw_u64(w, "iter", state->iter);
    write_losses(w, eval);
    if (text != NULL)
        lks__jsonw_str(w, "sample", text);
    LKS__TRY(lks__metrics_end(r->metrics));
    LKS__TRY(lks__report_events_eval(r, state, kind, eval));
    return text != NULL ? lks__report_events_sample(r, state, text) : LKS_OK;
}

/* NULL if there is none: a failure doesn't end the run. */
static const char *draw_sample(lks__report *r, const lks__run *run, const lks__state *state)
{
    const char *text;
    if (r->samples == NULL)
        return NULL;
    const lks_status st = lks__samples_draw(r->samples, run, &text);
    if (st == LKS_OK)
        return text;
    if (st != LKS_ERR_STOPPED)
        lks__log_message(&r->log, "no sample at iteration %" PRIu64 ": %s; the run continues",
                         state->iter, lks_last_error());
    return NULL;
}

static void print_eval(lks__report *r, const lks__trainer *t, const lks__eval_result *eval)
{
    char line[200];
    t->run.procedure->eval_line(&t->run, &t->state, eval, line);
    lks__log_line(&r->log, "%s", line);
}

lks_status lks__report_eval(lks__report *r, const lks__trainer *t, const lks__eval_result *eval)
{
    const lks__state *state = &t->state;
    if (!r->on)
        return LKS_OK;
    LKS__TRY(evaluation_line(r, state, "eval", eval, draw_sample(r, &t->run, state)));
    lks__report_above(r, state->iter, eval->val_loss);
    r->newest.val_loss = eval->val_loss;
    lks__report_prometheus(r, &t->run, state, true);
    print_eval(r, t, eval);
    return LKS_OK;
}

lks_status lks__report_eval_only(lks__report *r, const lks__trainer *t,
                                 const lks__eval_result *eval)
{
    const lks__run *run = &t->run;
    lks__evals evals;
    char why[200];
    LKS__TRY(lks__report_eval(r, t, eval));
    if (!r->on || !run->resumed) /* evals.jsonl is about checkpoints */
        return LKS_OK;
    lks__jsonw *w = lks__evals_begin(&evals, "eval_only", t->state.iter, run->resumed_hash);
    lks__jsonw_str(w, "dataset", run->data_dir);
    write_losses(w, eval);
    LKS__TRY(lks__evals_append(&evals, run->s.out_dir, why));
    if (why[0] != '\0')
        lks__log_message(&r->log, "%s", why);
    return LKS_OK;
}

lks_status lks__report_final(lks__report *r, const lks__trainer *t, const lks__eval_result *eval)
{
    const lks__run *run = &t->run;
    const lks__state *state = &t->state;
    bool best;
    if (!r->on)
        return LKS_OK;
    if (run->procedure->evaluates_end && !state->eval_done)
        print_eval(r, t, eval);
    r->newest.val_loss = eval->val_loss;
    LKS__TRY(evaluation_line(r, state, "final", eval, NULL));
    LKS__TRY(lks__metrics_sync(r->metrics)); /* after a power loss OUT/best must have its line */
    LKS__TRY(lks__best_final(run->s.out_dir, state->iter, eval->val_loss, &r->best, &best));
    if (best)
        lks__report_best(r, state);
    return LKS_OK;
}

lks_status lks__report_checkpoint(lks__report *r, const lks__state *state, lks__asked asked,
                                  const char *params_hash)
{
    char name[LKS__CKPT_NAME];
    lks__entry_name(name, LKS__ENTRY_CKPT, state->iter);
    lks__jsonw *w = lks__metrics_begin(r->metrics, "checkpoint");
    lks__jsonw_u64(w, "iter", state->iter);
    lks__jsonw_str(w, "path", name);
    lks__jsonw_str(w, "params_hash", params_hash);
    if (asked != LKS__ASKED_NOT)
        lks__jsonw_str(w, "asked", lks__asked_word(asked));
    return lks__metrics_end(r->metrics);
}

lks_status lks__report_finish(lks__report *r, const lks__trainer *t,
                              const lks__finish_result *result)
{
    if (!r->on)
        return LKS_OK;
    const lks__eval_result *e = &result->eval;
    lks__jsonw *w = lks__metrics_begin(r->metrics, "artifact");
    lks__jsonw_u64(w, "iter", t->state.iter);
    lks__jsonw_str(w, "path", result->name);
    lks__jsonw_u64(w, "bytes", result->stats.file_bytes);
    lks__jsonw_u64(w, "payload_bytes", result->stats.int8_payload_bytes);
    lks__jsonw_float(w, "val_loss", e->val_loss);
    if (e->has_bpb)
        lks__jsonw_float(w, "val_bpb", e->val_bpb);
    LKS__TRY(lks__metrics_end(r->metrics));
    t->run.procedure->finish_lines(t, result, &r->log);
    return LKS_OK;
}

static lks_status end_line(lks__report *r, const lks__trainer *t, const lks__rank_tally *all)
{
    const size_t W = (size_t)t->ses.world.world_size;
    uint64_t pss = 0;
    lks__jsonw *w = lks__report_begin_host(r, t);
    lks__jsonw_array(w, "micro_batches");
    for (size_t i = 0; i < W; i++)
        lks__jsonw_u64(w, NULL, all[i].micro_batches);
    lks__jsonw_end(w);
    for (size_t i = 0; i < W; i++)
        pss += all[i].pss;
    lks__jsonw_u64(w, "memory_bytes", pss);
    return lks__metrics_end(r->metrics);
}

/* Close the record, run the hooks for the end, and check that all lines could be written. */
static lks_status close_files(lks__report *r, lks__trainer *t)
{
    char why[1024];
    lks_status st = lks__metrics_close(r->metrics);
    r->metrics = NULL;
    const lks_status events = lks__events_close(r->events);
    r->events = NULL;
    const lks_status leaves = lks__leaves_close(&r->leaves);
    st = st != LKS_OK ? st : events != LKS_OK ? events : leaves;
    snprintf(why, sizeof why, "%s", lks_last_error());
    lks__report_hooks_close(r, &t->ses, &t->state);
    const int lost = r->log.out_errno;
    if (r->stop_signal != 0 && (lost == EPIPE || lost == EIO))
        r->log.out_errno = 0; /* the signal may have ended its reader, too, such as tee */
    return st == LKS_OK ? lks__log_check(&r->log) : lks__fail(st, "%s", why);
}

lks_status lks__report_close(lks__report *r, lks__trainer *t)
{
    lks__rank_tally *all = NULL;
    lks_status st = lks__report_ranks(r, t, &all);
    if (st == LKS_OK && r->metrics != NULL)
        st = end_line(r, t, all);
    free(all);
    if (!r->on)
        lks__session_saving(&t->ses,
                            false); /* a second signal may end this rank: nothing is lost */
    if (st == LKS_OK && r->on)
        st = close_files(r, t);
    lks__report_abandon(r);
    return st;
}

void lks__report_abandon(lks__report *r)
{
    free(r->hosts);
    r->hosts = NULL;
    if (!r->on)
        return;
    lks__signals_answer(NULL);
    lks__commands_close(r->commands);
    lks__samples_close(r->samples);
    lks__notify_close(&r->notify);
    lks__metrics_close(r->metrics);
    lks__events_close(r->events);
    lks__leaves_close(&r->leaves);
    lks__log_close(&r->log);
    lks__sys_close(r->out_lock);
    r->commands = NULL;
    r->samples = NULL;
    r->metrics = NULL;
    r->events = NULL;
    r->out_lock = -1;
    r->on = false;
}
