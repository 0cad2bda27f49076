/* lockstep bench comm: the collectives of every backend that is there, by size, and the reduction
 * that training uses beside what memory allows. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "bench.h"
#include "comm/backend.h"
#include "kernels/kernels.h"

enum {
    BLOCK = 4096,   /* floats: blocks of training's gradients */
    REDUCE_MB = 68, /* 17M parameters */
    MAX_TIMES = 1000,
    MAX_WARM_UP = 3,
    SMALL = 50, /* a small operation is repeated so many times as often as the largest */
};

static const size_t sizes[] = {4, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20};

enum { N_SIZES = sizeof sizes / sizeof sizes[0], BIGGEST = 64 << 20 };

struct bench {
    lks_comm *comm;
    int rank, W;
    float *buf, *all; /* private: [BIGGEST], [W * BIGGEST / W] bytes */
    int iters, warm_up;
    double times[MAX_TIMES];
    double *gathered; /* [W] */
};

typedef lks_status operation(struct bench *b, size_t bytes);

static lks_status op_barrier(struct bench *b, size_t bytes)
{
    return lks_comm_barrier(b->comm);
}

static lks_status op_broadcast(struct bench *b, size_t bytes)
{
    return lks_comm_broadcast(b->comm, b->buf, bytes, 0);
}

/* `bytes` is the result's size: every rank brings its part. */
static lks_status op_all_gather(struct bench *b, size_t bytes)
{
    return lks_comm_all_gather(b->comm, b->buf, b->all, bytes / (size_t)b->W);
}

static lks_status op_all_reduce(struct bench *b, size_t bytes)
{
    return lks_comm_all_reduce(b->comm, b->buf, bytes / sizeof(float));
}

/* The largest of the ranks' medians. */
static lks_status slowest(struct bench *b, double *times, int n, double *seconds_p)
{
    double mine = bench_median(times, n);
    LKS__TRY(lks_comm_all_gather(b->comm, &mine, b->gathered, sizeof mine));
    *seconds_p = 0.0;
    for (int r = 0; r < b->W; r++)
        *seconds_p = b->gathered[r] > *seconds_p ? b->gathered[r] : *seconds_p;
    return LKS_OK;
}

/* The slowest rank's median time of one operation that all begin together. */
static lks_status time_operation(struct bench *b, operation *op, size_t bytes, double *seconds_p)
{
    size_t fit = (size_t)BIGGEST / (bytes + 1);
    int n = b->iters * (fit > SMALL ? SMALL : fit < 1 ? 1 : (int)fit);
    n = n < MAX_TIMES ? n : MAX_TIMES;
    for (int i = -b->warm_up; i < n; i++) {
        LKS__TRY(lks_comm_barrier(b->comm));
        double started = lks__sys_now();
        LKS__TRY(op(b, bytes));
        if (i >= 0)
            b->times[i] = lks__sys_now() - started;
    }
    return slowest(b, b->times, n, seconds_p);
}

static const char *size_text(size_t bytes, char text[32])
{
    if (bytes >= 1 << 20)
        snprintf(text, 32, "%zu MiB", bytes >> 20);
    else if (bytes >= 1 << 10)
        snprintf(text, 32, "%zu KiB", bytes >> 10);
    else
        snprintf(text, 32, "%zu B", bytes);
    return text;
}

static lks_status collectives(struct bench *b)
{
    static const struct {
        const char *name;
        operation *op;
    } ops[] = {
        {"broadcast", op_broadcast}, {"all-gather", op_all_gather}, {"all-reduce", op_all_reduce}};
    enum { N_OPS = sizeof ops / sizeof ops[0] };
    double seconds;
    LKS__TRY(time_operation(b, op_barrier, 0, &seconds));
    if (b->rank == 0) {
        printf("  barrier %.2f us\n  %10s", seconds * 1e6, "");
        for (int o = 0; o < N_OPS; o++)
            printf("  %24s", ops[o].name);
        printf("\n");
    }
    for (int i = 0; i < N_SIZES; i++) {
        char text[32];
        if (b->rank == 0)
            printf("  %10s", size_text(sizes[i], text));
        for (int o = 0; o < N_OPS; o++) {
            LKS__TRY(time_operation(b, ops[o].op, sizes[i], &seconds));
            if (b->rank == 0)
                printf("  %10.2f us %6.2f GB/s", seconds * 1e6, (double)sizes[i] / seconds * 1e-9);
        }
        if (b->rank == 0)
            printf("\n");
    }
    return LKS_OK;
}

/* --- the reduction of gradients --------------------------------------------------------------- */

struct reduce {
    size_t count, n_blocks, *block_start;
    float *mine, *first, *other; /* this rank's part; rank 0's and rank 1's, where they are seen */
    double *sumsq;
};

