/* train/work.h - what a step works with on one rank. Between steps nothing in it counts. */
#ifndef LKS_TRAIN_WORK_H
#define LKS_TRAIN_WORK_H

#include "compute/mirror.h"
#include "ddp/ddp.h"
#include "model/batch.h"
#include "model/model.h"
#include "model/optim/optimizer.h"

typedef struct lks__work {
    lks__model *model; /* its activations */
    lks__ddp *ddp;
    lks__optim optim;        /* what this rank updates */
    lks__batch batch;        /* the current micro-batch */
    const uint64_t *offsets; /* of the current step: [V][A][B] */
    lks__mirror losses;      /* float [N] of the current step, ordered by v */
    char *exchange;          /* buffer for exchanges between ranks */
    bool skipped;            /* this rank has left out micro-batches of the current step */
    uint64_t micro_batches;  /* computed by this rank, in all steps */
} lks__work;

#endif
