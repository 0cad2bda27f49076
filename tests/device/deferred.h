/* deferred.h - a device for tests that computes on the CPU, as late, as early and in as odd an
 * order as compute/device.h allows.
 *
 * Layer operations, copies and follows are queued, and run in an order that the seed chooses. Only
 * the order within a queue, and that of follow(), are kept. The host can't access the device's
 * memory (memory.h). Until a copy to the host runs, its destination holds NaN; a copy from the host
 * reads its source when it runs. Arguments of operations must be device memory, except structs,
 * which are copied.
 *
 * If the environment has DEFERRED_PEAK, the most bytes that were allocated at a time are added to
 * that file when the device is closed.
 *
 * It ends the process with a sentence (SIGABRT, or SIGSEGV for memory) if the caller changes the
 * source or destination of a queued copy, releases memory that queued work needs, or calls from a
 * second thread. */
#pragma once

#include "compute/cpu/exec.h"
#include "compute/device.h"

/* By seed % DEFERRED_ORDERS. */
typedef enum deferred_order {
    DEFERRED_LATE,          /* each queue as late as a wait allows */
    DEFERRED_COPY_FIRST,    /* copies as early, computation as late as possible */
    DEFERRED_COMPUTE_FIRST, /* the reverse */
    DEFERRED_RANDOM,        /* either of the two, at any time */
    DEFERRED_ORDERS
} deferred_order;

/* One at a time in a thread. Operations run with a copy of `ex`, as the CPU's do; `ex` is borrowed.
 * ERR_NOMEM. */
lks_status deferred_open(const lks__exec *ex, unsigned seed, lks__device **device_p);

/* How many operations and copies have run. */
uint64_t deferred_count(void);
