/* lockstep/comm.h - groups of ranks and their collectives. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* all else in a shared liblockstep is hidden */

typedef struct lks_comm lks_comm; /* opaque; close with lks_comm_close() */
typedef struct lks_work lks_work; /* one operation in flight */

/* This process's place among all ranks. Rank, local rank and world size have torchrun's meaning. */
typedef struct lks_world {
    int rank, world_size;
    int local_rank, local_world_size;
} lks_world;

/* Read RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE. Without RANK, read the variables of Open
 * MPI's mpirun, of MPICH's, or of srun. Without any of these: a world of one rank. ERR_CONFIG if a
 * value is no number, or if values contradict each other. */
lks_status lks_world_from_env(lks_world *world);

typedef struct lks_comm_options {
    const char *backend; /* "auto", "shm", "mpi", "gloo" */
    double timeout_s;    /* deadline of every wait, see below; > 0, at most 10^6 */
} lks_comm_options;

/* Join the group; every rank calls it. ERR_SUPPORT names the backends that can't be used, and why.
 */
lks_status lks_comm_open(const lks_world *world, const lks_comm_options *options,
                         lks_comm **comm_p);
/* The same with the usual options: the world of the environment, the first backend that works, a
 * timeout of 60 s. */
lks_status lks_comm_init(lks_comm **comm_p);
/* Leave the group. NULL does nothing; also allowed after an error. Other ranks that need this one
 * for an operation get ERR_PEER with its name. The group's memory and its operations in flight are
 * freed. Close each lks_ddp first: after this, its calls return ERR_ARG. */
void lks_comm_close(lks_comm *comm);

/* For a NULL group these five return -1, 0, "none", NULL and -1. */
int lks_comm_rank(const lks_comm *comm);
int lks_comm_world_size(const lks_comm *comm);
const char *lks_comm_backend(const lks_comm *comm);
/* The group numbers ranks in the order of (host, local rank), also if the launcher's numbers
 * differ. */
const lks_world *lks_comm_world(const lks_comm *comm);
int lks_comm_leader(const lks_comm *comm); /* the first rank of this rank's host */

/* Report this rank's failure to the group: every wait on every rank returns ERR_PEER with this
 * rank's number and `why`. May be called from any thread. If several ranks fail, the first report
 * is kept. This function and the next two ignore a NULL group. */
void lks_comm_abort(lks_comm *comm, const char *why);

/* Publish which step this rank is at and what it is doing. A collective that fails, or that is
 * called differently, names the step of each rank that it names. `phase` is a static string, or
 * NULL. If the program never calls this, lks_ddp notes its own steps, counted from 0. Both
 * functions increase the heartbeat, and cost a few stores. */
void lks_comm_note(lks_comm *comm, uint64_t step, const char *phase);
void lks_comm_beat(lks_comm *comm);

/* --- memory ---------------------------------------------------------------------------------- */

enum {
    LKS_MEM_OWN = 0,    /* one for each rank */
    LKS_MEM_COMMON = 1, /* one for each host: what a rank writes there, all its ranks see */
    LKS_MEM_LAZY = 2,   /* as COMMON, for memory of which a host uses only a share: pages are taken
                         * when they are first touched; lks_comm_drop() frees them */
};

/* Collective: zeroed, page-aligned memory that collectives can reach in place. All ranks ask for
 * the same kinds and sizes in the same order. Valid until lks_comm_close(). ERR_NOMEM if it
 * can't be reserved; once it is reserved, a later access can't fail. */
lks_status lks_comm_alloc(lks_comm *comm, int kind, size_t bytes, void **mem_p);

/* The address at which this rank sees rank `peer`'s counterpart of `mem` (from an LKS_MEM_OWN
 * allocation); NULL if it sees none, for example on another host. */
void *lks_comm_peer(const lks_comm *comm, const void *mem, int peer);

/* Free the whole pages in bytes [from, end) of `mem`, LKS_MEM_LAZY memory. They then read as zeros.
 * One rank of a host calls it. */
void lks_comm_drop(lks_comm *comm, void *mem, size_t from, size_t end);

