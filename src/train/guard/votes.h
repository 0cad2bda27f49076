/* train/guard/votes.h - ranks tell each other about a stop, a save and their replicas, in the
 * exchange that brings every micro-batch's loss to all of them. So they act in the same step. */
#ifndef LKS_TRAIN_GUARD_VOTES_H
#define LKS_TRAIN_GUARD_VOTES_H

#include "train/step.h"

/* Bytes of a rank's message; work->exchange has room for one, and for those of all ranks. */
size_t lks__votes_bytes(int V, int A, int W);

/* The bytes of work->losses that are this rank's. */
void lks__votes_losses(const lks__run *run, size_t *first, size_t *n);

/* Exchange the N losses and the ranks' notes: sets r->loss, save and stop_signal. ERR_STOPPED if a
 * rank has left out micro-batches, ERR_DIVERGED if replicas differ. Collective. */
lks_status lks__votes_exchange(const lks__run *run, const lks__session *ses,
                               const lks__state *state, const lks__work *work, lks__guard *guard,
                               lks__step_result *r);

/* After ERR_STOPPED, on all ranks: nothing has been updated, and nothing will be. */
lks_status lks__votes_discard(const lks__session *ses, const lks__state *state,
                              lks__step_result *r);

#endif
