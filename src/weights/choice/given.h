/* weights/choice/given.h - the weights that a command's settings name, and checks that its other
 * settings fit them. */
#pragma once

#include "weights/weights.h"

/* For commands that use a model: the weights of --init_from, if the command line has it, else those
 * of the checkpoint --checkpoint in out_dir. ERR_CONFIG if the command line names both. */
lks_status lks__given_weights(const char *out_dir, const lks__settings *s, lks__weights **w_p);

/* ERR_CONFIG if the command line has both --init_from and `setting`, which chooses other weights.
 */
lks_status lks__given_alone(const lks__settings *s, int setting);

/* ERR_CONFIG if the command line has another n_head than the model. */
lks_status lks__given_heads(const lks__settings *s, const lks__settings *model);

/* Weights of parameter-golf's script don't contain rope_base and logit_softcap: use the values in
 * `s`. ERR_CONFIG if the command line contradicts the model's own values. */
lks_status lks__given_golf(const lks__settings *s, lks__settings *model);

/* ERR_CONFIG if a new run in out_dir would move these weights away. */
lks_status lks__given_elsewhere(const lks__weights *w, const char *out_dir);

/* ERR_CONFIG if the ids of `data` (the tokenizer of the tokens, or the vocabulary at `path`) mean
 * other text than the ids of the model, whose weights are `shown`. */
lks_status lks__given_same_meaning(const lks__meta *data, const char *path, const lks__meta *model,
                                   const char *shown);
/* ERR_CONFIG if the tokens of `dir`, whose meta is `data`, were made with another tokenizer than
 * `given`, the one at `path`. */
lks_status lks__given_tokenizer_of(const lks__meta *data, const char *dir, const lks__meta *given,
                                   const char *path);
