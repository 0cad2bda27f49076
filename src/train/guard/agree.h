/* train/guard/agree.h - all ranks begin from the same state, or none begins.
 *
 * Hosts may have folders of their own, and so different checkpoints, or none. So ranks compare the
 * checkpoints that they have opened and, before the first step, their state in memory. Rank 0
 * writes checkpoints, so every other rank is compared with rank 0. */
#ifndef LKS_TRAIN_GUARD_AGREE_H
#define LKS_TRAIN_GUARD_AGREE_H

#include "files/checkpoint/ckpt.h"
#include "session/session.h"
#include "train/guard/guard.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"

/* The settings, data and start weights that must be equal on all ranks, as lines of text:
 * "seed=1337". */
typedef struct lks__run_lines {
    char text[32 << 10];
    /* Escaped paths; shown with a difference of data or weights, and not compared. */
    char data_dir[512], weights[512];
} lks__run_lines;

/* The settings of `t`, and with `data` also the digests of its data and of the weights that it
 * begins with. */
lks_status lks__agree_lines(const lks__run *run, bool data, lks__run_lines *lines);

/* Collective, before memory is taken: ERR_DIVERGED names the first line that differs, both values,
 * and their ranks and hosts. `st` is the status of opening the run on this rank, which gave
 * `result`. If a rank has failed, the settings that ranks were `given` are compared instead, since
 * such a difference explains a failure better. If they are equal, it is as
 * lks__session_agree(st). */
lks_status lks__agree_run(lks__session *ses, lks_status st, const lks__run_lines *given,
                          const lks__run_lines *result);

/* Collective: every rank begins with new weights, with a checkpoint or with given weights;
 * otherwise ERR_DIVERGED names init_from. */
lks_status lks__agree_init(lks__session *ses, const lks__settings *s);

/* Collective, for commands other than train, before anything is opened: ERR_DIVERGED names the
 * first setting of `command` that differs, both values, and their ranks and hosts. Paths of weights
 * and data may differ between hosts; their contents are compared later. */
lks_status lks__agree_settings(lks__session *ses, const lks__settings *s, unsigned command);

/* Collective. `st` is the status of opening a checkpoint in `out_dir` on this rank, `ckpt` the
 * checkpoint, NULL if this rank begins without one. OK if every rank passes OK and the same
 * checkpoint: the same iteration and the same "state_hash" in state.json, which identifies every
 * byte of a checkpoint. Otherwise the error names rank, host, path, iteration and state_hash of
 * both sides. */
lks_status lks__agree_checkpoint(lks__session *ses, lks_status st, const lks__ckpt *ckpt,
                                 const char *out_dir);

/* Collective, for --on_nan=rollback: every rank opens the checkpoint that lks__ckpt_open_target()
 * finds for rank 0, up to iteration `bad_iter`, and all compare as above. A rank that has no
 * checkpoint of that name fails, whatever its own `latest` names. Close `ckpt` in any case. */
lks_status lks__agree_go_back(lks__session *ses, const char *out_dir, uint64_t bad_iter,
                              lks__ckpt *ckpt);

/* Collective, before the first step and after going back: compare parameters, sampler, iteration,
 * clock and the other values of a checkpoint; with `moments` also the optimizer's moments, which
 * every host must then hold completely. ERR_DIVERGED names rank, host and both hashes. */
lks_status lks__agree_state(const lks__run *run, lks__session *ses, const lks__state *state,
                            const lks__work *work, const lks__guard *guard, bool moments);

#endif
