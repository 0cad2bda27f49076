/* The leader's thread, which is the only one that calls the engine. Tasks arrive in the order in
 * which the ranks of the host start them, and run one after the other. On other ranks, if they join
 * the engine, too, the thread ends once it has joined. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/hier/hier.h"

/* --- one task ------------------------------------------------------------------------------ */

/* Learn how many ranks each host has; larger numbers are cut to the world's size. */
static void learn_ranks(struct lks__hier *h)
{
    for (int i = 0; i < h->n_hosts; i++) {
        uint32_t some = h->descs[i].n_parts, most = (uint32_t)h->join.world_size;
        h->first[i + 1] = h->first[i] + (int)(some < most ? some : most);
        if (h->first[i + 1] > h->join.world_size)
            h->first[i + 1] = h->join.world_size + 1;
    }
}

static lks_status run(struct lks__hier *h, struct lks__hier_task *task)
{
    struct lks__hier_wait *w = task->wait;
    if (w == NULL)
        return lks__hier_reduce(h, task);
    LKS__TRY(lks__hier_meet(h, &task->desc));
    if (task->desc.kind == LKS__OP_JOIN)
        learn_ranks(h);
    if (w->descs != NULL)
        memcpy(w->descs, h->descs, (size_t)h->n_hosts * sizeof *h->descs);
    return w->op.kind < 0 ? LKS_OK : lks__hier_move(h, &w->op);
}

/* --- the queue ---------------------------------------------------------------------------- */

/* Call it with the lock; waits less than a second. */
static void wait_for_change(struct lks__hier *h, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&h->changed, &h->lock, &until);
}

/* The oldest task stays in the queue while it runs. */
static struct lks__hier_task *next_task(struct lks__hier *h)
{
    pthread_mutex_lock(&h->lock);
    if (h->n_tasks == 0 && !h->stop)
        wait_for_change(h, 0.02);
    struct lks__hier_task *task = h->n_tasks > 0 ? &h->tasks[h->first_task] : NULL;
    pthread_mutex_unlock(&h->lock);
    return task;
}

