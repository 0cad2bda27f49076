/* Chooses a backend, opens the group and closes it. */
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"
#include "comm/backend.h"
#include "comm/hier/hier.h"
#include "comm/liveness.h"
#include "comm/world.h"

/* Far longer than any job, and far below the limit of times in microseconds. */
static const double MOST_TIMEOUT_S = 1e6;

const struct lks_comm_ops *lks__backend_at(int index)
{
    return index == 0 ? &lks__comm_shm : lks__hier_backend(index - 1);
}

bool lks__comm_describe(const struct lks_comm_ops *ops, char text[LKS__BACKEND_TEXT])
{
    const char *launcher = ops->engine != NULL ? ops->engine->launcher : NULL;
    if (ops->loads == NULL)
        snprintf(text, LKS__BACKEND_TEXT, "ready");
    else if (!ops->loads(ops, text, LKS__BACKEND_TEXT))
        return false;
    else if (launcher != NULL)
        snprintf(text, LKS__BACKEND_TEXT, "ready, in ranks that %s starts", launcher);
    else
        snprintf(text, LKS__BACKEND_TEXT, "ready, in ranks that lockstep run or torchrun starts");
    return true;
}

/* "auto, shm, mpi or gloo" */
static void list_names(char *text, size_t bytes)
{
    snprintf(text, bytes, "auto");
    for (int i = 0; lks__backend_at(i) != NULL; i++)
        lks__append(text, bytes, lks__backend_at(i + 1) != NULL ? ", " : " or ", "%s",
                    lks__backend_at(i)->name);
}

bool lks__backend_probe(const struct lks_comm_ops *ops, const lks_world *world, bool chosen,
                        char *why, size_t why_bytes)
{
    const char *launcher = ops->engine != NULL ? ops->engine->launcher : NULL;
    if (!ops->probe(ops, world, why, why_bytes))
        return false;
    if (chosen || launcher == NULL || !lks__env_set("TORCHELASTIC_RUN_ID"))
        return true;
    snprintf(why, why_bytes,
             "%s must start its ranks, and lockstep run or torchrun has started this one",
             launcher);
    return false;
}

/* "auto" chooses the first backend whose probe succeeds. */
static lks_status choose(const char *name, const lks_world *world,
                         const struct lks_comm_ops **ops_p)
{
    bool any = strcmp(name, "auto") == 0;
    char why[512], reasons[1024] = "";
    for (int i = 0; lks__backend_at(i) != NULL; i++) {
        const struct lks_comm_ops *ops = lks__backend_at(i);
        if (!any && strcmp(name, ops->name) != 0)
            continue;
        if (lks__backend_probe(ops, world, !any, why, sizeof why)) {
            *ops_p = ops;
            return LKS_OK;
        }
        lks__append(reasons, sizeof reasons, "; ", "%s: %s", ops->name, why);
    }
    if (reasons[0] != '\0')
        return lks__fail(LKS_ERR_SUPPORT, "no way to reach the other ranks: %s", reasons);
    char names[256];
    list_names(names, sizeof names);
    return lks__fail(LKS_ERR_SUPPORT, "there is no backend \"%s\": use %s", lks__shown(name, 64),
                     names);
}

/* Number of times that this process was forked from another since the first group was made. */
static atomic_uint n_forks;

/* Guards handles that several threads may use, because a group and its parts may belong to
 * different threads: holders, the state of a group that has parts, and the two lists below. */
static pthread_mutex_t handles = PTHREAD_MUTEX_INITIALIZER;

static lks_work *retired[2]; /* works of closed groups; [1]: those of works.c */
/* Handles of closed groups, linked by `state`: never freed, so that use after close is refused. */
static lks_comm *unused;

void lks__comm_lock(void)
{
    pthread_mutex_lock(&handles);
}

void lks__comm_unlock(void)
{
    pthread_mutex_unlock(&handles);
}

static void in_child(void)
{
    atomic_fetch_add(&n_forks, 1);
    lks__comm_unlock();
}

