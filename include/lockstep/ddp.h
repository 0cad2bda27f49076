/* lockstep/ddp.h - data-parallel training for any program's parameters.
 *
 * Terms (docs/reference/glossary.md has all of them). A step's batch is divided into V * A
 * micro-batches: V virtual ranks of A micro-steps each. The ranks of the group carry out the
 * virtual ranks, a contiguous range each. Every sum runs in an order that depends on V alone, so
 * any number of ranks gives the same bits. With virtual_ranks = 0 there is one per rank, as in
 * PyTorch's DistributedDataParallel.
 *
 *     lks_ddp_open(comm, params, n, NULL, &ddp);
 *     lks_ddp_broadcast(ddp);                    rank 0's initial values, on all ranks
 *     for (;;) {
 *         for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
 *             lks_ddp_begin(ddp, v);             zeroes the gradients
 *             for (int m = 0; m < A; m++) {
 *                 backward of micro-batch m of v, which adds to the gradients
 *                 lks_ddp_accumulate(ddp, samples);
 *             }
 *         }
 *         lks_ddp_step(ddp, NULL);               every rank has the mean gradient now
 *         the program's own optimizer
 *     }
 *
 * Backward gives the gradient of the *sum* of the losses of its samples (tokens, …);
 * pass their number to lks_ddp_accumulate(). If yours gives the gradient of their mean, and all
 * micro-batches have one size, pass 1, and the mean to lks_ddp_add_loss(). The sum over all samples
 * is multiplied once, by the reciprocal of their number as a float. So micro-batches of different
 * sizes count by their samples, and a rank whose data has run out calls lks_ddp_accumulate(ddp, 0)
 * for each micro-batch that it lacks.
 *
 * Random numbers of forward (dropout) must depend on step and virtual rank only, not on the rank.
 * State that isn't a parameter (running statistics) differs between ranks: average or broadcast it
 * before evaluating or saving.
 *
 * Sums run in the library's floating-point mode (comm.h). Backward and the optimizer run in the
 * program's own mode, so that mode must be equal on all ranks.
 *
 * There is no counterpart of no_sync(), because the library counts micro-steps itself. Messages
 * count virtual ranks, micro-steps and parameters from 0, as the calls do. A call out of turn
 * returns ERR_ARG, names the call that was due, and changes nothing. A NULL ddp is ERR_ARG, too.
 * After any other error the step can't be completed: later calls of the step fail with the same
 * reason, and the only useful call is lks_ddp_close(). Use an lks_ddp from one thread at a time.
 *
 * A group may have several lks_ddp. All ranks must call them in the same order, else ERR_ARG, which
 * numbers them from 1 in the order of lks_ddp_open().
 *
 * In a child of fork(), calls return ERR_ARG, and lks_ddp_close() only frees the child's memory. */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <stdbool.h>
#include <stddef.h>

#include "lockstep/comm.h"
#include "lockstep/reduce.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct lks_ddp lks_ddp; /* opaque; close with lks_ddp_close() */

typedef struct lks_param {
    const char *name; /* for messages, not empty; copied */
    float *value; /* [count]; the caller's, while the lks_ddp is open. Memory of parameters doesn't
                     overlap: list a tied parameter once */
    float *grad;  /* [count]; the caller's. NULL: a frozen parameter without a gradient, or with
                     own_gradients one whose gradient the library allocates */
    size_t count; /* elements, at least 1 */
} lks_param;

/* Zero it, and set what you need: 0 is each member's default. */
typedef struct lks_ddp_options {
    int virtual_ranks; /* V, at least the number of ranks, at most 1024; 0: one per rank */
    int micro_steps;   /* A, per virtual rank in a step, at most 2^20; 0: 1 */
    double bucket_mb;  /* gradients are sent in pieces of about this size, the first in one of about
                          1 MB; at most 1e6; 0: 25, as in PyTorch */
    lks_wire wire;     /* the form in which hosts send gradients to each other, reduce.h */
    /* The library allocates the gradients, in the memory that ranks send from: lks_ddp_gradient().
     * Otherwise it has a copy of the caller's. No parameter in the list is frozen then: leave
     * frozen ones out, and copy rank 0's to all ranks by lks_comm_broadcast(). */
    bool own_gradients;
    /* The weight of every micro-step: lks_ddp_accumulate() then takes no other, nor 0, and
     * gradients are divided while they are added, which saves one pass over them. Their bits stay
     * with the float32 wire; lks_ddp_result.norm may have other last digits. 0: weights may
     * differ. */
    double weight;
    /* Backward stores gradients in a virtual rank's first micro-step and adds to them in the
     * others, so lks_ddp_begin() needn't zero them. That micro-step stores each gradient. Without
     * samples, lks_ddp_accumulate(ddp, 0) zeroes those that weren't marked. With LOCKSTEP_CHECK=1,
     * lks_ddp_accumulate() returns ERR_ARG for an element that wasn't stored. */
    bool overwrites;
} lks_ddp_options;

/* Collective. All ranks give the same names, counts and frozen parameters in the same order. If
 * they don't, every rank gets ERR_DIVERGED with rank and parameter. A list or an option that is
 * wrong by itself is ERR_ARG only on this rank. Give parameters in the order in which forward uses
 * them: gradients are sent in the reverse order, as backward completes them. `options` may be
 * NULL. */
