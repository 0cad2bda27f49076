/* compute/exchange.h - memory of devices that goes from rank to rank without the host: what a
 * device offers for it (compute/device.h). All of it is put on queues, as other work of the device.
 */
#ifndef LKS_COMPUTE_EXCHANGE_H
#define LKS_COMPUTE_EXCHANGE_H

#include "compute/device.h"

/* What rank 0 makes, and all ranks give to join(). */
typedef struct lks__exchange_id {
    char bytes[128];
} lks__exchange_id;

typedef enum lks__move_kind {
    LKS__MOVE_SEND,    /* to `rank` */
    LKS__MOVE_RECEIVE, /* from `rank` */
    LKS__MOVE_SPREAD   /* from `rank`, which has it at `mem`, to all others, into theirs */
} lks__move_kind;

typedef struct lks__move {
    lks__move_kind kind;
    int rank;
    void *mem; /* of the device */
    size_t bytes;
} lks__move;

/* --- sums of shards -------------------------------------------------------------------------- */

enum {
    LKS__SHARD_BLOCK = 4096, /* most floats of a block */
    LKS__SHARD_NODES = 24,   /* most nodes of the canonical tree that a rank has */
    LKS__SHARD_LEVELS = 17,  /* of the tree */
};

/* A block of this rank's shard: floats [at, at + count) of an arena, and of each received node
 * those from in_shard on. */
typedef struct lks__shard_block {
    uint64_t at, in_shard;
    uint32_t count;
} lks__shard_block;

/* A node of the tree, in the order of leaves: number `slot` of those that were received, or own
 * node -1 - slot. Behind it so many sums are made (comm/tree/tree.h's plan). */
typedef struct lks__shard_part {
    int16_t slot;
    uint16_t merges;
} lks__shard_part;

typedef struct lks__shard_sum {
    /* Memory of the device. */
    const lks__shard_block *blocks; /* [n_blocks] */
    const lks__shard_part *parts;   /* [n_parts] */
    const float *received;          /* nodes of shard_floats each */
    double *squares;                /* [n_blocks] out: each block's sum of squares */
    float *own[LKS__SHARD_NODES];   /* arenas; the first one gets the sum */
    size_t n_blocks, shard_floats;
    int n_parts;
    float scale; /* the sum is multiplied by it */
} lks__shard_sum;

/* --- the device's functions ------------------------------------------------------------------ */

/* While a call waits for other ranks, it asks the device's waiter whether the group has failed. */
struct lks__exchange_ops {
    /* Can this process take part? False: `why` has half a sentence. */
    bool (*can)(lks__device *device, char *why, size_t why_bytes);
    void (*about)(lks__device *device, char *text, size_t bytes); /* what moves it, if it can */
    lks_status (*id)(lks__device *device, lks__exchange_id *id);
    /* Collective. Without a call, nothing below may be called; close() leaves the others again. The
     * only rank of a group may join with id NULL, and without can() and id() before. */
    lks_status (*join)(lks__device *device, int rank, int n_ranks, const lks__exchange_id *id);
    /* Put a list on the queue; its pieces travel together. Every rank puts the same lists, in the
     * same order, on one queue: a SPREAD stands in all of them, and of a SEND its receiver's has
     * the RECEIVE of the same size, several of them in the same order. */
    void (*move)(lks__device *device, lks__queue queue, const lks__move *list, size_t n);
    /* A poll: is the device inside a move, all that was before it being done? If it stays there,
     * another rank's device or process has stopped. */
    bool (*waits)(lks__device *device);
    /* The bits of comm/tree/sum.h's sum, and of the kernel `sumsq`. */
    void (*sum)(lks__device *device, lks__queue queue, const lks__shard_sum *sum);
    /* The group has failed: what is queued ends at once, undone, and nothing more is moved. */
    void (*cut)(lks__device *device);
};

#endif
