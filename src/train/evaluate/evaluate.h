/* train/evaluate/evaluate.h - evaluation over fixed batches, with the same result on any number of
 * ranks. */
#pragma once

#include "data/read/shards.h"
#include "data/text/bpb.h"
#include "session/session.h"
#include "train/work.h"

typedef struct lks__eval_job {
    lks__session *session;
    size_t n_batches, n_values;
    /* Compute n_values numbers of one batch on this rank. */
    lks_status (*run)(void *ctx, size_t batch, double *values);
    void *ctx;
} lks__eval_job;

/* Divide the batches over ranks. All ranks get all values[n_batches][n_values]. Collective.
 * ERR_STOPPED, on all ranks, if one was asked to stop and has left out batches. */
lks_status lks__eval_batches(const lks__eval_job *job, double *values);

/* The mean loss of one batch. Overwrites the first of work->losses. */
lks_status lks__eval_loss(const lks__step_work *work, const float *params,
                          const lks__micro_batch *mb, double *loss_p);

/* The mean loss over a split, in batches of windows. */
typedef struct lks__split_eval {
    lks__session *session;
    lks__step_work *work; /* its batch and losses are overwritten */
    const float *params;
    size_t B, T;   /* windows per batch (the last may have fewer), at most those of a micro-batch,
                      and tokens per window */
    size_t stride; /* lks__eval_sliding(): tokens between starts of windows, 1 to T */

    const lks__shards *source;
    uint64_t n_tokens;            /* of its tokens */
    const lks__byte_table *bytes; /* for bits per byte; NULL: leave them out */
} lks__split_eval;

typedef struct lks__split_result {
    uint64_t n_windows;
    double loss, bpb; /* bpb: only with `bytes` */
} lks__split_result;

/* Run `job`, whose two values per batch are a sum of losses and bytes, and set the means over all
 * targets. `values` is scratch. */
lks_status lks__eval_means(const lks__eval_job *job, const lks__split_eval *e, uint64_t targets,
                           double *values, lks__split_result *result);

/* Evaluate all windows [iT, iT + T] of the split, without the tokens after the last whole window.
 * Collective; ERR_STOPPED as above. */
lks_status lks__eval_split(const lks__split_eval *e, lks__split_result *result);

/* The same with overlapping windows, which begin every `stride` tokens. The last may be shorter.
 * Every token but the first counts once, in the first window that predicts it. */
lks_status lks__eval_sliding(const lks__split_eval *e, lks__split_result *result);

/* A rehearsal (session/session.h) of that evaluation: of the second one if there is a stride. ctx:
 * its lks__split_eval. */
lks__rehearsal lks__eval_rehearse;
