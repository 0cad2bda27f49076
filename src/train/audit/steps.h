/* train/audit/steps.h - executes steps of a run again, on this process only, and compares them with
 * the run's record. Nothing is written. */
#ifndef LKS_TRAIN_AUDIT_STEPS_H
#define LKS_TRAIN_AUDIT_STEPS_H

#include "train/audit/replay.h"
#include "train/run.h"
#include "train/state.h"

/* Move the data to the beginning of this iteration: after a rollback the run reads other data, and
 * an evaluation that is due only draws from the generators. `claim`: of the step; NULL: unknown.
 * ERR_SUPPORT if generators have drawn data that aren't in the record. */
lks_status lks__replay_data(const lks__run *run, lks__state *state, const lks__claim *claim);

/* Execute the run from checkpoint `start` (0: from the seed) to iteration `end`, and compare all
 * steps from there on, and all checkpoints in the folder. The run may be in progress. ERR_SUPPORT:
 * that can't be done here, for the reason in lks_last_error(). */
lks_status lks__replay_steps(lks__replay *r, uint64_t start, uint64_t end);

#endif