lks_status lks_ddp_open(lks_comm *comm, const lks_param *params, size_t n_params,
                        const lks_ddp_options *options, lks_ddp **ddp_p);
/* Frees `ddp`, which must not be used afterwards; NULL does nothing. Call it before the comm is
 * closed. It waits only for an all-reduce that was started and not waited for. In mid-step it
 * abandons the step. If all ranks do so after the same buckets (after the last lks_ddp_accumulate()
 * these are all buckets), they may continue with another lks_ddp. If only some ranks do, their next
 * collective doesn't match the others' step: every rank gets ERR_ARG, or ERR_PEER if they close the
 * comm. */
void lks_ddp_close(lks_ddp *ddp);

/* The gradient of `param` (its index in `params`): the caller's, or with own_gradients the
 * library's, at the same address until lks_ddp_close(), or lks_comm_close() of its group. Backward
 * adds to it, and the optimizer reads it. From lks_ddp_mark_ready() in this rank's last micro-step,
 * or from the lks_ddp_accumulate() that ends it, until lks_ddp_step() returns, neither read nor
 * write the library's: other ranks add to it. A child of fork() must not write to it, either. NULL
 * for a frozen parameter, a NULL ddp, and a `param` that isn't in the list. */
float *lks_ddp_gradient(const lks_ddp *ddp, size_t param);

/* Copy rank 0's parameters, frozen ones included, to every rank. Collective; also in mid-step, as
 * lks_ddp_verify(). */
lks_status lks_ddp_broadcast(lks_ddp *ddp);
/* Check that the parameters are the same on all ranks, bit for bit. If not, every rank gets
 * ERR_DIVERGED with the first rank, parameter and index that differ, and both values. Collective.
 */
lks_status lks_ddp_verify(lks_ddp *ddp);

/* This rank's virtual ranks: [first, end). Empty for NULL. */
int lks_ddp_first(const lks_ddp *ddp);
int lks_ddp_end(const lks_ddp *ddp);

/* Begin virtual rank `v` and zero the gradients (unless `overwrites`). Begin virtual ranks in
 * order, each once per step. */
lks_status lks_ddp_begin(lks_ddp *ddp, int v);
/* Optional, from the caller's backward: the gradient of `param` (its index in `params`) is complete
 * in this micro-step. In the last micro-step it is then sent while backward continues. Mark each
 * parameter at most once per micro-step, in any order; the reverse order of `params` is best.
 *
 * If a gradient changes after its mark, the change may be lost, or be added to a finished sum: the
 * result is wrong on any number of ranks, also on one, and not equally wrong on each. Run the
 * program once with LOCKSTEP_CHECK=1 in its environment: then lks_ddp_accumulate() returns ERR_ARG
 * and names the parameter, and the other ranks get ERR_PEER with the same sentence. So does
 * lks_ddp_step() if one of the caller's gradients changed after the last lks_ddp_accumulate(). */
lks_status lks_ddp_mark_ready(lks_ddp *ddp, size_t param);
/* Optional: add to the sum of losses whose mean lks_ddp_step() returns. */
lks_status lks_ddp_add_loss(lks_ddp *ddp, double loss);
/* End a micro-step after its backward. `weight`, finite and at least 0, is the number of its
 * samples. If the sum of all weights is too large or too small to divide floats by, lks_ddp_step()
 * returns ERR_ARG on every rank, and the program can continue with the next step. */
lks_status lks_ddp_accumulate(lks_ddp *ddp, double weight);

typedef struct lks_ddp_result {
    double weight; /* sum over all micro-batches; 0: no rank had data, loss and gradients are 0 */
    double loss;   /* sum of all losses from lks_ddp_add_loss(), divided by weight */
    double norm;   /* 2-norm of the mean gradient; not finite if a gradient isn't */
} lks_ddp_result;

/* End the step: the caller's gradients become the mean over all samples of all ranks, with the
 * same bits on every rank. Collective. `result` may be NULL. ERR_PEER, ERR_TIMEOUT as in comm.h.
 * With LOCKSTEP_CHECK=1 in the environment, ERR_DIVERGED if ranks have different values of a
 * trained parameter, or have noted different steps by lks_comm_note(). */
lks_status lks_ddp_step(lks_ddp *ddp, lks_ddp_result *result);

/* Clip the mean gradient to a norm of `max_norm`, more than 0, like
 * torch.nn.utils.clip_grad_norm_(): multiply the caller's gradients by max_norm / (norm + 1e-6) if
 * that is less than 1. Call it at most once after a lks_ddp_step(), before the next
 * lks_ddp_begin(). The step has computed the norm, so no data are sent, and the factor has the same
 * bits on every rank. *factor_p (may be NULL) is the factor, at most 1. If the norm isn't finite,
 * ERR_NAN on every rank, and the gradients don't change. */
lks_status lks_ddp_clip(lks_ddp *ddp, double max_norm, double *factor_p);

/* True if any rank marked `param` ready in the step that has just ended, or marked no parameter at
 * all (then all count as used). A parameter that no rank used has a zero gradient. An optimizer
 * with momentum or decay may skip it, as PyTorch's do if grad is None. The same on all ranks. False
 * for NULL, for a frozen parameter, and for a `param` that isn't in the list. */
bool lks_ddp_used(const lks_ddp *ddp, size_t param);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
