/* ddp/reducer.h - the gradients of one optimizer step on virtual ranks: accumulation, the canonical
 * sum, and its overlap with backward.
 *
 * A leaf of the canonical tree is the gradient of one virtual rank: its micro-batches added in
 * order. A rank owns a contiguous range of leaves. A bucket is a contiguous range of the gradient
 * arena that is reduced as one.
 *
 * The reducer assigns virtual ranks and micro-steps (lks__reducer_next), so it knows the last
 * micro-step without a flag that a caller could set wrongly. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddp/memory/memory.h"

typedef struct lks__reducer lks__reducer; /* opaque; close with lks__reducer_close() */

typedef struct lks__reducer_config {
    int V, A; /* virtual ranks; micro-steps per virtual rank (N = V * A) */
    lks_wire wire;
    bool zero;           /* each host updates only its share of every bucket, as in ZeRO-1 */
    size_t bucket_bytes; /* a bucket gets groups of the table until it has this many bytes */
    size_t first_bytes;  /* limit of the first bucket, which starts early; 0: bucket_bytes */
    double divisor;      /* of the sum over all micro-batches; 0: their number */
    bool staging;        /* if A is 1, leaves that are merged at once use a staging buffer */
    bool hashes;         /* hash the leaves, if the device's memory is the host's */
    /* [n_tensors] the rank that updates a tensor as a whole, -1 if ranks divide it by blocks; NULL:
     * they divide all tensors. Only for joined devices. */
    const int *owners;
} lks__reducer_config;

/* Floats in the staging buffer (see lks__reducer_shift), for the one of W ranks that needs most; 0
 * if no rank has one. */
size_t lks__reducer_staging_floats(const lks__reducer_config *config, const lks__table *table,
                                   int W);

/* Collective. Borrows comm, table and device. The gradients are in the device's memory
 * (memory/memory.h). */
lks_status lks__reducer_open(const lks__reducer_config *config, lks_comm *comm,
                             const lks__table *table, lks__device *device,
                             lks__reducer **reducer_p);
/* The memory that `reducer` has opened, and will close. */
lks__memory *lks__reducer_memory(lks__reducer *reducer);
/* NULL does nothing. May be called at any time, even in mid-step: the group completes reductions in
 * flight with its next operations, because they need only the group's memory. Also safe after the
 * comm was closed. */
void lks__reducer_close(lks__reducer *reducer);

/* For lks__backward.shift. If it isn't NULL, `grads` of the current micro-step is a small staging
 * buffer for some buckets: when the last group of a bucket is done, the bucket is added to its
 * neighbours' nodes and cleared. This saves one arena per rank, and the added data are still in the
 * caches. */
const size_t *lks__reducer_shift(const lks__reducer *reducer);

/* For the model's backward: `reducer` as void so that the function fits lks__group_done_fn. Groups
 * without trained tensors are not announced. */
void lks__reducer_group_done(void *reducer, int group);

/* Micro-batch `m` of virtual rank `v`: its gradient is added to `grads`, in the device's memory. */
typedef struct lks__reducer_micro {
    int v, m;
    float *grads;
    bool fresh; /* for lks__backward.fresh: only tensors that aren't overwritten were cleared */
} lks__reducer_micro;

/* A step: call lks__reducer_begin(). While lks__reducer_next() returns true, run forward and
 * backward of that micro-batch. Then call lks__reducer_finish(), which returns errors of the group.
 * Backward adds to `grads` and calls lks__reducer_group_done() as each group of the table
 * completes. */
void lks__reducer_begin(lks__reducer *reducer);
bool lks__reducer_next(lks__reducer *reducer, lks__reducer_micro *micro);

/* Call it instead of this rank's remaining micro-steps, including the current one. The group's
 * operations run, whatever numbers they contain; call lks__reducer_finish() next. The step's
 * gradient is then useless, so ranks must tell each other. */
void lks__reducer_skip(lks__reducer *reducer);

/* The mean gradient over all N micro-batches. *grads_p is the arena in host memory, with the same
 * bits on every rank and for any number of ranks, readable until lks__memory_release(); or NULL if
 * the devices have its parts (lks__memory_sum()). *norm_p is its 2-norm (blocks in double, table
 * order); not finite if a gradient isn't. */
lks_status lks__reducer_finish(lks__reducer *reducer, const float **grads_p, double *norm_p);

/* The hashes of this rank's leaves, in order, in the step that ends; NULL: they aren't hashed. A
 * leaf's hash is the sum, modulo 2^64, of the XXH3-64 of each block of its gradient, with the
 * block's number in the table as seed. It is computed before the leaf is added to anything, so it
 * depends neither on buckets nor on ranks or threads. */
const uint64_t *lks__reducer_hashes(const lks__reducer *reducer);
/* Between steps: this rank's arena for one gradient, in the device's memory. Within a step it is
 * free again after lks__memory_release(). */
float *lks__reducer_spare(const lks__reducer *reducer);
/* The hash of a leaf in `grads`, an arena in host memory that the caller has filled. */
uint64_t lks__reducer_hash(const lks__reducer *reducer, const float *grads);

/* lks__reducer_next() in parts, for a caller with its own loop (params.c). For each of this rank's
 * virtual ranks in order: lks__reducer_leaf(), its micro-steps, lks__reducer_leaf_end(). The last
 * micro-step of the last virtual rank runs between lks__reducer_last() and lks__reducer_leaf_end(),
 * and announces every group, in order. */
float *lks__reducer_leaf(lks__reducer *reducer); /* the arena to fill next; contains old values */
void lks__reducer_last(lks__reducer *reducer);
lks_status lks__reducer_leaf_end(lks__reducer *reducer);
lks_status lks__reducer_failed(const lks__reducer *reducer); /* the first failure of this step */
