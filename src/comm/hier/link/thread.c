/* The leader's thread, which is the only one that calls the engine. Jobs arrive in the order in
 * which the ranks of the host start them, and run one after the other. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/number/cpu.h"
#include "base/system/sys.h"
#include "comm/hier/hier.h"

/* --- one job ------------------------------------------------------------------------------ */

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

static lks_status own_sum(struct lks__hier *h, struct lks__hier_wait *w)
{
    char why[256] = "";
    double started = lks__sys_now();
    if (h->ops->own_sum(h->engine, w->buf, w->bytes[0] / sizeof(float), why, sizeof why) != 0)
        return lks__hier_engine_failed(h, why);
    w->seconds = lks__sys_now() - started;
    return LKS_OK;
}

static lks_status run(struct lks__hier *h, struct lks__hier_job *job)
{
    struct lks__hier_wait *w = job->wait;
    if (w == NULL)
        return lks__hier_reduce(h, job);
    LKS__TRY(lks__hier_meet(h, &job->desc));
    if (job->desc.kind == LKS__OP_JOIN)
        learn_ranks(h);
    if (w->descs != NULL)
        memcpy(w->descs, h->descs, (size_t)h->n_hosts * sizeof *h->descs);
    if (w->move < 0)
        return LKS_OK;
    if (w->move == LKS__HIER_OWN_SUM)
        return own_sum(h, w);
    lks__engine_op op = {.kind = w->move,
                         .root = w->root,
                         .send = w->send,
                         .send_bytes = w->send_bytes,
                         .recv = w->buf,
                         .recv_bytes = w->bytes};
    return lks__hier_move(h, &op);
}

/* --- the queue ---------------------------------------------------------------------------- */

/* The oldest job stays in the queue while it runs. */
static struct lks__hier_job *next_job(struct lks__hier *h)
{
    pthread_mutex_lock(&h->lock);
    if (h->n_jobs == 0 && !h->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 20 * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    }
    struct lks__hier_job *job = h->n_jobs > 0 ? &h->jobs[h->first_job] : NULL;
    pthread_mutex_unlock(&h->lock);
    return job;
}

static void finish_job(struct lks__hier *h, struct lks__hier_job *job, lks_status st)
{
    pthread_mutex_lock(&h->lock);
    if (job->wait != NULL) {
        job->wait->st = st;
        job->wait->done = true;
    } else if (st == LKS_OK) {
        lks__shm_between_done(h->local, job->between.seq);
    }
    h->first_job = (h->first_job + 1) % LKS__HIER_JOBS;
    h->n_jobs--;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static bool stopping(struct lks__hier *h)
{
    pthread_mutex_lock(&h->lock);
    bool stop = h->stop && h->n_jobs == 0;
    pthread_mutex_unlock(&h->lock);
    return stop;
}

static void serve(struct lks__hier *h)
{
    lks_status st = LKS_OK;
    while (!stopping(h)) {
        struct lks__hier_job *job = next_job(h);
        if (st == LKS_OK)
            st = lks__hier_look(h, false);
        if (job == NULL)
            continue;
        if (st == LKS_OK) {
            st = run(h, job);
            h->number++;
        }
        /* After the first failure, the callers' memory is not touched. */
        if (st != LKS_OK && h->engine != NULL)
            lks__hier_end_engine(h, false);
        finish_job(h, job, st);
    }
    if (h->engine != NULL)
        lks__hier_end_engine(h, st == LKS_OK && !lks__segment_aborted(lks__shm_segment(h->local)));
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
    while (!h->ready && !h->stop)
        pthread_cond_wait(&h->changed, &h->lock);
    bool ready = h->ready;
    pthread_mutex_unlock(&h->lock);
    if (ready)
        serve(h);
    else if (h->engine != NULL)
        h->ops->leave(h->engine, 0);
    return NULL;
}

/* --- in the rank's own thread ------------------------------------------------------------- */

static bool wait_until(struct lks__hier *h, double end_s)
{
    double left = end_s - lks__sys_now();
    struct timespec until;
    if (left <= 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)((left < 0.05 ? left : 0.05) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&h->changed, &h->lock, &until);
    return true;
}

lks_status lks__hier_thread_open(struct lks__hier *h)
{
    pthread_condattr_t attr;
    sigset_t all, old;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* only the main thread handles signals */
    int rc = pthread_create(&h->thread, NULL, thread_main, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return lks__fail(LKS_ERR_NOMEM, "can't start the thread for the other hosts: %s",
                         strerror(rc));
    h->has_thread = true;
    pthread_mutex_lock(&h->lock);
    double end = lks__sys_now() + h->comm->timeout_s;
    lks_status st = LKS_OK;
    while (h->joined == 0 && (st = lks__sys_give_up_check()) == LKS_OK && wait_until(h, end))
        if (h->local != NULL)
            /* The host's other ranks wait for us; keep them from reporting us. */
            lks_comm_beat(h->local);
    int joined = h->joined;
    pthread_mutex_unlock(&h->lock);
    if (joined > 0)
        return LKS_OK;
    if (joined < 0)
        return lks__fail(LKS_ERR_PEER, "can't join the other hosts by %s: %s", h->ops->name,
                         h->open_why);
    h->stuck = true; /* inside the engine, which can't be interrupted */
    LKS__TRY(st);
    return lks__fail(LKS_ERR_TIMEOUT,
                     "the other hosts have not reached %s within %g s: are all ranks started, with "
                     "the same backend?",
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
    bool busy = h->n_jobs > 0;
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

lks_status lks__hier_post(struct lks__hier *h, const struct lks__hier_job *job)
{
    pthread_mutex_lock(&h->lock);
    bool room = h->n_jobs < LKS__HIER_JOBS;
    if (room) {
        struct lks__hier_job *posted = &h->jobs[(h->first_job + h->n_jobs++) % LKS__HIER_JOBS];
        *posted = *job;
        posted->desc.has_step = h->comm->has_step;
        posted->desc.caller = (uint16_t)lks__comm_caller();
        posted->desc.step = h->comm->step;
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return room ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "too many operations are in flight");
}

lks_status lks__hier_call(struct lks__hier *h, const struct lks__shm_descriptor *desc,
                          struct lks__hier_wait *wait)
{
    struct lks__hier_job job = {.desc = *desc, .wait = wait};
    wait->done = false;
    LKS__TRY(lks__hier_post(h, &job));
    lks__shm_wait_for_hosts(h->local, true);
    pthread_mutex_lock(&h->lock);
    while (!wait->done)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    lks__shm_wait_for_hosts(h->local, false);
    return wait->st == LKS_OK ? LKS_OK : lks__shm_failure(h->local);
}
