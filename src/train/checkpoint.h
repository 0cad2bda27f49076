/* train/checkpoint.h - the state of a run, written to and read from checkpoints. */
#pragma once

#include "files/checkpoint/ckpt.h"
#include "train/trainer.h"
#include "weights/forms/saved.h"

typedef struct lks__save_about {
    lks__asked asked; /* reason for writing it */
    bool best;        /* OUT/best will name it */
    double val_loss;  /* of its evaluation, if it counts for OUT/best; else NAN */
} lks__save_about;

/* Write checkpoint state->iter from the host's arenas. On rank 0. */
lks_status lks__state_save(const lks__trainer *t, const lks__save_about *about, char name[32],
                           char params_hash[17]);

/* The params_hash of the parameters in the host's arena. */
lks_status lks__state_params_hash(const lks__trainer *t, char params_hash[17]);

/* Read the segment that a checkpoint was written in. */
lks_status lks__state_segment(const lks__ckpt *ckpt, lks__segment *segment);

/* Bytes of the sampler's state; 0 for sampler=stream, which has none. */
size_t lks__state_sampler_bytes(const lks__state *state);

/* True if training time ends the run, so that checkpoints contain it. */
bool lks__state_by_the_clock(const lks__run *run);

/* Tokens of all steps before state->iter. */
uint64_t lks__state_tokens(const lks__run *run, const lks__state *state);

/* Complete a resume: read parameters and moments into the arenas (if shared, on the first rank of
 * each host), iteration and sampler. `run->s` already has the checkpoint's settings, except perhaps
 * for the batch: then a new segment begins at its iteration. With zero=1 each host then holds all
 * moments, until lks__memory_fetched(). */
lks_status lks__state_load(lks__trainer *t, lks__ckpt *ckpt);
