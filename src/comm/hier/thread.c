/* The leader's thread: it alone calls the engine. Operations come in the order in which the ranks
 * of the host start them, and run one after the other; meanwhile hosts tell each other that they
 * live, and what has failed. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/sys.h"
#include "comm/hier/hier.h"

enum { MAGIC = 0x6c6b7348, YIELDS = 200, NAPS = 2000 };

static const double TELL_S = 0.2;    /* between notes */
static const double NEWS_S = 1.0;    /* what is told is still true */
static const double STOPPED_S = 1.0; /* a pause this long: we were stopped ourselves */
static const double REST_S = 0.02;   /* in an engine that sleeps; then a look at notes */
static const double LAST_WORD_S = 0.5;
static const double CAUSE_S =
    3.0; /* after an error of the engine: the time for its cause to come */
static const double LEAVE_S = 5.0; /* for the others to be as far */

static struct lks__shm *group_of(const struct lks__hier *h)
{
    return h->local->state;
}

/* --- failures ----------------------------------------------------------------------------- */

lks_status lks__hier_fail(struct lks__hier *h, lks_status st, int rank, const char *text)
{
    struct lks__shm *g = group_of(h);
    if (st != LKS_ERR_TIMEOUT)
        return lks__shm_abort(g, st, rank, text);
    /* Each host keeps its part of the table of all ranks. */
    char report[LKS__SHM_REPORT];
    g->late_elsewhere = h->late;
    lks__shm_table(g, report, sizeof report);
    if (lks__segment_abort_report(g->segment, st, rank, text, report))
        lks__explain(report);
    return lks__shm_failed(g);
}

static void name_host(const struct lks__hier *h, int host, char *text, size_t bytes)
{
    int first = h->first[host], last = h->first[host + 1] - 1;
    if (h->first[h->n_hosts] == 0) /* not known yet */
        snprintf(text, bytes, "host %d", host);
    else if (first == last)
        snprintf(text, bytes, "host %d (rank %d)", host, first);
    else
        snprintf(text, bytes, "host %d (ranks %d to %d)", host, first, last);
}

/* --- notes -------------------------------------------------------------------------------- */

/* The rank of this host that works, not waits, and has been silent for longest. */
static void find_silent(const struct lks__hier *h, struct lks__hier_news *news)
{
    const struct lks__shm *g = group_of(h);
    news->rank = -1;
    for (int r = 0; r < g->world_size; r++) {
        lks__rank_status s;
        lks__segment_status(g->segment, r, &s);
        if (s.state != LKS__RANK_JOINED || s.waiting || s.beat_age_s < news->age_s)
            continue;
        news->rank = h->first[h->host] + r;
        news->age_s = s.beat_age_s;
        news->step = s.step;
        memcpy(news->phase, s.phase, sizeof news->phase);
    }
}

static bool tell(struct lks__hier *h, bool leaves)
{
    unsigned char bytes[LKS__ENGINE_NOTE] = {0};
    const struct lks__shm *g = group_of(h);
    struct lks__hier_news news = {.magic = MAGIC,
                                  .left = leaves,
                                  .stop_signal = lks__segment_asked_stop(g->segment),
                                  .saving = lks__segment_saving(g->segment, false)};
    bool failed = lks__segment_aborted(g->segment);
    if (failed) {
        lks_status st;
        int rank;
        lks__segment_failure(g->segment, &st, &rank, news.text, sizeof news.text);
        news.status = st;
        news.rank = rank >= 0 ? h->first[h->host] + rank : h->late;
    } else {
        find_silent(h, &news);
    }
    memcpy(bytes, &news, sizeof news);
    if (h->ops->tell(h->engine, bytes) == 0)
        return false;
    h->told_s = lks__sys_now();
    h->told_failure |= failed;
    h->told_stop = news.stop_signal;
    h->told_saving = news.saving;
    return true;
}

