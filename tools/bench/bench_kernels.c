/* lockstep bench kernels on the CPU: times each kernel on one thread, by shape, and compares it
 * with the roofline. The roofline is the longer of two times: arithmetic at this core's peak, and
 * bytes at the bandwidth of the memory that holds them. Peak and bandwidth are measured in the same
 * run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../progress.h"
#include "../tool.h"
#include "base/system/sys.h"
#include "bench.h"
#include "compute/cpu/layers.h"

enum {
    ROWS = 1024,     /* of activations: 4 sequences of 256 tokens */
    WIDTH = 384,     /* of the 10.6M-parameter model */
    FAR = 16 << 20,  /* floats of a buffer larger than any cache */
    NEAR = 64 << 10, /* floats; a second-level cache holds two such buffers */
    VOCAB = 1024,
};

struct bench {
    const lks__exec *ex;
    const lks__kernels *k;
    float *buf[4];                /* [FAR] each */
    double *row;                  /* [ROWS] */
    double peak;                  /* FLOP/s */
    double near_bytes, far_bytes; /* bytes per second */
};

struct item {
    const char *name;
    void (*run)(struct bench *b, const struct item *it);
    double flops, floats; /* floats: number read or written, each counted once */
    size_t m, n, k;       /* shape */
    char ta, tb;
    bool far; /* the data come from memory, not from a cache */
};

/* --- kernels ---------------------------------------------------------------------------------- */

static void run_gemm(struct bench *b, const struct item *it)
{
    b->k->gemm(it->ta, it->tb, it->m, it->n, it->k, 1, b->buf[0], it->ta == 'T' ? it->m : it->k,
               b->buf[1], it->tb == 'T' ? it->k : it->n, 0, b->buf[2], it->n);
}

static void run_layernorm_fwd(struct bench *b, const struct item *it)
{
    float *mean = b->buf[3], *rstd = mean + it->m, *gain = rstd + it->m;
    b->k->layernorm_fwd(b->buf[1], mean, rstd, b->buf[0], gain, NULL, it->m, it->n);
}

static void run_layernorm_bwd(struct bench *b, const struct item *it)
{
    float *mean = b->buf[3], *rstd = mean + it->m, *gain = rstd + it->m, *dgain = gain + it->n;
    b->k->layernorm_bwd(b->buf[1], dgain, NULL, b->buf[2], b->buf[0], gain, mean, rstd, it->m,
                        it->n);
}

static void run_rmsnorm_fwd(struct bench *b, const struct item *it)
{
    b->k->rmsnorm_fwd(b->buf[1], b->buf[3], b->buf[0], it->m, it->n);
}

static void run_rmsnorm_bwd(struct bench *b, const struct item *it)
{
    b->k->rmsnorm_bwd(b->buf[1], b->buf[2], b->buf[0], b->buf[3], it->m, it->n);
}

static void run_gelu_fwd(struct bench *b, const struct item *it)
{
    b->k->gelu_erf_fwd(b->buf[1], b->buf[0], it->m * it->n);
}

static void run_gelu_bwd(struct bench *b, const struct item *it)
{
    b->k->gelu_erf_bwd(b->buf[1], b->buf[2], b->buf[0], it->m * it->n);
}

static void run_relu2_fwd(struct bench *b, const struct item *it)
{
    b->k->relu2_fwd(b->buf[1], b->buf[0], it->m * it->n);
}

static void run_relu2_bwd(struct bench *b, const struct item *it)
{
    b->k->relu2_bwd(b->buf[1], b->buf[2], b->buf[0], it->m * it->n);
}

static void run_dropout(struct bench *b, const struct item *it)
{
    const lks__dropout d = {{{1, 2}}, 3, 4, 5, 1u << 30, 4.0f / 3};
    b->k->dropout(b->buf[1], b->buf[0], it->m * it->n, 0, &d);
}

static void run_xent(struct bench *b, const struct item *it)
{
    for (size_t i = 0; i < it->m; i++)
        b->row[i] = b->k->xent_row(b->buf[1] + i * it->n, b->buf[0] + i * it->n, it->n, i % it->n,
                                   1.0f / ROWS);
}

static void run_xent_cap(struct bench *b, const struct item *it)
{
    for (size_t i = 0; i < it->m; i++)
        b->row[i] = b->k->xent_cap_row(b->buf[1] + i * it->n, b->buf[0] + i * it->n, it->n,
                                       i % it->n, 1.0f / ROWS, 30);
}

static void run_add(struct bench *b, const struct item *it)
{
    b->k->add(b->buf[1], b->buf[0], it->n);
}

static void run_round(struct bench *b, const struct item *it)
{
    b->k->round_bf16(b->buf[1], b->buf[0], it->n);
}

static void run_sum_scaled(struct bench *b, const struct item *it)
{
    double lanes[8] = {0};
    b->k->sum_scaled(b->buf[1], b->buf[1], b->buf[0], 0.5f, lanes, it->n);
    b->row[0] = lanes[0];
}

