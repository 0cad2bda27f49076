/* train/step.h - one optimizer step of a run. */
#ifndef LKS_TRAIN_STEP_H
#define LKS_TRAIN_STEP_H

#include "train/result.h"
#include "train/trainer.h"

/* Do iteration state->iter. Collective. */
lks_status lks__train_step(lks__trainer *t, lks__step_result *result);

#endif
