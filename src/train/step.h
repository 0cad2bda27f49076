/* train/step.h - one optimizer step of a run, and its result. */
#ifndef LKS_TRAIN_STEP_H
#define LKS_TRAIN_STEP_H

#include "session/session.h"
#include "train/guard/guard.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"

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

/* One optimizer step: iteration state->iter. */
lks_status lks__train_step(const lks__run *run, lks__session *ses, lks__state *state,
                           lks__work *work, lks__guard *guard, lks__step_result *result);

/* The result of an evaluation. */
typedef struct lks__eval_result {
    bool has_train, has_bpb; /* which values the procedure's evaluation gives */
    double train_loss, val_loss, val_bpb;
} lks__eval_result;

#endif
