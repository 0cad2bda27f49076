/* weights/choice/same_checkpoint.h - all ranks use the same checkpoint, or none continues.
 *
 * Hosts may have folders of their own, and so different checkpoints, or none. Rank 0 writes
 * checkpoints, so every other rank is compared with rank 0. */
#pragma once

#include "files/checkpoint/ckpt.h"
#include "session/session.h"

/* Compare the checkpoints that ranks have opened. `st` is this rank's status of opening one in
 * `out_dir`; `ckpt` is NULL if it begins without one. OK if every rank passes OK and the same
 * iteration and "state_hash" of state.json, which identifies every byte of a checkpoint. Otherwise
 * the error names rank, host, path, iteration and state_hash of both sides. Collective. */
lks_status lks__same_checkpoint(lks__session *ses, lks_status st, const lks__ckpt *ckpt,
                                const char *out_dir);

/* For --on_nan=rollback: every rank opens the checkpoint that lks__ckpt_open_target() finds on rank
 * 0, up to iteration `bad_iter`, and all compare it as above. A rank without a checkpoint of that
 * name fails, even if its `latest` names another. Close `ckpt` in any case. Collective. */
lks_status lks__same_target(lks__session *ses, const char *out_dir, uint64_t bad_iter,
                            lks__ckpt *ckpt);
