/* train/state.h - the state of a run on one rank: everything that steps change and a checkpoint
 * contains. */
#ifndef LKS_TRAIN_STATE_H
#define LKS_TRAIN_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "data/read/sampler.h"
#include "ddp/memory/memory.h"

/* best_val_loss before the first evaluation, as in nanoGPT */
#define LKS__NO_VAL_LOSS 1e9

typedef struct lks__state {
    lks__memory *memory; /* parameters and moments; work->reducer owns it */
    lks__batch_sampler *sampler;
    uint64_t iter;       /* updates made or skipped */
    uint64_t data_shift; /* iteration i reads the data of iteration i + data_shift: rollbacks skip
                            data */
    int nonfinite;       /* skipped updates in a row, or rollbacks since the last checkpoint */
    bool eval_done;      /* evaluation `iter` has been computed */
    double best_val_loss;
    /* seconds of training by rank 0's clock, undone steps included */
    double elapsed_s;
} lks__state;

#endif
