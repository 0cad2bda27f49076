/* train/loop/loop.h - the loop of a run: evaluations, steps, checkpoints. */
#pragma once

#include "train/setup/trainer.h"

/* Do the whole run. *stopped_p: the signal that ended it, or 0. */
lks_status lks__train_loop(lks__trainer *t, int *stopped_p);
