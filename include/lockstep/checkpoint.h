/* lockstep/checkpoint.h - save a program's tensors, and load them on any number of ranks.
 *
 * A checkpoint is a folder DIR/ckpt-00000012 of the form that `lockstep train` writes
 * (docs/reference/formats.md): a safetensors file, which other programs can read, and a hash over
 * every byte. It is either complete or absent, even if the program dies. DIR/latest is a symbolic
 * link to the newest one.
 *
 *     int64_t epoch = 0;
 *     uint64_t step = 0;
 *     bool found;
 *     lks_tensor state[] = {{"w", LKS_FLOAT32, 2, {OUT, IN}, w},
 *                           {"epoch", LKS_INT64, 0, {0}, &epoch}};
 *     lks_checkpoint_load(comm, "out", state, 2, &step, &found);   if not found, nothing changes
 *     while (step < STEPS) {
 *         one step
 *         if (++step % 100 == 0)
 *             lks_checkpoint_save(comm, "out", step, state, 2, 3);
 *     }
 *
 * The calls are collective. All ranks give the same names, types and shapes in the same order; if
 * they don't, every rank gets ERR_DIVERGED with rank and tensor. Only rank 0 reads and writes
 * files, and only its `dir` counts; if it fails, every rank gets its status and its sentence, and
 * the group stays usable (ERR_CONFIG, ERR_FORMAT, ERR_IO, ERR_NOMEM). A list or an argument that is
 * wrong by itself is ERR_ARG on this rank alone. One program at a time saves into a folder, with
 * a lock on DIR/.lock: if two saves overlap, one gets ERR_CONFIG. A checkpoint has at most 10 MB of
 * names, types and shapes, which are some 50,000 tensors; more is refused by a save and by a load.
 *
 * The thread and fork rules of lockstep/comm.h apply: in a child of fork(), all return ERR_ARG. */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/comm.h"
#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { LKS_MAX_DIMS = 64 }; /* as many as a tensor of PyTorch or NumPy has */

typedef struct lks_tensor {
    const char *name; /* UTF-8, not empty, unique in the list; not "__metadata__" */
    lks_dtype dtype;
    int n_dims;                   /* 0 to LKS_MAX_DIMS; 0: a single element */
    uint64_t shape[LKS_MAX_DIMS]; /* elements; the last dimension is contiguous */
    void *data; /* the caller's, elements without gaps; NULL only if there are none. Memory of
                 * tensors doesn't overlap in a load */
} lks_tensor;

/* Write rank 0's tensors as the checkpoint of `step`, less than 2^63, replacing one of the same
 * step, then delete older ones beyond the `keep` newest (0: keep all). Checkpoints of later steps
 * stay. Creates `dir` if it is missing. Returns when the checkpoint is on the disk. The other ranks
 * wait, for as long as rank 0 makes progress. A failure leaves the older checkpoints unchanged. If
 * `dir` is itself a checkpoint's folder, which a load accepts, every rank gets ERR_ARG. ERR_IO,
 * ERR_NOMEM. */
lks_status lks_checkpoint_save(lks_comm *comm, const char *dir, uint64_t step,
                               const lks_tensor *tensors, size_t n, int keep);

/* Load the tensors of the newest checkpoint in `dir`, or of `dir` if that is a checkpoint's folder,
 * into the caller's memory on every rank. The newest is the one that the link `latest` names; if
 * that is missing or names none, it is the one of the highest step. Every hash is verified before
 * any memory is written. A tensor that the checkpoint lacks, or has with another type or shape, is
 * ERR_CONFIG; tensors that aren't in the list are ignored. A torn or altered checkpoint is
 * ERR_FORMAT, and the sentence names the newest good one.
 *
 * If there is no folder `dir`, or no checkpoint in it, *found_p is false and nothing else changes;
 * if found_p is NULL on any rank, that is ERR_IO on all. So is a link `latest` whose checkpoint was
 * deleted. *step_p (may be NULL) is the checkpoint's step. If rank 0 fails to read a file that it
 * has verified, the tensors' content is undefined on rank 0. */
lks_status lks_checkpoint_load(lks_comm *comm, const char *dir, const lks_tensor *tensors, size_t n,
                               uint64_t *step_p, bool *found_p);

/* Contents of a checkpoint that aren't equal on all ranks. Zero it for none. */
typedef struct lks_checkpoint_more {
    /* [n_per_rank] tensors that each rank has its own of, such as the state of its random numbers.
     * All ranks give the same names in the same order; types and shapes may differ. Rank 2's "rng"
     * is saved as "rng@2", so a save refuses such a name in `tensors`. */
    const lks_tensor *per_rank;
    size_t n_per_rank;
    /* A JSON text of the program's own, such as its settings; NULL: none. Rank 0's is saved, as
     * "program" in state.json, which is indented and has at most 10 MB. Integers are from -2^63 to
     * 2^63 - 1: give larger ones as strings. A load ignores it: see lks_checkpoint_json(). */
    const char *json;
} lks_checkpoint_more;

/* lks_checkpoint_save() with more contents (NULL: none). While it runs, rank 0 needs memory for the
 * tensors in `per_rank` of all ranks. A text that isn't JSON, or has larger integers, is ERR_ARG
 * on every rank. */
lks_status lks_checkpoint_save_more(lks_comm *comm, const char *dir, uint64_t step,
                                    const lks_tensor *tensors, size_t n,
                                    const lks_checkpoint_more *more, int keep);

/* lks_checkpoint_load() with more contents (NULL: none): each rank gets its own tensors. If another
 * number of ranks saved them, that is ERR_CONFIG. Any rank can still load any of them by its full
 * name, such as "rng@2", in `tensors`. */
lks_status lks_checkpoint_load_more(lks_comm *comm, const char *dir, const lks_tensor *tensors,
                                    size_t n, const lks_checkpoint_more *more, uint64_t *step_p,
                                    bool *found_p);

/* The program's own JSON text of the newest checkpoint in `dir`, or of `dir` if that is a
 * checkpoint's folder, on every rank. It verifies the checkpoint as a load does. free() *json_p. It
 * contains the values that were saved, written without spaces and with sorted keys. It is NULL if
 * the checkpoint has no such text, if there is no checkpoint, or if the call fails. *step_p (may be
 * NULL) is the checkpoint's step. */
lks_status lks_checkpoint_json(lks_comm *comm, const char *dir, char **json_p, uint64_t *step_p);

/* List the tensors of the newest checkpoint in `dir`, or of `dir` if that is a checkpoint's folder,
 * on every rank, so that a program can allocate memory before it loads them. It verifies the
 * checkpoint as a load does. *tensors_p [*n_p] are in the order in which they were saved, with
 * `data` NULL; free() the list, and the names with it. Tensors of each rank are listed as "rng@0"
 * and so on. A type that the library lacks has dtype 0, and can't be loaded. If there is no
 * checkpoint, or if the call fails, *tensors_p is NULL and *n_p is 0. *step_p (may be NULL) is the
 * checkpoint's step. */
lks_status lks_checkpoint_list(lks_comm *comm, const char *dir, lks_tensor **tensors_p, size_t *n_p,
                               uint64_t *step_p);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
