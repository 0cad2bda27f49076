/* train/trainer.h - one training run on one rank. Functions that need one or two of its parts get
 * those; all others get the trainer. */
#pragma once

#include "session/session.h"
#include "session/trace_file.h"
#include "train/checks/checks.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"

typedef struct lks__trainer {
    lks__run run;
    lks__session ses;
    lks__trace_file trace;
    lks__state state;
    lks__step_work work;
    lks__checks checks;
} lks__trainer;