static lks_status take_news(struct lks__hier *h, int host, const unsigned char *bytes, double now)
{
    struct lks__hier_host *other = &h->hosts[host];
    char who[96];
    name_host(h, host, who, sizeof who);
    memcpy(&other->news, bytes, sizeof other->news);
    other->news.phase[sizeof other->news.phase - 1] = '\0';
    other->news.text[sizeof other->news.text - 1] = '\0';
    other->heard_s = now;
    if (other->news.magic != MAGIC) {
        char text[256];
        snprintf(text, sizeof text, "%s runs another build of lockstep: use the same everywhere",
                 who);
        return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
    }
    if (other->news.stop_signal != 0)
        lks__segment_ask_stop(group_of(h)->segment, other->news.stop_signal);
    h->late = other->news.status != LKS_OK ? other->news.rank : h->late;
    if (other->news.status != LKS_OK) { /* who fails says the text; what shows it makes it fit */
        bool ours = h->late >= h->first[h->host] && h->late < h->first[h->host + 1];
        return lks__hier_fail(h, (lks_status)other->news.status,
                              ours ? h->late - h->first[h->host] : -1, other->news.text);
    }
    return LKS_OK;
}

static lks_status hear_all(struct lks__hier *h, double now)
{
    unsigned char bytes[LKS__ENGINE_NOTE];
    char why[256] = "";
    bool saving = false;
    for (int i = 0; i < h->n_hosts; i++) {
        struct lks__hier_host *other = &h->hosts[i];
        while (i != h->host && !other->gone) {
            int heard = h->ops->hear(h->engine, i, bytes, why, sizeof why);
            if (heard == 0)
                break;
            other->gone = heard < 0;
            if (heard > 0)
                LKS__TRY(take_news(h, i, bytes, now));
        }
        saving |= i != h->host && other->news.saving != 0;
        if (!other->gone || other->news.left)
            continue;
        char who[96], text[512];
        name_host(h, i, who, sizeof who);
        snprintf(text, sizeof text, "%s is gone: %s", who, why);
        return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
    }
    atomic_store(&lks__segment_header(group_of(h)->segment)->saving_elsewhere, saving);
    return LKS_OK;
}

/* While an operation stands still: is it because a host is silent, or a rank there? */
static lks_status look_for_silence(struct lks__hier *h, double now)
{
    double limit = h->comm->timeout_s;
    char who[96], text[512];
    for (int i = 0; i < h->n_hosts; i++) {
        const struct lks__hier_host *other = &h->hosts[i];
        double silent = now - other->heard_s;
        if (i == h->host)
            continue;
        name_host(h, i, who, sizeof who);
        /* Its last words may overtake its last bytes. */
        bool left = other->news.left && silent > NEWS_S;
        if (left)
            snprintf(text, sizeof text, "%s left the group before operation %llu was complete", who,
                     (unsigned long long)h->number);
        else if (other->news.left)
            continue;
        else if (silent > limit)
            snprintf(text, sizeof text,
                     "no heartbeat from %s for %.1f s, in operation %llu: its processes are "
                     "stopped, or the network is",
                     who, silent, (unsigned long long)h->number);
        else if (other->news.rank >= 0 && other->news.age_s > limit && silent < NEWS_S)
            snprintf(text, sizeof text,
                     "no answer for %g s in operation %llu from rank %d on %s (at step %llu, phase "
                     "%s)",
                     limit, (unsigned long long)h->number, other->news.rank, who,
                     (unsigned long long)other->news.step, other->news.phase);
        else
            continue;
        lks_status st = left ? LKS_ERR_PEER : LKS_ERR_TIMEOUT;
        h->late = silent > limit ? -1 : other->news.rank;
        return lks__hier_fail(h, st, -1, text);
    }
    return LKS_OK;
}

/* Is there something that the other hosts shall know at once? */
static bool has_news(const struct lks__hier *h)
{
    const lks__segment *s = group_of(h)->segment;
    return lks__segment_asked_stop(s) != h->told_stop ||
           lks__segment_saving(s, false) != (h->told_saving != 0);
}

