/* deferred.h - a device for tests that computes on the CPU, but as late, as early and in as odd an
 * order as layers/device.h allows.
 *
 * Layer operations, copies and follows are queued; they run in an order that the seed chooses. Only
 * the order of one queue, and what follow() says, are kept. The host cannot touch the device's
 * memory (memory.h). What a copy to the host will write holds NaN until the copy runs, and what a
 * copy from the host reads is read when it runs. Arguments of operations have to be device memory,
 * structs excepted, which are copied.
 *
 * It dies with a sentence (SIGABRT, or SIGSEGV for memory) if the caller changes what a queued copy
 * reads or writes, releases what queued work needs, or calls from a second thread. */
#ifndef LKS_TESTS_DEVICE_DEFERRED_H
#define LKS_TESTS_DEVICE_DEFERRED_H

#include "kernels/exec.h"
#include "layers/device.h"

/* By seed % DEFERRED_ORDERS. */
typedef enum deferred_order {
    DEFERRED_LATE,          /* each queue as late as a wait allows */
    DEFERRED_COPY_FIRST,    /* copies as early, computation as late as can be */
    DEFERRED_COMPUTE_FIRST, /* the other way round */
    DEFERRED_RANDOM,        /* any of the two, at any time */
    DEFERRED_ORDERS
} deferred_order;

/* One at a time in a thread. Operations run with a copy of `ex`, which they take as the CPU's do;
 * `ex` is borrowed. ERR_NOMEM. */
lks_status deferred_open(const lks__exec *ex, unsigned seed, lks__device **device_p);

/* How many operations and copies have run. */
uint64_t deferred_count(void);

#endif
