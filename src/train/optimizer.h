/* train/optimizer.h - the optimizer of a run, and its update. */
#ifndef LKS_TRAIN_OPTIMIZER_H
#define LKS_TRAIN_OPTIMIZER_H

#include "train/step.h"

/* Replace optimizer=auto by the optimizer of the family's script. */
void lks__train_choose_optimizer(lks__settings *s);

/* The optimizer of settings without optimizer=auto. */
const lks__optimizer *lks__train_optimizer(const lks__settings *s);

/* Queue the update of this rank's parameters with the mean gradient `grads`, which is memory of the
 * device. Fills in r->lr. */
void lks__train_update(const lks__run *run, const lks__state *state, const lks__work *work,
                       const float *grads, lks__step_result *r);

#endif
