/* lockstep/ddp.h - data-parallel training for any program's parameters.
 *
 * Words. A step's batch is cut into V * A micro-batches: V virtual ranks of A micro-steps each. The
 * ranks of the group carry out the virtual ranks, a contiguous range each, whatever their number;
 * every sum runs in an order that V alone fixes, so that any number of ranks gives the same bits.
 * With virtual_ranks = 0 there is one for each rank, as in PyTorch's DistributedDataParallel.
 *
 *     lks_ddp_open(comm, params, n, NULL, &ddp);
 *     lks_ddp_broadcast(ddp);                            rank 0's start is everybody's
 *     for (;;) {
 *         for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
 *             lks_ddp_begin(ddp, v);                     gradients are zero now
 *             for (int m = 0; m < A; m++) {
 *                 backward of micro-batch m of v: adds to the gradients
 *                 lks_ddp_accumulate(ddp, samples);
 *             }
 *         }
 *         lks_ddp_step(ddp, NULL);                       gradients are the mean now, on every rank
 *         the program's own optimizer
 *     }
 *
 * Backward gives the gradient of the *sum* of the losses of its samples (tokens, …);
 * lks_ddp_accumulate() says how many those were. The sum over all is divided once, by the number of
 * all: micro-batches of different sizes count as much as they have samples, and a rank whose data
 * has run out calls lks_ddp_accumulate(ddp, 0) for what it hasn't got.
 *
 * There is nothing like no_sync(): the library counts micro-steps, so it alone knows when gradients
 * are complete, and a call out of turn is ERR_ARG that says which was due; nothing has changed
 * then. A ddp of NULL is ERR_ARG, too. After a call that failed in any other way the step can't be
 * ended: later calls of the step fail alike and say why, and lks_ddp_close() is due. One thread at
 * a time.
 *
 * A group may have several lks_ddp. All ranks then call them in the same order, else ERR_ARG. */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <stdbool.h>
#include <stddef.h>

#include "lockstep/comm.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct lks_ddp lks_ddp; /* opaque; close with lks_ddp_close() */

typedef struct lks_param {
    const char *name; /* for messages; copied */
    float *value;     /* [count]; the caller's, as long as the lks_ddp is open. Memory of parameters
                       * doesn't overlap: a tied one is given once */
    float *grad;      /* [count]; the caller's. NULL: frozen, neither zeroed, summed nor sent */
    size_t count;     /* elements, at least 1 */
} lks_param;

typedef struct lks_ddp_options {
    int virtual_ranks; /* V, at least the number of ranks, at most 1024; 0: one for each rank */
    int micro_steps;   /* A, of each virtual rank in a step; 0: 1 */
    double bucket_mb;  /* gradients are sent in pieces of about this size; 0: 25, as in PyTorch */
} lks_ddp_options;

/* Collective. All ranks give the same names, counts and frozen parameters in the same order: else
 * ERR_DIVERGED, on every rank, names rank and parameter. A list or an option that is wrong by
 * itself is ERR_ARG on this rank alone. Order them as forward uses them: gradients are sent in the
 * reverse order, as backward completes them. `options` may be NULL. */
lks_status lks_ddp_open(lks_comm *comm, const lks_param *params, size_t n_params,
                        const lks_ddp_options *options, lks_ddp **ddp_p);
/* NULL is fine; before the comm is closed. Never waits. In mid-step it gives the step up: if all
 * ranks do, after the same buckets (all of them, behind the last lks_ddp_accumulate()), they may go
 * on with another lks_ddp. If only some do, their next collective doesn't fit the others' step:
 * ERR_ARG on every rank; or ERR_PEER, if they close the comm. */
void lks_ddp_close(lks_ddp *ddp);

/* Rank 0's values become every rank's, frozen ones too. Collective. */
lks_status lks_ddp_broadcast(lks_ddp *ddp);
/* Are they the same on all ranks, bit for bit? ERR_DIVERGED, on every rank, names the first rank,
 * parameter and index that differ, and both values. Collective. */
lks_status lks_ddp_verify(lks_ddp *ddp);

/* This rank's virtual ranks: [first, end). Of NULL there are none. */
int lks_ddp_first(const lks_ddp *ddp);
int lks_ddp_end(const lks_ddp *ddp);

/* Virtual rank `v` comes now, and zeroed gradients with it. In order, each once a step. */
lks_status lks_ddp_begin(lks_ddp *ddp, int v);
/* Optional, from the caller's backward: parameter `param` (its place in `params`) gets nothing more
 * in this micro-step. In the last micro-step its gradient is then sent while backward goes on; each
 * parameter is marked once at most, in any order, best in the reverse one. */
lks_status lks_ddp_mark_ready(lks_ddp *ddp, size_t param);
/* Optional: add to the sum of losses that lks_ddp_step() gives the mean of. */
lks_status lks_ddp_add_loss(lks_ddp *ddp, double loss);
/* A micro-step's backward is done; `weight`, finite and at least 0, is the number of its samples.
 * If all weights together are too large or too small to divide floats by, lks_ddp_step() is ERR_ARG
 * on every rank, and the next step may follow. */
lks_status lks_ddp_accumulate(lks_ddp *ddp, double weight);

typedef struct lks_ddp_result {
    double weight; /* of all micro-batches; 0: nobody had data, and the gradients are zero */
    double loss;   /* what lks_ddp_add_loss() was given, over all ranks, divided by weight */
    double norm;   /* 2-norm of the mean gradient; not finite where a gradient isn't */
} lks_ddp_result;

/* The end of the step: the caller's gradients become the mean over all samples of all ranks, the
 * same bits on every rank. Collective. `result` may be NULL. ERR_PEER, ERR_TIMEOUT as in comm.h. */
lks_status lks_ddp_step(lks_ddp *ddp, lks_ddp_result *result);

/* Did any rank mark `param` ready in the step that has just ended (or mark none at all, so that
 * nothing is known)? One that nobody used has a zero gradient; an optimizer with momentum or decay
 * may want to leave it alone, as PyTorch's does where grad is None. The same answer on all ranks.
 * False for NULL, and for a `param` that isn't in the list. */
bool lks_ddp_used(const lks_ddp *ddp, size_t param);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
