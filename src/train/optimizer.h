/* train/optimizer.h - the update of the parameters. */
#ifndef LKS_TRAIN_OPTIMIZER_H
#define LKS_TRAIN_OPTIMIZER_H

#include "train/step.h"

/* Queue the update of this rank's parameters with the mean gradient `grads`, which is memory of the
 * device. Fills in r->lr. */
void lks__train_update(const lks__run *run, const lks__state *state, const lks__step_work *work,
                       const float *grads, lks__step_result *r);

#endif
