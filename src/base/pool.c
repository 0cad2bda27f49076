#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/number/cpu.h"
#include "base/system/early.h"
#include "base/system/sys.h"

/* Tasks follow each other within microseconds, so a worker polls for work this many times before it
 * sleeps. If threads share a core, polling would keep another thread from its task, so no thread
 * polls. */
enum { SPINS = 4000 };

/* Looks after which a polling thread lets another process have its core. */
enum { LOOKS_PER_YIELD = 64 };

/* The gate of a round: the number of workers inside, and two flags. A round ends when its tasks are
 * done and the workers inside have left. A worker that sleeps, or has lost its core to another
 * process, isn't inside, so it delays no one. */
enum {
    GATE_CLOSED = 1 << 30,
    GATE_AWAITED = 1 << 29
}; /* AWAITED: the caller sleeps until all workers have left */

struct lks__pool {
    int n_threads, n_started;
    int spins;
    struct worker *workers;
    char *scratch;
    size_t scratch_bytes;
    void (*thread_init)(void);

    pthread_mutex_t lock;
    pthread_cond_t wake, left;
    lks__task_fn *fn;
    void *ctx;
    size_t n_tasks;
    atomic_size_t next; /* first task that no thread has taken */
    atomic_int gate;    /* closed between rounds; workers inside own fn, ctx, n_tasks and next */
    atomic_uint round;  /* incremented by each lks__pool_run */
    atomic_bool quit;
};

struct worker {
    lks__pool *pool;
    pthread_t thread;
    int index;
    lks__pool alone; /* a pool of only this thread */
};

static void relax(int spins)
{
    if (spins % LOOKS_PER_YIELD == 0)
        sched_yield();
    lks__cpu_relax();
}

static void run_tasks(lks__pool *p, int thread)
{
    for (;;) {
        size_t task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (task >= p->n_tasks)
            return;
        p->fn(p->ctx, task, thread);
    }
}

/* False if the round is over. */
static bool enter(lks__pool *p)
{
    int inside = atomic_load_explicit(&p->gate, memory_order_relaxed);
    while ((inside & GATE_CLOSED) == 0)
        if (atomic_compare_exchange_weak_explicit(&p->gate, &inside, inside + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void leave(lks__pool *p)
{
    int before = atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release);
    if (before != (GATE_CLOSED | GATE_AWAITED) + 1)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->left);
    pthread_mutex_unlock(&p->lock);
}

/* Close the gate and wait for the workers inside. */
static void end_round(lks__pool *p)
{
    atomic_fetch_or_explicit(&p->gate, GATE_CLOSED, memory_order_relaxed);
    for (int spins = 0; spins <= p->spins; spins++) {
        if (atomic_load_explicit(&p->gate, memory_order_acquire) == GATE_CLOSED)
            return;
        relax(spins + 1);
    }
    atomic_fetch_or_explicit(&p->gate, GATE_AWAITED, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    while (atomic_load_explicit(&p->gate, memory_order_acquire) != (GATE_CLOSED | GATE_AWAITED))
        pthread_cond_wait(&p->left, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    lks__pool *p = w->pool;
    unsigned seen = 0;
    lks__float_mode_set();
    if (p->thread_init != NULL)
        p->thread_init();
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&p->round, memory_order_acquire) == seen) {
            if (++spins < p->spins) {
                relax(spins);
                continue;
            }
            pthread_mutex_lock(&p->lock);
            while (atomic_load_explicit(&p->round, memory_order_acquire) == seen)
                pthread_cond_wait(&p->wake, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        seen = atomic_load_explicit(&p->round, memory_order_acquire);
        if (atomic_load_explicit(&p->quit, memory_order_relaxed))
            return NULL;
        if (enter(p)) {
            run_tasks(p, w->index);
            leave(p);
        }
    }
}

static void announce(lks__pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

lks_status lks__pool_open(int n_threads, size_t scratch_bytes, void (*thread_init)(void),
                          lks__pool **pool_p)
{
    lks__pool *p = calloc(1, sizeof *p);
    LKS__MEMORY(p, "for the thread pool");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->left, NULL);
    atomic_store(&p->gate, GATE_CLOSED);
    p->n_threads = n_threads;
    p->thread_init = thread_init;
    p->spins = n_threads <= lks__cpu_count() ? SPINS : 0;
    p->scratch_bytes = lks__round_up(scratch_bytes, 4096);
    p->workers = calloc((size_t)n_threads, sizeof *p->workers);
    if (p->scratch_bytes > 0)
        p->scratch = aligned_alloc(4096, p->scratch_bytes * (size_t)n_threads);
    if (p->workers == NULL || (p->scratch_bytes > 0 && p->scratch == NULL)) {
        lks_status st =
            lks__no_memory("for %d threads of %zu bytes of scratch", n_threads, p->scratch_bytes);
        lks__pool_close(p);
        return st;
    }
    for (int i = 0; i < n_threads; i++)
        p->workers[i].alone = (lks__pool){.n_threads = 1,
                                          .scratch = p->scratch + (size_t)i * p->scratch_bytes,
                                          .scratch_bytes = p->scratch_bytes};
    lks__float_mode_set();
    if (thread_init != NULL)
        thread_init();
    int err = 0;
    for (int i = 1; i < n_threads && err == 0; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i;
        err = lks__thread_start(&p->workers[i].thread, worker_main, &p->workers[i]);
        if (err == 0)
            p->n_started = i;
    }
    if (err != 0) {
        lks__pool_close(p);
        return lks__fail(LKS_ERR_NOMEM, "can't start %d threads: %s", n_threads,
                         lks__sys_start_reason(err));
    }
    *pool_p = p;
    return LKS_OK;
}

void lks__pool_close(lks__pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->quit, true);
    announce(p);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->left);
    pthread_mutex_destroy(&p->lock);
    free(p->scratch);
    free(p->workers);
    free(p);
}

void lks__pool_run(lks__pool *p, size_t n_tasks, lks__task_fn *fn, void *ctx)
{
    if (p == NULL) {
        for (size_t task = 0; task < n_tasks; task++)
            fn(ctx, task, 0);
        return;
    }
    if (n_tasks == 0)
        return;
    p->fn = fn;
    p->ctx = ctx;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (n_tasks == 1 || p->n_started == 0) {
        run_tasks(p, 0);
        return;
    }
    atomic_store_explicit(&p->gate, 0, memory_order_release);
    announce(p);
    run_tasks(p, 0);
    end_round(p);
}

lks__pool *lks__pool_alone(const lks__pool *p, int thread)
{
    return &p->workers[thread].alone;
}

int lks__pool_threads(const lks__pool *p)
{
    return p->n_threads;
}

void *lks__pool_scratch(const lks__pool *p, int thread)
{
    return p->scratch + (size_t)thread * p->scratch_bytes;
}

size_t lks__pool_scratch_bytes(const lks__pool *p)
{
    return p->scratch_bytes;
}
