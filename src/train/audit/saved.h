/* train/audit/saved.h - compares computed weights and moments with a checkpoint. */
#ifndef LKS_TRAIN_AUDIT_SAVED_H
#define LKS_TRAIN_AUDIT_SAVED_H

#include "train/audit/replay.h"
#include "train/setup/trainer.h"

/* Call `fn` for the moments of each tensor, whose name ends in `suffix`, and then for its weights,
 * which an update computes from them; "" for weights. `values` are the host's, which
 * lks__memory_fetch() has made current. */
typedef lks_status lks__replay_tensor_fn(void *ctx, const lks__table_tensor *t, const char *suffix,
                                         const float *values);
lks_status lks__replay_each(const lks__trainer *t, lks__replay_tensor_fn *fn, void *ctx);

/* Compare the state with the run's checkpoint of this iteration: with its folder if it still
 * exists, and with the hash in metrics.jsonl. */
lks_status lks__replay_saved(lks__replay *r, lks__trainer *t);

#endif
