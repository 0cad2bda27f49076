/* compute/exchange.h - moves device memory from rank to rank without the host: the operations that
 * a device provides for it (compute/device.h). All of them are queued, like other work of the
 * device. */
#pragma once

#include "compute/device.h"

/* Made by rank 0; all ranks pass it to join(). */
typedef struct lks__exchange_id {
    char bytes[128];
} lks__exchange_id;

typedef enum lks__move_kind {
    LKS__MOVE_SEND,    /* to `rank` */
    LKS__MOVE_RECEIVE, /* from `rank` */
    LKS__MOVE_SPREAD   /* from `rank`, which has the data at `mem`, to the `mem` of all others */
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
    LKS__SHARD_NODES = 24,   /* most nodes of the canonical tree per rank */
    LKS__SHARD_LEVELS = 17,  /* of the tree */
};

/* A block of this rank's shard: floats [at, at + count) of an arena; in each received node they
 * begin at in_shard. */
typedef struct lks__shard_block {
    uint64_t at, in_shard;
    uint32_t count;
} lks__shard_block;

/* A node of the tree, in the order of leaves: received node number `slot`, or own node -1 - slot.
 * After it, this number of sums is computed (comm/tree/tree.h's plan). */
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
    float *own[LKS__SHARD_NODES];   /* arenas; the first one receives the sum */
    size_t n_blocks, shard_floats;
    int n_parts;
    float scale; /* factor of the sum */
} lks__shard_sum;

/* --- the device's functions ------------------------------------------------------------------ */

/* While a call waits for other ranks, it asks the device's waiter whether the group has failed. */
struct lks__exchange_ops {
    /* True if this process can take part. False: `why` contains half a sentence. */
    bool (*can)(lks__device *device, char *why, size_t why_bytes);
    void (*about)(lks__device *device, char *text, size_t bytes); /* the transport, if it can */
    lks_status (*id)(lks__device *device, lks__exchange_id *id);
    /* Collective. Must precede all calls below; close() leaves the group. The only rank of a group
     * may join with id NULL, and without can() and id() before. */
    lks_status (*join)(lks__device *device, int rank, int n_ranks, const lks__exchange_id *id);
    /* Put a list on the queue; its pieces travel together. Every rank queues the same lists, in the
     * same order, on one queue. A SPREAD is in all of them. For each SEND, its receiver's list has
     * a RECEIVE of the same size, several of them in the same order. */
    void (*move)(lks__device *device, lks__queue queue, const lks__move *list, size_t n);
    /* A poll: true if the device is inside a move and all earlier work is done. If this lasts,
     * another rank's device or process has stopped. */
    bool (*waits)(lks__device *device);
    /* Computes the bits of comm/tree/sum.h's sum, and of the kernel `sumsq`. */
    void (*sum)(lks__device *device, lks__queue queue, const lks__shard_sum *sum);
    /* The group has failed: queued work ends at once, undone, and all later moves are dropped. */
    void (*cut)(lks__device *device);
};
