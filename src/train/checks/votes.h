/* train/checks/votes.h - ranks agree on a stop and a save and compare their replicas, in the
 * exchange of the losses. So they act in the same step. */
#pragma once

#include "train/result.h"
#include "train/trainer.h"

/* The part of work->losses that this rank computes: its offset and its length, both in bytes. */
void lks__votes_losses(const lks__run *run, size_t *first, size_t *bytes);

/* Exchange the N losses and the ranks' votes: sets r->loss, save and stop_signal. ERR_STOPPED if a
 * rank has left out micro-batches, ERR_DIVERGED if replicas differ. Collective. */
lks_status lks__votes_exchange(lks__trainer *t, lks__step_result *r);

/* The hashes of all leaves in that exchange, in order: hashes[V]. */
void lks__votes_hashes(const lks__trainer *t, uint64_t *hashes);

/* After ERR_STOPPED, on all ranks: set r->outcome and put the sampler back. */
void lks__votes_discard(const lks__trainer *t, lks__step_result *r);