static void watch_forks(void)
{
    pthread_atfork(lks__comm_lock, lks__comm_unlock, in_child);
}

static const char *fails_with;

void lks__comm_fail_with(const char *why)
{
    fails_with = why;
}

lks_status lks__comm_new(const struct lks_comm_ops *ops, const lks_world *world, double timeout_s,
                         lks_comm **comm_p)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    lks__comm_lock();
    lks_comm *comm = unused;
    if (comm != NULL)
        unused = comm->state;
    else
        comm = malloc(sizeof *comm);
    if (comm != NULL) { /* a thread may still beat the closed group whose handle this was */
        memset(comm, 0, sizeof *comm);
        comm->forks = atomic_load(&n_forks);
    }
    lks__comm_unlock();
    LKS__MEMORY(comm, "for the group's handle");
    comm->ops = ops;
    comm->backend = ops->name;
    comm->world = *world;
    comm->n_ranks = world->world_size;
    comm->timeout_s = timeout_s;
    comm->fails_with = fails_with;
    comm->launcher = lks__world_launcher();
    /* A wrong LOCKSTEP_CPU only matters to callers of other kernels, which report it. */
    lks__cpu_level level;
    if (lks__cpu_level_guest(&level) != LKS_OK)
        level = LKS__CPU_PLAIN;
    lks__kernels_open_own(level, &comm->kernels);
    comm->exec.k = &comm->kernels;
    *comm_p = comm;
    return LKS_OK;
}

lks_status lks_comm_open(const lks_world *world, const lks_comm_options *options, lks_comm **comm_p)
{
    LKS__FLOAT_MODE();
    LKS__NEED("lks_comm_open", comm_p);
    *comm_p = NULL;
    LKS__NEED("lks_comm_open", world);
    LKS__NEED("lks_comm_open", options);
    if (options->backend == NULL)
        return lks__fail(LKS_ERR_ARG, "lks_comm_open: options->backend is NULL: \"auto\" chooses");
    if (!(options->timeout_s > 0))
        return lks__fail(LKS_ERR_ARG,
                         "lks_comm_open: options->timeout_s is %g: waits end after that many "
                         "seconds, so it must be more than 0",
                         options->timeout_s);
    LKS__TRY(lks__world_check(LKS_ERR_ARG, world));
    const struct lks_comm_ops *ops;
    LKS__TRY(choose(options->backend, world, &ops));
    lks_comm *comm = NULL;
    LKS__TRY(lks__comm_new(ops, world, fmin(options->timeout_s, MOST_TIMEOUT_S), &comm));
    return lks__comm_opened(comm, comm->ops->open(comm), comm_p);
}

lks_status lks__comm_opened(lks_comm *comm, lks_status st, lks_comm **comm_p)
{
    if (st == LKS_OK) {
        *comm_p = comm;
        return LKS_OK;
    }
    st = lks__comm_not_opened(comm, st);
    lks_comm_close(comm);
    return st;
}

/* Seconds of LOCKSTEP_TIMEOUT, with a decimal point in any locale of the program. */
static lks_status default_timeout(double *seconds_p)
{
    const char *text = getenv("LOCKSTEP_TIMEOUT");
    char *end;
    *seconds_p = 60;
    if (text == NULL || text[0] == '\0')
        return LKS_OK;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c == (locale_t)0)
        return lks__no_memory("for the C locale");
    *seconds_p = strtod_l(text, &end, c);
    freelocale(c);
    if (*end == '\0' && *seconds_p > 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "the environment has LOCKSTEP_TIMEOUT=%s: seconds are expected, more than 0",
                     lks__shown(text, 64));
}

lks_status lks_comm_init(lks_comm **comm_p)
{
    lks_world world;
    double timeout_s;
    LKS__NEED("lks_comm_init", comm_p);
    *comm_p = NULL;
    LKS__TRY(lks_world_from_env(&world));
    LKS__TRY(default_timeout(&timeout_s));
    return lks_comm_open(&world, &(lks_comm_options){"auto", timeout_s}, comm_p);
}

