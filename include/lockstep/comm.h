/* lockstep/comm.h - groups of ranks and their collectives.
 *
 * Use a group from one thread at a time; only lks_comm_abort() and lks_comm_beat() may be called
 * from another. Buffers are the caller's, and a call no longer uses them after it returns, except
 * those of lks_comm_all_reduce_start(). Reductions of shared memory are in lockstep/reduce.h.
 *
 * A group belongs to the process that opened it. In a child of fork(), every call on it returns
 * ERR_ARG, calls without a status do nothing, and lks_comm_close() only frees the child's memory.
 * The child may exit or call exec(), and the parent continues as if it hadn't forked. Don't open a
 * group in the child with the parent's RANK.
 *
 * The library computes in one floating-point mode, whatever mode the caller's thread has: it rounds
 * to nearest, ignores exceptions, and keeps subnormal numbers. Each call sets this mode, and
 * restores the caller's mode and exception flags before it returns. */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* all else in a shared liblockstep is hidden */

typedef struct lks_comm lks_comm; /* opaque; close with lks_comm_close() */
typedef struct lks_work lks_work; /* an operation in flight; lks_work_wait() releases it */

/* This process's number among all ranks. Rank, local rank and world size have torchrun's
 * meaning. */
typedef struct lks_world {
    int rank, world_size;
    int local_rank, local_world_size;
} lks_world;

/* Read RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE; without the local ones, one host has all
 * ranks. If you start ranks by hand, also give all of them the same MASTER_PORT, and for several
 * hosts the address of rank 0's host as MASTER_ADDR. Without RANK, read the variables of Open MPI's
 * mpirun, of MPICH's, or of srun. Without any of these: a world of one rank. ERR_CONFIG if a value
 * isn't a number or is missing, or if values contradict each other. */
lks_status lks_world_from_env(lks_world *world);

typedef struct lks_comm_options {
    const char *backend; /* "auto", "shm", "mpi", "gloo" */
    double timeout_s;    /* deadline of every wait, see below; > 0; more than 10^6 is 10^6 */
} lks_comm_options;

/* Join the group; every rank calls it. ERR_SUPPORT names the backends that can't be used, and the
 * reasons. Ranks count their calls, and the n-th calls meet. A call that has waited for other ranks
 * and failed counts, too: call again on all ranks or on none. If ranks start late, give the first
 * call a longer timeout_s instead.
 *
 * Between hosts the group may use MPI, from its own thread. So a program that uses MPI itself calls
 * MPI_Init_thread() with MPI_THREAD_MULTIPLE before it opens a group, and MPI_Finalize() after it
 * has closed all groups. If it has called MPI_Init() instead, the backend "mpi" is refused. Over
 * MPI, one thread at a time may open a group. */
lks_status lks_comm_open(const lks_world *world, const lks_comm_options *options,
                         lks_comm **comm_p);
/* lks_comm_open() with the usual options: the world of the environment, the first backend that
 * works, and a timeout of 60 s, or of LOCKSTEP_TIMEOUT seconds if the environment has it. */
lks_status lks_comm_init(lks_comm **comm_p);
/* Leave the group. NULL does nothing; also allowed after an error. Other ranks that need this one
 * for an operation get ERR_PEER with its name. The group's memory and its operations in flight are
 * freed. Close each lks_ddp first: after this, its calls return ERR_ARG. */
void lks_comm_close(lks_comm *comm);

/* Divide a group into parts. Ranks that give the same `color`, a number from 0 up, form one part;
 * with color -1 a rank joins none, and its *part_p is NULL. A part numbers its ranks in the order
 * of `key`, and ranks with equal keys in the order of the group. Collective.
 *
 * One call puts a rank into one part at most. For parts that have ranks in common, call it once per
 * part: with color 0 on the part's ranks, and -1 on the others.
 *
 * A part is a group like any other. Use it at the same time as `comm` and as other parts, also from
 * another thread; split it again; close it with lks_comm_close() before or after `comm`, but close
 * `comm` only while no call of a part runs. Over MPI, two threads may split groups at the same time
 * only if MPI allows MPI_THREAD_MULTIPLE. Sums use the tree over the part's ranks, and messages
 * about a part count its ranks, from 0. The operations of a part count as heartbeats in `comm`,
 * too. Ranks of one host that follow each other in the part's order share memory; if other hosts'
 * ranks are between them, they count as several hosts (lks_comm_world()).
 *
 * To know a part's ranks in `comm`, gather them in the part:
 *
 *     int32_t mine = lks_comm_rank(comm), ranks[64];
 *     lks_comm_all_gather(part, &mine, ranks, 1, LKS_INT32);
 *
 * If a rank can't prepare its part, every rank of `comm` gets its status and its sentence, and
 * `comm` stays usable. If a rank ends, or has no memory, while its part then opens, `comm` fails,
 * too. After any error *part_p is NULL. */
lks_status lks_comm_split(lks_comm *comm, int color, int key, lks_comm **part_p);

/* For a NULL group these four return -1, 0, "none" and NULL. */
int lks_comm_rank(const lks_comm *comm);
int lks_comm_world_size(const lks_comm *comm);
const char *lks_comm_backend(const lks_comm *comm);
/* A group that was opened numbers ranks in the order of (host, local rank), even if the launcher's
 * numbers differ. */
const lks_world *lks_comm_world(const lks_comm *comm);

/* Report this rank's failure to the group: every wait on every rank returns ERR_PEER with this
 * rank's number and `why`. Call it from any thread, but not in a signal handler. If several ranks
 * fail, the first report is kept. The process may end afterwards: with several hosts, the first
 * rank of a host waits up to half a second until the report is sent. This function and the next two
 * ignore a NULL group. */
