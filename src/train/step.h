/* train/step.h - one optimizer step of a run. */
#ifndef LKS_TRAIN_STEP_H
#define LKS_TRAIN_STEP_H

#include "session/session.h"
#include "train/checks/checks.h"
#include "train/result.h"
#include "train/run.h"
#include "train/state.h"
#include "train/work.h"

/* Do iteration state->iter. Collective. */
lks_status lks__train_step(const lks__run *run, lks__session *ses, lks__state *state,
                           lks__step_work *work, lks__checks *checks, lks__step_result *result);

#endif
