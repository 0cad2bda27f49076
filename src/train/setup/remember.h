/* train/setup/remember.h - restore the dataset's path on resume, and settings that checkpoints lack
 * because they change no byte of the run. */
#ifndef LKS_TRAIN_SETUP_REMEMBER_H
#define LKS_TRAIN_SETUP_REMEMBER_H

#include "session/session.h"
#include "settings/settings.h"

/* If `dataset` was not given, set it to the folder that the run in `run_dir` used last, which only
 * rank 0's host must know. Nothing changes if the run has no record of it. Collective. ERR_CONFIG
 * if the folder is gone; names it. */
lks_status lks__remember_data(lks__session *ses, const char *run_dir, lks__settings *s);

/* Take the settings of role LKS__SETTING_KEPT that were not given from the run in `run_dir`.
 * Collective. ERR_FORMAT if a value isn't possible. */
lks_status lks__remember_settings(lks__session *ses, const char *run_dir, lks__settings *s);

/* If no tokenizer was given, take the one that the run in `run_dir` was given. If that is gone from
 * rank 0's host, nothing changes, and there `gone` is its path; otherwise "". Collective. */
lks_status lks__remember_tokenizer(lks__session *ses, const char *run_dir, lks__settings *s,
                                   char gone[LKS__SETTING_STR]);

#endif
