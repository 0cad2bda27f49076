/* train/divergence.h - parameters that change when nobody may have changed them, or that differ
 * where they must be equal: a flipped bit, a broken kernel.
 *
 * Ranks with one shared replica hash it after an update, each its share, and again before the next.
 * Replicas of ranks, or of hosts, are hashed before an update, and compared. What a rank has seen
 * travels in the exchange that every step has (train/step.c): nobody waits for this.
 *
 * The optimizer's moments aren't hashed: of shared replicas each moment is one rank's alone, so
 * that there is no second one to compare it with, and what a bit flipped there does to a parameter
 * it does to all replicas alike. */
#ifndef LKS_TRAIN_DIVERGENCE_H
#define LKS_TRAIN_DIVERGENCE_H

#include "model/table.h"
#include "session/session.h"

enum { LKS__HOST_NAME = 64 };

typedef struct lks__divergence {
    uint64_t *hashes; /* [n_tensors] of this rank's part of each tensor */
    bool sealed;      /* they are those after an update; the next one compares */
} lks__divergence;

/* What one rank tells all others. */
typedef struct lks__divergence_note {
    uint64_t iter;    /* iterations made */
    uint64_t hash;    /* of a replica; 0 if it compares none, or nothing is due */
    int32_t changed;  /* the first tensor of the shared one that has changed, -1: none */
    int32_t compares; /* it holds a replica that others have, too: has a hash whenever one is due */
    char host[LKS__HOST_NAME];
} lks__divergence_note;

struct lks__trainer;

lks_status lks__divergence_open(struct lks__trainer *t);
void lks__divergence_close(struct lks__trainer *t);

/* After update number t->iter, when all ranks have made it. These two fail only if the device does.
 */
lks_status lks__divergence_seal(struct lks__trainer *t);

/* Before the next one. */
lks_status lks__divergence_look(struct lks__trainer *t, lks__divergence_note *mine);

/* All ranks' notes, stride bytes apart: ERR_DIVERGED names tensor, ranks and hosts. A rank at
 * another iteration, or without the hash that is due, is an error as well. Collective if replicas
 * differ. */
lks_status lks__divergence_judge(struct lks__trainer *t, const void *notes, size_t stride);

#endif