static lks_status open_reduce(struct bench *b, struct reduce *r)
{
    r->count = (size_t)REDUCE_MB * 1000000 / sizeof(float) / BLOCK * BLOCK;
    r->n_blocks = r->count / BLOCK;
    LKS__TRY(lks_comm_alloc(b->comm, LKS_MEM_OWN, r->count * sizeof(float), (void **)&r->mine));
    LKS__TRY(
        lks_comm_alloc(b->comm, LKS_MEM_COMMON, r->n_blocks * sizeof(double), (void **)&r->sumsq));
    r->block_start = calloc(r->n_blocks + 1, sizeof *r->block_start);
    if (r->block_start == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %zu blocks", r->n_blocks);
    for (size_t i = 0; i <= r->n_blocks; i++)
        r->block_start[i] = i * BLOCK;
    for (size_t i = 0; i < r->count; i++)
        r->mine[i] = 1e-30f * (float)i;
    r->first = lks_comm_peer(b->comm, r->mine, 0);
    r->other = b->W == 2 ? lks_comm_peer(b->comm, r->mine, 1) : NULL;
    return LKS_OK;
}

static lks_status reduce_once(struct bench *b, const struct reduce *r)
{
    lks_part part = {{0, b->rank}, r->mine};
    lks_reduction reduction = {
        .n_leaves = b->W,
        .parts = &part,
        .n_parts = 1,
        .scale = 0.5f,
        .count = r->count,
        .block_start = r->block_start,
        .n_blocks = r->n_blocks,
        .block_sumsq = r->sumsq,
        .dst = r->first,
    };
    lks_work *work;
    LKS__TRY(lks_comm_reduce_start(b->comm, &reduction, &work));
    return lks_work_wait(work);
}

typedef float f32x8 __attribute__((vector_size(32), may_alias));

/* Nothing but the arithmetic: each rank adds its half where both see it. */
static lks_status sum_bare(struct bench *b, const struct reduce *r)
{
    size_t half = r->count / 2, first = b->rank == 0 ? 0 : half;
    f32x8 *a = (f32x8 *)(r->first + first), *c = (f32x8 *)(r->other + first);
    for (size_t i = 0; i < half / 8; i++)
        a[i] = (a[i] + c[i]) * 0.5f;
    return lks_comm_barrier(b->comm);
}

/* The two take turns, so that a busy moment hits both. */
static lks_status reduction(struct bench *b)
{
    struct reduce r = {0};
    double ours[MAX_TIMES], bare[MAX_TIMES], ours_s, bare_s;
    const int turns = 2 * b->iters < MAX_TIMES ? 2 * b->iters : MAX_TIMES;
    lks_status st = open_reduce(b, &r);
    for (int i = -b->warm_up; i < turns && st == LKS_OK; i++) {
        double t0, t1 = 0.0, t2;
        st = lks_comm_barrier(b->comm);
        t0 = lks__sys_now();
        if (st == LKS_OK)
            st = reduce_once(b, &r);
        t1 = lks__sys_now();
        if (st == LKS_OK && r.other != NULL)
            st = lks_comm_barrier(b->comm);
        t2 = lks__sys_now();
        if (st == LKS_OK && r.other != NULL)
            st = sum_bare(b, &r);
        if (i >= 0) {
            ours[i] = t1 - t0;
            bare[i] = lks__sys_now() - t2;
        }
    }
    if (st == LKS_OK)
        st = slowest(b, ours, turns, &ours_s);
    if (st == LKS_OK)
        st = slowest(b, bare, turns, &bare_s);
    free(r.block_start);
    if (st != LKS_OK || b->rank != 0)
        return st;
    printf("  reduction of %d MB of gradients, sums of squares with it: %.2f ms, %.1f GB/s",
           REDUCE_MB, ours_s * 1e3, (double)r.count * sizeof(float) / ours_s * 1e-9);
    if (r.other != NULL)
        printf("; a bare sum by two cores: %.2f ms (%.0f%% of its speed)", bare_s * 1e3,
               bare_s / ours_s * 100.0);
    printf("\n");
    return LKS_OK;
}

/* --- backends --------------------------------------------------------------------------------- */

static lks_status measure(lks__session *s, int iters)
{
    struct bench b = {.comm = s->comm,
                      .rank = s->world.rank,
                      .W = s->world.world_size,
                      .iters = iters,
                      .warm_up = iters < MAX_WARM_UP ? iters : MAX_WARM_UP};
    b.buf = calloc(1, BIGGEST);
    b.all = calloc(1, BIGGEST);
    b.gathered = calloc((size_t)b.W, sizeof *b.gathered);
    lks_status st = LKS_OK;
    if (b.buf == NULL || b.all == NULL || b.gathered == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for buffers of %d MB", 2 * (BIGGEST >> 20));
    st = lks__session_agree(s, st);
    if (st == LKS_OK && b.rank == 0)
        printf("%s, %d ranks\n", lks_comm_backend(s->comm), b.W);
    if (st == LKS_OK)
        st = collectives(&b);
    if (st == LKS_OK)
        st = reduction(&b);
    free(b.buf);
    free(b.all);
    free(b.gathered);
    return st;
}

lks_status bench_comm(const lks__settings *settings)
{
    bool all = strcmp(settings->backend, "auto") == 0, measured = false;
    lks_world world;
    LKS__TRY(lks_world_from_env(&world));
    for (int i = 0; lks__comm_backend(i) != NULL; i++) {
        const struct lks_comm_ops *ops = lks__comm_backend(i);
        char why[256] = "";
        if (!all && strcmp(settings->backend, ops->name) != 0)
            continue;
        bool there = ops->probe(&world, why, sizeof why);
        if (all && (!there || measured)) { /* ranks can join one group in their life */
            if (world.rank == 0)
                printf("%s: %s%s\n", ops->name,
                       there ? "it is there; it is measured with --backend=" : why,
                       there ? ops->name : "");
            continue;
        }
        lks__session s;
        LKS__TRY(lks__session_open(ops->name, settings->timeout, 1, &s));
        lks_status st = lks__session_fail(&s, measure(&s, (int)settings->iters));
        lks__session_close(&s);
        LKS__TRY(st);
        measured = true;
    }
    return LKS_OK;
}
