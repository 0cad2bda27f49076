/* tools/bench/bench_operations.h - the operations that `lockstep bench kernels --device=...`
 * measures. */
#pragma once

#include "compute/cpu/layers.h"

enum {
    BENCH_PARTS = 16,       /* most arrays of one operation */
    BENCH_PART_BYTES = 256, /* alignment of arrays */
    BENCH_MOST_ITEMS = 64,
};

struct bench_shape {
    size_t B, T, rows, C, hidden, V, heads, hs, kv; /* rows: B T; hs: columns per head */
    size_t matrices;                                /* for Muon */
};

/* Initial contents of an array. */
enum bench_kind {
    BENCH_VALUES,   /* in [-1, 1) */
    BENCH_POSITIVE, /* in (0, 1) */
    BENCH_TOKENS,
    BENCH_RESULT,  /* NaN; the operation only writes it */
    BENCH_DOUBLES, /* BENCH_RESULT in double precision */
    BENCH_WORK,    /* NaN; not compared with the CPU's */
    BENCH_SPENT,   /* as BENCH_VALUES; not compared */
    BENCH_KINDS
};

struct bench_part {
    size_t at, n, each; /* n elements of `each` bytes */
    enum bench_kind kind;
    bool acts; /* activations, or their gradients */
};

/* An operation on a device or on the CPU. */
struct bench_call {
    const lks__layers *l;
    const lks__exec *ex;
    const struct bench_shape *shape;
    const lks__dropout *drop;
    size_t act_bytes; /* per element of activations */
    char *memory;     /* NULL: only list the arrays */
    struct bench_part part[BENCH_PARTS];
    int n_parts;
    size_t bytes;
};

/* Families that have the operation. */
enum { BENCH_GPT2 = 1, BENCH_GOLF = 2 };

struct bench_item {
    const char *name;
    void (*run)(struct bench_call *c, const struct bench_shape *s);
    int families;
};

extern const struct bench_item bench_items[];
extern const int bench_n_items;

/* Measure the device's ceilings: copies of C floats, products of matrices [C, C]. */
extern const struct bench_item bench_copies, bench_products;
