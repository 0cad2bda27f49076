#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "session/signals.h"

static void ask_stop(void *comm, int signo)
{
    lks__comm_ask_stop(comm, signo);
}

/* In float32 all levels have the same bits, so each rank uses its own. Bfloat16's products have the
 * same bits only if all ranks make them with the same instructions, or without any. */
static lks_status agree_on_level(lks__session *s)
{
    lks__cpu_level mine;
    LKS__TRY(lks__session_agree(s, lks__cpu_level_get(&mine)));
    int32_t lowest = (int32_t)mine;
    lks_status st = LKS_OK;
    int32_t *all = lks__session_gather(s, &lowest, sizeof lowest, &st);
    for (int r = 0; r < s->world.world_size && st == LKS_OK; r++)
        lowest = all[r] < lowest ? all[r] : lowest;
    free(all);
    LKS__TRY(st);
    if (mine > LKS__CPU_AVX512)
        mine = lowest > LKS__CPU_AVX512 ? (lks__cpu_level)lowest : LKS__CPU_AVX512;
    return lks__session_agree(s, lks__kernels_open(mine, &s->kernels));
}

/* More threads than cores work, and tests need them, but thousands would only wait for one
 * another. */
enum { THREADS_A_CORE = 32 };

static lks_status choose_threads(lks__session *s, int threads)
{
    int cores = lks__cpu_count(), ranks = s->world.local_world_size;
    s->threads = threads > 0 ? threads : cores > ranks ? cores / ranks : 1;
    if (s->threads > cores && (long)s->threads * ranks > (long)cores * THREADS_A_CORE)
        return lks__fail(LKS_ERR_CONFIG,
                         "threads=%d for each of %d ranks here is more than %d for each of %d "
                         "cores: use fewer threads, or --threads=0 for cores / ranks",
                         s->threads, ranks, THREADS_A_CORE, cores);
    return LKS_OK;
}

/* If ranks of this host have different processors, they have already been bound. */
static lks_status bind_rank(lks__session *s, enum lks__bind bind)
{
    const int W = s->world.world_size, local = s->world.local_world_size;
    const int first = s->world.rank - s->world.local_rank;
    s->cores = lks__cpu_count();
    if (W == 1)
        return LKS_OK;
    cpu_set_t mine, host;
    lks_status st = LKS_OK;
    CPU_ZERO(&mine);
    CPU_ZERO(&host);
    sched_getaffinity(0, sizeof mine, &mine);
    cpu_set_t *all = lks__session_gather(s, &mine, sizeof mine, &st);
    bool same = st == LKS_OK;
    for (int r = first; r < first + local && same; r++)
        same = CPU_EQUAL(&all[r], &mine);
    for (int r = first; r < first + local && st == LKS_OK; r++)
        CPU_OR(&host, &host, &all[r]);
    s->cores = CPU_COUNT(&host);
    if (same)
        lks__bind(bind, s->world.local_rank, local);
    free(all);
    return st;
}

static int stop_signal(int other)
{
    if (other != 0 && lks__stop_requested == 0)
        lks__stop_requested = other;
    return lks__stop_requested;
}

static bool tried; /* to join; static, because a process is one rank */

/* Open the group. Ranks agree on a stop through the group, so until all have joined, each rank
 * stops by itself. */
static lks_status open_group(const lks_comm_options *options, lks__session *s)
{
    lks__sys_give_up_when(stop_signal);
    const lks_status st = lks_comm_open(&s->world, options, &s->comm);
    lks__sys_give_up_when(NULL);
    tried = st != LKS_ERR_SUPPORT; /* no backend was found */
    if (st == LKS_OK)
        s->world = *lks_comm_world(s->comm);
    return st;
}

static lks_status or_stopped(lks_status st)
{
    return st == LKS_ERR_STOPPED && lks__stop_requested != 0
               ? lks__fail(LKS_ERR_STOPPED, "signal %d asked to stop", lks__stop_requested)
               : st;
}

static lks_status same_version(lks__session *s)
{
    return lks__session_same_word(s, "the version of lockstep", LKS_VERSION_TEXT);
}

