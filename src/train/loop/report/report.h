/* train/loop/report/report.h - output of a run: metrics for programs, lines for people. On ranks
 * other than 0 every call does nothing and succeeds, except for collective ones. */
#pragma once

#include "base/log.h"
#include "report/record/best.h"
#include "report/record/leaves.h"
#include "report/record/metrics/events.h"
#include "report/record/metrics/metrics.h"
#include "train/loop/commands.h"
#include "train/loop/peak.h"
#include "train/loop/report/notify.h"
#include "train/loop/samples.h"
#include "train/procedure/procedure.h"
#include "train/setup/trainer.h"

/* Values of the newest step and evaluation; NAN before the first. */
typedef struct lks__newest {
    double loss, lr, grad_norm, tok_per_s, mfu, wait_s, val_loss;
} lks__newest;

typedef struct lks__report {
    bool on; /* this is rank 0 */
    lks__log log;
    lks__metrics *metrics; /* NULL: the run's files stay unchanged */
    lks__leaves leaves;    /* zeroed: gradients aren't hashed */
    lks__events *events;   /* NULL: --tensorboard=false */
    int out_lock;          /* lock of out_dir; -1: none */
    lks__peak peak;        /* peak of all ranks together, measured at the start */
    char *hosts;           /* host of each rank, [W][LKS__HOST_NAME] */
    double flops_per_token;
    double tokens_per_step;
    double started;   /* lks__sys_now() */
    uint64_t n_steps; /* that this process made, repeated and skipped ones included */
    double mfu;       /* running mean, as in nanoGPT; < 0: none yet */
    /* The current work, for lines about its progress. */
    const char *work; /* "evaluation", "iter" */
    uint64_t work_iter;
    double work_began, eval_s; /* eval_s: seconds of the last evaluation; 0: none yet */
    bool estimated;            /* estimate() is done */
    lks__best best;
    int n_above; /* evaluations in a row up to above_iter; see lks__report_above() */
    uint64_t above_iter;
    lks__newest newest;
    /* Sums over this rank's steps since the last lks__report_ranks(). */
    double steps_s, wait_s;
    uint64_t steps;
    double prometheus_at; /* lks__sys_now() of the next write */
    bool prometheus_failed;
    lks__commands *commands; /* commands of exec_on; NULL: none */
    lks__samples *samples;   /* for sample_tokens; NULL: none */
    lks__notify notify;
    bool ended;      /* lks__report_end() was called */
    int stop_signal; /* signal that ended the run; 0: none */
} lks__report;

/* Open or resume OUT's files, write the config and host lines, and describe the run. `saves_again`:
 * the run will write the loaded checkpoint again. After an error, call
 * lks__report_abandon(). Collective: all ranks measure the peak at once. */
lks_status lks__report_open(lks__report *r, lks__trainer *t, bool saves_again);
/* Print that a resume has no step to train and leaves the run's folder unchanged. `finished`: the
 * run has its artifact, too. On rank 0. */
void lks__report_nothing(const lks__trainer *t, bool finished);
/* Begin work on a step ("iter"), an "evaluation" or an "artifact". If it lasts, its progress is
 * shown. */
void lks__report_work(lks__report *r, lks__trainer *t, const char *work);
/* Report a step that was made, whatever its outcome. */
lks_status lks__report_train(lks__report *r, const lks__trainer *t, const lks__step_result *step);
lks_status lks__report_eval(lks__report *r, const lks__trainer *t, const lks__eval_result *eval);
/* Report an evaluation of --eval_only, also in evals.jsonl. */
lks_status lks__report_eval_only(lks__report *r, const lks__trainer *t,
                                 const lks__eval_result *eval);
/* Report the evaluation of the final checkpoint, which counts for OUT/best. */
lks_status lks__report_final(lks__report *r, const lks__trainer *t, const lks__eval_result *eval);
/* Write the line of checkpoint state->iter. On rank 0. */
lks_status lks__report_checkpoint(lks__report *r, const lks__state *state, lks__asked asked,
                                  const char *params_hash);
