/* train/loop/report/report.h - output of a run: metrics for programs, lines for people. Rank 0
 * reports; on the other ranks every call does nothing and succeeds. */
#ifndef LKS_TRAIN_LOOP_REPORT_REPORT_H
#define LKS_TRAIN_LOOP_REPORT_REPORT_H

#include "base/log.h"
#include "report/record/best.h"
#include "report/record/metrics/events.h"
#include "report/record/metrics/metrics.h"
#include "train/loop/commands.h"
#include "train/loop/peak.h"
#include "train/loop/report/notify.h"
#include "train/loop/samples.h"
#include "train/procedure/procedure.h"
#include "train/setup/trainer.h"

/* Of the newest step and evaluation; NAN before the first. */
typedef struct lks__newest {
    double loss, lr, grad_norm, tok_per_s, mfu, wait_s, val_loss;
} lks__newest;

typedef struct lks__report {
    bool on; /* this is rank 0 */
    lks__log log;
    lks__metrics *metrics; /* NULL: leave the run's files alone */
    lks__events *events;   /* NULL: none are written (--tensorboard=false) */
    int out_lock;          /* this run's lock of out_dir; -1: none */
    lks__peak peak;        /* of all ranks together, measured at the start */
    double flops_a_token;
    double tokens_a_step;
    double started;      /* lks__sys_now() */
    uint64_t first_iter; /* of this process */
    double mfu;          /* running mean, as in nanoGPT */
    /* What is under way, for lines about its progress. */
    const char *work; /* "evaluation", "iter" */
    uint64_t work_iter;
    double work_began, eval_s; /* eval_s: seconds of the last evaluation; 0: none yet */
    bool estimated;            /* the time of the whole run has been estimated */
    lks__best best;
    int n_above; /* evaluations in a row up to above_iter; see lks__report_above() */
    uint64_t above_iter;
    lks__newest newest;
    /* Of this rank, since the last lks__report_ranks(). */
    double steps_s, wait_s;
    uint64_t steps;
    double prometheus_at; /* lks__sys_now() of the next write */
    bool prometheus_failed;
    lks__commands *commands; /* of exec_on; NULL: none */
    lks__samples *samples;   /* of sample_tokens; NULL: none */
    lks__notify notify;
    bool ended;      /* by itself, or stopped ... */
    int stop_signal; /* ... by this signal */
} lks__report;

void lks__report_abandon(lks__report *r); /* after a failure: closes files, writes nothing more */

/* Collective (the peak is measured on all ranks at once). Opens or resumes OUT's files, writes the
 * config and host lines, and describes the run. */
lks_status lks__report_open(lks__report *r, lks__trainer *t);
/* Say that a resume has no step to train, and leaves the run's folder unchanged. On rank 0. */
void lks__report_nothing(const lks__run *run, const lks__state *state, const lks__guard *guard);
/* Work on a step ("iter") or an "evaluation" begins: if it lasts, its progress is shown. */
void lks__report_work(lks__report *r, const lks__run *run, lks__session *ses,
                      const lks__state *state, const char *work);
lks_status lks__report_train(lks__report *r, const lks__run *run, const lks__session *ses,
                             const lks__state *state, const lks__work *work,
                             const lks__guard *guard, const lks__step_result *step);
lks_status lks__report_eval(lks__report *r, const lks__run *run, const lks__state *state,
                            const lks__guard *guard, const lks__eval_result *eval);
/* Report the result of --eval_only, also in evals.jsonl. */
lks_status lks__report_eval_only(lks__report *r, const lks__run *run, const lks__state *state,
                                 const lks__guard *guard, const lks__eval_result *eval);
/* Report the evaluation of the final checkpoint, which counts for OUT/best. */
lks_status lks__report_final(lks__report *r, const lks__run *run, const lks__state *state,
                             const lks__eval_result *eval);
lks_status lks__report_checkpoint(lks__report *r, const lks__state *state, lks__asked asked,
                                  const char *name, const char *params_hash);
