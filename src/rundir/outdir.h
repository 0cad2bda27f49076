/* rundir/outdir.h - the folder of a run. */
#ifndef LKS_RUNDIR_OUTDIR_H
#define LKS_RUNDIR_OUTDIR_H

#include "base/status.h"

/* Make `out_dir` where missing. An earlier run in it (checkpoints and their names, metrics.jsonl,
 * evals.jsonl, train.log) is moved into out_dir/earlier-N, so that a new run neither loses it nor
 * mixes with it; its path stands in `moved`, which is empty where there was none. */
lks_status lks__outdir_start(const char *out_dir, char moved[4200]);

/* This process is the run of `out_dir` until it closes *fd_p or ends, however it ends; ERR_CONFIG
 * where another one is, naming it. The folder is made where missing. The lock is on OUT/.lock, a
 * file that stays: its name can't be taken away without a race. A file system that has no locks is
 * no failure (*fd_p = -1). */
lks_status lks__outdir_lock(const char *out_dir, int *fd_p);

/* ERR_CONFIG as above where a run is going on in it; takes and writes nothing. For before a
 * checkpoint is read there: each rank would find another one. */
lks_status lks__outdir_free(const char *out_dir);

#endif
