/* train/remember.h - a run knows its data: nobody has to name it again. */
#ifndef LKS_TRAIN_REMEMBER_H
#define LKS_TRAIN_REMEMBER_H

#include "session/session.h"
#include "settings/settings.h"

/* If `dataset` was not given, set it to the folder that the run in `run_dir` used last, which only
 * rank 0's host must know. Nothing changes if the run has no record of it. Collective. ERR_CONFIG
 * if the folder is gone; names it. */
lks_status lks__remember_data(lks__session *ses, const char *run_dir, lks__settings *s);

#endif
