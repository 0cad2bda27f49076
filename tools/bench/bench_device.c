/* lockstep bench kernels --device=…: times each operation of a device by the shapes of a model, and
 * compares it with the roofline. The roofline is the longer of two times: the operation's bytes at
 * the speed of the device's copies, and its arithmetic at the speed of its products. Both speeds
 * are measured in the same run; bytes and arithmetic are the device's own counts. Each operation's
 * results are first compared with the CPU's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../progress.h"
#include "../tool.h"
#include "base/number/bf16.h"
#include "base/system/sys.h"
#include "bench.h"
#include "bench_operations.h"
#include "settings/family.h"
#include "weights/forms/saved.h"

enum {
    PATTERN = 65532,     /* floats that are repeated in an array; not a multiple of a row */
    CHECK_B = 2,         /* sequences for comparisons */
    MATRICES = 18,       /* for Muon at once: as many as golf's model has of one shape */
    LEAST_PRODUCT = 256, /* rows of a matrix, doubled until a product takes long enough */
    MOST_PRODUCT = 4096,
    LEAST_COPY = 1 << 18, /* floats */
    MOST_COPY = 64 << 20,
    TURN_US = 5000,      /* least microseconds per turn */
    MOST_RUNS = 1 << 12, /* per turn */
    MOST_TURNS = 100,
};

static const double TOLERANCE = 1e-5, TOLERANCE_BF16 = 1e-2; /* relative to an array's norm */

/* --- memory ----------------------------------------------------------------------------------- */

struct bench {
    lks__device *cpu, *device;
    const struct bench_shape *shape;
    lks__dropout drop;
    /* Initial contents of arrays by kind, repeated. A device that stores activations in bfloat16
     * gets `halves`; the CPU then gets `rounded`, the same numbers as floats. */
    float pattern[BENCH_KINDS][PATTERN], rounded[BENCH_KINDS][PATTERN];
    uint16_t halves[BENCH_KINDS][PATTERN];
    bool bf16; /* products round their operands */
    int turns;
    double tolerance;
    double off[BENCH_MOST_ITEMS]; /* relative distance from the CPU's results */
    struct bench_peaks peaks;
};

static void make_patterns(struct bench *b, uint64_t seed)
{
    lks__mt g;
    lks__mt_seed(&g, seed);
    for (int kind = 0; kind < BENCH_KINDS; kind++)
        for (int i = 0; i < PATTERN; i++) {
            const uint32_t random = lks__mt_u32(&g) >> 8;
            const float x = ((float)random + 0.5f) * 0x1p-24f;
            const int32_t token = (int32_t)(random % b->shape->V);
            if (kind == BENCH_TOKENS)
                memcpy(&b->pattern[kind][i], &token, sizeof token);
            else
                b->pattern[kind][i] = kind == BENCH_POSITIVE                        ? x
                                      : kind == BENCH_VALUES || kind == BENCH_SPENT ? 2 * x - 1
                                                                                    : NAN;
            b->halves[kind][i] = lks__bf16_from_float(b->pattern[kind][i]);
            b->rounded[kind][i] = lks__bf16_to_float(b->halves[kind][i]);
        }
}

/* The pattern of an array. CPU and device get the same numbers. */
static const void *pattern_for(const struct bench *b, const struct bench_part *p)
{
    const bool halves = b->device->layers->act_bytes(b->bf16) == sizeof(uint16_t);
    if (!p->acts || !halves)
        return b->pattern[p->kind];
    return p->each == sizeof(uint16_t) ? (const void *)b->halves[p->kind] : b->rounded[p->kind];
}

/* Fill the arrays. The pattern is sent once, then copied within the memory. */
static void fill(const struct bench *b, lks__device *device, const struct bench_call *c)
{
    for (int i = 0; i < c->n_parts; i++) {
        const struct bench_part *p = &c->part[i];
        const size_t each = p->kind == BENCH_DOUBLES ? sizeof(float) : p->each;
        const size_t n = p->n * p->each / each;
        void *to = c->memory + p->at;
        size_t have = n < PATTERN ? n : PATTERN;
        device->ops->copy(device, LKS__QUEUE_COMPUTE, to, pattern_for(b, p), have * each);
        for (size_t more; have < n; have += more) {
            more = have < n - have ? have : n - have;
            if (p->acts)
                c->l->act_copy(c->ex, lks__act_at(to, have, each), to, more);
            else
                c->l->copy(c->ex, (float *)to + have, to, more);
        }
    }
}

