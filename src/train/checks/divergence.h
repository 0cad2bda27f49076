/* train/checks/divergence.h - finds parameters that change outside an update, or replicas that
 * differ: a flipped bit, a broken kernel.
 *
 * Ranks that share one replica each hash their part of it after an update, and again before the
 * next. Separate replicas, of ranks or of hosts, are hashed before an update and compared. The
 * hashes travel with the votes of each step (train/checks/votes.h), so they cost no extra exchange.
 *
 * The optimizer's moments aren't hashed: shared replicas have only one copy of each moment, and a
 * flipped bit in it changes all replicas alike. */
#pragma once

#include "train/trainer.h"

/* One rank's part of the votes. */
typedef struct lks__divergence_vote {
    uint64_t iter;    /* iterations done */
    uint64_t hash;    /* of its replica; 0: not compared, or no check is due */
    int32_t changed;  /* first tensor of the shared replica that has changed; -1: none */
    int32_t compares; /* other ranks have copies of its replica, so a due check needs its hash */
    char host[LKS__HOST_NAME];
} lks__divergence_vote;

lks_status lks__divergence_open(const lks__run *run, lks__checks *checks);
void lks__divergence_close(const lks__checks *checks);

/* Hash this rank's part of a shared replica, if a check is due. Call it after update number
 * state->iter, when all ranks have done it. ERR_DEVICE. */
lks_status lks__divergence_record(lks__trainer *t);

/* Hash again, and fill in this rank's vote. Call it before the next update. ERR_DEVICE. */
lks_status lks__divergence_hash(lks__trainer *t, lks__divergence_vote *mine);

/* Compare the votes of all ranks, from `all` on, which are `stride` bytes apart. ERR_DIVERGED names
 * tensor, ranks and hosts, and *rank_p is the rank that it is about. A rank at another iteration,
 * or without the hash that is due, is an error, too. Collective if replicas differ. */
lks_status lks__divergence_check(const lks__trainer *t, const void *all, size_t stride,
                                 int *rank_p);
