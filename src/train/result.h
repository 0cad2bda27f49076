/* train/result.h - results of a step and of an evaluation. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "files/checkpoint/ckpt.h"
#include "model/model.h"

/* A loss or gradient that isn't finite. All ranks find the same one. */
typedef struct lks__nonfinite {
    int index;    /* micro-batch v * A + m; -1: each gradient is finite, but their sum overflows */
    bool in_loss; /* false: only its gradient isn't finite */
    char place[LKS__PLACE]; /* first module (loss) or tensor (gradient) with such a number */
} lks__nonfinite;

/* DONE: the parameters were updated. SKIPPED: the step counts, but without an update. BACK: the run
 * must go back to a checkpoint. DISCARDED: a rank was asked to stop and left out micro-batches.
 * AGAIN: a host computed wrongly (checks/recheck.h), so the step must be made again. After these
 * two the state is as before the step. */
enum {
    LKS__STEP_DONE = 0,
    LKS__STEP_SKIPPED,
    LKS__STEP_BACK,
    LKS__STEP_DISCARDED,
    LKS__STEP_AGAIN
};

typedef struct lks__step_result {
    int outcome;        /* LKS__STEP_... */
    lks__nonfinite bad; /* the cause of SKIPPED and BACK */
    uint64_t iter;
    double loss;          /* mean over the step's N micro-batches */
    double lr, grad_norm; /* grad_norm: before clipping */
    const float *grads;   /* the mean gradient, from lks__memory_sum(), until the next step */
    double seconds;
    double exposed_s; /* part of `seconds` spent waiting for other ranks' gradients */
    lks__asked save;  /* a signal on some rank, or rank 0's clock, asks for a checkpoint */
    int stop_signal;  /* signal that asked some rank to stop, so that all stop after this step; 0:
                         none */
} lks__step_result;

typedef struct lks__eval_result {
    bool has_train, has_bpb; /* the procedure computes these values */
    double train_loss, val_loss, val_bpb;
} lks__eval_result;