lks_status lks__report_finish(lks__report *r, const lks__run *run, const lks__state *state,
                              const lks__guard *guard, const lks__finish_result *result);
/* Count the evaluations in a row that are over 5 % above the best one. One of the same iteration
 * counts once. */
void lks__report_above(lks__report *r, uint64_t iter, double val_loss);
/* The last lines for people: time, losses, paths, the next command. `final` is NULL if the final
 * checkpoint wasn't evaluated. */
void lks__report_end(lks__report *r, const lks__run *run, const lks__session *ses,
                     const lks__state *state, int stop_signal, const double *loss,
                     const lks__eval_result *final);
/* A line about a long run, if it will take days. */
void lks__report_slow_run(lks__report *r, const lks__run *run, const lks__state *state);
/* Begin a host line, with what is known of the run. */
lks__jsonw *lks__report_begin_host(lks__report *r, const lks__run *run, const lks__session *ses,
                                   const lks__state *state);
/* Members of a host line: schema, time, host, command, commit. */
void lks__report_host(lks__jsonw *w);

/* --- report_events.c: what goes to TensorBoard, if `events` isn't NULL --- */

/* Begin a file, with the settings, for a run that goes on with state->iter. After
 * lks__metrics_resume() or lks__metrics_create(). */
lks_status lks__report_events_open(lks__report *r, const lks__run *run, const lks__state *state);
lks_status lks__report_events_train(lks__report *r, const lks__step_result *step, double tok_per_s,
                                    double mfu);
/* The run has gone back to state->iter. */
lks_status lks__report_events_back(lks__report *r, const lks__state *state);
lks_status lks__report_events_eval(lks__report *r, const lks__state *state, const char *kind,
                                   const lks__eval_result *eval);
lks_status lks__report_events_sample(lks__report *r, const lks__state *state, const char *text);
lks_status lks__report_events_memory(lks__report *r, const lks__state *state, const char *tag,
                                     uint64_t bytes);

/* Write the file of --prometheus, if it is due or `now`. A failure is reported once, and the run
 * goes on. */
void lks__report_prometheus(lks__report *r, const lks__run *run, const lks__state *state, bool now);

/* --- report_ranks.c: what each rank does --- */

typedef struct lks__rank_tally {
    uint64_t micro_batches, pss;
    double compute_s, wait_s; /* of all steps since the last tally */
    uint64_t steps;
} lks__rank_tally;

/* This rank has made a step. */
void lks__report_ranks_add(lks__report *r, const lks__step_result *step);
/* Collective: add a line to OUT/ranks.jsonl. *all_p gets the tallies of all ranks, which the caller
 * frees; NULL: nobody wants them. */
lks_status lks__report_ranks(lks__report *r, const lks__run *run, const lks__session *ses,
                             const lks__state *state, const lks__work *work,
                             lks__rank_tally **all_p);

/* --- report_commands.c: who else is to know of it --- */

/* Open the commands of exec_on and systemd's socket. */
lks_status lks__report_others_open(lks__report *r, const lks__run *run);
/* The run makes progress; `text` is a line about it, or NULL. */
void lks__report_alive(lks__report *r, const char *text);
/* A checkpoint is there, the best so far if `best`. */
void lks__report_saved(lks__report *r, const lks__state *state, bool best);
/* The newest checkpoint has turned out to be the best so far. */
void lks__report_best(lks__report *r, const lks__state *state);
/* A signal ends the run: it saves what it has. */
void lks__report_stopping(lks__report *r);
/* The run has ended and its files are complete: start what was given for that, and wait. */
void lks__report_others_close(lks__report *r, const lks__session *ses, const lks__state *state);

/* Collective: the last host line, with each rank's micro-batches and memory. Also closes. */
lks_status lks__report_close(lks__report *r, const lks__run *run, const lks__session *ses,
                             const lks__state *state, const lks__work *work);

#endif