void lks_comm_abort(lks_comm *comm, const char *why);

/* Publish this rank's step and phase. A collective that fails, or that ranks call differently,
 * reports the step of each rank that it names. `phase` is a string that stays valid, such as a
 * literal, or NULL; messages show its first 31 bytes. If the program never calls this, lks_ddp
 * notes its own steps, counted from lks_ddp_open(): after a restart they begin at 0 again. All
 * ranks that call it note the same number in the same step: with LOCKSTEP_CHECK=1 in the
 * environment, lks_ddp_step() returns ERR_DIVERGED if they differ. Both functions increase the
 * heartbeat, and cost a few stores; don't call them in a signal handler. A thread that beats, or
 * works in a part, hides another one that hangs: then the others wait for this rank without a
 * limit. */
void lks_comm_note(lks_comm *comm, uint64_t step, const char *phase);
void lks_comm_beat(lks_comm *comm);

/* --- collectives ------------------------------------------------------------------------------
 * An argument that is wrong by itself is ERR_ARG only on this rank, before data are sent. The
 * group stays usable, and the other ranks wait for this one.
 *
 * All ranks start the same operations in the same order with equal sizes and types. If they don't,
 * every rank gets ERR_ARG with rank, operation, size and type: from this call, or from its next
 * call if this one was already complete on this rank.
 *
 * A wait returns ERR_TIMEOUT if a missing rank has had no heartbeat for timeout_s. It
 * names the missing ranks, with their last step and phase. lks_comm_beat(), lks_comm_note() and the
 * start of any collective increase the heartbeat. If a peer's process has ended, a wait returns
 * ERR_PEER within a second. If mpirun, srun or torchrun is killed, the next call on each of its
 * ranks returns ERR_PEER. If a rank alone runs out of memory in a call, it gets ERR_NOMEM, and
 * the others ERR_PEER with its number.
 *
 * After any of these errors the group has failed: later calls on every rank return the same error.
 */

lks_status lks_comm_barrier(lks_comm *comm);
/* Copy the root's `buf` [count] to all ranks. */
lks_status lks_comm_broadcast(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, int root);

/* all[world_size * count] out: rank r's mine[count] at r * count. `mine` may be this rank's part of
 * `all`; any other overlap is ERR_ARG. */
lks_status lks_comm_all_gather(lks_comm *comm, const void *mine, void *all, size_t count,
                               lks_dtype dtype);

/* No operation has the value of a data type, so swapped arguments are noticed. */
typedef enum lks_op {
    LKS_SUM = 101,
    LKS_MIN = 102,
    LKS_MAX = 103,
    LKS_PROD = 104,
    LKS_MEAN = 105, /* the sum, divided by the number of ranks; only of floats */
} lks_op;

/* Combine the ranks' buf[count] element by element, in place, in any memory that is aligned as the
 * type. `dtype` is float32, float64, int32, int64, float16 or bfloat16. All ranks get the same
 * bits:
 * - Sums and products of floats are computed in the order of the canonical tree with one leaf per
 *   rank (level by level, neighbours; a last one without neighbour moves up), in the type's own
 *   precision. So if each of W ranks gives the tree's sum of its V / W leaves, V and W powers of
 *   two, the result has the same bits for any W.
 * - float16 and bfloat16 are computed as float32. Only the result is rounded, once.
 * - Sums and products of integers wrap around, as two's complement does (INT32_MAX + 1 is
 *   INT32_MIN).
 * - The mean is the sum divided by the number of ranks.
 * - Minimum and maximum are a quiet NaN (sign 0, payload 0) if any rank's
 *   element is a NaN, as in torch.amin() and amax(). -0 is less than +0.
 *
 * Integers, minimum and maximum depend neither on the order nor on the number of ranks. */
lks_status lks_comm_all_reduce(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op);

/* Combine the ranks' all[world_size * count] like lks_comm_all_reduce(), with the same bits, but
 * give each rank only its part: mine[count] out is the result at rank * count. `all` isn't changed,
 * unless `mine` is this rank's part of it; any other overlap is ERR_ARG. Hosts exchange only the
 * parts of the other hosts' ranks. */
lks_status lks_comm_reduce_scatter(lks_comm *comm, const void *all, void *mine, size_t count,
                                   lks_dtype dtype, lks_op op);

/* lks_comm_all_gather() of parts with different sizes: rank r gives mine[counts[r]], and `all` out
 * has the parts in the order of ranks, without gaps. counts[world_size] is equal on all ranks; if
 * not, the message names the first count that differs. `mine` may be this rank's part of `all`; any
 * other overlap is ERR_ARG. */
lks_status lks_comm_all_gather_v(lks_comm *comm, const void *mine, void *all, const size_t *counts,
                                 lks_dtype dtype);

/* Start lks_comm_all_reduce(), with the same bits, and return at once. A thread of the group
 * carries it out while the caller computes. Until lks_work_wait() returns, `buf` belongs to the
 * operation. Several may be in flight; they run in the order of their start. Every other collective
 * of the group first waits for all of them. work_p is set only on success. An error of the
 * operation is returned by lks_work_test() and lks_work_wait(). */
lks_status lks_comm_all_reduce_start(lks_comm *comm, void *buf, size_t count, lks_dtype dtype,
                                     lks_op op, lks_work **work_p);

/* *done_p is true if the operation is complete or has failed; the status is then the operation's.
 * Doesn't wait, and doesn't release `work`. ERR_ARG if `work` was released. */
lks_status lks_work_test(lks_work *work, bool *done_p);

/* Wait for an operation, at most until the group's deadline. Always releases `work`, as
 * lks_comm_close() does. A wait after that returns ERR_ARG, unless a later operation has the same
 * handle. */
lks_status lks_work_wait(lks_work *work);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
