/* weights/choice/which.h - which checkpoint of a run `sample`, `eval` and `export` use
 * (--checkpoint).
 */
#ifndef LKS_WEIGHTS_CHOICE_WHICH_H
#define LKS_WEIGHTS_CHOICE_WHICH_H

#include "files/checkpoint/ckpt.h"
#include "settings/settings.h"

/* Open the weights of `which` in out_dir: "best", "latest" or an iteration; empty: the best one if
 * the run has always_save_checkpoint=false, else the latest. took[64]: its name and the reason, as
 * "ckpt-00000100 (best)". */
lks_status lks__which_open(const char *out_dir, const char *which, lks__ckpt *ckpt, char took[64]);

#endif
