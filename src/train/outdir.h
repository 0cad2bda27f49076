/* train/outdir.h - the folder of a run. */
#ifndef LKS_TRAIN_OUTDIR_H
#define LKS_TRAIN_OUTDIR_H

#include "base/status.h"

/* Make `out_dir` where missing. An earlier run in it (checkpoints, latest, metrics.jsonl,
 * train.log) is moved into out_dir/earlier-N, so that a new run neither loses it nor mixes with it;
 * its path stands in `moved`, which is empty where there was none. */
lks_status lks__outdir_start(const char *out_dir, char moved[4200]);

#endif
