/* compute/device.h - memory of a device, copies, two queues, marks.
 *
 * Work is put on a queue and done later, in the queue's order. Only `follow` below orders
 * work of different queues. A mark stands for all work that was on its queue when it was made. The
 * host learns only from marks that work is done: until lks__device_wait() for a mark has returned
 * LKS_OK, the results of its work are undefined, and its inputs must not change.
 *
 * Layer operations (layers.h) use the compute queue. The CPU completes everything within the
 * call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "compute/layers.h"

typedef struct lks__device lks__device;

typedef enum lks__queue {
    LKS__QUEUE_COMPUTE,
    LKS__QUEUE_COPY,
    LKS__QUEUES /* their number */
} lks__queue;

/* Marks of one queue increase. 0 counts as passed from the start. */
typedef struct lks__mark {
    lks__queue queue;
    uint64_t number;
} lks__mark;

/* Costs of operations: bytes of the device's memory, and floating-point operations. */
typedef struct lks__device_counts {
    double bytes, flops;
} lks__device_counts;

struct lks__device_ops {
    const char *name; /* its name in --device */

    /* The device's memory is host memory, which the host reads and writes in place (after a wait,
     * before new work on it). Then there are no copies: see compute/mirror.h. */
    bool host_memory;

    /* For a device with separate memory: bytes that it uses when open, besides the allocations made
     * here, and bytes that it may use later. They may be estimates. */
    size_t open_bytes, spare_bytes;
    /* Free bytes of its memory now, and its total. NULL if the device can't report its memory. */
    lks_status (*memory)(lks__device *device, size_t *left, size_t *all);

    /* Allocate `bytes` zeros, 64-byte aligned, on the device. ERR_NOMEM. */
    lks_status (*alloc)(lks__device *device, size_t bytes, void **p);
    void (*release)(lks__device *device, void *p, size_t bytes); /* nothing queued may need it */

    /* The same for host memory that suits copies (for example pinned memory). */
    lks_status (*alloc_staging)(lks__device *device, size_t bytes, void **p);
    void (*release_staging)(lks__device *device, void *p, size_t bytes);

    /* dst = src. Each is memory of the device or any memory of the host; one is the device's. */
    void (*copy)(lks__device *device, lks__queue queue, void *dst, const void *src, size_t bytes);

    lks__mark (*mark)(lks__device *device, lks__queue queue);
    /* Work put on `queue` from now on starts after `mark` has been passed. */
    void (*follow)(lks__device *device, lks__queue queue, lks__mark mark);
    /* A poll: returns at once. ERR_DEVICE, with the device's own message, if the device has
     * failed. */
    lks_status (*passed)(lks__device *device, lks__mark mark, bool *passed_p);

    /* From now on, products round their operands to bfloat16, or (the initial state) don't. The
     * device's fingerprint may change. NULL: products do as lks__device_place.cpu does.
     * ERR_DEVICE. */
    lks_status (*products)(lks__device *device, bool bf16);

    /* A rehearsal, for a device whose choice of algorithms may differ between processes. From
     * rehearse() to perform() operations queue nothing and touch no memory; each product only
     * chooses its algorithm: from the `table` if it has one for the product's shape, else freely,
     * or, with `complete`, not at all. After perform(), products use these algorithms and no
     * others, the fingerprint covers them, and algorithms() is their table: text, a line each. If
     * the table can't be used here, perform() returns ERR_SUPPORT, and there is no table.
     * NULL, all four: the device chooses nothing. ERR_DEVICE. */
    void (*rehearse)(lks__device *device, const char *table, bool complete);
    lks_status (*perform)(lks__device *device);
    const char *(*algorithms)(lks__device *device); /* NULL before perform() */
    /* While it is on, products whose results don't matter may have other shapes. */
    void (*choose_freely)(lks__device *device, bool on);

    /* Counts of all work that was put on the compute queue. NULL: the device doesn't count. */
    lks__device_counts (*counts)(lks__device *device);

    /* NULL: data for other ranks travels through host memory (compute/exchange.h). */
    const struct lks__exchange_ops *exchange;

    void (*close)(lks__device *device);
};

/* Functions to call while the host waits. */
typedef struct lks__waiter {
    void (*progress)(void *ctx); /* a mark has been passed: counts as a heartbeat */
    /* OK, or the reason to stop waiting. `others`: the device waits for other ranks' devices, so
     * the other ranks aren't waiting for this one. */
    lks_status (*failure)(void *ctx, bool others);
    void *ctx;
    double timeout_s; /* 0: none. A device that passes no mark for this long is given up */
} lks__waiter;

enum { LKS__DEVICE_WHICH = 400, LKS__DEVICE_PARTS = 3, LKS__DEVICE_PART_TEXT = 320 };

/* A part of a fingerprint. `name` is its name in messages; it isn't freed. */
typedef struct lks__device_part {
    const char *name;
    uint64_t value;
    char text[LKS__DEVICE_PART_TEXT]; /* the facts that are hashed to `value`, readable */
} lks__device_part;

struct lks__device {
    const struct lks__device_ops *ops;
    const lks__layers *layers; /* fixed while the device is open, and so is ex */
    const lks__exec *ex;       /* passed to the layer operations */
    uint64_t fingerprint;      /* hash of all that its bits depend on; 0: only the CPU's kernels */
    lks__device_part parts[LKS__DEVICE_PARTS]; /* the fingerprint's parts, ended by a NULL name */
    bool bf16;                                 /* --dtype=auto is bfloat16 on it */
    bool hung;                                 /* given up: don't wait for queued work any more */
    int joined; /* ranks whose devices ops->exchange reaches, all of the group: 1 if there is no
                   other; 0: it isn't used */
    /* Identifies the piece of hardware for all processes of the host, with its name in messages; 0:
     * each process has a separate one. */
    uint64_t unit;
    int ranks; /* this host's ranks on this unit, or 0 if unknown */
    char which[LKS__DEVICE_WHICH];
    lks__waiter waiter; /* NULL functions: none */
};

/* Wait until `mark` has been passed. It polls, so a failure of the group ends the wait and all
 * moves between devices. A passed mark counts as a heartbeat; waiting doesn't. ERR_TIMEOUT, and
 * `hung`, when the waiter's time is over. */
lks_status lks__device_wait(lks__device *device, lks__mark mark);

/* Wait for all work that is now on `queue`. */
lks_status lks__device_finish(lks__device *device, lks__queue queue);

/* Before memory is released: on return no work is queued any more, or the device has failed and
 * will do none. The group's failure doesn't end this wait; it ends moves between devices, which
 * might never end otherwise. */
void lks__device_drain(lks__device *device);

/* All later work on `to` starts after the work that is now on `from` is done. */
void lks__device_order(lks__device *device, lks__queue from, lks__queue to);

/* ops->choose_freely(), if the device has it. */
void lks__device_choose_freely(lks__device *device, bool on);

void lks__device_close(lks__device *device); /* NULL does nothing */

/* True if work is done when the call that queues it returns. Then the host's progress is the
 * device's. */
static inline bool lks__device_in_call(const lks__device *device)
{
    return device->ops->host_memory;
}

/* Number of micro-batches that its memory should hold, so that one can be copied while another is
 * used. */
static inline int lks__device_batches(const lks__device *device)
{
    return lks__device_in_call(device) ? 1 : 2;
}

/* The contents of this memory aren't needed any more. If it is host memory, the host gets its pages
 * back until they are written again. */
void lks__device_discard(lks__device *device, void *p, size_t bytes);
