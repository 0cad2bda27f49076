/* files/checkpoint/folder.h - the names inside OUT and inside a checkpoint, for save.c and open.c.
 *
 *     ckpt-%08d      a complete checkpoint
 *     ckpt-%08d.old  replaced by a save of the same iter whose process died
 *     ckpt-%08d.tmp  being written, or being deleted: never read
 *     latest, best   names of a "ckpt-%08d" (name.h); latest.tmp before the rename */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "files/checkpoint/ckpt.h"

#define LKS__CKPT_FORMAT    "lockstep-checkpoint-1"
#define LKS__CKPT_MODEL     "model.safetensors"
#define LKS__CKPT_OPTIMIZER "optimizer.safetensors"
#define LKS__CKPT_STATE     "state.json"
#define LKS__CKPT_SAMPLER   "sampler.state" /* tensor of optimizer.safetensors */

enum {
    LKS__CKPT_PATH = 4096,
    LKS__CKPT_NAME = 32,
    /* Limit in bytes for state.json, and for the header of a safetensors file. Once parsed, a
     * hostile text needs 45 times as much memory. A character table needs 2 MB at most, a tensor
     * some 200 bytes. */
    LKS__CKPT_JSON_LIMIT = 10 << 20,
};

/* A file in OUT, and its parts (lks__sys_lock()). */
#define LKS__LOCK_FILE ".lock"
enum {
    LKS__LOCK_RUN,  /* a run in progress */
    LKS__LOCK_SAVE, /* a save, also by a program that uses the library */
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

void lks__entry_name(char out[LKS__CKPT_NAME], lks__entry_kind kind, uint64_t iter);

/* Parse one of the forms above (digits as printf prints them); else OTHER. Link targets are checked
 * here, too: an accepted name contains no '/' and can't lead elsewhere. */
lks__entry lks__entry_parse(const char *name);

/* The checkpoint folders of OUT, newest iter first; for equal iter in the order CKPT, OLD, TMP.
 * Links and files with such names are ignored, except for TMP, because TMP entries are only
 * removed. The caller frees. */
lks_status lks__ckpt_scan(const char *out_dir, lks__entry **entries_p, size_t *n_p);

/* *any_p: true if OUT has a checkpoint, even a damaged one. TMP entries don't count. */
lks_status lks__ckpt_any(const char *out_dir, bool *any_p);

/* Read why an entry's checkpoint was written; verifies its state.json. */
lks_status lks__entry_asked(const char *out, const lks__entry *e, lks__asked *asked_p);

/* True for a folder, but not for a link to one. */
bool lks__ckpt_is_folder(const char *path);

/* "dir/name"; ERR_IO if it's too long. */
lks_status lks__ckpt_join(char out[LKS__CKPT_PATH], const char *dir, const char *name);

/* The folder that `path` is in; "." if it is only a name. */
void lks__ckpt_parent(const char *path, char out[LKS__CKPT_PATH]);

/* Write a new file, and sync it. */
lks_status lks__ckpt_write(const char *path, const char *text, size_t bytes);

/* True if the folder contains only files that a save writes. */
bool lks__ckpt_only_ours(const char *path);

/* Remove the folder and our files in it, or the file or link of that name (never a link's target).
 * ERR_IO, and nothing is removed, if the folder contains anything else. OK if the folder doesn't
 * exist. */
lks_status lks__ckpt_remove(const char *path);

/* Find state.json's hash of itself: `text` [bytes] contains `"state_hash": "<16 digits>"` at its
 * top level. Returns the position of the digits, or NULL. *hash_p is the hash of the text with
 * these digits replaced by zeros (the call overwrites them for a moment). */
char *lks__state_hash(char *text, size_t bytes, uint64_t *hash_p);
