/* Collectives that run while the caller computes: a thread of the group carries them out in the
 * order of their start. Every other call on the group first waits until that thread is idle, so
 * only one thread uses the backend, and calls that don't match are found as always. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number/cpu.h"
#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/backend.h"

struct started {
    lks_work head;
    struct started *next, *next_made; /* in the queue or among free ones; of all */
    void *buf;
    size_t count;
    lks_dtype dtype;
    lks_op op;
    bool done;
    lks_status st;
    char why[1536];
};

struct lks__works {
    lks_comm *comm;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below, and the results of each work */
    pthread_cond_t changed;
    struct started *first, **end; /* the first one is running */
    struct started *free, *all;
    bool stop;
};

/* This thread carries out works, so its own calls don't wait for them. */
static _Thread_local bool is_worker;

static void carry_out(lks_comm *comm, struct started *w)
{
    LKS__CALLED_BY(ALL_REDUCE_START);
    w->st = comm->ops->all_reduce(comm, w->buf, w->count, w->dtype, w->op);
    if (w->st != LKS_OK)
        snprintf(w->why, sizeof w->why, "%s", lks_last_error());
}

static void *work(void *arg)
{
    struct lks__works *q = arg;
    is_worker = true;
    lks__float_mode_set();
    pthread_mutex_lock(&q->lock);
    while (true) {
        while (q->first == NULL && !q->stop)
            pthread_cond_wait(&q->changed, &q->lock);
        if (q->first == NULL)
            break;
        struct started *w = q->first;
        pthread_mutex_unlock(&q->lock);
        carry_out(q->comm, w);
        pthread_mutex_lock(&q->lock);
        q->first = w->next;
        q->end = q->first == NULL ? &q->first : q->end;
        w->done = true;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static lks_status open_works(lks_comm *comm)
{
    struct lks__works *q = calloc(1, sizeof *q);
    LKS__MEMORY(q, "for operations in flight");
    q->comm = comm;
    q->end = &q->first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    const int err = lks__thread_start(&q->thread, work, q);
    if (err != 0) {
        free(q);
        return lks__fail(LKS_ERR_NOMEM, "can't start the thread for operations in flight: %s",
                         lks__sys_start_reason(err));
    }
    comm->works = q;
    return LKS_OK;
}

/* Call it with the lock. NULL: out of memory. */
static struct started *take(struct lks__works *q)
{
    struct started *w = q->free;
    if (w != NULL) {
        q->free = w->next;
        return w;
    }
    w = (struct started *)lks__work_new(true, sizeof *w);
    if (w == NULL)
        return NULL;
    w->next_made = q->all;
    q->all = w;
    return w;
}

lks_status lks__works_start(lks_comm *comm, void *buf, size_t count, lks_dtype dtype, lks_op op,
                            lks_work **work_p)
{
    if (comm->works == NULL)
        LKS__TRY(open_works(comm));
    struct lks__works *q = comm->works;
    pthread_mutex_lock(&q->lock);
    struct started *w = take(q);
    if (w != NULL) {
        w->head.comm = comm;
        w->head.live = true;
        w->buf = buf;
        w->count = count;
        w->dtype = dtype;
        w->op = op;
        w->done = false;
        w->next = NULL;
        *q->end = w;
        q->end = &w->next;
        *work_p = &w->head;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return w != NULL ? LKS_OK : lks__no_memory("for one more operation");
}

static lks_status result_of(const struct started *w)
{
    return w->st == LKS_OK ? LKS_OK : lks__fail(w->st, "%s", w->why);
}

lks_status lks__works_test(lks_work *work, bool *done_p)
{
    struct started *w = (struct started *)work;
    struct lks__works *q = work->comm->works;
    pthread_mutex_lock(&q->lock);
    *done_p = w->done;
    pthread_mutex_unlock(&q->lock);
    return *done_p ? result_of(w) : LKS_OK;
}

lks_status lks__works_wait(lks_work *work)
{
    struct started *w = (struct started *)work;
    struct lks__works *q = work->comm->works;
    pthread_mutex_lock(&q->lock);
    while (!w->done)
        pthread_cond_wait(&q->changed, &q->lock);
    lks_status st = result_of(w);
    w->next = q->free;
    q->free = w;
    pthread_mutex_unlock(&q->lock);
    return st;
}

bool lks__works_idle(const lks_comm *comm, bool wait)
{
    struct lks__works *q = comm->works;
    if (q == NULL || is_worker)
        return true;
    pthread_mutex_lock(&q->lock);
    while (wait && q->first != NULL)
        pthread_cond_wait(&q->changed, &q->lock);
    const bool idle = q->first == NULL;
    pthread_mutex_unlock(&q->lock);
    return idle;
}

void lks__works_close(lks_comm *comm)
{
    struct lks__works *q = comm->works;
    if (q == NULL)
        return;
    if (!lks__comm_is_inherited(comm)) { /* a child doesn't have the thread */
        if (!lks__works_idle(comm, false))
            lks_comm_abort(comm, "it closed the group while an all-reduce was in flight: wait for "
                                 "it with lks_work_wait() before lks_comm_close()");
        pthread_mutex_lock(&q->lock);
        q->stop = true;
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->thread, NULL);
        pthread_cond_destroy(&q->changed);
        pthread_mutex_destroy(&q->lock);
    }
    while (q->all != NULL) {
        struct started *w = q->all;
        q->all = w->next_made;
        lks__work_retire(&w->head);
    }
    free(q);
    comm->works = NULL;
}
