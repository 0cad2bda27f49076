/* harness.h - how tests steer kernels that run as fibers (fibers.h). For C and C++; needs nothing
 * of CUDA. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks and threads run in an order that `seed` gives. 0: in the order of their numbers. */
void lks_fibers_order(unsigned seed);

/* One launch of a kernel: its arguments are copies, as CUDA makes them. */
typedef struct lks_fibers_launch lks_fibers_launch;

/* Called in place of running a launch. Later, and once, one of the two below is called for it.
 * NULL, as at first: a launch runs at once. */
typedef void lks_fibers_queue_fn(const void *stream, lks_fibers_launch *launch);
void lks_fibers_queue(lks_fibers_queue_fn *queue);

void lks_fibers_run(lks_fibers_launch *launch);  /* on any thread of the host; one at a time */
void lks_fibers_drop(lks_fibers_launch *launch); /* without running it */
const char *lks_fibers_name(const lks_fibers_launch *launch); /* the kernel's */

/* Switches from one fiber to another since the program began. */
unsigned long long lks_fibers_switches(void);

#ifdef __cplusplus
}
#endif
