/* train/checks/agree.h - all ranks begin with the same settings and the same state, or all fail.
 * weights/choice/same_checkpoint.h compares the checkpoints that ranks open. */
#pragma once

#include "train/trainer.h"

/* Settings, data and start weights that must be equal on all ranks, as lines: "seed=1337". */
typedef struct lks__run_lines {
    char text[32 << 10];
    /* Escaped paths, shown in messages and not compared: hosts may have different ones. */
    char data_dir[512], weights[512];
} lks__run_lines;

/* List the run's settings; with `data` also the digests of its data and start weights. */
lks_status lks__agree_lines(const lks__run *run, bool data, lks__run_lines *lines);

/* Compare the lines of all ranks before memory is reserved. ERR_DIVERGED names the first line that
 * differs, both values, and their ranks and hosts. `st` is this rank's status of opening the run,
 * and `opened` the lines after that. If a rank has failed, the ranks' `given` settings are compared
 * instead, because a difference there explains the failure better. If they are equal, this is
 * lks__session_agree(st). Collective. */
lks_status lks__agree_run(lks__session *ses, lks_status st, const lks__run_lines *given,
                          const lks__run_lines *opened);

/* All ranks must begin with new weights, or all with a checkpoint, or all with given weights.
 * Otherwise ERR_DIVERGED names init_from. Collective. */
lks_status lks__agree_init(lks__session *ses, const lks__settings *s);

/* For commands other than train, before anything is opened: ERR_DIVERGED names the first setting of
 * `command` that differs, both values, and their ranks and hosts. Paths of weights and data may
 * differ between hosts; lks__agree_run() compares the contents. Collective. */
lks_status lks__agree_settings(lks__session *ses, const lks__settings *s, unsigned command);

/* Before the first step, and after going back: compare parameters, sampler, iteration, clock and
 * the other values of a checkpoint. With `moments` also the optimizer's moments, which every host
 * must then hold completely. ERR_DIVERGED names rank, host and both hashes. Collective. */
lks_status lks__agree_state(lks__trainer *t, bool moments);