static void run(const struct bench_item *item, struct bench_call *c)
{
    c->n_parts = 0;
    c->bytes = 0;
    item->run(c, c->shape);
}

/* Allocate and fill the memory of an operation; close_call() releases it. */
static lks_status open_call(const struct bench *b, lks__device *device,
                            const struct bench_item *item, struct bench_call *c)
{
    void *memory;
    *c = (struct bench_call){.l = device->layers,
                             .ex = device->ex,
                             .shape = b->shape,
                             .drop = &b->drop,
                             .act_bytes = device->layers->act_bytes(b->bf16)};
    run(item, c);
    LKS__TRY(device->ops->alloc(device, c->bytes, &memory));
    c->memory = memory;
    fill(b, device, c);
    return LKS_OK;
}

static void close_call(lks__device *device, struct bench_call *c)
{
    if (c->memory == NULL)
        return;
    lks__device_drain(device);
    device->ops->release(device, c->memory, c->bytes);
}

/* --- comparison with the CPU ------------------------------------------------------------------ */

static double number(const struct bench_part *p, const char *memory, size_t i)
{
    float x;
    double y;
    uint16_t half;
    if (p->each == sizeof half) {
        memcpy(&half, memory + i * sizeof half, sizeof half);
        return (double)lks__bf16_to_float(half);
    }
    if (p->kind != BENCH_DOUBLES) {
        memcpy(&x, memory + i * sizeof x, sizeof x);
        return (double)x;
    }
    memcpy(&y, memory + i * sizeof y, sizeof y);
    return y;
}

/* Largest |got - want| / |want| of an operation's arrays; not finite if a result isn't. */
static double distance(const struct bench_call *cpu, const struct bench_call *device,
                       const char *got)
{
    double most = 0.0;
    for (int i = 0; i < cpu->n_parts; i++) {
        const struct bench_part *p = &cpu->part[i], *of_device = &device->part[i];
        double off = 0.0, size = 0.0;
        if (p->kind == BENCH_TOKENS || p->kind == BENCH_WORK || p->kind == BENCH_SPENT)
            continue;
        for (size_t k = 0; k < p->n; k++) {
            const double x = number(of_device, got + of_device->at, k);
            const double y = number(p, cpu->memory + p->at, k);
            off += (x - y) * (x - y);
            size += y * y;
        }
        off = sqrt(off) / (size > 0 ? sqrt(size) : 1);
        most = off <= most ? most : off;
    }
    return most;
}

static lks_status compare(struct bench *b, int i)
{
    struct bench_call cpu = {0}, device = {0};
    char *got = NULL;
    lks_status st = open_call(b, b->cpu, &bench_items[i], &cpu);
    LKS__THEN(st, open_call(b, b->device, &bench_items[i], &device));
    if (st == LKS_OK) {
        run(&bench_items[i], &cpu);
        run(&bench_items[i], &device);
        got = malloc(device.bytes);
        if (got == NULL)
            st = lks__no_memory("for %.1f MB", (double)device.bytes / 1e6);
    }
    if (st == LKS_OK) {
        b->device->ops->copy(b->device, LKS__QUEUE_COMPUTE, got, device.memory, device.bytes);
        st = lks__device_finish(b->device, LKS__QUEUE_COMPUTE);
    }
    if (st == LKS_OK)
        b->off[i] = distance(&cpu, &device, got);
    close_call(b->cpu, &cpu);
    close_call(b->device, &device);
    free(got);
    return st;
}

/* --- times ------------------------------------------------------------------------------------ */

