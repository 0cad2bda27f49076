/* report/record/best.h - finds the checkpoint of a run with the lowest validation loss, which
 * OUT/best names. Only rank 0 does this. */
#ifndef LKS_REPORT_RECORD_BEST_H
#define LKS_REPORT_RECORD_BEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__best {
    bool found;
    uint64_t iter;
    double loss; /* as written in metrics.jsonl */
} lks__best;

/* Is `val_loss`, as written in metrics.jsonl, lower? For equal losses the earlier one stays. So a
 * resumed run chooses the same checkpoint as one that never stopped. */
bool lks__best_beaten(const lks__best *best, double val_loss);
void lks__best_take(lks__best *best, uint64_t iter, double val_loss);

/* Checkpoint `iter`, which exists, has been evaluated at the end of the run: if that is lower,
 * OUT/best names it. The one that it named so far isn't pruned, because a run that is extended
 * decides again without this evaluation. *moved_p: it was lower. */
lks_status lks__best_final(const char *out_dir, uint64_t iter, double val_loss, lks__best *best,
                           bool *moved_p);

/* A run begins: there is no best checkpoint yet. */
lks_status lks__best_clear(const char *out_dir, lks__best *best);

/* A run continues from checkpoint `iter`, and metrics.jsonl has been cut after it. Of the
 * evaluations in the remaining lines and in the state.json of checkpoints, the lowest one whose
 * checkpoint still exists becomes the best, and OUT/best names it. So lines that a power loss took
 * don't matter. The final evaluation isn't among them: a run that continues is as if it had never
 * ended. */
lks_status lks__best_decide(const char *out_dir, uint64_t iter, lks__best *best);

/* The same without metrics.jsonl: an existing name stays, unless it is of a later checkpoint;
 * `val_loss` is the lowest that checkpoint `iter` records. */
lks_status lks__best_keep(const char *out_dir, uint64_t iter, double val_loss, lks__best *best);

#endif
