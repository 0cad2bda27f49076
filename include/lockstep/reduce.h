/* lockstep/reduce.h - memory that all ranks of a host access in place, and reductions that run
 * while the caller continues to compute. It is for authors of a training engine such as lks_ddp; a
 * program that uses lks_ddp doesn't need it.
 *
 * The rules of lockstep/comm.h apply to threads, to arguments that are wrong by themselves or
 * differ between ranks, to waits and failures, and to children of fork(). For a NULL group,
 * functions without a status return -1, 0 or NULL, or do nothing; a host's share is [0, 0). */
#ifndef LOCKSTEP_REDUCE_H
#define LOCKSTEP_REDUCE_H

#include <stddef.h>

#include "lockstep/comm.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* --- memory ---------------------------------------------------------------------------------- */

/* The first rank of this rank's host; -1 for a NULL group. */
int lks_comm_leader(const lks_comm *comm);

typedef enum lks_mem {
    LKS_MEM_OWN = 0,    /* one per rank */
    LKS_MEM_COMMON = 1, /* one per host: all its ranks see each other's writes */
    LKS_MEM_LAZY = 2,   /* like COMMON, for memory of which a host uses only a share: pages are
                           allocated on first use; lks_comm_drop() frees them */
} lks_mem;

/* Collective: allocate zeroed, page-aligned memory that collectives can access in place. All ranks
 * request the same kinds and sizes in the same order. Valid until lks_comm_close(). ERR_NOMEM if it
 * can't be reserved; once it is reserved, later accesses can't fail. ERR_IO if the program has
 * closed the library's descriptor. */
lks_status lks_comm_alloc(lks_comm *comm, lks_mem kind, size_t bytes, void **mem_p);

/* The address at which this rank sees rank `peer`'s counterpart of `mem` (from an LKS_MEM_OWN
 * allocation); NULL if it can't see it, for example on another host. */
void *lks_comm_peer(const lks_comm *comm, const void *mem, int peer);

/* Free the whole pages in bytes [from, end) of `mem`, LKS_MEM_LAZY memory. They then read as zeros.
 * One rank per host calls it. */
void lks_comm_drop(lks_comm *comm, void *mem, size_t from, size_t end);

/* --- copies among hosts ---------------------------------------------------------------------- */

/* Copy rank 0's `mem`, LKS_MEM_COMMON memory, to its counterparts on all hosts. All ranks must have
 * finished writing to it before the call, and see the copy after it. ERR_ARG if `mem` is other
 * memory. */
lks_status lks_comm_replicate(lks_comm *comm, void *mem, size_t bytes);

/* This host's part of blocks [0, n_blocks) if they are divided over hosts. */
void lks_comm_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);

/* Copy each host's share of the blocks at `mem`, common or lazy memory, to the counterparts on all
 * hosts, or, with `to_first`, only on rank 0's host. block_start [n_blocks + 1] is in bytes; the
 * first block starts at `mem`. All ranks must have finished writing to it before the call, and see
 * the copies after it. ERR_ARG if `mem` is other memory. */
lks_status lks_comm_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                  size_t n_blocks, int to_first);

/* --- reductions ------------------------------------------------------------------------------ */

/* A node of the canonical tree over V leaves: level l, index i covers leaves
 * [i * 2^l, min((i + 1) * 2^l, V)). */
typedef struct lks_node {
    int level, index;
} lks_node;

typedef struct lks_part {
    lks_node node;
    float *buf; /* [count]; in LKS_MEM_OWN memory, at the same offset on every rank that has as many
                   parts. The caller must not use it until lks_work_wait(); after that its content
                   is undefined. Parts don't overlap */
} lks_part;

typedef enum lks_wire {
    LKS_WIRE_FLOAT32 = 0,
    LKS_WIRE_BFLOAT16 = 1, /* half the inter-host bytes; sums then depend on which ranks share a
                              host. One host sends nothing, and results don't change */
} lks_wire;

typedef enum lks_scatter {
    LKS_SCATTER_NONE = 0,  /* every host gets all sums */
    LKS_SCATTER_HOSTS = 1, /* each host gets only the sums of its lks_comm_host_share(); the rest of
                              dst is undefined */
} lks_scatter;

typedef struct lks_reduction {
    int n_leaves;          /* V, 1 to 65536 */
    const lks_part *parts; /* [n_parts] this rank's nodes, leaves in order; copied */
    int n_parts;
    float scale;  /* factor of the root's sum, applied once */
    size_t count; /* elements; equal on all ranks; 0 is fine */
    /* Blocks divide [0, count): block b is [block_start[b], block_start[b + 1]). Shares of ranks
     * end at block borders. */
    const size_t *block_start; /* [n_blocks + 1]; copied */
    size_t n_blocks;
    double *block_sumsq; /* [n_blocks] in LKS_MEM_COMMON memory, out: sum of squares of the scaled
                          * sums (the kernel `sumsq`), for all blocks, on all ranks */
    float *dst; /* [count] in LKS_MEM_COMMON memory or parts[0].buf of lks_comm_leader(), as this
                   rank sees it, out: the scaled sum, seen by all ranks of the host. Before a rank
                   writes to it again, all must complete a collective. It may be one of the parts,
                   but not overlap one partly */
    lks_scatter scatter; /* equal on all ranks */
    lks_wire wire;       /* equal on all ranks */
    int label;           /* the caller's number for this reduction, for traces */
} lks_reduction;

/* Start to reduce one bucket over all ranks in the order of the tree. Returns at once. The bits of
 * the sum are the same on all ranks and for any number of ranks. work_p is set only on success;
 * lks_work_wait() releases it. Several operations may be in flight; they finish in order. */
lks_status lks_comm_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p);

/* Advance this rank's share of the operations in flight, without waiting. A backend without a
 * progress thread needs this call between layers. It computes on the caller's thread, and on the
 * group's thread pool if the group has one. */
lks_status lks_comm_progress(lks_comm *comm);

/* Seconds this rank has spent waiting inside lks_work_wait() since the last call. */
double lks_comm_take_wait_s(lks_comm *comm);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
