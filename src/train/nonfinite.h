/* train/nonfinite.h - a loss or gradient that isn't finite: found by all ranks together, named, and
 * answered as --on_nan says. */
#ifndef LKS_TRAIN_NONFINITE_H
#define LKS_TRAIN_NONFINITE_H

#include "train/trainer.h"

/* Sets r->outcome. All losses and the norm finite: DONE, at the cost of a look at N numbers. Else
 * the first micro-batch (in the order of virtual ranks) that has it is searched for, each rank
 * among its own, by computing them once more; parameters are untouched, and `grads` is the step's
 * sum. With on_nan=stop, or at the limit, ERR_NAN says where, on all ranks. Collective. */
lks_status lks__nonfinite_judge(lks__trainer *t, const float *grads, lks__step_result *r);

/* "the loss of micro-batch 1 of virtual rank 3 (rank 1) is nan, first in the output of ..." */
void lks__nonfinite_text(const lks__trainer *t, const lks__step_result *r, char text[320]);

#endif
