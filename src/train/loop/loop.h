/* train/loop/loop.h - the loop of a run: evaluations, steps, checkpoints. */
#ifndef LKS_TRAIN_LOOP_LOOP_H
#define LKS_TRAIN_LOOP_LOOP_H

#include "train/setup/trainer.h"

/* Do the whole run. *stopped_p: the signal that ended it, or 0. */
lks_status lks__train_loop(lks__trainer *t, int *stopped_p);

/* True if a resume evaluates and writes the loaded checkpoint again. A run writes its final
 * checkpoint, or a stopped one's, before the evaluation that is due there, but periodic checkpoints
 * (and golf's final one) after it. */
bool lks__train_saves_again(const lks__run *run, const lks__state *state);

#endif
