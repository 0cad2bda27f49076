/* train/audit/steps.h - executes steps of a run again, on this process only, and compares them with
 * the run's record. Nothing is written. */
#pragma once

#include "train/audit/replay.h"
#include "train/setup/trainer.h"

/* Move the data to the beginning of this iteration: after a rollback the run reads other data, and
 * an evaluation that is due only draws from the generators. `claim`: of the step; NULL: unknown.
 * ERR_SUPPORT if generators have drawn data that aren't in the record. */
lks_status lks__replay_data(const lks__run *run, lks__state *state, const lks__claim *claim);

/* Execute the run from checkpoint `start` (0: from the seed) to iteration `end`, and compare all
 * steps from there on, and all checkpoints in the folder. The run may be in progress. ERR_SUPPORT:
 * that can't be done here, for the reason in lks_last_error(). */
lks_status lks__replay_steps(lks__replay *r, uint64_t start, uint64_t end);

/* --- opening.c -------------------------------------------------------------------------------- */

/* Open the trainer at checkpoint `start` (0: at the seed), and compare its data and the
 * checkpoint's state.json with the record. Messages are for someone who audits. */
lks_status lks__audit_open(lks__replay *r, uint64_t start, lks__trainer *t);

/* --- saved.c ---------------------------------------------------------------------------------- */

/* Call `fn` for the moments of each tensor, whose name ends in `suffix`, and then for its weights,
 * which an update computes from them; "" for weights. `values` are the host's, which
 * lks__memory_fetch() has made current. */
typedef lks_status lks__replay_tensor_fn(void *ctx, const lks__table_tensor *t, const char *suffix,
                                         const float *values);
lks_status lks__replay_each(const lks__trainer *t, lks__replay_tensor_fn *fn, void *ctx);

/* Compare the state with the run's checkpoint of this iteration: with its folder if it still
 * exists, and with the hash in metrics.jsonl. */
lks_status lks__replay_saved(lks__replay *r, lks__trainer *t);