static void run_sumsq(struct bench *b, const struct item *it)
{
    b->row[0] = b->k->sumsq(b->buf[0], it->n);
}

static void run_adamw(struct bench *b, const struct item *it)
{
    const lks__adamw a = {0.999f, 0.1f, 0.95f, 0.05f, 1e-6f, 2, 1e-8f, 1};
    b->k->adamw(b->buf[0], b->buf[1], b->buf[2], b->buf[3], it->n, &a);
}

static lks__attention_shape attention_shape(const struct item *it)
{
    return (lks__attention_shape){it->m, it->n, 6, it->k, 0};
}

static void run_attention_fwd(struct bench *b, const struct item *it)
{
    const lks__attention_shape shape = attention_shape(it);
    const lks__attention_in in = lks__attention_packed(&shape, lks__acts(b->buf[0]), sizeof(float));
    const lks__dropout none = {.scale = 1};
    lks__attention_fwd(b->ex, &shape, lks__acts(b->buf[1]), b->buf[3], &in, &none);
}

static void run_attention_bwd(struct bench *b, const struct item *it)
{
    const lks__attention_shape shape = attention_shape(it);
    const lks__attention_in in = lks__attention_packed(&shape, lks__acts(b->buf[0]), sizeof(float));
    const lks__attention_grads grads =
        lks__attention_packed_grads(&shape, lks__acts(b->buf[2]), sizeof(float));
    const lks__dropout none = {.scale = 1};
    lks__attention_bwd(b->ex, &shape, &grads, lks__acts(b->buf[1]), &in, lks__acts(b->buf[1]),
                       b->buf[3], &none);
}

/* --- the table -------------------------------------------------------------------------------- */

#define GEMM(ta, tb, m, n, k)                                                                      \
    {                                                                                              \
        "gemm " #ta #tb, run_gemm, 2.0 * (m) * (n) * (k),                                          \
            (double)(m) * (k) + (double)(n) * (k) + (double)(m) * (n), m, n, k, #ta[0], #tb[0],    \
            false                                                                                  \
    }
/* `rows` rows of n; `each` floats are read or written for one element. */
#define ROWWISE(name, run, rows, n, each)                                                          \
    {                                                                                              \
        name, run, 0, (double)(each) * (rows) * (n), rows, n, 0, 0, 0, false                       \
    }
#define FLAT(name, run, n, each)                                                                   \
    {                                                                                              \
        name, run, 0, (double)(each) * (n), 1, n, 0, 0, 0, true                                    \
    }
/* Half of the T x T products are below the diagonal. */
#define ATTENTION(name, run, B, T, hs, products, each)                                             \
    {                                                                                              \
        name, run, (products)*2.0 * (B)*6 * (T) * (T) / 2 * (hs), (each) * (B) * (T)*6.0 * (hs),   \
            B, T, hs, 0, 0, false                                                                  \
    }

static const struct item items[] = {
    GEMM(N, T, 768, 128, 128), /* nanoGPT's CPU recipe */
    GEMM(N, T, 768, 512, 128),
    GEMM(N, T, 1024, 1152, 384), /* 10.6M: attention in, MLP up and down, backward of both kinds */
    GEMM(N, T, 1024, 1536, 384),
    GEMM(N, T, 1024, 384, 1536),
    GEMM(N, N, 1024, 384, 1536),
    GEMM(T, N, 1536, 384, 1024),
    GEMM(N, T, 1024, 1024, 512), /* golf */
    GEMM(T, N, 1024, 512, 1024),
    GEMM(N, T, 512, 512, 512), /* Newton-Schulz */
    ATTENTION("attention forward", run_attention_fwd, 4, 256, 64, 2, 4),
    ATTENTION("attention backward", run_attention_bwd, 4, 256, 64, 5, 8),
    ROWWISE("layernorm forward", run_layernorm_fwd, ROWS, WIDTH, 2),
    ROWWISE("layernorm backward", run_layernorm_bwd, ROWS, WIDTH, 4),
    ROWWISE("rmsnorm forward", run_rmsnorm_fwd, ROWS, 512, 2),
    ROWWISE("rmsnorm backward", run_rmsnorm_bwd, ROWS, 512, 4),
    ROWWISE("gelu forward", run_gelu_fwd, 128, 4 * WIDTH, 2),
    ROWWISE("gelu backward", run_gelu_bwd, 128, 4 * WIDTH, 3),
    ROWWISE("relu2 forward", run_relu2_fwd, 128, 1024, 2),
    ROWWISE("relu2 backward", run_relu2_bwd, 128, 1024, 3),
    ROWWISE("dropout", run_dropout, 128, WIDTH, 2),
    ROWWISE("cross-entropy", run_xent, 128, VOCAB, 2),
    ROWWISE("cross-entropy, capped", run_xent_cap, 128, VOCAB, 2),
    FLAT("add", run_add, 8 << 20, 3),
    FLAT("sum over two ranks", run_sum_scaled, 8 << 20, 3),
    FLAT("sum of squares", run_sumsq, 8 << 20, 1),
    FLAT("round to bfloat16", run_round, 8 << 20, 2),
    FLAT("adamw", run_adamw, 8 << 20, 7),
};

