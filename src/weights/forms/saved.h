/* weights/forms/saved.h - the model in a checkpoint of lockstep: its settings, tokenizer and
 * parameters.
 */
#pragma once

#include "data/text/meta.h"
#include "files/checkpoint/ckpt.h"
#include "model/model.h"
#include "settings/settings.h"

/* True if lks_checkpoint_save() of a program wrote it: it has no settings. */
bool lks__state_of_library(const lks__ckpt *ckpt);

/* Read the settings that a checkpoint was made with into `s`, which holds defaults. */
lks_status lks__state_settings(const lks__ckpt *ckpt, lks__settings *s);

/* Read vocab_size and tokenizer, for `sample` and `eval`. */
lks_status lks__state_meta(const lks__ckpt *ckpt, lks__meta *meta);

/* The model's shape from a checkpoint's settings. */
lks__model_config lks__state_model_config(const lks__settings *s, uint32_t vocab_size);

/* Replace dtype=auto by the device's choice. */
void lks__state_choose_dtype(lks__settings *s, const lks__device *device);

/* Read every tensor of the table from `file` into an arena. ERR_FORMAT names file and tensor if one
 * is missing or has another type or shape. */
lks_status lks__state_read_params(lks__st_file *file, const char *path, const lks__table *table,
                                  float *params);

/* Only the checks, before allocating the memory that state.json's settings ask for. */
lks_status lks__state_check_params(const lks__st_file *file, const char *path,
                                   const lks__table *table);

/* The entry in `file` of a tensor of the table, whose name there ends in `suffix`; errors as
 * above. */
lks_status lks__state_find(const lks__st_file *file, const char *path, const lks__table_tensor *t,
                           const char *suffix, const lks__st_tensor **found_p);
