/* layers/device.h - where a model lives and computes: memory, copies, two queues, marks.
 *
 * Work is put on a queue and done later, in the queue's order. Queues know nothing of each other
 * but what lks__device_follow() says. A mark stands behind all that was on its queue when it was
 * made. The host learns that work is done by a mark alone: until lks__device_wait() for it has
 * returned LKS_OK, what the work writes holds anything, and what it reads must not change.
 *
 * Layer operations (layers.h) go to the compute queue. The CPU does everything at once, before the
 * call returns. */
#ifndef LKS_LAYERS_DEVICE_H
#define LKS_LAYERS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/layers.h"

typedef struct lks__device lks__device;

typedef enum lks__queue {
    LKS__QUEUE_COMPUTE,
    LKS__QUEUE_COPY,
    LKS__QUEUES /* their number */
} lks__queue;

/* Marks of one queue grow. 0 is passed from the start. */
typedef struct lks__mark {
    lks__queue queue;
    uint64_t number;
} lks__mark;

struct lks__device_ops {
    const char *name; /* as in --device */

    /* The device's memory is memory of the host, which reads and writes it in place (between a wait
     * and the next work on it). There are then no copies: see layers/mirror.h. */
    bool host_memory;

    /* `bytes` zeros, 64-byte aligned, on the device. ERR_NOMEM. */
    lks_status (*alloc)(lks__device *device, size_t bytes, void **p);
    void (*release)(lks__device *device, void *p, size_t bytes); /* nothing queued may need it */

    /* The same of host memory that is good for copies (pinned, say). */
    lks_status (*alloc_staging)(lks__device *device, size_t bytes, void **p);
    void (*release_staging)(lks__device *device, void *p, size_t bytes);

    /* dst = src. Each is memory of the device or any memory of the host; one is the device's. */
    void (*copy)(lks__device *device, lks__queue queue, void *dst, const void *src, size_t bytes);

    lks__mark (*mark)(lks__device *device, lks__queue queue);
    /* What is put on `queue` from now on begins after `mark` has been passed. */
    void (*follow)(lks__device *device, lks__queue queue, lks__mark mark);
    /* A poll: returns at once. ERR_INTERNAL, with the device's own words, if it has failed. */
    lks_status (*passed)(lks__device *device, lks__mark mark, bool *passed_p);

    void (*close)(lks__device *device);
};

/* Who has to know while the host waits. */
typedef struct lks__waiter {
    void (*progress)(void *ctx);      /* a mark has been passed: a sign of life */
    lks_status (*failure)(void *ctx); /* OK, or why nobody should wait any longer */
    void *ctx;
} lks__waiter;

struct lks__device {
    const struct lks__device_ops *ops;
    const lks__layers *layers; /* the same for as long as the device is open; so is ex */
    const lks__exec *ex;       /* what the layer operations take */
    lks__waiter waiter;        /* functions NULL: nobody */
};

/* Wait until `mark` has been passed. Polls, so that a group's failure ends the wait; a mark that is
 * passed is a sign of life, waiting is none. */
lks_status lks__device_wait(lks__device *device, lks__mark mark);

/* All that is on `queue` by now. */
lks_status lks__device_finish(lks__device *device, lks__queue queue);

/* `to` does nothing more before all that is on `from` by now is done. */
void lks__device_order(lks__device *device, lks__queue from, lks__queue to);

void lks__device_close(lks__device *device); /* NULL does nothing */

#endif