/* Seconds per run of `n` runs that are queued together. */
static lks_status time_runs(const struct bench_item *item, lks__device *device,
                            struct bench_call *c, int n, double *seconds_p)
{
    const double start = lks__sys_now();
    for (int i = 0; i < n; i++)
        run(item, c);
    LKS__TRY(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    *seconds_p = (lks__sys_now() - start) / n;
    return LKS_OK;
}

/* Median and minimum of `turns` turns, each long enough for the host's clock. */
static lks_status time_item(const struct bench_item *item, lks__device *device,
                            struct bench_call *c, int turns, double *median_p, double *least_p)
{
    double times[MOST_TURNS], seconds = 0.0;
    int n = 1;
    LKS__TRY(time_runs(item, device, c, 1, &seconds)); /* the first run may set up caches */
    for (;; n *= 2) {
        LKS__TRY(time_runs(item, device, c, n, &seconds));
        if (seconds * n * 1e6 >= TURN_US || n >= MOST_RUNS)
            break;
    }
    turns = turns < MOST_TURNS ? turns : MOST_TURNS;
    for (int i = 0; i < turns; i++)
        LKS__TRY(time_runs(item, device, c, n, &times[i]));
    *median_p = bench_median(times, turns);
    *least_p = times[0];
    return LKS_OK;
}

/* Bytes and operations of one run, and its seconds. */
struct measured {
    double bytes, flops, median, least;
};

static lks_status measure_item(const struct bench *b, const struct bench_item *item, int turns,
                               struct measured *m)
{
    struct bench_call c = {0};
    *m = (struct measured){.bytes = 0.0};
    lks_status st = open_call(b, b->device, item, &c);
    const lks__device_counts before = b->device->ops->counts(b->device);
    if (st == LKS_OK)
        run(item, &c);
    const lks__device_counts after = b->device->ops->counts(b->device);
    m->bytes = after.bytes - before.bytes;
    m->flops = after.flops - before.flops;
    LKS__THEN(st, time_item(item, b->device, &c, turns, &m->median, &m->least));
    close_call(b->device, &c);
    return st;
}

/* --- ceilings --------------------------------------------------------------------------------- */

/* The best rates over sizes that double until a run takes a whole turn. */
static lks_status measure_ceiling(struct bench *b, const struct bench_item *item, size_t n,
                                  size_t most, double *bytes_p, double *flops_p)
{
    struct measured m = {.median = 0.0};
    for (; n <= most && m.median * 1e6 < TURN_US; n *= 2) {
        const struct bench_shape square = {.C = n, .V = 1};
        b->shape = &square;
        LKS__TRY(measure_item(b, item, 3, &m));
        *bytes_p = fmax(*bytes_p, m.bytes / m.least);
        *flops_p = fmax(*flops_p, m.flops / m.least);
    }
    return LKS_OK;
}

static lks_status measure_ceilings(struct bench *b)
{
    double ignored = 0.0;
    if (b->device->ops->counts == NULL)
        return lks__fail(LKS_ERR_SUPPORT,
                         "the device %s doesn't count its operations: measure cuda or cpu",
                         b->device->ops->name);
    LKS__TRY(measure_ceiling(b, &bench_copies, LEAST_COPY, MOST_COPY, &b->peaks.bytes, &ignored));
    return measure_ceiling(b, &bench_products, LEAST_PRODUCT, MOST_PRODUCT, &ignored,
                           &b->peaks.flops);
}

/* --- the table -------------------------------------------------------------------------------- */

static lks_status measure(struct bench *b, int i)
{
    struct measured m;
    LKS__TRY(measure_item(b, &bench_items[i], b->turns, &m));
    const double by_bytes = m.bytes / b->peaks.bytes, by_flops = m.flops / b->peaks.flops;
    progress_hide();
    printf("%-22s %10.1f us %9.1f GB/s %10.1f GFLOP/s %4.0f%% of %-8s off by %.1e%s\n",
           bench_items[i].name, m.median * 1e6, m.bytes / m.median * 1e-9,
           m.flops / m.median * 1e-9, fmax(by_bytes, by_flops) / m.median * 100,
           by_bytes > by_flops ? "copies" : "products", b->off[i],
           b->off[i] <= b->tolerance ? "" : ": WRONG");
    return LKS_OK;
}

static lks_status run_table(struct bench *b, const lks__settings *s, int family)
{
    const size_t heads = (size_t)s->n_head;
    const struct bench_shape shape = {.B = (size_t)s->batch_size,
                                      .T = (size_t)s->block_size,
                                      .rows = (size_t)(s->batch_size * s->block_size),
                                      .C = (size_t)s->n_embd,
                                      .hidden = (size_t)s->n_embd *
                                                (size_t)(family == BENCH_GOLF ? s->mlp_mult : 4),
                                      .V = s->vocab_size > 0      ? (size_t)s->vocab_size
                                           : family == BENCH_GOLF ? 1024
                                                                  : 50304,
                                      .heads = heads,
                                      .hs = (size_t)s->n_embd / heads,
                                      .kv = family == BENCH_GOLF ? (size_t)s->num_kv_heads : heads,
                                      .matrices = MATRICES};
    const lks__attention_shape attention = {shape.B, shape.T, heads, shape.hs, shape.kv};
    LKS__TRY(lks__family_check_heads(s));
    LKS__TRY(lks__attention_check(&attention));
    if (family == BENCH_GOLF && shape.hs % 2 != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "n_embd / n_head = %zu is odd: golf rotates the two halves of a head, so "
                         "it must be even",
                         shape.hs);
    struct bench_shape small = shape;
    small.B = CHECK_B;
    small.rows = small.B * small.T;
    small.matrices = 2;
    b->shape = &small;
    make_patterns(b, (uint64_t)s->seed);
    const char *wrong = NULL;
    for (int i = 0; i < bench_n_items; i++)
        if (bench_items[i].families & family) {
            LKS__TRY(compare(b, i));
            if (!(b->off[i] <= b->tolerance) && wrong == NULL)
                wrong = bench_items[i].name;
        }
    LKS__TRY(measure_ceilings(b));
    bench_print_peaks(b->device, &b->peaks);
    b->shape = &shape;
    make_patterns(b, (uint64_t)s->seed);
    for (int i = 0; i < bench_n_items; i++)
        if (bench_items[i].families & family)
            LKS__TRY(measure(b, i));
    if (wrong != NULL)
        return lks__fail(LKS_ERR_DIVERGED,
                         "results of %s differ from the CPU's by more than %g of their norm: see "
                         "the lines with WRONG",
                         wrong, b->tolerance);
    return LKS_OK;
}

/* Returns memory for free(); NULL with ERR_NOMEM. */
static struct bench *open_bench(lks__session *s)
{
    struct bench *b = malloc(sizeof *b);
    if (b == NULL) {
        lks__no_memory("for %d numbers", PATTERN);
        return NULL;
    }
    b->cpu = &s->cpu;
    b->device = s->device;
    b->drop = (lks__dropout){.scale = 1};
    b->tolerance = s->ex.bf16 ? TOLERANCE_BF16 : TOLERANCE;
    b->bf16 = s->ex.bf16;
    b->peaks = (struct bench_peaks){.bf16 = s->ex.bf16};
    return b;
}

lks_status bench_device_peaks(lks__session *s, struct bench_peaks *peaks)
{
    static const struct bench_shape one = {.V = 1};
    struct bench *b = open_bench(s);
    if (b == NULL)
        return LKS_ERR_NOMEM;
    b->shape = &one;
    make_patterns(b, 1);
    lks__device_choose_freely(s->device, true);
    const lks_status st = measure_ceilings(b);
    lks__device_choose_freely(s->device, false);
    *peaks = b->peaks;
    free(b);
    return st;
}

void bench_print_peaks(const lks__device *device, const struct bench_peaks *peaks)
{
    progress_hide();
    printf("peak of %s: copies of %.1f GB/s, read and written; products in %s of %.1f GFLOP/s\n",
           device->ops->name, peaks->bytes * 1e-9, peaks->bf16 ? "bf16" : "fp32",
           peaks->flops * 1e-9);
}

lks_status bench_device_kernels(lks__session *session, const lks__settings *given)
{
    lks__settings chosen = *given, *s = &chosen;
    lks__state_choose_dtype(s, session->device);
    LKS__TRY(lks__session_products(session, s->dtype == LKS__dtype_bfloat16));
    struct bench *b = open_bench(session);
    if (b == NULL)
        return LKS_ERR_NOMEM;
    b->turns = (int)s->iters;
    if (s->dropout > 0)
        b->drop = (lks__dropout){.key = lks__philox_key_of((uint64_t)s->seed),
                                 .threshold = (uint32_t)(s->dropout * 4294967296.0),
                                 .scale = (float)(1 / (1 - s->dropout))};
    const bool is_golf = (lks__family_of(s)->settings & LKS__SETTING_GOLF) != 0;
    const lks_status st = run_table(b, s, is_golf ? BENCH_GOLF : BENCH_GPT2);
    free(b);
    return st;
}
