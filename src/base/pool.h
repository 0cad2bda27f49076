/* base/pool.h - the threads of one rank.
 *
 * Work is cut into tasks whose borders depend only on shapes. So neither the number of threads nor
 * the assignment of tasks to threads changes any bit of a result. */
#pragma once

#include <stddef.h>

#include "base/status.h"

typedef struct lks__pool lks__pool; /* opaque; close with lks__pool_close() */

/* One task: `task` counts from 0; `thread` is 0..n_threads-1 and names a scratch buffer. */
typedef void lks__task_fn(void *ctx, size_t task, int thread);

/* Start `n_threads - 1` threads in addition to the caller's (n_threads >= 1). Each thread,
 * including the caller's, gets `scratch_bytes` of 64-byte aligned scratch, computes in the
 * library's floating-point mode from then on (cpu.h), and runs `thread_init` once (may be NULL). */
lks_status lks__pool_open(int n_threads, size_t scratch_bytes, void (*thread_init)(void),
                          lks__pool **pool_p);
void lks__pool_close(lks__pool *pool); /* NULL does nothing */

/* Run tasks 0..n_tasks-1 and return when all are done. With a NULL pool they run on the caller's
 * thread. Only the thread that opened the pool may call it; a task must not. */
void lks__pool_run(lks__pool *pool, size_t n_tasks, lks__task_fn *fn, void *ctx);

/* For a task on `thread`: a pool of only that thread, with its scratch, for functions that need a
 * pool. Valid as long as the pool. */
lks__pool *lks__pool_alone(const lks__pool *pool, int thread);

int lks__pool_threads(const lks__pool *pool);
void *lks__pool_scratch(const lks__pool *pool, int thread);
size_t lks__pool_scratch_bytes(const lks__pool *pool);
