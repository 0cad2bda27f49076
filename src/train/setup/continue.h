/* train/setup/continue.h - --init_from=resume in a folder that has nanoGPT's ckpt.pt and no
 * checkpoint of lockstep's: the run goes on where nanoGPT stopped, with Adam's moments. */
#ifndef LKS_TRAIN_SETUP_CONTINUE_H
#define LKS_TRAIN_SETUP_CONTINUE_H

#include "train/setup/trainer.h"

/* Does the folder have a ckpt.pt, and no checkpoint of ours, not even a damaged one? */
bool lks__continue_can(const char *out_dir);
/* Open OUT/ckpt.pt. Settings of the model become its own, and those of the optimizer unless they
 * are given; t->run.weights and t->run.continued are set. */
lks_status lks__continue_open(lks__trainer *t);
/* Fill this rank's arenas (parameters and moments), and set iteration and best loss. */
lks_status lks__continue_load(lks__trainer *t);

#endif
