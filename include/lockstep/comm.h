/* lockstep/comm.h - groups of ranks and their collectives. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* all else in a shared liblockstep is hidden */

typedef struct lks_comm lks_comm; /* opaque; close with lks_comm_close() */
typedef struct lks_work lks_work; /* one operation in flight */

/* Where this process stands among its ranks. Rank, local rank, world size: as torchrun uses them.
 */
typedef struct lks_world {
    int rank, world_size;
    int local_rank, local_world_size;
} lks_world;

/* Read RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE; without RANK, what Open MPI's mpirun,
 * MPICH's or a step of srun says; without any of these, the world of one. ERR_CONFIG where they are
 * no numbers or contradict each other. */
lks_status lks_world_from_env(lks_world *world);

typedef struct lks_comm_options {
    const char *backend; /* "auto", "shm", "mpi", "gloo" */
    double timeout_s;    /* deadline of every wait, see below; > 0, at most 10^6 */
} lks_comm_options;

/* Join the group; every rank calls it. ERR_SUPPORT says which backend can't be used and why. */
lks_status lks_comm_open(const lks_world *world, const lks_comm_options *options,
                         lks_comm **comm_p);
/* What most programs want: the world of the environment, the first backend that works, 60 s. */
lks_status lks_comm_init(lks_comm **comm_p);
/* NULL is fine; after an error too. Others that need this rank for an operation get ERR_PEER, which
 * names it. The group's memory and its works are gone, waited for or not. Close each lks_ddp first:
 * after this, its calls are ERR_ARG. */
void lks_comm_close(lks_comm *comm);

/* For NULL: -1, 0, "none", NULL, -1. */
int lks_comm_rank(const lks_comm *comm);
int lks_comm_world_size(const lks_comm *comm);
const char *lks_comm_backend(const lks_comm *comm);
/* Ranks count in the order of (host, local rank): where a launcher numbers them otherwise, the
 * group does so all the same. */
const lks_world *lks_comm_world(const lks_comm *comm);
int lks_comm_leader(const lks_comm *comm); /* the first rank of this rank's host */

/* Make this rank's failure the group's: every waiter on every rank returns ERR_PEER naming this
 * rank and `why`. Any thread; the first one wins. This and the next two ignore a comm of NULL. */
void lks_comm_abort(lks_comm *comm, const char *why);

/* For messages of peers that wait for us: what this rank is doing. `phase` is a static string.
 * Bumps the heartbeat. Cheap: a few stores. */
void lks_comm_note(lks_comm *comm, uint64_t step, const char *phase);
void lks_comm_beat(lks_comm *comm);

/* --- memory ---------------------------------------------------------------------------------- */

enum {
    LKS_MEM_OWN = 0,    /* one for each rank */
    LKS_MEM_COMMON = 1, /* one that all ranks of the host see; rank's writes are visible to all */
    LKS_MEM_LAZY = 2, /* the same, but for what one host uses a share of only: pages are taken when
                       * they are first touched, and go by lks_comm_drop() */
};

/* Collective: zeroed, page-aligned memory that collectives can reach in place. All ranks ask for
 * the same kinds and sizes in the same order. Lives until lks_comm_close(). ERR_NOMEM where it
 * can't be reserved (reserved means: a later touch can't fail). */
lks_status lks_comm_alloc(lks_comm *comm, int kind, size_t bytes, void **mem_p);

/* The address at which this rank sees rank `peer`'s counterpart of `mem` (from an LKS_MEM_OWN
 * allocation); NULL where it can't, as on another host. */
void *lks_comm_peer(const lks_comm *comm, const void *mem, int peer);

/* Bytes [from, end) of `mem`, LKS_MEM_LAZY memory, are needed no more: whole pages in them are
 * given back, and read as zeros. For one rank of a host to call. */
void lks_comm_drop(lks_comm *comm, void *mem, size_t from, size_t end);

/* --- collectives ------------------------------------------------------------------------------
 * An argument that is wrong by itself is ERR_ARG on this rank alone, before anything is sent: the
 * group lives on, and the other ranks wait for this one.
 *
 * All ranks start the same operations in the same order with equal sizes; if they don't, every rank
 * gets ERR_ARG naming rank, operation and size: from this call, or from its next one if this rank
 * had all it needed. A wait passes its deadline when a rank that it
 * misses has given no sign of life (lks_comm_beat, lks_comm_note, or arriving anywhere) for
 * timeout_s: ERR_TIMEOUT names the ranks that are missing, with their last step and phase. A peer
 * whose process has ended gives ERR_PEER within a second. After any of these the group is at its
 * end: every later call on every rank fails alike. */

