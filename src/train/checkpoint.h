/* train/checkpoint.h - the state of a run, written to and read from checkpoints. */
#ifndef LKS_TRAIN_CHECKPOINT_H
#define LKS_TRAIN_CHECKPOINT_H

#include "files/checkpoint/ckpt.h"
#include "session/session.h"
#include "train/guard/guard.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"
#include "weights/forms/saved.h"

typedef struct lks__save_about {
    lks__asked asked; /* why it is written */
    bool best;        /* OUT/best names it */
    double val_loss;  /* of its evaluation, if that counts for `best`; else NAN */
} lks__save_about;

/* Rank 0: write checkpoint state->iter, reading the arenas in place. */
lks_status lks__state_save(const lks__run *run, const lks__session *ses, const lks__state *state,
                           const lks__work *work, const lks__save_about *about, char name[32],
                           char params_hash[17]);

/* The hash of the parameters in the host's arena, as a checkpoint's params_hash. */
lks_status lks__state_params_hash(const lks__run *run, const lks__state *state,
                                  const lks__work *work, char params_hash[17]);

/* Does training time end the run, so that checkpoints hold it? */
bool lks__state_by_the_clock(const lks__run *run);

/* Complete a resume: parameters and moments into the arenas (this rank's own, or, if shared, by the
 * first rank of a host), iteration, sampler. `run->s` already has the checkpoint's settings. With
 * zero=1 each host then holds all moments, until it drops the others' parts. */
lks_status lks__state_load(const lks__run *run, const lks__session *ses, lks__state *state,
                           const lks__work *work, lks__guard *guard, lks__ckpt *ckpt);

#endif
