/* lockstep bench comm: compares training's reduction with the limits of memory and the link, and
 * measures the reduction of a given model in its steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../progress.h"
#include "base/system/sys.h"
#include "base/trace.h"
#include "bench.h"
#include "compute/cpu/kernels.h"

enum {
    BLOCK = 4096,   /* floats per block, as in training's gradients */
    REDUCE_MB = 68, /* gradients of 17M parameters */
    MAX_TURNS = 100,
    MIN_STEPS = 3,
};

struct reduce {
    size_t count, n_blocks, bucket_blocks, *block_start;
    lks_work **works; /* one per bucket */
    /* This rank's part, its leader's part and, for two ranks on one host, the second rank's. */
    float *mine, *first, *other;
    double *sumsq;
};

/* Open a reduction of `count` floats, rounded up to blocks. bucket_blocks 0: in a single bucket.
 * Call close_reduce() in any case. */
static lks_status open_reduce(struct bench_group *b, size_t count, size_t bucket_blocks,
                              struct reduce *r)
{
    r->n_blocks = (count + BLOCK - 1) / BLOCK;
    r->bucket_blocks = bucket_blocks > 0 ? bucket_blocks : r->n_blocks;
    r->count = r->n_blocks * BLOCK;
    LKS__TRY(lks_comm_alloc(b->comm, LKS_MEM_OWN, r->count * sizeof(float), (void **)&r->mine));
    LKS__TRY(
        lks_comm_alloc(b->comm, LKS_MEM_COMMON, r->n_blocks * sizeof(double), (void **)&r->sumsq));
    r->block_start = calloc(r->n_blocks + 1, sizeof *r->block_start);
    r->works = calloc(r->n_blocks / r->bucket_blocks + 1, sizeof *r->works);
    if (r->block_start == NULL || r->works == NULL)
        return lks__no_memory("for %zu blocks", r->n_blocks);
    for (size_t i = 0; i <= r->n_blocks; i++)
        r->block_start[i] = i * BLOCK;
    for (size_t i = 0; i < r->count; i++)
        r->mine[i] = 1e-30f * (float)i;
    r->first = lks_comm_peer(b->comm, r->mine, lks_comm_leader(b->comm));
    r->other = b->W == 2 && b->n_hosts == 1 ? lks_comm_peer(b->comm, r->mine, 1) : NULL;
    return LKS_OK;
}

static void close_reduce(struct reduce *r)
{
    free(r->block_start);
    free(r->works);
}

/* Start all buckets, then wait for them. */
static lks_status reduce_once(struct bench_group *b, const struct reduce *r)
{
    size_t n = 0;
    for (size_t from = 0, end; from < r->n_blocks; from = end) {
        end = r->n_blocks - from < r->bucket_blocks ? r->n_blocks : from + r->bucket_blocks;
        lks_part part = {{0, b->rank}, r->mine + from * BLOCK};
        lks_reduction reduction = {
            .n_leaves = b->W,
            .parts = &part,
            .n_parts = 1,
            .scale = 0.5f,
            .count = (end - from) * BLOCK,
            .block_start = r->block_start, /* blocks have equal sizes, so this fits every range */
            .n_blocks = end - from,
            .block_sumsq = r->sumsq + from,
            .dst = r->first + from * BLOCK,
        };
        LKS__TRY(lks_comm_reduce_start(b->comm, &reduction, &r->works[n++]));
    }
    for (size_t i = 0; i < n; i++)
        LKS__TRY(lks_work_wait(r->works[i]));
    return LKS_OK;
}

typedef float f32x8 __attribute__((vector_size(32), may_alias));

/* Compute only the sum: each of two ranks that share memory adds one half. */
static lks_status sum_bare(struct bench_group *b, const struct reduce *r)
{
    size_t half = r->count / 2, first = b->rank == 0 ? 0 : half;
    f32x8 *a = (f32x8 *)(r->first + first), *c = (f32x8 *)(r->other + first);
    for (size_t i = 0; i < half / 8; i++)
        a[i] = (a[i] + c[i]) * 0.5f;
    return lks_comm_barrier(b->comm);
}

/* Reduce the same bytes by two cores of one host without a group. */
static lks_status time_bare(struct bench_group *b, const struct reduce *r, double *seconds_p)
{
    *seconds_p = 0.0;
    if (r->other == NULL)
        return LKS_OK;
    LKS__TRY(lks_comm_barrier(b->comm));
    double started = lks__sys_now();
    LKS__TRY(sum_bare(b, r));
    *seconds_p = lks__sys_now() - started;
    return LKS_OK;
}

static void report(const struct bench_group *b, const struct reduce *r,
                   const struct bench_link *link, double ours_s, double bare_s)
{
    double bytes = (double)r->count * sizeof(float);
    progress_hide();
    printf("  reduction of %d MB of gradients, with sums of squares: %.2f ms, %.1f GB/s\n",
           REDUCE_MB, ours_s * 1e3, bytes / ours_s * 1e-9);
    if (r->other != NULL)
        printf("    a bare sum by two cores: %.2f ms (%.0f%% of its speed)\n", bare_s * 1e3,
               bare_s / ours_s * 100.0);
    if (link->rate > 0) { /* each host sends its part of the sums, then of the result */
        double least_s = 2.0 * bytes * (b->n_hosts - 1) / b->n_hosts / link->rate;
        printf("    the link would need %.2f ms (%.0f%% of its speed)\n", least_s * 1e3,
               least_s / ours_s * 100.0);
    }
}

