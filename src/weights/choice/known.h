/* weights/choice/known.h - models that have a name, and the folder in which they are looked for. */
#ifndef LKS_WEIGHTS_CHOICE_KNOWN_H
#define LKS_WEIGHTS_CHOICE_KNOWN_H

#include "files/checkpoint/folder.h"

enum { LKS__KNOWN_BLOCK = 1024, LKS__KNOWN_VOCABULARY = 50257 };

typedef struct lks__known {
    const char *name; /* "gpt2-xl" */
    int n_layer, n_head, n_embd;
} lks__known;

const lks__known *lks__known_find(const char *name); /* or NULL */
const char *lks__known_name(int i);                  /* of the i-th one; NULL behind the last */

/* The model's folder: NAME in LOCKSTEP_HOME or, without that, in the folder lockstep of the user's
 * cache. ERR_CONFIG if there is no such folder: the sentence says what to put where. */
lks_status lks__known_path(const lks__known *known, char path[LKS__CKPT_PATH]);

/* There is nothing at this path: ERR_CONFIG, with the words that --init_from has. */
lks_status lks__known_missing(const char *path);

/* The model's folder has no weights: ERR_FORMAT; the sentence says what to put into it. */
lks_status lks__known_empty(const lks__known *known, const char *path);

#endif
