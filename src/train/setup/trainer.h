/* train/setup/trainer.h - opens and closes a training run. */
#pragma once

#include "files/checkpoint/ckpt.h"
#include "settings/settings.h"
#include "train/trainer.h"

/* Set up everything that a step needs, and start from new weights, given ones, or the newest
 * checkpoint (`--init_from`). `s` has been checked. On a resume SHAPE and RUN settings come from
 * the checkpoint. ERR_STOPPED, with the signal in *stopped_p, if one arrived before the run began;
 * then nothing was written. Collective. After a failure, too, lks__trainer_close() frees what was
 * opened. A rank prints its message before: mpirun kills all ranks once the first one has ended. */
lks_status lks__trainer_open(const lks__settings *s, lks__trainer *t, int *stopped_p);
void lks__trainer_close(lks__trainer *t);

/* Agree on the algorithms of all matrix products: all ranks use rank 0's, which are those of the
 * checkpoint if they can be used. `resume`: NULL without one. Collective. */
lks_status lks__train_rehearse(lks__trainer *t, const lks__ckpt *resume);

/* Compare states; no rank begins before all have done so. `loaded`: from a checkpoint, with
 * moments; otherwise the moments are zeros that were never written. */
lks_status lks__trainer_agree(lks__trainer *t, bool loaded);

/* Go back to the newest checkpoint of LKS__ASKED_NOT, and continue with the data after iteration
 * state->iter - 1, whose loss or gradient wasn't finite (--on_nan=rollback). Collective. */
lks_status lks__trainer_go_back(lks__trainer *t);
