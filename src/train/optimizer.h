/* train/optimizer.h - which optimizer a run has, and its update. */
#ifndef LKS_TRAIN_OPTIMIZER_H
#define LKS_TRAIN_OPTIMIZER_H

#include "train/step.h"

/* Replace optimizer=auto by that of the family's script. */
void lks__train_choose_optimizer(lks__settings *s);

/* Of settings that have been chosen so. */
const lks__optimizer *lks__train_optimizer(const lks__settings *s);

/* Put the update of the parameters with the mean gradient, memory of the device, on its queue;
 * fills in r->lr. */
void lks__train_update(const lks__run *run, const lks__state *state, const lks__work *work,
                       const float *grads, lks__step_result *r);

#endif