static void finish_task(struct lks__hier *h, struct lks__hier_task *task, lks_status st)
{
    pthread_mutex_lock(&h->lock);
    if (task->wait != NULL) {
        task->wait->st = st;
        task->wait->done = true;
    } else if (st == LKS_OK) {
        lks__shm_between_done(h->local, task->between.seq);
    }
    h->first_task = (h->first_task + 1) % LKS__HIER_TASKS;
    h->n_tasks--;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static bool stopping(struct lks__hier *h)
{
    pthread_mutex_lock(&h->lock);
    bool stop = h->stop && h->n_tasks == 0;
    pthread_mutex_unlock(&h->lock);
    return stop;
}

static void end_engine(struct lks__hier *h, bool orderly)
{
    if (h->engine != NULL)
        lks__hier_end_engine(h, orderly);
    h->serves = false;
}

static void serve(struct lks__hier *h)
{
    lks_status st = LKS_OK;
    h->serves = true;
    while (!stopping(h)) {
        struct lks__hier_task *task = next_task(h);
        LKS__THEN(st, lks__hier_look(h, false));
        if (st == LKS_OK && task != NULL) {
            st = run(h, task);
            h->number++;
        }
        /* After the first failure, the callers' memory is not touched. The other hosts learn the
         * reason now, because this rank may call nothing more. */
        if (st != LKS_OK)
            end_engine(h, false);
        if (task != NULL)
            finish_task(h, task, st);
    }
    end_engine(h, st == LKS_OK && !lks__segment_aborted(lks__shm_segment(h->local)));
}

bool lks__hier_serves(const lks_comm *comm)
{
    const struct lks__hier *h = comm->state;
    return comm->ops->close == lks__hier_close && h != NULL && h->serves;
}

static void *thread_main(void *arg)
{
    struct lks__hier *h = arg;
    char why[sizeof h->open_why] = "";
    prctl(PR_SET_TIMERSLACK, 1000UL); /* otherwise sleeps of 20 us take 70 */
    lks__float_mode_set();
    h->engine = h->ops->join(&h->join, &h->host, &h->n_hosts, why, sizeof why);
    pthread_mutex_lock(&h->lock);
    memcpy(h->open_why, why, sizeof why);
    h->joined = h->engine != NULL ? 1 : -1;
    pthread_cond_broadcast(&h->changed);
    while (h->leads && !h->ready && !h->stop)
        pthread_cond_wait(&h->changed, &h->lock);
    bool ready = h->ready;
    pthread_mutex_unlock(&h->lock);
    if (ready)
        serve(h);
    else if (h->leads && h->engine != NULL)
        h->ops->leave(h->engine, 0);
    return NULL;
}

/* --- in the rank's own thread ------------------------------------------------------------- */

/* Seconds in which the whole group notices that one of its ranks has ended. */
static const double NOTICED_S = 2.0;

/* A rank of the group `whole` that has ended; -1: none. The first rank of each host reports those
 * of its host, but can't report its own end. */
static int find_ended(const lks_comm *whole)
{
    const int here = lks__shm_ended(whole->host);
    return here >= 0 ? whole->host->first_rank + here
                     : lks__segment_ended(lks__shm_segment(whole->host));
}

/* Fail the group `whole` if a rank of its part has ended. */
static lks_status check_ended(const struct lks__hier_part *part, int n, lks_comm *whole)
{
    const int rank = find_ended(whole);
    char text[128];
    for (int r = 0; rank >= 0 && r < n; r++) {
        if (part->ranks[r] != rank)
            continue;
        snprintf(text, sizeof text, "rank %d ended while its part of the group was opened", rank);
        return lks__shm_fail(whole->host, LKS_ERR_PEER, -1, -1, text);
    }
    return LKS_OK;
}

lks_status lks__hier_whole_failed(struct lks__hier *h, bool waits)
{
    lks_comm *whole = h->comm->whole;
    const double end = lks__sys_now() + (waits ? NOTICED_S : 0);
    if (whole == NULL)
        return LKS_OK;
    do {
        if (lks__segment_aborted(lks__shm_segment(whole->host)))
            return lks__shm_failure(whole->host);
        if (h->part != NULL)
            LKS__TRY(check_ended(h->part, h->join.world_size, whole));
        lks_comm_beat(h->local); /* keeps other ranks, also of the whole, from reporting us */
    } while (lks__sys_now() < end && usleep(10000) == 0);
    return LKS_OK;
}

lks_status lks__hier_thread_open(struct lks__hier *h)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attr);
    pthread_condattr_destroy(&attr);
    h->met_s = lks__sys_now();
    int rc = lks__thread_start(&h->thread, thread_main, h);
    if (rc != 0)
        return lks__fail(LKS_ERR_NOMEM, "can't start the thread for the other hosts: %s",
                         lks__sys_start_reason(rc));
    h->has_thread = true;
    pthread_mutex_lock(&h->lock);
    lks_status st = LKS_OK;
    /* The thread's own wait in the store ends after LATER_S, and its message comes first. */
    for (double left;
         h->joined == 0 && (st = lks__sys_give_up_check()) == LKS_OK &&
         (st = lks__hier_whole_failed(h, false)) == LKS_OK &&
         (left = h->met_s + h->comm->timeout_s - lks__sys_now()) > -2 * LKS__HIER_LATER_S &&
         (left > 0 || !lks__hier_apart(h));) {
        wait_for_change(h, left > 0 && left < 0.05 ? left : 0.05);
        lks_comm_beat(h->local); /* keeps the host's other ranks from reporting us */
    }
    const int joined = h->joined, peer = h->meets - 1;
    pthread_mutex_unlock(&h->lock);
    if (joined > 0)
        return LKS_OK;
    if (joined < 0) {
        LKS__TRY(lks__hier_whole_failed(h, true));
        return lks__fail(LKS_ERR_PEER, "can't join the other hosts by %s: %s", h->ops->name,
                         h->open_why);
    }
    h->stuck = true; /* inside the engine, which can't be interrupted */
    LKS__TRY(st);
    if (peer >= 0)
        return lks__fail(LKS_ERR_TIMEOUT,
                         "no connection to host %d by %s within %g s, although it has joined: does "
                         "a firewall between these two hosts pass TCP on all ports?",
                         peer, h->ops->name, h->comm->timeout_s);
    return lks__fail(
        LKS_ERR_TIMEOUT,
        "the other hosts have not reached %s within %g s: are all ranks started, with the same "
        "backend, and does a firewall between the hosts pass TCP on all ports?",
        h->ops->name, h->comm->timeout_s);
}

void lks__hier_thread_ready(struct lks__hier *h)
{
    double now = lks__sys_now();
    for (int i = 0; i < h->n_hosts; i++)
        h->hosts[i].last_s = now;
    pthread_mutex_lock(&h->lock);
    h->ready = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

bool lks__hier_is_busy(struct lks__hier *h)
{
    if (!h->has_thread)
        return false;
    pthread_mutex_lock(&h->lock);
    bool busy = h->n_tasks > 0;
    pthread_mutex_unlock(&h->lock);
    return busy;
}

void lks__hier_thread_close(struct lks__hier *h)
{
    if (!h->has_thread)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
}

lks_status lks__hier_post(struct lks__hier *h, const struct lks__hier_task *task)
{
    pthread_mutex_lock(&h->lock);
    bool room = h->n_tasks < LKS__HIER_TASKS;
    if (room) {
        struct lks__hier_task *posted = &h->tasks[(h->first_task + h->n_tasks++) % LKS__HIER_TASKS];
        *posted = *task;
        lks__shm_sign(&posted->desc, h->comm);
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return room ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "too many operations are in flight");
}

lks_status lks__hier_call(struct lks__hier *h, const struct lks__shm_descriptor *desc,
                          struct lks__hier_wait *wait)
{
    struct lks__hier_task task = {.desc = *desc, .wait = wait};
    wait->done = false;
    LKS__TRY(lks__hier_post(h, &task));
    lks__shm_wait_for_hosts(h->local, true);
    pthread_mutex_lock(&h->lock);
    while (!wait->done)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    lks__shm_wait_for_hosts(h->local, false);
    return wait->st == LKS_OK ? LKS_OK : lks__shm_failure(h->local);
}
