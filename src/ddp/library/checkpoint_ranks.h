/* ddp/library/checkpoint_ranks.h - tensors that each rank has its own of, on their way between
 * their rank and rank 0, which reads and writes the files. */
#pragma once

#include "files/checkpoint/ckpt.h"
#include "lockstep/checkpoint.h"

/* Size of a tensor that has been checked. */
uint64_t lks__tensor_bytes(const lks_tensor *t);

/* The tensors of a call, in the order of the file: the common ones, then each rank's. On rank 0 all
 * have memory, on other ranks only their own. */
typedef struct lks__all_tensors {
    lks_tensor *list; /* [n] */
    size_t n, n_common, n_each;
    unsigned char *mem; /* rank 0: data of the other ranks */
} lks__all_tensors;

/* Collective. Borrows data and common names. Rank 0's ERR_NOMEM is only its own: share it
 * (checkpoint_files.h); on another rank it ends the group. Close `all` in any case. */
lks_status lks__all_tensors_open(lks_comm *comm, const char *call, const lks_tensor *tensors,
                                 size_t n, const lks_checkpoint_more *more, lks__all_tensors *all);
void lks__all_tensors_close(lks__all_tensors *all); /* a zeroed one is fine */

/* Collective. Send the tensors of each rank to rank 0, or back. */
lks_status lks__all_tensors_move(lks_comm *comm, const lks__all_tensors *all, bool to_first);

/* ERR_CONFIG if another number of ranks saved a tensor that each of W ranks asks for. */
lks_status lks__check_rank_count(const lks__ckpt *ckpt, const lks_checkpoint_more *more, int W);
