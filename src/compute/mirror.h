/* compute/mirror.h - an array with a copy on the host and one on the device. If the device's memory
 * is host memory, both are the same array, and copies cost nothing. */
#pragma once

#include "compute/device.h"

typedef struct lks__mirror {
    lks__device *device;
    void *host, *dev;
    size_t bytes;
    bool own_host; /* the host's copy belongs to the mirror */
} lks__mirror;

/* Allocate zeros on both sides; the host's copy is staging memory. ERR_NOMEM. */
lks_status lks__mirror_open(lks__device *device, size_t bytes, lks__mirror *m);
/* The host's copy is `host`, which the caller keeps, for example memory of a group. The device's
 * copy is zeros; if the device uses host memory, it is `host` itself. ERR_NOMEM. */
lks_status lks__mirror_wrap(lks__device *device, void *host, size_t bytes, lks__mirror *m);
/* Waits for the queues first, if there are copies. A zeroed one does nothing. */
void lks__mirror_close(lks__mirror *m);

/* Put a copy of bytes [from, from + n) on the queue. */
void lks__mirror_to_device(const lks__mirror *m, lks__queue queue, size_t from, size_t n);
void lks__mirror_to_host(const lks__mirror *m, lks__queue queue, size_t from, size_t n);
