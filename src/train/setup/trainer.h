/* train/setup/trainer.h - one training run on one rank. */
#ifndef LKS_TRAIN_SETUP_TRAINER_H
#define LKS_TRAIN_SETUP_TRAINER_H

#include "session/session.h"
#include "session/trace_file.h"
#include "train/guard/guard.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"

/* What set-up opens, and everything else takes in parts. */
typedef struct lks__trainer {
    lks__run run;
    lks__session ses;
    lks__trace_file trace;
    lks__state state;
    lks__work work;
    lks__guard guard;
} lks__trainer;

/* Set up everything that a step needs, and start from the seed's initial weights or the newest
 * checkpoint (`--init_from`). `s` has been checked; on a resume SHAPE and RUN settings come from
 * the checkpoint. Collective. ERR_STOPPED, with the signal in *stopped_p, if one arrived before the
 * run began; then nothing was written. */
lks_status lks__trainer_open(const lks__settings *s, lks__trainer *t, int *stopped_p);
void lks__trainer_close(lks__trainer *t);

/* Place of a number that isn't finite, agreed by all ranks. */
typedef struct lks__nonfinite {
    int index;              /* micro-batch, v * A + m; -1: all are finite, but not their sum */
    bool in_loss;           /* its loss isn't finite; false: only its gradient */
    char place[LKS__PLACE]; /* the first module (loss) or tensor (gradient) that has it */
} lks__nonfinite;

/* The outcome of a step. */
enum { LKS__STEP_DONE = 0, LKS__STEP_SKIPPED, LKS__STEP_BACK, LKS__STEP_DISCARDED };

typedef struct lks__step_result {
    int outcome; /* LKS__STEP_...; SKIPPED: counted, without an update; BACK: the run must go back
                    to a checkpoint; DISCARDED: a rank was asked to stop and didn't compute
                    everything, so the state is as before the step */
    lks__nonfinite bad; /* … and the reason */
    uint64_t iter;
    double loss;          /* mean over the N micro-batches */
    double lr, grad_norm; /* norm before clipping */
    double seconds;       /* duration of the step */
    double exposed_s;     /* part of it spent waiting for other ranks' gradients */
    lks__asked save;      /* a signal has asked some rank for a checkpoint, or rank 0's clock */
    int stop_signal; /* a signal that asked some rank to stop, so that all stop here; 0: none */
} lks__step_result;

/* What each rank sends to all others in every step; its losses follow. */
typedef struct lks__step_note {
    lks__divergence_note divergence;
    int32_t stop_signal, save; /* `save`: lks__asked */
    int32_t skipped; /* this rank has left out micro-batches, because it was asked to stop */
} lks__step_note;

/* One optimizer step: iteration t->state.iter. */
lks_status lks__train_step(lks__trainer *t, lks__step_result *result);

/* Micro-batch m of virtual rank v of this iteration, without `done` and `shift`; its random numbers
 * are keyed by (seed, step, v, m). */
lks__backward lks__train_pass(const lks__trainer *t, int v, int m, float *grads);
/* Read its tokens, and send them to the device. */
lks_status lks__train_read(lks__trainer *t, int v, int m, lks__micro_batch *mb);

/* Go back to the newest checkpoint of LKS__ASKED_NOT, and continue with the data after
 * iteration t->state.iter - 1, whose loss or gradient wasn't finite (--on_nan=rollback).
 * Collective. */
lks_status lks__trainer_go_back(lks__trainer *t);

typedef struct lks__eval_result {
    bool has_train, has_bpb; /* which values the procedure's evaluation gives */
    double train_loss, val_loss, val_bpb;
} lks__eval_result;

/* A whole run: evaluations, steps, checkpoints, log. *stopped_p: the signal that ended it, or 0. */
lks_status lks__train_run(lks__trainer *t, int *stopped_p);

/* The final checkpoint of a run, and that of a stopped one, is written before its evaluation, a
 * periodic one (and golf's final one) after it. So a resume from the former evaluates and writes it
 * again. */
bool lks__train_saves_again(const lks__trainer *t);

/* May, or must, devices exchange gradients, by these settings? */
bool lks__train_may_join(const lks__settings *s);
bool lks__train_must_join(const lks__settings *s);

/* How a run with these checked settings adds up its gradients. */
lks__ddp_config lks__train_ddp_config(const lks__settings *s);

#endif
