/* rundir/best.h - which checkpoint of a run has the lowest validation loss; OUT/best names it. Rank
 * 0 alone does all of this. */
#ifndef LKS_RUNDIR_BEST_H
#define LKS_RUNDIR_BEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__best {
    bool found;
    uint64_t iter;
    double loss; /* as metrics.jsonl has it */
} lks__best;

/* Is `val_loss`, written as metrics.jsonl writes it, lower? Of equal losses the first stays. So a
 * run that was resumed comes to the same checkpoint as one that never stopped. */
bool lks__best_beaten(const lks__best *best, double val_loss);
void lks__best_take(lks__best *best, uint64_t iter, double val_loss);

/* A run begins: nothing is the best yet. */
lks_status lks__best_clear(const char *out_dir, lks__best *best);

/* A run goes on from checkpoint `iter`, and metrics.jsonl has been cut behind it: of the
 * evaluations that are left, the lowest one whose checkpoint is still there becomes the best, and
 * OUT/best names it. */
lks_status lks__best_decide(const char *out_dir, uint64_t iter, lks__best *best);

/* The same if metrics.jsonl is gone: a name that is there stays, unless it is of a later
 * checkpoint; `val_loss` is the lowest one that checkpoint `iter` knows of. */
lks_status lks__best_keep(const char *out_dir, uint64_t iter, double val_loss, lks__best *best);

#endif