/* Notes go out and come in; what has failed anywhere fails here. */
static lks_status look_after_notes(struct lks__hier *h, bool busy)
{
    struct lks__shm *g = group_of(h);
    double now = lks__sys_now(), away = now - h->looked_s;
    if (h->looked_s > 0 && away > STOPPED_S)
        for (int i = 0; i < h->n_hosts; i++)
            h->hosts[i].heard_s += away;
    h->looked_s = now;
    bool failed = lks__segment_aborted(g->segment);
    if (failed ? !h->told_failure : now - h->told_s >= TELL_S || has_news(h))
        tell(h, false);
    if (failed)
        return lks__shm_failed(g);
    LKS__TRY(hear_all(h, now));
    if (!busy)
        return LKS_OK;
    lks__shm_beat(g); /* our ranks wait for other hosts, not for us */
    return look_for_silence(h, now);
}

lks_status lks__hier_pause(struct lks__hier *h)
{
    h->idle++;
    if (h->idle % 64 == 0 || h->idle > YIELDS)
        LKS__TRY(look_after_notes(h, true));
    if (h->idle <= YIELDS)
        sched_yield();
    else
        usleep(h->idle <= NAPS ? 20 : 200);
    return LKS_OK;
}

/* The engine reports an error. Its connection for operations and the one for notes fail at
 * different moments, so wait until a note, or the end of the notes, names the rank or the host that
 * failed. Without either, name at least the other one of two hosts. */
static lks_status engine_failed(struct lks__hier *h, const char *why)
{
    char text[768], who[96] = "between hosts";
    for (double end = lks__sys_now() + CAUSE_S; lks__sys_now() < end; usleep(5000))
        LKS__TRY(look_after_notes(h, true));
    if (h->n_hosts == 2) {
        size_t used = (size_t)snprintf(who, sizeof who, "with ");
        name_host(h, 1 - h->host, who + used, sizeof who - used);
    }
    snprintf(text, sizeof text, "%s failed %s at operation %llu: %s", h->ops->name, who,
             (unsigned long long)h->number, why);
    return lks__hier_fail(h, LKS_ERR_PEER, -1, text);
}

/* --- operations --------------------------------------------------------------------------- */

static void copy_sizes(size_t *to_at, size_t *to_bytes, const size_t *at, const size_t *bytes,
                       int n)
{
    size_t behind = 0;
    for (int i = 0; i < n; i++) {
        to_at[i] = at != NULL ? at[i] : behind;
        to_bytes[i] = bytes[i];
        behind += bytes[i];
    }
}

lks_status lks__hier_start(struct lks__hier *h, const lks__engine_op *op, uint64_t *ticket_p)
{
    char why[256] = "";
    int slot = (int)(h->n_started % LKS__ENGINE_SLOTS), n = h->n_hosts;
    if (h->n_started - h->n_ended == LKS__ENGINE_SLOTS)
        LKS__TRY(lks__hier_finish(h, h->n_ended + 1));
    size_t *send_at = h->slots + (size_t)(slot * 4 * n), *send_bytes = send_at + n;
    size_t *recv_at = send_bytes + n, *recv_bytes = recv_at + n;
    if (op->kind == LKS__ENGINE_ALL_TO_ALL)
        copy_sizes(send_at, send_bytes, op->send_at, op->send_bytes, n);
    copy_sizes(recv_at, recv_bytes, op->recv_at, op->recv_bytes,
               op->kind == LKS__ENGINE_BROADCAST ? 1 : n);
    lks__engine_op own = {.kind = op->kind,
                          .root = op->root,
                          .send = op->send,
                          .send_at = send_at,
                          .send_bytes = send_bytes,
                          .recv = op->recv,
                          .recv_at = recv_at,
                          .recv_bytes = recv_bytes};
    if (h->ops->start(h->engine, slot, &own, why, sizeof why) != 0)
        return engine_failed(h, why);
    *ticket_p = ++h->n_started;
    return LKS_OK;
}

