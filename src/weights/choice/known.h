/* weights/choice/known.h - models that have a name, and the folder in which we look for them. */
#pragma once

#include "data/text/meta.h"
#include "files/checkpoint/folder.h"

/* nanoGPT and llm.c pad the vocabulary, for speed. */
enum { LKS__KNOWN_BLOCK = 1024, LKS__KNOWN_VOCABULARY = 50257, LKS__KNOWN_PADDED = 50304 };

typedef struct lks__known {
    const char *name; /* "gpt2-xl" */
    int n_layer, n_head, n_embd;
} lks__known;

const lks__known *lks__known_find(const char *name); /* or NULL */
const char *lks__known_name(int i);                  /* the i-th one's name; NULL after the last */

/* The model's folder, which may not exist. ERR_CONFIG if no variable names the user's folder. */
lks_status lks__known_folder(const lks__known *known, char path[LKS__CKPT_PATH]);
/* The model's folder: NAME in LOCKSTEP_HOME or, if that is unset, in the folder lockstep of the
 * user's cache. ERR_CONFIG if there is no such folder; the message says which files to put
 * where. */
lks_status lks__known_path(const lks__known *known, char path[LKS__CKPT_PATH]);

/* True if `meta` doesn't describe its ids, and there are as many as GPT-2 has. nanoGPT's
 * sample.py takes such ids for GPT-2's, too. */
bool lks__known_ids(const lks__meta *meta);
/* The folder with GPT-2's vocabulary: a model's, or the one of `lockstep fetch gpt2-vocab`. False
 * if no such folder has it. */
bool lks__known_vocabulary(char path[LKS__CKPT_PATH]);
/* Replace a model's name in --tokenizer by that folder, unless it is also a path that exists.
 * `bytes`: its room. */
lks_status lks__known_tokenizer(char *tokenizer, size_t bytes);

/* ERR_CONFIG for a path that doesn't exist, in the words of --init_from. */
lks_status lks__known_missing(const char *path);

/* ERR_FORMAT for a model's folder without weights; the message says which files it needs. */
lks_status lks__known_empty(const lks__known *known, const char *path);
