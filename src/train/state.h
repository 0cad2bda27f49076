/* train/state.h - the state of a run on one rank: everything that steps change and a checkpoint
 * contains. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/read/sampler.h"
#include "data/read/start.h"
#include "ddp/memory/memory.h"

/* best_val_loss before the first evaluation, as in nanoGPT */
#define LKS__NO_VAL_LOSS 1e9

/* A part of a run with one batch: batch_size, gradient_accumulation_steps and virtual_ranks, and in
 * golf's runs train_batch_tokens. A resume that changes the batch begins the next segment. */
typedef struct lks__segment {
    uint64_t iter;   /* its first iteration */
    uint64_t tokens; /* of all steps before it */
    lks__data_start data;
} lks__segment;

typedef struct lks__state {
    lks__memory *memory; /* parameters and moments; work->reducer owns it */
    lks__batch_sampler *sampler;
    uint64_t iter;       /* updates made or skipped */
    uint64_t data_shift; /* iteration i reads the data of iteration i + data_shift: rollbacks skip
                            data */
    lks__segment segment;
    int nonfinite;  /* skipped updates in a row, or rollbacks since the last checkpoint */
    bool eval_done; /* evaluation `iter` has been computed */
    double best_val_loss;
    /* seconds of training by rank 0's clock, undone steps included */
    double elapsed_s;
    uint64_t elapsed_from; /* iter + data_shift at which elapsed_s was 0 */
} lks__state;