/* Report golf's artifact. */
lks_status lks__report_finish(lks__report *r, const lks__trainer *t,
                              const lks__finish_result *result);
/* Count the evaluations in a row that are over 5 % above the best one. Repeats of an iteration
 * count once. */
void lks__report_above(lks__report *r, uint64_t iter, double val_loss);
/* Print the last lines: time, losses, paths, the next command. `loss` is NULL if no step was made,
 * and `final` if the final checkpoint wasn't evaluated. */
void lks__report_end(lks__report *r, const lks__trainer *t, int stop_signal, const double *loss,
                     const lks__eval_result *final);
/* Write the last host line, with each rank's micro-batches and memory, and close. Collective. */
lks_status lks__report_close(lks__report *r, lks__trainer *t);
/* After a failure: close files, without further output. */
void lks__report_abandon(lks__report *r);

/* Warn if the run will take days. */
void lks__report_slow_run(lks__report *r, const lks__run *run, const lks__state *state);
/* Begin a host line, with the members that are known at the start. */
lks__jsonw *lks__report_begin_host(lks__report *r, const lks__trainer *t);

/* --- report_events.c: TensorBoard files; these calls do nothing if `events` is NULL --- */

/* Begin a file, with the settings, for a run that starts at state->iter. Call it after
 * metrics.jsonl is open. */
lks_status lks__report_events_open(lks__report *r, const lks__run *run, const lks__state *state);
lks_status lks__report_events_train(lks__report *r, const lks__step_result *step, double tok_per_s,
                                    double mfu);
/* After the run has gone back to state->iter. */
lks_status lks__report_events_back(lks__report *r, const lks__state *state);
lks_status lks__report_events_eval(lks__report *r, const lks__state *state, const char *kind,
                                   const lks__eval_result *eval);
lks_status lks__report_events_sample(lks__report *r, const lks__state *state, const char *text);
lks_status lks__report_events_memory(lks__report *r, const lks__state *state, const char *tag,
                                     uint64_t bytes);

/* After LKS__STEP_AGAIN: name the host that was wrong (report_recheck.c). On rank 0. */
lks_status lks__report_recheck(lks__report *r, const lks__checks *checks,
                               const lks__step_result *step);

/* Write the file of --prometheus, if it is due or `now`. Only the first failure is reported, and
 * the run continues. */
void lks__report_prometheus(lks__report *r, const lks__run *run, const lks__state *state, bool now);

/* --- report_ranks.c: time and memory of each rank --- */

typedef struct lks__rank_tally {
    uint64_t micro_batches, pss;
    double compute_s, wait_s; /* seconds, since the last tally */
    uint64_t steps;
} lks__rank_tally;

/* Count a step of this rank. */
void lks__report_ranks_add(lks__report *r, const lks__step_result *step);
/* Add a line to OUT/ranks.jsonl. *all_p: the tallies of all ranks, which the caller frees; NULL:
 * not needed. Collective. */
lks_status lks__report_ranks(lks__report *r, const lks__trainer *t, lks__rank_tally **all_p);

/* --- report_commands.c: hooks: commands of exec_on, and systemd --- */

/* Open the commands and systemd's socket. */
lks_status lks__report_hooks_open(lks__report *r, const lks__run *run);
/* After progress: tell systemd's watchdog, and start or end commands. `text` describes the
 * progress, or NULL. */
void lks__report_alive(lks__report *r, const char *text);
/* After a checkpoint was written, the best so far if `best`. */
void lks__report_saved(lks__report *r, const lks__state *state, bool best);
/* After the newest checkpoint has become the best. */
void lks__report_best(lks__report *r, const lks__state *state);
/* After a signal: the run saves and ends. */
void lks__report_stopping(lks__report *r);
/* After the run's files are complete: start the commands for the end, and wait for all commands. */
void lks__report_hooks_close(lks__report *r, lks__session *ses, const lks__state *state);
