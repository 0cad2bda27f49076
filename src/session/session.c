#include "session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/world.h"
#include "compute/exchange.h"
#include "session/signals.h"

static bool on_record; /* static, because a process is one rank */

static void put_on_record(lks__session *s, const char *why)
{
    lks_comm_abort(s->comm, why);
    on_record = true;
}

static void beat(void *comm)
{
    lks_comm_beat(comm);
}

static void mark_passed(void *comm)
{
    (void)lks__comm_among_devices(comm, false);
    lks_comm_beat(comm);
}

/* The group's errors appear only in its own operations. */
static lks_status failure(void *comm, bool others)
{
    LKS__TRY(lks__comm_among_devices(comm, others));
    return lks_comm_progress(comm);
}

static void watch_waits(lks__session *s)
{
    s->device->waiter = (lks__waiter){
        .progress = mark_passed, .failure = failure, .ctx = s->comm, .timeout_s = s->timeout_s};
}

bool lks__session_foreign(void)
{
    return lks__world_foreign();
}

static void ask_stop(void *comm, int signo)
{
    lks__comm_ask_stop(comm, signo);
}

/* On mixed machines all ranks use the lowest level of any rank. */
static lks_status agree_on_level(lks__session *s)
{
    lks__cpu_level mine;
    LKS__TRY(lks__session_agree(s, lks__cpu_level_get(&mine)));
    int32_t lowest = (int32_t)mine, *all = calloc((size_t)s->world.world_size, sizeof *all);
    if (all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", s->world.world_size);
    lks_status st = lks_comm_all_gather(s->comm, &lowest, all, sizeof lowest, LKS_UINT8);
    for (int r = 0; r < s->world.world_size && st == LKS_OK; r++)
        lowest = all[r] < lowest ? all[r] : lowest;
    free(all);
    LKS__TRY(st);
    return lks__session_agree(s, lks__kernels_open((lks__cpu_level)lowest, &s->kernels));
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
    cpu_set_t mine, host, *all = calloc((size_t)W, sizeof *all);
    if (all == NULL)
        return lks__session_agree(s, lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", W));
    CPU_ZERO(&mine);
    CPU_ZERO(&host);
    sched_getaffinity(0, sizeof mine, &mine);
    lks_status st = lks_comm_all_gather(s->comm, &mine, all, sizeof mine, LKS_UINT8);
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

static lks_status stopped(int signo)
{
    return lks__fail(LKS_ERR_STOPPED, "signal %d asked to stop", signo);
}

static bool signalled(void)
{
    return lks__stop_requested != 0;
}

/* Open the group. Ranks agree on a stop through the group, so until all have joined, each rank
 * stops by itself. */
static lks_status meet(const lks_comm_options *options, lks__session *s)
{
    lks__sys_give_up_when(signalled);
    const lks_status st = lks_comm_open(&s->world, options, &s->comm);
    lks__sys_give_up_when(NULL);
    return st;
}

/* Other ranks have then left for the same reason, which is not a failure. */
static lks_status or_stopped(lks_status st)
{
    return signalled() && (st == LKS_ERR_PEER || st == LKS_ERR_STOPPED)
               ? stopped(lks__stop_requested)
               : st;
}

lks_status lks__session_open(const char *backend, double timeout_s, int threads,
                             enum lks__bind bind, lks__session *s)
{
    memset(s, 0, sizeof *s);
    LKS__TRY(lks_world_from_env(&s->world));
    lks_comm_options options = {backend, timeout_s};
    s->timeout_s = timeout_s;
    LKS__TRY(or_stopped(meet(&options, s)));
    s->world = *lks_comm_world(s->comm);
    lks__sys_on_progress(beat, s->comm); /* for reads and writes of large files */
    lks__signals_on_stop(ask_stop, s->comm);
    lks_status st = lks__session_same_word(s, "the version of lockstep", LKS_VERSION);
    if (st != LKS_OK)
        goto fail;
    st = agree_on_level(s);
    if (st != LKS_OK)
        goto fail;
    st = lks__session_agree(s, choose_threads(s, threads));
    if (st != LKS_OK)
        goto fail;
    st = bind_rank(s, bind);
    if (st != LKS_OK)
        goto fail;
    st = lks__session_agree(
        s, lks__pool_open(s->threads, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &s->pool));
    if (st != LKS_OK)
        goto fail;
    s->ex = (lks__exec){.k = &s->kernels, .pool = s->pool};
    s->cpu = lks__device_cpu(&s->ex);
    s->device = &s->cpu;
    watch_waits(s);
    lks__comm_use(s->comm, &s->ex);
    st = lks__session_products(s, false);
    if (st != LKS_OK)
        goto fail;
    return LKS_OK;
fail:
    st = or_stopped(st);
    lks__session_fail(s, st);
    lks__session_close(s);
    return st;
}

/* *device_p is unchanged for the CPU, which is already open. */
static lks_status open_device(const char *name, const lks__device_place *place,
                              lks__device **device_p)
{
    lks_status st = LKS_ERR_SUPPORT;
    lks__device_place at = *place;
    const lks__device_row *row = lks__device_find(name, &at.number);
    if (row != NULL)
        return row->open(&at, device_p);
    if (strcmp(name, "auto") == 0)
        for (row = lks__device_rows; row->name != NULL && st == LKS_ERR_SUPPORT; row++)
            st = row->open(&at, device_p);
    else if (strcmp(name, "cpu") != 0)
        return lks__fail(LKS_ERR_CONFIG, "there is no device \"%s\" in this build", name);
    return st == LKS_ERR_SUPPORT ? LKS_OK : st;
}

/* --- comparisons between ranks ---------------------------------------------------------------- */

void lks__session_place(lks__place_text *out, int rank, const char host[LKS__HOST_NAME])
{
    char shown[4 * LKS__HOST_NAME];
    snprintf(out->text, sizeof out->text, "rank %d (host %s)", rank,
             lks__escape(shown, sizeof shown, host, strnlen(host, LKS__HOST_NAME)));
}

void lks__session_host(char host[LKS__HOST_NAME])
{
    memset(host, 0, LKS__HOST_NAME);
    gethostname(host, LKS__HOST_NAME - 1);
}

enum { SAME_TEXT = 17, SAME_ABOUT = 160 };

struct same {
    char text[SAME_TEXT], about[SAME_ABOUT], host[LKS__HOST_NAME];
};

/* `about`, if not empty, is shown with the text but not compared. */
static lks_status same_text(lks__session *s, const char *what, const char *text, const char *about)
{
    const int W = s->world.world_size;
    struct same mine = {0}, *all = calloc((size_t)W, sizeof *all);
    if (all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", W);
    snprintf(mine.text, sizeof mine.text, "%s", text);
    lks__escape(mine.about, sizeof mine.about, about, strlen(about));
    lks__session_host(mine.host);
    lks_status st = lks_comm_all_gather(s->comm, &mine, all, sizeof mine, LKS_UINT8);
    int r = 0;
    while (st == LKS_OK && r < W && strncmp(all[r].text, all[0].text, SAME_TEXT) == 0)
        r++;
    if (st == LKS_OK && r < W) {
        lks__place_text first, other;
        lks__session_place(&first, 0, all[0].host);
        lks__session_place(&other, r, all[r].host);
        st = lks__fail(LKS_ERR_DIVERGED,
                       "%s differs between ranks: %s has %.16s%.159s, %s has "
                       "%.16s%.159s",
                       what, first.text, all[0].text, all[0].about, other.text, all[r].text,
                       all[r].about);
    }
    free(all);
    return lks__session_agree(s, st);
}

lks_status lks__session_same_word(lks__session *s, const char *what, const char *text)
{
    return same_text(s, what, text, "");
}

lks_status lks__session_same(lks__session *s, const char *what, uint64_t value)
{
    char text[SAME_TEXT];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return same_text(s, what, text, "");
}

/* The bits of a run depend on the CPU's kernels, in bfloat16 also on the kind of their products,
 * and, if the device has its own kernels, on those. */
static lks_status agree_on_fingerprint(lks__session *s)
{
    LKS__TRY(lks__session_agree(s, lks__kernels_verify(&s->kernels)));
    const uint64_t prints[] = {lks__kernels_fingerprint(&s->kernels, s->ex.bf16),
                               s->device->fingerprint};
    const uint64_t print = prints[1] == 0 ? prints[0] : XXH3_64bits(prints, sizeof prints);
    snprintf(s->fingerprint, sizeof s->fingerprint, "%016" PRIx64, print);
    char text[SAME_TEXT], about[SAME_ABOUT];
    snprintf(text, sizeof text, "%016" PRIx64, prints[0]);
    snprintf(about, sizeof about, " (level %s, products by %s, %s)",
             lks__cpu_level_name(s->kernels.level), lks__kernels_gemm_library(&s->kernels),
             lks__cpu_model());
    LKS__TRY(same_text(s, "the kernel fingerprint (equal machines have the same)", text, about));
    for (int i = 0; i < LKS__DEVICE_PARTS && s->device->parts[i].name != NULL; i++)
        LKS__TRY(lks__session_same(s, s->device->parts[i].name, s->device->parts[i].value));
    return LKS_OK;
}

/* Ranks of a host may share a device only with `share`. A launcher may show each rank a different
 * part of the host's devices, so they are compared, not counted. */
static lks_status agree_on_units(lks__session *s, bool share)
{
    const lks_world *w = &s->world;
    const int first = w->rank - w->local_rank, end = first + w->local_world_size;
    const char *which = s->device->which;
    int units = 0, other = -1;
    s->device->ranks = 0;
    lks_status st = LKS_OK;
    uint64_t *all = calloc((size_t)w->world_size, sizeof *all);
    if (all == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", w->world_size);
    st = lks__session_agree(s, st);
    if (st == LKS_OK)
        st = lks_comm_all_gather(s->comm, &s->device->unit, all, sizeof *all, LKS_UINT8);
    for (int r = first; r < end && st == LKS_OK; r++) {
        bool is_new = true;
        for (int before = first; before < r; before++)
            is_new = is_new && all[before] != all[r];
        units += is_new;
        s->device->ranks += all[r] == all[w->rank];
        if (r != w->rank && all[r] == all[w->rank] && other < 0)
            other = r;
    }
    free(all);
    if (st == LKS_OK && other >= 0 && s->device->unit != 0 && !share)
        st = lks__fail(
            LKS_ERR_CONFIG,
            "%d ranks on this host, but %d GPU%s: ranks %d and %d both have %s; start at "
            "most %d rank%s here, or let several compute on one GPU with --share_gpu",
            w->local_world_size, units, units == 1 ? "" : "s", w->rank < other ? w->rank : other,
            w->rank < other ? other : w->rank, which, units, units == 1 ? "" : "s");
    return lks__session_agree(s, st);
}

lks_status lks__session_device(lks__session *s, const char *name, bool share)
{
    const lks__device_place place = {
        .cpu = &s->ex,
        .local_rank = s->world.local_rank,
        .note = strcmp(name, "auto") == 0 ? s->device_note : NULL,
    };
    LKS__TRY(lks__session_agree(s, open_device(name, &place, &s->device)));
    watch_waits(s);
    lks__comm_uses(s->comm, s->device->which);
    LKS__TRY(lks__session_same_word(s, "device", s->device->ops->name));
    if (!s->device->ops->host_memory)
        LKS__TRY(agree_on_units(s, share));
    return s->device->fingerprint == 0 ? LKS_OK : agree_on_fingerprint(s);
}

/* --- joining devices -------------------------------------------------------------------------- */

enum { WHY_BYTES = 400 };

/* The first rank that can't join, and its reason; -1: all can. */
static lks_status find_lacking(lks__session *s, int *rank_p, char why[WHY_BYTES])
{
    struct answer {
        int32_t can;
        char why[WHY_BYTES];
    };
    const struct lks__exchange_ops *ops = s->device->ops->exchange;
    const int W = s->world.world_size;
    struct answer *all = calloc((size_t)W + 1, sizeof *all), *mine = &all[W];
    *rank_p = -1;
    if (all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", W);
    if (ops == NULL)
        snprintf(mine->why, sizeof mine->why, "device=%s moves nothing between ranks",
                 s->device->ops->name);
    else
        mine->can = ops->can(s->device, mine->why, sizeof mine->why);
    lks_status st = lks_comm_all_gather(s->comm, mine, all, sizeof *mine, LKS_UINT8);
    for (int r = W - 1; r >= 0 && st == LKS_OK; r--)
        if (!all[r].can) {
            *rank_p = r;
            lks__escape(why, WHY_BYTES, all[r].why, strnlen(all[r].why, WHY_BYTES));
        }
    free(all);
    return st;
}

extern char **environ;

/* Include NCCL's environment variables, because NCCL uses them. */
static void note_join(lks__session *s)
{
    char text[LKS__DEVICE_TEXT];
    s->device->ops->exchange->about(s->device, text, sizeof text);
    for (char **e = environ; *e != NULL; e++) {
        const size_t n = strlen(text);
        if (strncmp(*e, "NCCL_", 5) == 0)
            snprintf(text + n, sizeof text - n, " %s", *e);
    }
    const size_t n = (size_t)snprintf(s->device_note, sizeof s->device_note,
                                      "gradients and parameters go from GPU to GPU by ");
    lks__escape(s->device_note + n, sizeof s->device_note - n, text, strlen(text));
}

lks_status lks__session_join(lks__session *s, bool must)
{
    const struct lks__exchange_ops *ops = s->device->ops->exchange;
    lks__exchange_id id = {0};
    char why[WHY_BYTES];
    lks_status st = LKS_OK;
    int rank;
    if (ops == NULL && !must)
        return LKS_OK;
    if (s->world.world_size == 1 && !must) { /* it only needs sums on the device */
        LKS__TRY(ops->join(s->device, 0, 1, NULL));
        s->device->joined = 1;
        return LKS_OK;
    }
    LKS__TRY(find_lacking(s, &rank, why));
    if (rank >= 0 && must)
        st = lks__fail(
            LKS_ERR_SUPPORT,
            "--exchange=nccl: rank %d: %s; --exchange=staged doesn't need NCCL: docs/cuda.md", rank,
            why);
    LKS__TRY(lks__session_agree(s, st));
    if (rank >= 0) {
        if (ops != NULL)
            snprintf(s->device_note, sizeof s->device_note,
                     "gradients and parameters go from GPU to GPU through the host's memory: rank "
                     "%d: %s",
                     rank, why);
        return LKS_OK;
    }
    if (s->world.rank == 0)
        st = ops->id(s->device, &id);
    LKS__TRY(lks__session_agree(s, st));
    LKS__TRY(lks_comm_broadcast(s->comm, &id, sizeof id, LKS_UINT8, 0));
    /* A failure is published at once, because the other ranks wait for this one. */
    st = lks__session_fail(s, ops->join(s->device, s->world.rank, s->world.world_size, &id));
    LKS__TRY(lks__session_agree(s, st));
    s->device->joined = s->world.world_size;
    note_join(s);
    return LKS_OK;
}

const char *lks__session_device_note(const lks__session *s)
{
    return s->device_note[0] != '\0' && s->world.rank == 0 ? s->device_note : NULL;
}

lks_status lks__session_ask(const char *name, lks__device *asked)
{
    char note[LKS__DEVICE_TEXT] = "";
    const lks__exec none = {0};
    const lks__device_place place = {
        .cpu = &none,
        .questions = true,
        .note = strcmp(name, "auto") == 0 ? note : NULL,
    };
    lks__device *device = NULL;
    LKS__TRY(open_device(name, &place, &device));
    *asked = lks__device_cpu(NULL);
    if (device != NULL)
        *asked = (lks__device){.ops = device->ops, .layers = device->layers, .bf16 = device->bf16};
    lks__device_close(device);
    return LKS_OK;
}

lks_status lks__session_products(lks__session *s, bool bf16)
{
    if (s->device->ops->products != NULL)
        LKS__TRY(lks__session_agree(s, s->device->ops->products(s->device, bf16)));
    s->ex.bf16 = bf16;
    return agree_on_fingerprint(s);
}

void lks__session_progress(const lks__session *s, size_t done, size_t n)
{
    if (s->on_progress != NULL)
        s->on_progress(s->on_progress_ctx, done, n);
}

void lks__session_close(lks__session *s)
{
    lks__sys_on_progress(NULL, NULL);
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

/* FLOP/s of this thread in a millisecond */
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
    if (flops == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d threads", threads);
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

int lks__session_asked_stop(const lks__session *s)
{
    return lks__comm_asked_stop(s->comm);
}

lks_status lks__session_check_stop(const lks__session *s)
{
    int signo = lks__session_asked_stop(s);
    return signo == 0 ? LKS_OK : stopped(signo);
}

static const lks__session *stoppable; /* static, because a process is one rank */

static bool asked(void)
{
    return lks__session_asked_stop(stoppable) != 0;
}

void lks__session_stoppable(const lks__session *s, bool on)
{
    stoppable = s;
    lks__sys_stop_when(on ? asked : NULL);
}

void lks__session_saving(lks__session *s, bool saving)
{
    lks__signals_hold(saving);
    lks__comm_saving(s->comm, saving);
}

/* A rank's contribution to an agreement; a signal accompanies ERR_STOPPED. */
struct verdict {
    int32_t status, signo;
};

lks_status lks__session_agree(lks__session *s, lks_status st)
{
    int W = s->world.world_size;
    if (W == 1)
        return st;
    char kept[1024]; /* the exchange below must not replace the recorded message */
    snprintf(kept, sizeof kept, "%s", lks_last_error());
    struct verdict mine = {(int32_t)st, st == LKS_ERR_STOPPED ? lks__session_asked_stop(s) : 0};
    struct verdict *all = calloc((size_t)W, sizeof *all);
    if (all == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", W);
    lks_status comm = lks_comm_all_gather(s->comm, &mine, all, sizeof mine, LKS_UINT8);
    int first = 0, signo = 0;
    for (int r = 0; r < W && signo == 0; r++)
        signo = all[r].signo;
    while (comm == LKS_OK && first < W &&
           (all[first].status == LKS_OK || all[first].status == LKS_ERR_STOPPED))
        first++;
    free(all);
    if (comm != LKS_OK)
        return st != LKS_OK && st != LKS_ERR_STOPPED ? lks__fail(st, "%s", kept) : comm;
    if (first == W && signo != 0) {
        lks__comm_ask_stop(s->comm, signo);
        return stopped(signo);
    }
    if (first == W)
        return LKS_OK;
    /* All ranks know the verdict after this. If the group ended earlier, a rank that is still in
     * the exchange would report its own failure as the first. */
    lks_comm_barrier(s->comm);
    if (first == s->world.rank) {
        put_on_record(s, kept);
        return lks__fail(st, "%s", kept);
    }
    lks_comm_barrier(s->comm); /* until it has published: a rank that exits earlier would be taken
                                  for the cause */
    return lks__fail(LKS_ERR_PEER, "rank %d failed; its own message has the reason", first);
}

/* ERR_PEER isn't published: it could hide the rank that really failed. */
lks_status lks__session_fail(lks__session *s, lks_status st)
{
    if (st != LKS_OK && st != LKS_ERR_PEER && st != LKS_ERR_STOPPED && s->comm != NULL)
        put_on_record(s, lks_last_error());
    return st;
}

bool lks__session_on_record(void)
{
    return on_record;
}