/* --- collectives ------------------------------------------------------------------------------
 * An argument that is wrong by itself is ERR_ARG on this rank alone, before anything is sent. The
 * group stays usable, and the other ranks wait for this one.
 *
 * All ranks start the same operations in the same order with equal sizes and types. If they don't,
 * every rank gets ERR_ARG with rank, operation, size and type: from this call, or from its next
 * call if this one was already complete on this rank.
 *
 * A wait returns ERR_TIMEOUT if the heartbeat of a missing rank has stood still for timeout_s. It
 * names the missing ranks, with their last step and phase. lks_comm_beat(), lks_comm_note() and the
 * start of any collective increase the heartbeat. If a peer's process has ended, a wait returns
 * ERR_PEER within a second.
 *
 * After any of these errors the group has failed: every later call on every rank fails alike.
 */

lks_status lks_comm_barrier(lks_comm *comm);
/* The root's `buf` [count] to all ranks. */
lks_status lks_comm_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);

/* all[world_size * count] out: rank r's mine[count] at r * count. `mine` may be its own place in
 * `all`. */
lks_status lks_comm_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                               lks_dtype dtype);

/* No operation has the value of a data type, so exchanged arguments are noticed. */
typedef enum lks_op { LKS_SUM = 101, LKS_MIN = 102, LKS_MAX = 103 } lks_op;

/* Combine the ranks' buf[count] element by element, in place, in any memory that is aligned as the
 * type. `dtype` is float32, float64, int32 or int64. All ranks get the same bits:
 * - Sums of floats are added in the order of the canonical tree with a leaf for each rank (level by
 *   level, neighbours; a last one without neighbour moves up), in the type's own precision. So if
 *   each of W ranks gives the tree's sum of its V / W leaves, V and W powers of two, the result has
 *   the same bits for any W.
 * - Sums of integers wrap around, as two's complement does (INT32_MAX + 1 is INT32_MIN).
 * - Minimum and maximum are a quiet NaN (sign 0, payload 0) if any rank's element is a NaN, as
 *   torch.amin() and amax() have it; -0 is less than +0.
 * Integers, minimum and maximum depend neither on the order nor on the number of ranks. */
lks_status lks_comm_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op);

/* Copy rank 0's `mem`, LKS_MEM_COMMON memory, to its counterparts on all hosts. All ranks must have
 * finished writing there before the call, and see the copy after it. ERR_ARG if `mem` isn't such
 * memory. */
lks_status lks_comm_replicate(lks_comm *comm, void *mem, size_t bytes);

/* This host's part, if blocks [0, n_blocks) are divided over hosts. */
void lks_comm_host_share(const lks_comm *comm, size_t n_blocks, size_t *first, size_t *end);

/* Copy each host's share of the blocks at `mem`, common or lazy memory, to the counterparts on all
 * hosts, or, with `to_first`, on rank 0's host alone. block_start [n_blocks + 1] is in bytes. All
 * ranks must have finished writing there before the call, and see the copies after it. ERR_ARG if
 * `mem` isn't such memory. */
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
                 * parts. The caller must not use it until lks_work_wait(); after that its content
                 * is undefined. Parts don't overlap */
} lks_part;

enum {
    LKS_WIRE_FLOAT32 = 0,
    LKS_WIRE_BFLOAT16 = 1, /* half the inter-host bytes; sums then depend on which ranks share a
                            * host. On one host nothing is sent, and results don't change */
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
                          * host. Before a rank writes there again, all must complete a
                          * collective. It may be one of the parts, but not overlap one partly */
    int scatter;         /* not 0: each host gets only the sums of its lks_comm_host_share(); the
                          * rest of dst is undefined. Equal on all ranks */
    int wire;            /* LKS_WIRE_...; equal on all ranks */
    int label;           /* the caller's number for this reduction, for traces */
} lks_reduction;

/* Start to reduce one bucket over all ranks in the order of the tree. The bits of the sum are the
 * same on all ranks and for any number of ranks. Returns at once. work_p is set only on success;
 * lks_work_wait() releases it. Several operations may be in flight; they finish in order. */
lks_status lks_comm_reduce_start(lks_comm *comm, const lks_reduction *r, lks_work **work_p);

/* Advance this rank's share of the operations in flight, without waiting. A backend without a
 * progress thread needs this call between layers. It computes on the caller's thread, and on the
 * group's thread pool if the group has one. */
lks_status lks_comm_progress(lks_comm *comm);

/* Wait for an operation, up to the group's deadline. Always releases `work`. A second wait returns
 * ERR_ARG, unless a later operation has got the same handle. */
lks_status lks_work_wait(lks_work *work);

/* Seconds this rank has spent waiting inside lks_work_wait() since the last call. */
double lks_comm_take_wait_s(lks_comm *comm);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
