/* ddp/library/checkpoint_files.h - rank 0's part of lockstep/checkpoint.h, and its result on all
 * ranks. */
#pragma once

#include <signal.h>

#include "files/checkpoint/ckpt.h"
#include "lockstep/checkpoint.h"

/* Rank 0's result. */
struct lks__outcome {
    uint64_t step, n, bytes; /* n, bytes: of a listing */
    int32_t status, found;
    int32_t lasting; /* lks__sys_is_lasting() of the text */
    char text[1024];
};

/* A tensor's type and shape, as ranks send them. */
struct lks__packed_tensor {
    uint64_t shape[LKS_MAX_DIMS];
    int32_t dtype, n_dims;
};
_Static_assert((int)LKS_MAX_DIMS == (int)LKS__ST_MAX_DIMS, "shapes of both have one size");

/* ERR_ARG: the group is NULL, or no folder was named. */
lks_status lks__checkpoint_check_dir(const char *call, const lks_comm *comm, const char *dir);

/* Broadcast rank 0's `st`, its recorded sentence and *o. */
lks_status lks__share_outcome(lks_comm *comm, const char *call, lks_status st,
                              struct lks__outcome *o);

/* The name under which rank `rank`'s tensor `name` is saved. The caller frees; NULL: no memory. */
char *lks__name_of_rank(const char *name, int rank);

/* A program's own JSON text in a checkpoint's state: the member's name, and a state with the text
 * (NULL if `text` is NULL). ERR_ARG if it isn't JSON. */
#define LKS__PROGRAM_STATE "program"
lks_status lks__program_state(const char *text, json_t **state_p);

/* An optimizer's number of steps. If the list's moments are older (update/optimizer.h), its upper
 * 24 bits are LKS__STALE_STEPS, by which a save knows it under any name; it is negative then. */
#define LKS__STEPS_NAME "optimizer.steps"
enum { LKS__STALE_STEPS = 0xb4c6b7 };

/* Before files are read or written: get errors instead of signals, report progress to other ranks,
 * and let the launcher wait for a save. */
void lks__begin_files(lks_comm *comm, bool save, sigset_t *before);
void lks__end_files(lks_comm *comm, const sigset_t *before);

/* Open the newest checkpoint in `dir`, or `dir` if that is one, into *ckpt, and set o->found and
 * o->step. If there is none, OK and not found; `needed`: ERR_IO. */
lks_status lks__find_checkpoint(const char *dir, bool needed, lks__ckpt *ckpt,
                                struct lks__outcome *o);

/* Let rank 0 `pack` a part of the newest checkpoint in `dir` into a block of o->bytes, and send
 * that to every rank: *block_p, which the caller frees; NULL if o->bytes is 0. `what` is for
 * messages. ERR_NOMEM for the block ends the group. */
lks_status lks__read_block(lks_comm *comm, const char *call, const char *dir, const char *what,
                           lks_status (*pack)(const lks__ckpt *ckpt, char **block_p,
                                              struct lks__outcome *o),
                           char **block_p, struct lks__outcome *o);

/* A type's name in safetensors; NULL: there is no such type. And back: 0 if the library lacks it.
 */
const char *lks__st_dtype_name(lks_dtype dtype);
lks_dtype lks__st_dtype_of(const char *name);
