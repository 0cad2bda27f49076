/* train/state.h - the state of a run, written to and read from checkpoints. */
#ifndef LKS_TRAIN_STATE_H
#define LKS_TRAIN_STATE_H

#include "ckpt/ckpt.h"
#include "train/trainer.h"

/* Rank 0: write checkpoint t->iter, reading the arenas in place; OUT/best names it if `best`. */
lks_status lks__state_save(lks__trainer *t, bool best, char name[32], char params_hash[17]);

/* Read the settings that a checkpoint was made with into `s`, which holds defaults. */
lks_status lks__state_settings(const lks__ckpt *ckpt, lks__settings *s);

/* Read vocab_size and tokenizer, for `sample` and `eval`. */
lks_status lks__state_meta(const lks__ckpt *ckpt, lks__meta *meta);

/* The model's shape from a checkpoint's settings. */
lks__model_config lks__state_model_config(const lks__settings *s, uint32_t vocab_size);

/* Does training time end the run, so that checkpoints hold it? */
bool lks__state_by_the_clock(const lks__trainer *t);

/* Every tensor of the table from `file` into an arena. ERR_FORMAT names file and tensor if one is
 * missing or has another type or shape. */
lks_status lks__state_read_params(lks__st_file *file, const char *path, const lks__table *table,
                                  float *params);

/* The same checks alone, before memory is allocated that state.json's settings ask for. */
lks_status lks__state_check_params(const lks__st_file *file, const char *path,
                                   const lks__table *table);

/* Complete a resume: parameters and moments into the arenas (this rank's own, or, if shared, by the
 * first rank of a host), iteration, sampler. `t->s` already has the checkpoint's settings. With
 * zero=1 each host then holds all moments, until it drops the others' parts. */
lks_status lks__state_load(lks__trainer *t, lks__ckpt *ckpt);

#endif
