/* train/work.h - buffers of a step or an evaluation on one rank. Their contents don't outlive it.
 */
#pragma once

#include "compute/mirror.h"
#include "ddp/reducer.h"
#include "model/batch.h"
#include "model/model.h"
#include "model/optim/optimizer.h"

typedef struct lks__step_work {
    lks__model *model; /* activations */
    lks__reducer *reducer;
    lks__optim optim; /* this rank's pieces of parameters and moments */
    lks__batch batch;
    const uint64_t *offsets; /* positions of the step's samples: [V][A][B] */
    lks__mirror losses;      /* float [N], ordered by virtual rank */
    char *exchange;          /* the votes: this rank's message, then those of all ranks */
    bool skipped;            /* this rank left out micro-batches of the current step */
    uint64_t micro_batches;  /* computed by this rank since the start */
} lks__step_work;