enum { N_ITEMS = sizeof items / sizeof items[0] };

/* --- measuring -------------------------------------------------------------------------------- */

/* The shortest of many runs in about a tenth of a second, because disturbances only add time. */
static double best_time(struct bench *b, const struct item *it)
{
    double best = 1e9, end = lks__sys_now() + 0.1;
    for (int n = 0; n < 3 || lks__sys_now() < end; n++) {
        double t0 = lks__sys_now();
        it->run(b, it);
        double t = lks__sys_now() - t0;
        best = t < best ? t : best;
    }
    return best;
}

typedef float f32x8 __attribute__((vector_size(32), may_alias));

/* Bytes per second for n floats: two reads and one write of plain vectors. */
static double bandwidth(struct bench *b, size_t n)
{
    f32x8 *y = (f32x8 *)b->buf[1];
    const f32x8 *x = (const f32x8 *)b->buf[0];
    double best = 1e9, end = lks__sys_now() + 0.2;
    for (int turn = 0; turn < 3 || lks__sys_now() < end; turn++) {
        double t0 = lks__sys_now();
        for (size_t i = 0; i < n / 8; i++)
            y[i] += x[i];
        double t = lks__sys_now() - t0;
        best = t < best ? t : best;
        __asm__ volatile("" ::: "memory"); /* keeps every repetition */
    }
    return 3.0 * (double)n * sizeof(float) / best;
}

static void print_item(struct bench *b, const struct item *it)
{
    char shape[48];
    if (it->k != 0)
        snprintf(shape, sizeof shape, "%zu x %zu x %zu", it->m, it->n, it->k);
    else if (it->m > 1)
        snprintf(shape, sizeof shape, "%zu x %zu", it->m, it->n);
    else
        snprintf(shape, sizeof shape, "%zu", it->n);
    progress_text("%s", it->name);
    double t = best_time(b, it), bytes = it->floats * sizeof(float);
    double by_flops = it->flops / b->peak,
           by_bytes = bytes / (it->far ? b->far_bytes : b->near_bytes);
    double limit = by_flops > by_bytes ? by_flops : by_bytes;
    progress_hide();
    printf("%-22s %18s %10.1f us", it->name, shape, t * 1e6);
    if (it->flops > 0)
        printf(" %8.1f GFLOP/s", it->flops / t * 1e-9);
    else
        printf(" %8.1f GB/s   ", bytes / t * 1e-9);
    printf(" %5.0f%% of %s\n", limit / t * 100.0,
           by_flops > by_bytes ? "peak"
           : it->far           ? "memory"
                               : "cache");
}

static lks_status measure_all(struct bench *b, const lks__session *s)
{
    if (b->row == NULL || b->buf[0] == NULL || b->buf[1] == NULL || b->buf[2] == NULL ||
        b->buf[3] == NULL)
        return lks__no_memory("for %d buffers of %d MB", 4, FAR / 250000);
    LKS__TRY(bench_peak_of(s, 1, &b->peak));
    for (int i = 0; i < 4; i++)
        for (size_t j = 0; j < FAR; j++)
            b->buf[i][j] = (float)((j * 2654435761u >> 8) % 1000) * 1e-3f + 1e-3f;
    b->near_bytes = bandwidth(b, NEAR);
    b->far_bytes = bandwidth(b, FAR);
    progress_hide();
    printf("one thread, %s: peak %.1f GFLOP/s; bandwidth %.1f GB/s in a cache (0.5 MiB), %.1f in "
           "memory\n",
           lks__cpu_level_name(s->kernels.level), b->peak * 1e-9, b->near_bytes * 1e-9,
           b->far_bytes * 1e-9);
    for (int i = 0; i < N_ITEMS; i++)
        print_item(b, &items[i]);
    return lks__kernels_check();
}

static lks_status measure_cpu(lks__session *s)
{
    struct bench b = {.ex = &s->ex, .k = &s->kernels, .row = calloc(ROWS, sizeof *b.row)};
    for (int i = 0; i < 4; i++)
        b.buf[i] = calloc(FAR, sizeof(float));
    const lks_status st = measure_all(&b, s);
    for (int i = 0; i < 4; i++)
        free(b.buf[i]);
    free(b.row);
    return st;
}

lks_status bench_kernels(lks__settings *settings)
{
    lks__session s;
    LKS__TRY(lks__session_open(settings->backend, settings->timeout, 1, LKS__BIND_NONE, &s));
    lks_status st = lks__session_device(&s, settings->device, settings->share_gpu);
    LKS__THEN(st, s.device == &s.cpu ? measure_cpu(&s) : bench_device_kernels(&s, settings));
    lks__session_close(&s);
    return st;
}
