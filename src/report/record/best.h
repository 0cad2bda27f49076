/* report/record/best.h - finds the checkpoint of a run with the lowest validation loss, which
 * OUT/best names. Only rank 0 does this. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__best {
    bool found;
    uint64_t iter;
    double loss; /* as written in metrics.jsonl */
} lks__best;

/* True if `val_loss`, as written in metrics.jsonl, is lower than best->loss, or if there is no
 * best checkpoint yet. For equal losses the earlier checkpoint stays, so a resumed run chooses the
 * same one as a run that never stopped. */
bool lks__best_beaten(const lks__best *best, double val_loss);
void lks__best_set(lks__best *best, uint64_t iter, double val_loss);

/* Compare the evaluation of checkpoint `iter`, which exists, at the end of the run. If it is lower,
 * OUT/best names that checkpoint, and *moved_p is true. The previous best checkpoint stays, because
 * a run that is extended decides again without this evaluation. */
lks_status lks__best_final(const char *out_dir, uint64_t iter, double val_loss, lks__best *best,
                           bool *moved_p);

/* Remove OUT/best, for a run that begins. */
lks_status lks__best_clear(const char *out_dir, lks__best *best);

/* Choose the best checkpoint for a run that continues from checkpoint `iter`; metrics.jsonl has
 * been cut after it. Candidates are the evaluations in the remaining lines and, because a power
 * loss may have taken lines, in the state.json of checkpoints. The final evaluation doesn't count,
 * as if the run had never ended. OUT/best then names the lowest one whose checkpoint still exists.
 */
lks_status lks__best_decide(const char *out_dir, uint64_t iter, lks__best *best);

/* lks__best_decide() without metrics.jsonl: OUT/best stays, unless it names a later checkpoint.
 * `val_loss` is the lowest that checkpoint `iter` records. */
lks_status lks__best_keep(const char *out_dir, uint64_t iter, double val_loss, lks__best *best);
