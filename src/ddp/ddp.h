/* ddp/ddp.h - one optimizer step's gradients on virtual ranks: accumulation, the canonical sum,
 * and its overlap with backward.
 *
 * Words. A leaf of the canonical tree is the gradient of one virtual rank: its micro-batches added
 * in order. A rank owns a contiguous range of leaves. A bucket is a contiguous range of the
 * gradient arena that is reduced as one.
 *
 * ddp itself deals out virtual ranks and micro-steps (lks__ddp_next), so that it alone knows which
 * micro-step is the last: there is no flag that a caller could set wrongly. */
#ifndef LKS_DDP_DDP_H
#define LKS_DDP_DDP_H

#include <stdbool.h>
#include <stddef.h>

#include "layers/device.h"
#include "lockstep/comm.h"
#include "model/table.h"

typedef struct lks__ddp lks__ddp; /* opaque; close with lks__ddp_close() */

typedef struct lks__ddp_config {
    int V, A;            /* virtual ranks; micro-steps of each (N = V * A) */
    int wire;            /* LKS_WIRE_... */
    bool zero;           /* each host updates its share of every bucket only, as ZeRO-1 has it */
    size_t bucket_bytes; /* groups are put together until a bucket has this many */
    bool sums;           /* leave the sum over micro-batches as it is: no division by N */
    bool windows;        /* where A is 1, leaves that are merged at once go through a window */
} lks__ddp_config;

/* First virtual rank of `rank`, out of V over W ranks: rank r owns [rV/W, (r+1)V/W). */
int lks__ddp_first_leaf(int V, int W, int rank);

/* Gradient arenas that a rank needs for its leaves: what the tree holds at once. A leaf in a window
 * (see lks__ddp_shift) takes none; `windows`: such are there. */
int lks__ddp_arenas(int V, int W, bool windows);

/* Floats in that window, of the rank out of W that needs most; 0: no rank has one. */
size_t lks__ddp_window_floats(const lks__ddp_config *config, const lks__table *table, int W);

/* Collective. Borrows comm, table and device. Arenas are the device's memory; if that is the
 * host's, they come from lks_comm_alloc(), and the group adds them up in place. Else it adds up
 * copies of the buckets in memory of its own. */
lks_status lks__ddp_open(const lks__ddp_config *config, lks_comm *comm, const lks__table *table,
                         lks__device *device, lks__ddp **ddp_p);
/* NULL is fine. At any time, in mid-step too: reductions in flight are left to the group, which
 * completes them with its next operations, for only memory of the group's own is needed. After the
 * comm was closed it is safe as well. */
void lks__ddp_close(lks__ddp *ddp);

/* For lks__backward.shift: NULL, or `grads` of the micro-step under way is a window of some
 * buckets, each of which is added to its neighbours' nodes, and zero again, when its last group is
 * done. So the rank needs one arena less, and what is added is still in the caches. */
const size_t *lks__ddp_shift(const lks__ddp *ddp);

/* For the model's backward: `ddp` as void so that it fits lks__group_done_fn. */
void lks__ddp_group_done(void *ddp, int group);

/* Micro-batch `m` of virtual rank `v`: its gradient is added to `grads`, memory of the device. */
typedef struct lks__ddp_micro {
    int v, m;
    float *grads;
} lks__ddp_micro;

/* A step: lks__ddp_begin(); while lks__ddp_next(), forward and backward of that micro-batch, which
 * adds to its `grads` and calls lks__ddp_group_done() as each group of the table completes; then
 * lks__ddp_finish(), which passes on errors of the group. */
void lks__ddp_begin(lks__ddp *ddp);
bool lks__ddp_next(lks__ddp *ddp, lks__ddp_micro *micro);

/* Instead of what is left of this rank's micro-steps, the one from lks__ddp_next() included: the
 * group's operations take place, with any numbers in them, and lks__ddp_finish() comes next. The
 * step's gradient is good for nothing; ranks have to tell each other that. */
void lks__ddp_skip(lks__ddp *ddp);

/* The mean gradient over all N micro-batches: *grads_p is the arena, in the host's memory, the same
 * bits on every rank and for any number of ranks, and stays readable until lks__ddp_release().
 * *norm_p: its 2-norm (blocks in double, table order); not finite where a gradient isn't. */
lks_status lks__ddp_finish(lks__ddp *ddp, const float **grads_p, double *norm_p);

/* lks__ddp_next() in pieces, for a loop that stands elsewhere (params.c): for each of this rank's
 * virtual ranks in order lks__ddp_leaf(), its micro-steps and lks__ddp_leaf_end(). The last
 * micro-step of the last virtual rank stands between lks__ddp_last() and lks__ddp_leaf_end(): in it
 * every group is announced, in order. */
float *lks__ddp_leaf(lks__ddp *ddp); /* the arena to be filled next; what it holds is old */
void lks__ddp_last(lks__ddp *ddp);
lks_status lks__ddp_leaf_end(lks__ddp *ddp);
/* The group was closed by lks_comm_close(): nothing but lks__ddp_close() is left. */
bool lks__ddp_is_closed(const lks__ddp *ddp);

/* Memory of the device for a copy of that gradient, an arena: free until the next step begins. */
float *lks__ddp_device_grads(lks__ddp *ddp);

/* Every rank has read the gradient: its memory may be written again. Collective. */
lks_status lks__ddp_release(lks__ddp *ddp);

/* This rank's part of the arena for work that is divided over the ranks of a host, which share one
 * replica, in blocks [*first, *end). */
void lks__ddp_share(const lks__ddp *ddp, size_t *first, size_t *end);

/* What this rank updates: n ranges of blocks; without `zero` one, lks__ddp_share(). */
int lks__ddp_n_updates(const lks__ddp *ddp);
void lks__ddp_update_range(const lks__ddp *ddp, int i, size_t *first, size_t *end);

/* With `zero`, what each host has of `arena` goes to all hosts, or, `to_first`, to rank 0's.
 * Collective; nothing to do without `zero`. */
lks_status lks__ddp_gather(lks__ddp *ddp, float *arena, bool to_first);
/* With `zero`, give back what this host holds of other hosts' parts of `arena`, LKS_MEM_LAZY
 * memory. For one rank of a host. */
void lks__ddp_drop(lks__ddp *ddp, float *arena);

#endif
