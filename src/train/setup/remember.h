/* train/setup/remember.h - on resume, restore the dataset's path and the settings that checkpoints
 * lack because they change no byte of the run. */
#pragma once

#include "session/session.h"
#include "settings/settings.h"

/* If `dataset` was not given for a run of this family, set it to the folder that the run in
 * `run_dir` used last, as recorded on rank 0's host. Unchanged without such a record. ERR_CONFIG if
 * the folder doesn't exist any more. Collective. */
lks_status lks__remember_data(lks__session *ses, const char *run_dir, const char *family,
                              lks__settings *s);

/* That folder, on this host; "": it isn't recorded. */
lks_status lks__remembered_data(const char *run_dir, char out[LKS__SETTING_STR]);

/* Set the settings of role LKS__SETTING_KEPT that were not given to those of the run in `run_dir`.
 * ERR_FORMAT if a value isn't possible. Collective. */
lks_status lks__remember_settings(lks__session *ses, const char *run_dir, lks__settings *s);

/* If no tokenizer was given, use the one that the run in `run_dir` was given, or if it was given
 * none, the SentencePiece model in the folder of its data. If the one that was given doesn't exist
 * any more on rank 0's host, nothing changes, and `gone` is its path there; otherwise "".
 * Collective. */
lks_status lks__remember_tokenizer(lks__session *ses, const char *run_dir, const char *family,
                                   lks__settings *s, char gone[LKS__SETTING_STR]);
