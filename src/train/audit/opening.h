/* train/audit/opening.h - opens the trainer for a part of an audit. */
#ifndef LKS_TRAIN_AUDIT_OPENING_H
#define LKS_TRAIN_AUDIT_OPENING_H

#include "train/audit/replay.h"
#include "train/setup/trainer.h"

/* Open the trainer at checkpoint `start` (0: at the seed), and compare its data and the
 * checkpoint's state.json with the record. Messages are for someone who audits. */
lks_status lks__audit_open(lks__replay *r, uint64_t start, lks__trainer *t);

#endif