/* Keep a closed handle without holders for another group, and then those that it has held. Call it
 * with the lock. */
static void retire_unused(lks_comm *comm)
{
    while (comm != NULL && comm->closed && comm->n_holders == 0) {
        lks_comm *whole = comm->whole;
        comm->whole = NULL;
        comm->state = unused;
        unused = comm;
        if (whole != NULL)
            whole->n_holders--;
        comm = whole;
    }
}

void lks_comm_close(lks_comm *comm)
{
    LKS__FLOAT_MODE();
    static const struct lks_comm_ops nothing = {.name = "closed"};
    if (comm == NULL || comm->closed)
        return;
    lks__works_close(comm);
    lks__comm_lock();
    comm->host = NULL;
    lks__comm_unlock();
    comm->ops->close(comm);
    lks__comm_lock();
    comm->ops = &nothing;
    comm->closed = true;
    retire_unused(comm);
    lks__comm_unlock();
}

void lks__comm_hold(lks_comm *comm)
{
    lks__comm_lock();
    comm->n_holders++;
    lks__comm_unlock();
}

void lks__comm_release(lks_comm *comm)
{
    lks__comm_lock();
    comm->n_holders--;
    retire_unused(comm);
    lks__comm_unlock();
}

lks_work *lks__work_new(bool queued, size_t bytes)
{
    lks__comm_lock();
    lks_work *work = retired[queued];
    if (work != NULL)
        retired[queued] = work->next;
    lks__comm_unlock();
    work = work != NULL ? work : calloc(1, bytes);
    if (work != NULL)
        work->queued = queued;
    return work;
}

void lks__work_retire(lks_work *work)
{
    lks__comm_lock();
    work->live = false;
    work->next = retired[work->queued];
    retired[work->queued] = work;
    lks__comm_unlock();
}

void lks__comm_part_of(lks_comm *part, lks_comm *whole)
{
    if (whole == NULL)
        return;
    lks__comm_lock();
    part->whole = whole;
    whole->n_holders++;
    lks__comm_unlock();
}

/* The group of this host's ranks in the first group that `comm` is a part of, or NULL. Call it with
 * the lock. */
static lks_comm *outermost(const lks_comm *comm)
{
    lks_comm *host = NULL;
    for (const lks_comm *c = comm->whole; c != NULL; c = c->whole)
        host = c->host != NULL ? c->host : host;
    return host;
}

int lks__comm_number_in_whole(const lks_comm *comm, pid_t pid)
{
    lks__comm_lock();
    const lks_comm *host = outermost(comm);
    const int rank = host != NULL ? lks__shm_rank_of(host, pid) : -1;
    const int number = rank >= 0 ? host->first_rank + rank : -1;
    lks__comm_unlock();
    return number;
}

void lks__comm_lost_in_whole(const lks_comm *comm, lks_status st, pid_t pid, const char *text)
{
    lks__comm_lock();
    lks_comm *host = outermost(comm);
    if (host != NULL)
        lks__shm_lost(host, st, pid, text);
    lks__comm_unlock();
}

bool lks__comm_whole_failed(const lks_comm *comm, lks_status *st_p, char *text, size_t bytes)
{
    lks__comm_lock();
    const lks_comm *host = outermost(comm);
    const bool failed = host != NULL && lks__shm_failed(host, st_p, text, bytes);
    lks__comm_unlock();
    return failed;
}

bool lks__comm_is_closed(const lks_comm *comm)
{
    return comm->closed || lks__comm_is_inherited(comm);
}

bool lks__comm_is_inherited(const lks_comm *comm)
{
    return comm->forks != atomic_load_explicit(&n_forks, memory_order_relaxed);
}

lks_status lks__comm_check_fork(const lks_comm *comm, const char *call)
{
    if (!lks__comm_is_inherited(comm))
        return LKS_OK;
    return lks__fail(LKS_ERR_ARG,
                     "%s: the group belongs to the process that opened it, and this is a child of "
                     "that process, made by fork(): only lks_comm_close() is possible here",
                     call);
}
