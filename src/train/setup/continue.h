/* train/setup/continue.h - --init_from=resume in a folder with nanoGPT's ckpt.pt and no checkpoint
 * of lockstep: continue nanoGPT's run, with Adam's moments. */
#pragma once

#include "train/trainer.h"

/* True if the folder has a ckpt.pt and no checkpoint of lockstep, not even a damaged one. */
bool lks__continue_can(const char *out_dir);
/* Open OUT/ckpt.pt as run->weights and set run->continued. It sets the model's settings, and the
 * run's others that weren't given. */
lks_status lks__continue_open(lks__run *run);
/* The iteration of the folder's ckpt.pt; 0 if there is none that can be continued. */
uint64_t lks__continue_left_at(const char *out_dir);
/* Fill this rank's arenas (parameters and moments), and set iteration and best loss. */
lks_status lks__continue_load(lks__trainer *t);
