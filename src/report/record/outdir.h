/* report/record/outdir.h - the folder of a run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/system/sys.h"
#include "files/checkpoint/ckpt.h"

/* The run's folder: RUN, if `path` is RUN/ckpt-…, RUN/latest or RUN/best and not a run itself; else
 * `path`. */
void lks__outdir_of(const char *path, char *run, size_t bytes);

/* True if `folder` contains a run's record, or `latest` in it names a checkpoint. */
bool lks__outdir_has_run(const char *folder);

/* ERR_CONFIG if a resume can't continue from `ckpt`, opened at `path`, because it is outside a run:
 * a copied or renamed checkpoint. The resume would move the files of an unrelated run. */
lks_status lks__outdir_continues(const char *path, const lks__ckpt *ckpt);

/* ERR_CONFIG, with what to do, if a process died in lks__outdir_start() or lks__outdir_undo() while
 * it moved an earlier run. The next lks__outdir_start() moves it whole into earlier-N;
 * lks__outdir_back() refuses the folder. */
lks_status lks__outdir_check(const char *out_dir);

/* Make `out_dir` if it is missing. An earlier run in it (the files of record/files.h) is moved into
 * out_dir/earlier-N, so that a new run neither loses it nor mixes with it. The new run's own data,
 * the folder `data_dir`, stay; NULL: it has none there. `moved` is the earlier run's new path, or
 * "" if there was none. */
lks_status lks__outdir_start(const char *out_dir, const char *data_dir, char moved[LKS__SYS_PATH]);

/* Undo lks__outdir_start() for a new run that has not begun: remove the new run's own data, and
 * move the earlier run back from `moved`, if it isn't "". The caller has locked the folder. If that
 * fails, a part of the earlier run may be in out_dir/earlier.new. */
lks_status lks__outdir_undo(const char *out_dir, const char *moved);

/* The run continues from its checkpoint `iter`. If it has later ones, they are moved into
 * out_dir/earlier-N, with copies of metrics.jsonl and the logs, and `latest` names `iter`. The
 * move is atomic and durable: if the process dies at any moment, the folder is unchanged, or the
 * next call completes the move. The caller cuts metrics.jsonl afterwards, and decides on
 * `best`, which is removed if its checkpoint moves. `moved` is the new path, or "" if there is
 * nothing later. */
lks_status lks__outdir_back(const char *out_dir, uint64_t iter, char moved[LKS__SYS_PATH]);

/* Remove a temporary folder of a run, such as earlier.tmp, with the files in it. A folder that is
 * missing is not an error. */
void lks__outdir_discard(const char *temp);

/* Lock `out_dir` for this process until it closes *fd_p or ends in any way; the folder is made if
 * it is missing. ERR_CONFIG if another process has the lock, which is named, or if the file system
 * has no locks. The lock is on OUT/.lock, a file that stays: it can't be removed without a race.
 * With lock = false the process only writes its name there (*fd_p = -1). */
lks_status lks__outdir_lock(const char *out_dir, bool lock, int *fd_p);

/* ERR_CONFIG as above if the folder is locked; takes no lock and writes nothing. Call it before
 * reading a checkpoint there: while a run writes, ranks could find different ones. */
lks_status lks__outdir_free(const char *out_dir, bool lock);
