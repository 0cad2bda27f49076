/* train/step.h - one optimizer step of a run. */
#pragma once

#include "train/result.h"
#include "train/trainer.h"

/* Do iteration state->iter. Collective. */
lks_status lks__train_step(lks__trainer *t, lks__step_result *result);

/* Clip the mean gradient r->grads and update this rank's share of the parameters with it. Fills in
 * r->lr. Implemented in update.c. */
lks_status lks__train_update(const lks__trainer *t, lks__step_result *r);