static lks_status finish_oldest(struct lks__hier *h)
{
    char why[256] = "";
    int slot = (int)(h->n_ended % LKS__ENGINE_SLOTS);
    for (h->idle = 0;;) {
        int st = h->ops->test(h->engine, slot, why, sizeof why);
        if (st > 0) {
            h->n_ended++;
            return LKS_OK;
        }
        if (st < 0)
            return engine_failed(h, why);
        if (h->ops->rest == NULL) {
            LKS__TRY(lks__hier_pause(h));
        } else {
            LKS__TRY(look_after_notes(h, true));
            h->ops->rest(h->engine, slot, REST_S);
        }
    }
}

lks_status lks__hier_finish(struct lks__hier *h, uint64_t ticket)
{
    while (h->n_ended < ticket)
        LKS__TRY(finish_oldest(h));
    return LKS_OK;
}

lks_status lks__hier_move(struct lks__hier *h, const lks__engine_op *op)
{
    uint64_t ticket;
    LKS__TRY(lks__hier_start(h, op, &ticket));
    return lks__hier_finish(h, ticket);
}

lks_status lks__hier_meet(struct lks__hier *h, const struct lks__shm_mail *mail)
{
    struct lks__shm_mail *mine = &h->mails[h->host];
    *mine = *mail;
    mine->seq = (uint32_t)h->number;
    lks__engine_op op = {
        .kind = LKS__ENGINE_ALL_GATHER, .recv = h->mails, .recv_bytes = h->mail_bytes};
    LKS__TRY(lks__hier_move(h, &op));
    for (int i = 0; i < h->n_hosts; i++) {
        if (lks__shm_same_call(&h->mails[i], mine))
            continue;
        char calls[2][256], text[768];
        int low = i < h->host ? i : h->host, high = i < h->host ? h->host : i;
        lks__shm_describe(&h->mails[low], calls[0], sizeof calls[0]);
        lks__shm_describe(&h->mails[high], calls[1], sizeof calls[1]);
        snprintf(text, sizeof text,
                 "hosts disagree on operation %llu between them: rank %d called %s, rank %d called "
                 "%s; all ranks must start the same operations with the same sizes in the same "
                 "order",
                 (unsigned long long)h->number, h->first[low], calls[0], h->first[high], calls[1]);
        return lks__hier_fail(h, LKS_ERR_ARG, -1, text);
    }
    return LKS_OK;
}

