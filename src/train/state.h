/* train/state.h - the state of a run on one rank: all that steps change and a checkpoint keeps. */
#ifndef LKS_TRAIN_STATE_H
#define LKS_TRAIN_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "data/read/sampler.h"
#include "ddp/memory/memory.h"

/* best_val_loss before the first evaluation, as in nanoGPT's train.py. */
#define LKS__NO_VAL_LOSS 1e9

typedef struct lks__state {
    lks__memory *memory; /* parameters and moments */
    lks__sampler *sampler;
    uint64_t iter;       /* number of updates made or skipped */
    uint64_t data_shift; /* iteration i reads the data of iteration i + data_shift */
    int nonfinite;       /* updates skipped in a row, or rollbacks since the last checkpoint */
    bool eval_done;      /* evaluation `iter` has been made */
    double best_val_loss;
    /* Training time, with that of steps that were rolled back; rank 0's clock. */
    double elapsed_s;
} lks__state;

#endif
