/* train/setup/trainer.h - one training run on one rank. */
#ifndef LKS_TRAIN_SETUP_TRAINER_H
#define LKS_TRAIN_SETUP_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/mirror.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/text/meta.h"
#include "ddp/ddp.h"
#include "files/checkpoint/ckpt.h"
#include "model/batch.h"
#include "model/model.h"
#include "model/optim/optimizer.h"
#include "session/session.h"
#include "session/trace_file.h"
#include "settings/settings.h"
#include "train/guard/divergence.h"
#include "weights/forms/nanogpt.h"
#include "weights/weights.h"

/* best_val_loss before the first evaluation, as in nanoGPT's train.py. */
#define LKS__NO_VAL_LOSS 1e9

typedef struct lks__trainer {
    lks__settings s;
    lks__session ses;
    lks__trace_file trace;
    double fit_room;    /* bytes of this host for batch_size=auto; 0: it wasn't given */
    int V, A, N;        /* virtual ranks, micro-steps of each, micro-batches of a step */
    int first_v, end_v; /* this rank's virtual ranks */
    bool shared;        /* one replica for all ranks of the host */

    char data_dir[LKS__SETTING_STR + 8];
    const char *meta_file; /* its file with the vocabulary; NULL: it has none */
    lks__weights *weights; /* that the run begins with; NULL: with the seed's, or a checkpoint */
    char vocabulary[LKS__CKPT_PATH]; /* folder of the tokenizer's files */
    char init_hash[17]; /* their hash, as params_hash; "": the run began with the seed's */
    const struct lks__procedure *procedure;
    struct lks__golf_run *golf;                   /* data of the golf procedure */
    char shown_out_dir[512], shown_data_dir[512]; /* escaped, for lines */
    lks__shards *data[2]; /* by split; NULL: no validation, which no evaluation needs */
    uint64_t data_digest;
    lks__meta meta; /* vocab_size, and the tokenizer if there is one */
    lks__sampler *sampler;

    lks__model_config model_config;
    lks__table table;
    lks__model *model;
    lks__ddp *ddp;
    lks__memory *memory; /* of ddp: gradients, parameters, moments */
    lks__optim optim;    /* what this rank updates */

    lks__batch batch;        /* the current micro-batch */
    const uint64_t *offsets; /* of the current step: [V][A][B] */
    lks__mirror losses;      /* float [N] of the current step, ordered by v */
    char *exchange;          /* buffer for exchanges between ranks */
    uint64_t micro_batches;  /* computed by this rank */
    bool skipped;            /* this rank has left out micro-batches of the current step */
    lks__divergence divergence;

    bool continued; /* a run of nanoGPT goes on; `weights` is its ckpt.pt */
    lks__nanogpt_run from_nanogpt;
    bool resumed;
    lks__settings resumed_from; /* after a resume, the checkpoint's settings */
    char resumed_hash[17];      /* … its params_hash, and the fingerprint of its kernels */
    char resumed_fingerprint[17];
    lks__asked resumed_asked; /* … and why it was written */

    uint64_t iter;       /* number of updates made or skipped */
    uint64_t data_shift; /* iteration i reads the data of iteration i + data_shift */
    int nonfinite;       /* updates skipped in a row, or rollbacks since the last checkpoint */
    bool eval_done;      /* evaluation `iter` has been made */
    double saved_at;     /* the time of the last save, or of the start; for checkpoint_minutes */
    bool asked;          /* this rank has taken part in the save that was agreed on last ... */
    double agreed_at;    /* ... and the time of that; 0: never */
    uint64_t agreed_iter;
    /* Training time since the run had made elapsed_from steps, with those that were rolled back;
     * rank 0's clock. */
    double elapsed_s;
    uint64_t elapsed_from;
    bool out_of_time; /* the procedure's time limit has been reached */
    double best_val_loss;
    double loaded_val_loss; /* of the checkpoint that was loaded last; NAN: it has none */
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

/* One optimizer step: iteration t->iter. */
lks_status lks__train_step(lks__trainer *t, lks__step_result *result);

/* Micro-batch m of virtual rank v of this iteration, without `done` and `shift`; its random numbers
 * are keyed by (seed, step, v, m). */
lks__backward lks__train_pass(const lks__trainer *t, int v, int m, float *grads);
/* Read its tokens, and send them to the device. */
lks_status lks__train_read(lks__trainer *t, int v, int m, lks__micro_batch *mb);

/* Go back to the newest checkpoint of LKS__ASKED_NOT, and continue with the data after
 * iteration t->iter - 1, whose loss or gradient wasn't finite (--on_nan=rollback). Collective. */
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
