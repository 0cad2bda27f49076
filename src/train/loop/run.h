/* train/loop/run.h - the loop of a run: evaluations, steps, checkpoints. */
#ifndef LKS_TRAIN_LOOP_RUN_H
#define LKS_TRAIN_LOOP_RUN_H

#include "train/setup/trainer.h"

/* A whole run: evaluations, steps, checkpoints, log. *stopped_p: the signal that ended it, or 0. */
lks_status lks__train_run(lks__trainer *t, int *stopped_p);

/* The final checkpoint of a run, and that of a stopped one, is written before its evaluation, a
 * periodic one (and golf's final one) after it. So a resume from the former evaluates and writes it
 * again. */
bool lks__train_saves_again(const lks__run *run, const lks__state *state, const lks__guard *guard);

#endif