static lks_status set_up(lks__session *s, int threads, enum lks__bind bind)
{
    LKS__TRY(same_version(s));
    LKS__TRY(agree_on_level(s));
    LKS__TRY(lks__session_agree(s, choose_threads(s, threads)));
    LKS__TRY(bind_rank(s, bind));
    LKS__TRY(lks__session_agree(s, lks__pool_open(s->threads, LKS__EXEC_SCRATCH_BYTES,
                                                  lks__kernels_thread_init, &s->pool)));
    s->ex = (lks__exec){.k = &s->kernels, .pool = s->pool};
    s->cpu = lks__device_cpu(&s->ex);
    s->device = &s->cpu;
    lks__session_watch(s);
    lks__comm_use(s->comm, &s->ex);
    LKS__TRY(lks__session_agree(s, lks__kernels_verify(&s->kernels)));
    return lks__session_products(s, false);
}

lks_status lks__session_open(const char *backend, double timeout_s, int threads,
                             enum lks__bind bind, lks__session *s)
{
    memset(s, 0, sizeof *s);
    LKS__TRY(lks_world_from_env(&s->world));
    lks_comm_options options = {backend, timeout_s};
    s->timeout_s = timeout_s;
    LKS__TRY(or_stopped(open_group(&options, s)));
    lks__sys_on_progress(lks__comm_beats(s->comm)); /* for reads and writes of large files */
    lks__signals_on_stop(ask_stop, s->comm);
    const lks_status st = or_stopped(set_up(s, threads, bind));
    if (st != LKS_OK) {
        lks__session_fail(s, st);
        lks__session_close(s);
    }
    return st;
}

void lks__session_tell(const char *backend, lks_status failure)
{
    const lks_comm_options options = {backend, LKS__TOLD_S};
    lks__session s = {.comm = NULL};
    static char why[1024]; /* lks__comm_fail_with() keeps it */
    if (tried || lks_world_from_env(&s.world) != LKS_OK || s.world.world_size == 1)
        return;
    snprintf(why, sizeof why, "%s", lks_last_error());
    lks__signals_install("");
    lks__comm_fail_with(why);
    /* Over MPI: the same first collectives as in set_up(). */
    if (open_group(&options, &s) == LKS_OK && same_version(&s) == LKS_OK)
        lks__session_agree(&s, lks__fail(failure, "%s", why));
    lks_comm_close(s.comm);
}

void lks__session_progress(const lks__session *s, size_t done, size_t n)
{
    if (s->on_progress != NULL)
        s->on_progress(s->on_progress_ctx, done, n);
}

void lks__session_close(lks__session *s)
{
    lks__sys_on_progress((lks__beat){NULL, NULL});
    lks__signals_on_stop(NULL, NULL);
    lks__device_close(s->device);
    lks_comm_close(s->comm); /* before the pool that it borrows */
    lks__pool_close(s->pool);
    s->comm = NULL;
    s->pool = NULL;
    s->device = NULL;
}

struct peak {
    const lks__exec *ex;
    int bursts;
    double *flops; /* [n_tasks] */
};

/* FLOP/s of this thread during a millisecond. */
static double burst(lks__peak_fn *peak)
{
    double start = lks__sys_now(), elapsed, flops = 0;
    do {
        flops += peak();
        elapsed = lks__sys_now() - start;
    } while (elapsed < 0.001);
    return flops / elapsed;
}

static void peak_task(void *ctx, size_t task, int thread)
{
    struct peak *p = ctx;
    lks__peak_fn *peak = p->ex->bf16 ? p->ex->k->peak_bf16 : p->ex->k->peak;
    for (int i = 0; i < p->bursts; i++) {
        double flops = burst(peak);
        p->flops[task] = flops > p->flops[task] ? flops : p->flops[task];
    }
}

lks_status lks__session_peak(const lks__session *s, int threads, int bursts, double *flops_p)
{
    double *flops = calloc((size_t)threads, sizeof *flops);
    LKS__MEMORY(flops, "for %d threads", threads);
    struct peak p = {&s->ex, bursts, flops};
    lks__pool_run(s->pool, (size_t)threads, peak_task, &p);
    *flops_p = 0.0;
    for (int i = 0; i < threads; i++)
        *flops_p += flops[i];
    free(flops);
    const int at_once = threads * s->world.local_world_size;
    if (s->cores > 0 && at_once > s->cores) /* each was measured while it had a core */
        *flops_p *= (double)s->cores / at_once;
    return LKS_OK;
}
