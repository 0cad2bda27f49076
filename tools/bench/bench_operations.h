/* tools/bench/bench_operations.h - the operations that `lockstep bench kernels --device=...`
 * measures. */
#ifndef LKS_TOOLS_BENCH_BENCH_OPERATIONS_H
#define LKS_TOOLS_BENCH_BENCH_OPERATIONS_H

#include "compute/cpu/layers.h"

enum {
    BENCH_PARTS = 16,       /* arrays of one operation */
    BENCH_PART_BYTES = 256, /* they begin at multiples of it */
    BENCH_MOST_ITEMS = 64,
};

struct bench_shape {
    size_t B, T, C, hidden, V, heads, kv;
    size_t matrices; /* of Muon */
};

/* What an array holds at first. */
enum bench_kind {
    BENCH_VALUES,   /* in [-1, 1) */
    BENCH_POSITIVE, /* in (0, 1) */
    BENCH_TOKENS,
    BENCH_RESULT,  /* NaN: it is written only */
    BENCH_DOUBLES, /* the same, of doubles */
    BENCH_WORK,    /* NaN, and not compared */
    BENCH_SPENT,   /* as BENCH_VALUES, but not compared */
    BENCH_KINDS
};

struct bench_part {
    size_t at, n, each; /* n elements of so many bytes */
    enum bench_kind kind;
    bool acts; /* activations, or their gradients */
};

/* An operation on a device, or on the CPU. */
struct bench_job {
    const lks__layers *l;
    const lks__exec *ex;
    const struct bench_shape *shape;
    const lks__dropout *drop;
    size_t act_bytes; /* of an element of activations */
    char *memory;     /* NULL: list the arrays only */
    struct bench_part part[BENCH_PARTS];
    int n_parts;
    size_t bytes;
};

/* Which families have the operation. */
enum { BENCH_GPT2 = 1, BENCH_GOLF = 2 };

struct bench_item {
    const char *name;
    void (*run)(struct bench_job *j);
    int families;
};

extern const struct bench_item bench_items[]; /* of a model */
extern const int bench_n_items;

/* The device at its best: copies of C floats, products of matrices [C, C]. */
extern const struct bench_item bench_copies, bench_products;

#endif