lks_status lks_comm_barrier(lks_comm *comm);
lks_status lks_comm_broadcast(lks_comm *comm, void *buf, size_t bytes, int root);
/* all[world_size * bytes] out: rank r's `mine` at r * bytes. */
lks_status lks_comm_all_gather(lks_comm *comm, const void *mine, void *all, size_t bytes);
/* Sum over ranks in the order of the canonical tree (level by level, neighbours; a last one
 * without neighbour moves up), in place, any memory. */
lks_status lks_comm_all_reduce(lks_comm *comm, float *buf, size_t count);

/* What rank 0 has at `mem`, LKS_MEM_COMMON memory, goes to the counterparts on all hosts; all ranks
 * have finished writing there before, and see it after. ERR_ARG if `mem` isn't such memory. */
lks_status lks_comm_replicate(lks_comm *comm, void *mem, size_t bytes);

/* Work on blocks [0, n_blocks) that is divided over hosts: this host's part. */
void lks_comm_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);

/* Each host's share of the blocks at `mem`, common or lazy memory, goes to the counterparts on all
 * hosts, or, with `to_first`, to the host of rank 0 alone. block_start [n_blocks + 1] in bytes. All
 * ranks have finished writing there before, and see it after. ERR_ARG if `mem` isn't such memory.
 */
lks_status lks_comm_gather_shares(lks_comm *comm, void *mem, const size_t *block_start,
                                  size_t n_blocks, int to_first);

/* A node of the canonical tree over V leaves: level l, index i covers leaves
 * [i * 2^l, min((i + 1) * 2^l, V)). */
typedef struct lks_node {
    int level, index;
} lks_node;

typedef struct lks_part {
    lks_node node;
    float *buf; /* [count]; in LKS_MEM_OWN memory, at the same offset on every rank that has as many
                 * parts; left alone by the caller until lks_work_wait(), and then of no known
                 * content. Parts don't overlap */
} lks_part;

enum {
    LKS_WIRE_FLOAT32 = 0,
    LKS_WIRE_BFLOAT16 = 1, /* between hosts, half the bytes: sums then depend on which ranks share a
                            * host. Within one host nothing is sent, and nothing changes */
};

typedef struct lks_reduction {
    int n_leaves;          /* V */
    const lks_part *parts; /* [n_parts] this rank's nodes, leaves in order; copied */
    int n_parts;
    float scale;  /* the root's sum is multiplied by this, once */
    size_t count; /* elements; equal on all ranks; 0 is fine */
    /* Blocks cut [0, count): block b is [block_start[b], block_start[b + 1]); shares of ranks end
     * on block borders. */
    const size_t *block_start; /* [n_blocks + 1]; copied */
    size_t n_blocks;
    double *block_sumsq; /* [n_blocks] in LKS_MEM_COMMON memory, out: sum of squares of the scaled
                          * sums (the kernel `sumsq`), for all blocks, on all ranks */
    float *dst;          /* [count] in LKS_MEM_COMMON memory or parts[0].buf of lks_comm_leader(),
                          * as this rank sees it, out: the scaled sum, seen by all ranks of the
                          * host; before one of them writes there again, all must meet (any
                          * collective). It may be a part, but not overlap one otherwise */
    int scatter;         /* not 0: each host ends with the sums of lks_comm_host_share() alone; the
                          * rest of dst is of no known content; equal on all ranks */
    int wire;            /* LKS_WIRE_...; equal on all ranks */
    int label;           /* the caller's number for it: shown in traces */
} lks_reduction;

/* Start reducing one bucket over all ranks in the order of the tree. All ranks, and any number of
 * ranks, end with the same bits. Returns at once; work_p set only on success; lks_work_wait()
 * releases it. Operations may be in flight together; they finish in order. */
lks_status lks_comm_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p);

/* Do what can be done of this rank's share of operations in flight, without waiting. A backend
 * without a progress thread needs it called between layers. Computes on the caller's thread, and on
 * the pool that the library gave the group where it has one. */
lks_status lks_comm_progress(lks_comm *comm);

/* With the group's deadline; releases `work` always. A second wait is ERR_ARG until another
 * operation has got the same handle. */
lks_status lks_work_wait(lks_work *work);

/* Seconds this rank has spent waiting inside lks_work_wait() since the last call. */
double lks_comm_take_wait_s(lks_comm *comm);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
