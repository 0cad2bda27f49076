/* train/update.h - the update of the parameters. */
#ifndef LKS_TRAIN_UPDATE_H
#define LKS_TRAIN_UPDATE_H

#include "train/result.h"
#include "train/trainer.h"

/* Clip the mean gradient r->grads and update this rank's share of the parameters with it. Fills in
 * r->lr. */
lks_status lks__train_update(const lks__trainer *t, lks__step_result *r);

#endif
