/* files/checkpoint/ckpt.h - checkpoints: OUT/ckpt-%08d/ with model.safetensors,
 * optimizer.safetensors and state.json. OUT/latest names the newest good one, OUT/best the one with
 * the lowest validation loss (docs/formats.md).
 *
 * A checkpoint exists completely or not at all: it is written into a temporary folder of OUT, every
 * file and the folder are synced, the folder is renamed, and OUT is synced. Then `latest` moves,
 * and after it `best`, if it moves.
 *
 * A hash protects every byte. state.json has its own "state_hash" (XXH3-64 of the file with zeros
 * for that value's digits). Its "files" has the hashes of the other files' headers, and the
 * headers' metadata have the hashes of the tensors. */
#ifndef LKS_FILES_CHECKPOINT_CKPT_H
#define LKS_FILES_CHECKPOINT_CKPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "files/safetensors/safetensors.h"

/* Why a checkpoint was written: state.json and metrics.jsonl contain the word as "asked". NOT has
 * no word: the undisturbed run writes it, too, on its schedule or because the validation loss
 * improved. Only such a checkpoint is the target of a rollback. */
typedef enum lks__asked {
    LKS__ASKED_NOT,
    LKS__ASKED_END,    /* the run ended here */
    LKS__ASKED_STOP,   /* it was stopped */
    LKS__ASKED_SIGNAL, /* a signal asked for it */
    LKS__ASKED_CLOCK,  /* the last one was --checkpoint_minutes ago */
} lks__asked;

const char *lks__asked_word(lks__asked asked); /* NULL for NOT */
/* From a checkpoint's state. A word that this version doesn't know counts as SIGNAL. */
lks__asked lks__asked_of(const json_t *state);

typedef struct lks__ckpt_content {
    uint64_t iter;
    const lks__st_tensor *model; /* parameters, table order */
    size_t n_model;
    const lks__st_tensor *optimizer;
    size_t n_optimizer;
    const char *fingerprint; /* the kernels' fingerprint, 16 hex digits: __metadata__ "kernels" of
                                both files; NULL: none */
    json_t *state; /* an object, borrowed and not changed. The file also gets "format", "iter",
                      "params_hash", "files" and "state_hash", which replace its members of these
                      names */
    bool best;     /* it has the lowest validation loss so far, so `best` moves to it */
} lks__ckpt_content;

/* 16 hex digits: XXH3-64 over the per-tensor XXH3-64 values (little-endian u64, table order). */
void lks__ckpt_params_hash(const lks__st_tensor *model, size_t n, char out[17]);

/* Write checkpoint `iter`, move `latest`, then delete older checkpoints beyond the `keep` newest
 * (0: keep all) and stale temporary folders. Checkpoints of ASKED_NOT are counted separately, so no
 * other one displaces them. Others stay while they are among the `keep` newest of all, and one of
 * ASKED_CLOCK stays until the next save. So the target of a rollback is always kept.
 * Never deleted: the ones that `latest` and `best` name, newer ones than `iter`,
 * folders that hold other files. If something can't be deleted, that is no failure: the next save
 * tries again. On failure everything is as before, and the half-written folder is removed; but if
 * only `best` couldn't move, the checkpoint is saved and nothing is deleted.
 *
 * An existing ckpt-%08d of the same iter is first renamed to ckpt-%08d.old, which lks__ckpt_open()
 * knows: so a good checkpoint exists at every moment. Only one process may save into OUT at a time.
 * name_p[32]: the folder's name. */
lks_status lks__ckpt_save(const char *out_dir, const lks__ckpt_content *content, int keep,
                          char name[32], char params_hash[17]);

/* The run has gone back to checkpoint `iter`: let `latest` name it, and delete later ones that were
 * asked for, because the run has left their history. */
lks_status lks__ckpt_went_back(const char *out_dir, uint64_t iter);

typedef struct lks__ckpt {
    char path[4096]; /* the folder */
    char name[32];   /* the last part of the path */
    bool itself;     /* the given folder is this checkpoint itself, and not a run */
    uint64_t iter;
    json_t *state;                   /* owned */
    lks__st_file *model, *optimizer; /* NULL if not asked for */
} lks__ckpt;

/* What to open of a checkpoint: the values of `parts` below. */
enum { LKS__CKPT_ONLY_STATE = -1, LKS__CKPT_ONLY_MODEL = 0, LKS__CKPT_ALL = 1 };

/* Open OUT/latest, or OUT itself if it is a checkpoint folder. Everything is verified: state.json's
 * own fields, both files' headers and the hash of every tensor (all bytes are read). A torn,
 * truncated or altered checkpoint is ERR_FORMAT; the message names file and reason, and the newest
 * good checkpoint in OUT (`--out_dir=OUT/ckpt-…`) or that there is none. If `latest` is missing or
 * names a folder that is gone, the newest good ckpt-* folder is opened. No checkpoint at all:
 * ERR_IO. Reads only: any number of processes may do it at once. */
lks_status lks__ckpt_open(const char *out_dir, int parts, lks__ckpt *ckpt);
/* Open the newest good one in OUT, whatever `latest` names. Errors as above. */
lks_status lks__ckpt_open_newest(const char *out_dir, int parts, lks__ckpt *ckpt);
/* Open the one that OUT/best names. ERR_CONFIG if there is none, or its folder is gone. */
lks_status lks__ckpt_open_best(const char *out_dir, int parts, lks__ckpt *ckpt);
/* Open OUT's checkpoint `iter`. ERR_CONFIG if there is none. */
lks_status lks__ckpt_open_iter(const char *out_dir, uint64_t iter, int parts, lks__ckpt *ckpt);
/* Open the newest checkpoint of ASKED_NOT up to `iter`, to which a rollback goes. ERR_IO if none
 * exists. */
lks_status lks__ckpt_open_target(const char *out_dir, uint64_t iter, int parts, lks__ckpt *ckpt);
void lks__ckpt_close(lks__ckpt *ckpt); /* a zeroed one is fine */

#endif
