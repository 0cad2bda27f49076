/* files/checkpoint/folder.h - the names inside OUT and inside a checkpoint, for save.c and open.c.
 *
 *     ckpt-%08d      a complete checkpoint
 *     ckpt-%08d.old  the one that a save of the same iter was replacing when its process died
 *     ckpt-%08d.tmp  being written, or being deleted: never read
 *     latest, best   names of a "ckpt-%08d" (files/checkpoint/name.h); latest.tmp before it is
 * renamed */
#ifndef LKS_FILES_CHECKPOINT_FOLDER_H
#define LKS_FILES_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "files/checkpoint/ckpt.h"

#define LKS__CKPT_FORMAT    "lockstep-checkpoint-1"
#define LKS__CKPT_MODEL     "model.safetensors"
#define LKS__CKPT_OPTIMIZER "optimizer.safetensors"
#define LKS__CKPT_STATE     "state.json"

enum {
    LKS__CKPT_PATH = 4096,
    LKS__CKPT_NAME = 32,
    LKS__CKPT_STATE_LIMIT =
        64 << 20, /* limit for state.json, in bytes; a character table has a few MB at most */
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

/* Exactly one of the forms above (digits as printf prints them), else OTHER. Targets of links are
 * checked here, too: a name that passes contains no '/' and can't lead elsewhere. */
lks__entry lks__entry_parse(const char *name);

/* The checkpoint folders of OUT, newest iter first; for equal iter CKPT, OLD, TMP. Links and files
 * with such names don't count, except TMP, which are only ever removed. The caller frees. */
lks_status lks__ckpt_scan(const char *out_dir, lks__entry **entries_p, size_t *n_p);

/* Why the checkpoint of an entry of OUT was written; verifies its state.json. */
lks_status lks__entry_asked(const char *out, const lks__entry *e, lks__asked *asked_p);

/* "dir/name"; ERR_IO if it's too long. */
lks_status lks__ckpt_join(char out[LKS__CKPT_PATH], const char *dir, const char *name);

/* True if the folder contains only what a save writes. */
bool lks__ckpt_only_ours(const char *path);

/* Remove the folder and our files in it, or the file or link of that name (never a link's target).
 * ERR_IO, and nothing is removed, if the folder contains anything else. OK if there is no such
 * folder. */
lks_status lks__ckpt_remove(const char *path);

/* Find state.json's hash of itself: `text` [bytes] has `"state_hash": "<16 digits>"` on its top
 * level. Returns the place of the digits, or NULL. *hash_p is the hash of the text with zeros in
 * their place (they are overwritten during the call). */
char *lks__state_hash(char *text, size_t bytes, uint64_t *hash_p);

#endif
