/* train/guard/divergence.h - detects parameters that change outside an update, or replicas that
 * differ: a flipped bit, a broken kernel.
 *
 * Ranks that share one replica each hash their part of it after an update, and again before the
 * next. Separate replicas, of ranks or of hosts, are hashed before an update and compared. The
 * results travel in the exchange that every step makes anyway (train/step.c), so nothing waits for
 * them.
 *
 * The optimizer's moments aren't hashed. With shared replicas each moment exists once, so there is
 * no copy to compare it with, and a flipped bit in it affects all replicas alike. */
#ifndef LKS_TRAIN_GUARD_DIVERGENCE_H
#define LKS_TRAIN_GUARD_DIVERGENCE_H

#include "session/session.h"
#include "train/guard/guard.h"
#include "train/run.h"
#include "train/state.h"

/* What one rank sends to all others. */
typedef struct lks__divergence_note {
    uint64_t iter;    /* number of iterations made */
    uint64_t hash;    /* of a replica; 0 if it compares none, or no check is due */
    int32_t changed;  /* the first tensor of the shared replica that has changed; -1: none */
    int32_t compares; /* it holds a replica of which others have copies, so it has a hash whenever a
                         check is due */
    char host[LKS__HOST_NAME];
} lks__divergence_note;

lks_status lks__divergence_open(const lks__run *run, lks__guard *guard);
void lks__divergence_close(const lks__guard *guard);

/* Call it after update number state->iter, when all ranks have made it. It and the next function
 * fail only if the device does. */
lks_status lks__divergence_seal(const lks__run *run, const lks__session *ses,
                                const lks__state *state, lks__guard *guard);

/* Call it before the next update. */
lks_status lks__divergence_look(const lks__run *run, const lks__session *ses,
                                const lks__state *state, lks__guard *guard,
                                lks__divergence_note *mine);

/* Check all ranks' notes, which are `stride` bytes apart: ERR_DIVERGED names tensor, ranks and
 * hosts. A rank at another iteration, or without the hash that is due, is an error, too. Collective
 * if replicas differ. */
lks_status lks__divergence_judge(const lks__run *run, const lks__session *ses,
                                 const lks__state *state, const lks__guard *guard,
                                 const void *notes, size_t stride);

#endif