/* How many ranks each host has; no more than the world are believed. */
static void learn_ranks(struct lks__hier *h)
{
    for (int i = 0; i < h->n_hosts; i++) {
        uint32_t some = h->mails[i].n_parts, most = (uint32_t)h->join.world_size;
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
        return engine_failed(h, why);
    w->seconds = lks__sys_now() - started;
    return LKS_OK;
}

static lks_status run(struct lks__hier *h, struct lks__hier_job *job)
{
    struct lks__hier_wait *w = job->wait;
    if (w == NULL)
        return lks__hier_reduce(h, job);
    LKS__TRY(lks__hier_meet(h, &job->mail));
    if (job->mail.kind == LKS__OP_JOIN)
        learn_ranks(h);
    if (w->mails != NULL)
        memcpy(w->mails, h->mails, (size_t)h->n_hosts * sizeof *h->mails);
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
        lks__shm_between_done(group_of(h), job->between.seq);
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

/* Have all others said that they leave, or gone? One that has failed won't leave in order, and then
 * we don't either. */
static bool all_have_left(struct lks__hier *h, bool *orderly_p)
{
    unsigned char bytes[LKS__ENGINE_NOTE];
    char why[256];
    bool all = true;
    for (int i = 0; i < h->n_hosts; i++) {
        struct lks__hier_host *other = &h->hosts[i];
        for (int heard = 1; i != h->host && !other->gone && !other->news.left && heard != 0;) {
            heard = h->ops->hear(h->engine, i, bytes, why, sizeof why);
            other->gone = heard < 0;
            if (heard > 0)
                memcpy(&other->news, bytes, sizeof other->news);
        }
        all = all && (i == h->host || other->gone || other->news.left);
        *orderly_p = *orderly_p && other->news.status == LKS_OK;
    }
    return all;
}

/* The last word: why we failed, or that we leave in order. In order nobody closes before all have
 * what was sent to them: a closed connection can take unread bytes with it. */
static void end_engine(struct lks__hier *h, bool orderly)
{
    double end = lks__sys_now() + LAST_WORD_S;
    while ((orderly || !h->told_failure) && !tell(h, orderly) && lks__sys_now() < end)
        usleep(1000);
    for (end = lks__sys_now() + LEAVE_S;
         orderly && !all_have_left(h, &orderly) && lks__sys_now() < end;)
        usleep(200);
    h->ops->leave(h->engine, orderly);
    h->engine = NULL;
}

static void serve(struct lks__hier *h)
{
    lks_status st = LKS_OK;
    while (!stopping(h)) {
        struct lks__hier_job *job = next_job(h);
        if (st == LKS_OK)
            st = look_after_notes(h, false);
        if (job == NULL)
            continue;
        if (st == LKS_OK) {
            st = run(h, job);
            h->number++;
        }
        /* From the first failure on no memory of callers is touched any more. */
        if (st != LKS_OK && h->engine != NULL)
            end_engine(h, false);
        finish_job(h, job, st);
    }
    if (h->engine != NULL)
        end_engine(h, st == LKS_OK && !lks__segment_aborted(group_of(h)->segment));
}

static void *thread_main(void *arg)
{
    struct lks__hier *h = arg;
    char why[sizeof h->open_why] = "";
    prctl(PR_SET_TIMERSLACK, 1000UL); /* naps of 20 us are that, not 70 */
    lks__cpu_flush_denormals();
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

/* --- the owner's side --------------------------------------------------------------------- */

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
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's */
    int rc = pthread_create(&h->thread, NULL, thread_main, h);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return lks__fail(LKS_ERR_NOMEM, "can't start the thread that speaks to other hosts: %s",
                         strerror(rc));
    h->has_thread = true;
    pthread_mutex_lock(&h->lock);
    double end = lks__sys_now() + h->comm->timeout_s;
    while (h->joined == 0 && wait_until(h, end))
        if (h->local != NULL)
            lks_comm_beat(h->local); /* the host's other ranks wait for us */
    int joined = h->joined;
    pthread_mutex_unlock(&h->lock);
    if (joined > 0)
        return LKS_OK;
    if (joined < 0)
        return lks__fail(LKS_ERR_PEER, "can't join the other hosts by %s: %s", h->ops->name,
                         h->open_why);
    h->stuck = true; /* inside the engine, which offers no way out */
    return lks__fail(LKS_ERR_TIMEOUT,
                     "the other hosts have not reached %s within %g s: are all ranks started, with "
                     "the same backend?",
                     h->ops->name, h->comm->timeout_s);
}

void lks__hier_thread_ready(struct lks__hier *h)
{
    double now = lks__sys_now();
    for (int i = 0; i < h->n_hosts; i++)
        h->hosts[i].heard_s = now;
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
    if (room)
        h->jobs[(h->first_job + h->n_jobs++) % LKS__HIER_JOBS] = *job;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return room ? LKS_OK : lks__fail(LKS_ERR_NOMEM, "too many operations are in flight");
}

lks_status lks__hier_call(struct lks__hier *h, const struct lks__shm_mail *mail,
                          struct lks__hier_wait *wait)
{
    struct lks__shm *g = group_of(h);
    struct lks__hier_job job = {.mail = *mail, .wait = wait};
    wait->done = false;
    LKS__TRY(lks__hier_post(h, &job));
    atomic_store_explicit(&g->line->wait_seq, atomic_load(&g->line->posted) - 1,
                          memory_order_relaxed);
    atomic_store_explicit(&g->line->waiting, LKS__WAIT_BETWEEN, memory_order_relaxed);
    pthread_mutex_lock(&h->lock);
    while (!wait->done)
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    atomic_store_explicit(&g->line->waiting, LKS__WAIT_NONE, memory_order_relaxed);
    return wait->st == LKS_OK ? LKS_OK : lks__shm_failed(g);
}
