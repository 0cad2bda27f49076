/* train/evaluate.h - evaluation over fixed batches, whatever the number of ranks. */
#ifndef LKS_TRAIN_EVALUATE_H
#define LKS_TRAIN_EVALUATE_H

#include "train/session.h"

typedef struct lks__eval_job {
    lks__session *session;
    size_t n_batches;
    lks_status (*loss)(void *ctx, size_t batch, double *loss_p); /* of one batch, on this rank */
    void *ctx;
} lks__eval_job;

/* Every rank takes whole batches; losses[n_batches] out, the same on all ranks. Collective. */
lks_status lks__eval_batches(const lks__eval_job *job, double *losses);

#endif
