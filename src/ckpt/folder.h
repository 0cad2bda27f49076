/* ckpt/folder.h - the names inside OUT and inside a checkpoint, for save.c and open.c.
 *
 *     ckpt-%08d      a checkpoint, whole
 *     ckpt-%08d.old  the one that a save of the same iter was replacing when it died
 *     ckpt-%08d.tmp  being written, or being deleted: never read
 *     latest, best   names of a "ckpt-%08d" (ckpt/name.h); latest.tmp before it is renamed */
#ifndef LKS_CKPT_FOLDER_H
#define LKS_CKPT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__CKPT_FORMAT    "lockstep-checkpoint-1"
#define LKS__CKPT_MODEL     "model.safetensors"
#define LKS__CKPT_OPTIMIZER "optimizer.safetensors"
#define LKS__CKPT_STATE     "state.json"

enum {
    LKS__CKPT_PATH = 4096,
    LKS__CKPT_NAME = 32,
    LKS__CKPT_STATE_LIMIT =
        64 << 20, /* bytes of state.json; a character table has a few MB at most */
};

typedef enum lks__entry_kind {
    LKS__ENTRY_OTHER,
    LKS__ENTRY_CKPT,
    LKS__ENTRY_OLD,
    LKS__ENTRY_TMP,
} lks__entry_kind;

typedef struct lks__entry {
    char name[LKS__CKPT_NAME];
    uint64_t iter;
    lks__entry_kind kind;
} lks__entry;

/* The name of `kind` for `iter`. */
void lks__entry_name(char out[LKS__CKPT_NAME], lks__entry_kind kind, uint64_t iter);

/* Exactly one of the forms above (digits as printf gives them), else OTHER. Links' targets go
 * through here too: a name that passes holds no '/' and leads nowhere else. */
lks__entry lks__entry_parse(const char *name);

/* The checkpoint folders of OUT, newest iter first, at equal iter CKPT, OLD, TMP. Links and files
 * of such a name are not taken for checkpoints (but for TMP, which are only ever removed). The
 * caller frees. */
lks_status lks__ckpt_scan(const char *out_dir, lks__entry **entries_p, size_t *n_p);

/* "dir/name", ERR_IO where it's too long. */
lks_status lks__ckpt_join(char out[LKS__CKPT_PATH], const char *dir, const char *name);

/* The folder holds nothing but what a save writes. */
bool lks__ckpt_only_ours(const char *path);

/* Remove the folder and our files in it, or the file or link of that name (never what it names).
 * A folder that holds anything else is left alone: ERR_IO. Not there: OK. */
lks_status lks__ckpt_remove(const char *path);

/* state.json's hash of itself: `text` [bytes] has `"state_hash": "<16 digits>"` on its top level;
 * returns where the digits stand, or NULL; *hash_p is that of the text with zeros for them (they
 * are overwritten for the time of the call). */
char *lks__state_hash(char *text, size_t bytes, uint64_t *hash_p);

#endif