/* Our reduction and the bare sum alternate, so that a busy moment affects both. */
static lks_status alternate(struct bench_group *b, const struct reduce *r, int turns, double *ours,
                            double *bare)
{
    for (int i = -b->warm_up; i < turns; i++) {
        const int at = i < 0 ? 0 : i;
        LKS__TRY(lks_comm_barrier(b->comm));
        const double started = lks__sys_now();
        LKS__TRY(reduce_once(b, r));
        ours[at] = lks__sys_now() - started;
        LKS__TRY(time_bare(b, r, &bare[at]));
    }
    return LKS_OK;
}

lks_status bench_reduction(struct bench_group *b, const struct bench_link *link)
{
    struct reduce r = {0};
    double ours[MAX_TURNS], bare[MAX_TURNS], ours_s, bare_s;
    const int turns = 2 * b->iters < MAX_TURNS ? 2 * b->iters : MAX_TURNS;
    lks_status st = open_reduce(b, (size_t)REDUCE_MB * 1000000 / sizeof(float), 0, &r);
    LKS__THEN(st, alternate(b, &r, turns, ours, bare));
    LKS__THEN(st, bench_slowest(b, ours, turns, &ours_s));
    LKS__THEN(st, bench_slowest(b, bare, turns, &bare_s));
    if (st == LKS_OK && b->rank == 0)
        report(b, &r, link, ours_s, bare_s);
    close_reduce(&r);
    return st;
}

/* Seconds, and CPU seconds of this process, of `turns` reductions after one to warm up. */
static lks_status time_reduce(struct bench_group *b, size_t count, size_t bucket_blocks, int turns,
                              double *seconds, double *cpu_seconds)
{
    struct reduce r = {0};
    lks_status st = open_reduce(b, count, bucket_blocks, &r);
    for (int i = -1; i < turns && st == LKS_OK; i++) {
        const int at = i < 0 ? 0 : i;
        st = lks_comm_barrier(b->comm);
        const double began = lks__sys_now(), worked = lks__sys_cpu_seconds();
        LKS__THEN(st, reduce_once(b, &r));
        seconds[at] = lks__sys_now() - began;
        cpu_seconds[at] = lks__sys_cpu_seconds() - worked;
    }
    close_reduce(&r);
    return st;
}

lks_status bench_reduce_times(lks_comm *comm, size_t count, int turns, double *seconds,
                              double *cpu_seconds)
{
    struct bench_group b = {.comm = comm,
                            .rank = lks_comm_rank(comm),
                            .W = lks_comm_world_size(comm),
                            .n_hosts = 0}; /* no comparison between two ranks of a host */
    return time_reduce(&b, count, 0, turns, seconds, cpu_seconds);
}

/* --- a model's step --------------------------------------------------------------------------- */

/* Reduce all gradients, in training's buckets, without other work. */
static lks_status time_alone(struct bench_group *b, const lks__trainer *t, int turns,
                             double *seconds_p)
{
    double times[MAX_TURNS], cpu_times[MAX_TURNS];
    size_t bytes = (size_t)(t->run.s.bucket_mb * (1 << 20));
    size_t blocks = (bytes + BLOCK * sizeof(float) - 1) / (BLOCK * sizeof(float));
    LKS__TRY(time_reduce(b, (size_t)t->run.table.count, blocks > 0 ? blocks : 1, turns, times,
                         cpu_times));
    return bench_slowest(b, times, turns, seconds_p);
}

struct steps {
    double step[MAX_TURNS], exposed[MAX_TURNS];
    double backward_s; /* in the mean step */
};

static lks_status time_steps(lks__trainer *t, int turns, struct steps *s)
{
    double parts[LKS__N_PARTS];
    for (int i = -1; i < turns; i++) {
        lks__step_result result;
        if (i == 0)
            lks__trace_take_parts(lks__trace_current, parts);
        LKS__TRY(lks__train_step(t, &result));
        if (i < 0)
            continue;
        s->step[i] = result.seconds;
        s->exposed[i] = result.exposed_s;
    }
    lks__trace_take_parts(lks__trace_current, parts);
    s->backward_s = parts[LKS__PART_BACKWARD] / turns;
    return LKS_OK;
}

lks_status bench_verdict(struct bench_group *b, lks__trainer *t)
{
    int turns = b->iters < MIN_STEPS ? MIN_STEPS : b->iters < MAX_TURNS ? b->iters : MAX_TURNS;
    struct steps s;
    double alone_s, step_s, exposed_s, backward_s;
    lks__trace *parts = NULL;
    LKS__TRY(time_alone(b, t, turns, &alone_s));
    if (lks__trace_current == NULL)
        LKS__TRY(lks__trace_open(0, &parts));
    lks_status st = time_steps(t, turns, &s);
    lks__trace_close(parts);
    LKS__TRY(st);
    LKS__TRY(bench_slowest(b, s.step, turns, &step_s));
    LKS__TRY(bench_slowest(b, s.exposed, turns, &exposed_s));
    LKS__TRY(bench_slowest(b, &s.backward_s, 1, &backward_s));
    progress_hide();
    if (b->rank == 0)
        printf("  the model: %.2f MB of gradients; backward %.2f ms, their reduction by itself "
               "%.2f ms; exposed in a step of %.2f ms: %.2f ms (%.0f%% of that)\n",
               (double)t->run.table.count * sizeof(float) * 1e-6, backward_s * 1e3, alone_s * 1e3,
               step_s * 1e3, exposed_s * 1e3, exposed_s / alone_s * 100.0);
    return LKS_OK;
}
