/* train/setup/continue.h - --init_from=resume in a folder that has nanoGPT's ckpt.pt and no
 * checkpoint of lockstep's: the run goes on where nanoGPT stopped, with Adam's moments. */
#ifndef LKS_TRAIN_SETUP_CONTINUE_H
#define LKS_TRAIN_SETUP_CONTINUE_H

#include "session/session.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"

/* Does the folder have a ckpt.pt, and no checkpoint of ours, not even a damaged one? */
bool lks__continue_can(const char *out_dir);
/* Open OUT/ckpt.pt. Settings of the model become its own, and those of the optimizer unless they
 * are given; run->weights and run->continued are set. */
lks_status lks__continue_open(lks__run *run);
/* Fill this rank's arenas (parameters and moments), and set iteration and best loss. */
lks_status lks__continue_load(lks__run *run, const lks__session *ses, lks__state *state,
                              const lks__work *work);

#endif
