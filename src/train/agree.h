/* train/agree.h - all ranks begin from one state, or none begins.
 *
 * Hosts may have folders of their own, and so different checkpoints, or none. Ranks therefore
 * compare the checkpoints that they have opened, and, before the first step, what they hold in
 * memory. Rank 0 writes checkpoints, so every other rank is compared with rank 0. */
#ifndef LKS_TRAIN_AGREE_H
#define LKS_TRAIN_AGREE_H

#include "ckpt/ckpt.h"
#include "train/trainer.h"

/* Collective. `st` is what opening a checkpoint in `out_dir` gave on this rank, `ckpt` the
 * checkpoint, NULL if this rank begins without one. OK if every rank brings OK and the same
 * checkpoint: the same iteration and the same "state_hash" in state.json, which stands for every
 * byte of a checkpoint. Otherwise the error names rank, host, path, iteration and state_hash of
 * both sides. */
lks_status lks__agree_checkpoint(lks__session *ses, lks_status st, const lks__ckpt *ckpt,
                                 const char *out_dir);

/* Collective, for --on_nan=rollback: every rank opens the checkpoint that is the newest for rank 0,
 * and all compare as above. A rank that has no checkpoint of that name fails, whatever its own
 * `latest` names; so does one that is newer than iteration `bad_iter`. Close `ckpt` in any case. */
lks_status lks__agree_go_back(lks__session *ses, const char *out_dir, uint64_t bad_iter,
                              lks__ckpt *ckpt);

/* Does this rank hold a replica that others have, too? True for every rank with private replicas,
 * and for the first rank of each of several hosts with shared ones. */
bool lks__agree_compares(const lks__trainer *t);

/* Collective, before the first step and after going back: compare parameters, sampler, iteration,
 * clock and the other values of a checkpoint, with `moments` the optimizer's moments, too. Those
 * must then lie whole on every host. ERR_DIVERGED names rank, host and both hashes. */
lks_status lks__agree_state(lks__trainer *t, bool moments);

#endif
