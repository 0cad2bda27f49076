/* train/audit/saved.h - compares computed weights and moments with a checkpoint. */
#ifndef LKS_TRAIN_AUDIT_SAVED_H
#define LKS_TRAIN_AUDIT_SAVED_H

#include "train/audit/replay.h"
#include "train/setup/trainer.h"

/* Compare the state with the run's checkpoint of this iteration: with its folder if it still
 * exists, and with the hash in metrics.jsonl. */
lks_status lks__replay_saved(lks__replay *r, lks__trainer *t);

#endif
