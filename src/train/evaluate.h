/* train/evaluate.h - evaluation over fixed batches, whatever the number of ranks. */
#ifndef LKS_TRAIN_EVALUATE_H
#define LKS_TRAIN_EVALUATE_H

#include "data/tokens.h"
#include "train/replica.h"
#include "train/session.h"

typedef struct lks__eval_job {
    lks__session *session;
    size_t n_batches, n_values;
    lks_status (*run)(void *ctx, size_t batch, double *values); /* one batch's, on this rank */
    void *ctx;
} lks__eval_job;

/* Every rank takes whole batches; values[n_batches][n_values] out, the same on all ranks.
 * Collective. */
lks_status lks__eval_batches(const lks__eval_job *job, double *values);

typedef struct lks__split_eval {
    lks__session *session;
    const lks__replica *replica; /* opened for batches of B */
    const lks__tokens *data;
    size_t B; /* windows of a batch: the last batch may have fewer */
} lks__split_eval;

/* Mean loss over all windows [iT, iT + T] of a split, T = block_size; tokens behind the last whole
 * window are left out. The same figure for any number of ranks. Collective. */
lks_status lks__eval_split(const lks__split_eval *e, double *loss_p, uint64_t *n_windows_p);

#endif
