/* files/checkpoint/ckpt.h - checkpoints: OUT/ckpt-%08d/ with model.safetensors,
 * optimizer.safetensors and state.json. OUT/latest names the newest good one, OUT/best the one with
 * the lowest validation loss (docs/reference/formats.md).
 *
 * A checkpoint exists completely or not at all: it is written into a temporary folder of OUT, every
 * file and the folder are synced, the folder is renamed, and OUT is synced. Then `latest` moves,
 * and after it `best`, if it moves.
 *
 * A hash protects every byte. state.json has its own "state_hash" (XXH3-64 of the file with zeros
 * for that value's digits). Its "files" has the hashes of the other files' headers, and the
 * headers' metadata have the hashes of the tensors. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "files/safetensors/safetensors.h"

/* Why a checkpoint was written: "asked" in state.json and metrics.jsonl. NOT has no word: an
 * undisturbed run writes this checkpoint, too, on its schedule or because the validation loss
 * improved. Only such a checkpoint is the target of a rollback. */
typedef enum lks__asked {
    LKS__ASKED_NOT,
    LKS__ASKED_END,    /* the run ended */
    LKS__ASKED_STOP,   /* the run was stopped */
    LKS__ASKED_SIGNAL, /* a signal asked for a checkpoint */
    LKS__ASKED_CLOCK,  /* the last checkpoint was --checkpoint_minutes ago */
} lks__asked;

const char *lks__asked_word(lks__asked asked); /* NULL for NOT */
/* Read the reason from a checkpoint's state. Unknown words (of newer versions) count as SIGNAL. */
lks__asked lks__asked_of(const json_t *state);

typedef struct lks__ckpt_content {
    uint64_t iter;
    const lks__st_tensor *model; /* parameters, table order */
    size_t n_model;
    const lks__st_tensor *optimizer;
    size_t n_optimizer;
    const char *fingerprint; /* the kernels' fingerprint, 16 hex digits: __metadata__ "kernels" of
                                both files; NULL: none */
    /* An object, borrowed and not changed. The file also gets "format", "iter", "params_hash",
     * "files" and "state_hash", which replace members of the same name. */
    json_t *state;
    bool best;           /* the validation loss is the lowest so far, so `best` moves */
    uint64_t keep_every; /* spare checkpoints whose iteration is a multiple of it; 0: spare none */
} lks__ckpt_content;

/* 16 hex digits: XXH3-64 over the per-tensor XXH3-64 values (little-endian u64, table order). */
void lks__ckpt_params_hash(const lks__st_tensor *model, size_t n, char out[17]);

/* Write checkpoint `iter`, move `latest`, then delete stale temporary folders and all but the
 * `keep` newest checkpoints (0: keep all). Checkpoints of ASKED_NOT are counted separately, so that
 * others can't displace them: the target of a rollback is always kept. Other checkpoints stay while
 * they are among the `keep` newest of all; a checkpoint of ASKED_CLOCK stays until the next save.
 * Never deleted: the targets of `latest` and `best`, multiples of `keep_every`, checkpoints newer
 * than `iter`, and folders that contain foreign files. A failed deletion is not an error: the next
 * save tries again. On failure everything is unchanged and the incomplete folder is removed. If
 * only the last sync failed, or `best` couldn't move, the checkpoint is saved and nothing is
 * deleted.
 *
 * An existing ckpt-%08d of the same iter is first renamed to ckpt-%08d.old, which lks__ckpt_open()
 * can open, so a good checkpoint exists at every moment. Only one process may save into OUT at a
 * time. OUT must exist: a run whose folder was moved away must not begin a second one there.
 * name_p[32]: the folder's name. */
lks_status lks__ckpt_save(const char *out_dir, const lks__ckpt_content *content, int keep,
                          char name[32], char params_hash[17]);

/* After a rollback to checkpoint `iter`: set `latest` to it, and delete later checkpoints that were
 * asked for, because they are not part of the run's history any more. */
lks_status lks__ckpt_went_back(const char *out_dir, uint64_t iter);

typedef struct lks__ckpt {
    char path[4096]; /* the folder */
    char name[32];   /* the last part of the path */
    bool itself;     /* the given folder is this checkpoint, not a run */
    uint64_t iter;
    json_t *state;                   /* owned */
    lks__st_file *model, *optimizer; /* NULL if not asked for */
} lks__ckpt;

/* Values of `parts` below: the parts of a checkpoint to open. */
enum {
    LKS__CKPT_ONLY_STATE = -1,
    LKS__CKPT_ONLY_MODEL = 0,
    LKS__CKPT_ALL = 1,
    LKS__CKPT_ALL_ALONE = 2, /* errors don't name another checkpoint */
};

/* Open OUT/latest, or OUT if it is a checkpoint folder. Everything is verified: state.json's own
 * fields, both files' headers and the hash of every tensor (all bytes are read). A torn, truncated
 * or altered checkpoint is ERR_FORMAT. The message contains the file, the reason, and the newest
 * good checkpoint in OUT, with its folder, or says that OUT has none. If `latest` is
 * missing or its folder is gone, the newest ckpt-* folder is opened; a save that died never leaves
 * one incomplete, so a torn one is an error here, too. ERR_IO if OUT has no checkpoint. Reads only:
 * any number of processes may open it at once. */
lks_status lks__ckpt_open(const char *out_dir, int parts, lks__ckpt *ckpt);
/* Open the newest good checkpoint in OUT except the one named `except` (NULL: none), and ignore
 * `latest`. ERR_IO if OUT has none; if all are bad, the status and message of the newest. */
lks_status lks__ckpt_open_newest(const char *out, const char *except, int parts, lks__ckpt *ckpt);
/* Open the target of OUT/best. ERR_CONFIG if `best` or its folder is missing. */
lks_status lks__ckpt_open_best(const char *out_dir, int parts, lks__ckpt *ckpt);
/* Open OUT's checkpoint `iter`. ERR_CONFIG if it doesn't exist. */
lks_status lks__ckpt_open_iter(const char *out_dir, uint64_t iter, int parts, lks__ckpt *ckpt);
/* Open the target of a rollback: the newest checkpoint of ASKED_NOT up to `iter`. ERR_IO if none
 * exists. */
lks_status lks__ckpt_open_target(const char *out_dir, uint64_t iter, int parts, lks__ckpt *ckpt);
void lks__ckpt_close(lks__ckpt *ckpt); /* a zeroed struct is fine */
