#include "comm/tree/combine.h"

#include <string.h>

#include "base/number/bf16.h"
#include "base/number/f16.h"
#include "comm/tree/sum.h"
#include "comm/tree/tree.h"

/* Bytes that are combined at a time: few enough for partial results to stay in the first-level
 * cache. */
enum { CHUNK = 4096 };

/* Outputs may be one of the inputs: element i is read before it is written. */
typedef void combine_fn(void *out, const void *a, const void *b, size_t n);

#define COMBINE_FN(name, type, expression)                                                         \
    static void name(void *out_, const void *a_, const void *b_, size_t n)                         \
    {                                                                                              \
        type *out = out_;                                                                          \
        const type *a_s = a_, *b_s = b_;                                                           \
        for (size_t i = 0; i < n; i++) {                                                           \
            const type a = a_s[i], b = b_s[i];                                                     \
            out[i] = (expression);                                                                 \
        }                                                                                          \
    }

/* Minimum and maximum compare bits. If any rank has a NaN, the result is the same quiet
 * NaN, and -0 is less than +0. So the result doesn't depend on the order or number of ranks. */
typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint64_t __attribute__((may_alias)) bits64;

#define IS_NAN32(x) (((x)&0x7fffffff) > 0x7f800000)
#define IS_NAN64(x) (((x)&INT64_MAX) > 0x7ff0000000000000)
/* Integers that compare like the floats. */
#define KEY32(x) ((int32_t)((x) >> 31 != 0 ? (x) ^ 0x7fffffff : (x)))
#define KEY64(x) ((int64_t)((x) >> 63 != 0 ? (x) ^ INT64_MAX : (x)))
#define EXTREME32(a, relation, b)                                                                  \
    (IS_NAN32(a) || IS_NAN32(b) ? 0x7fc00000 : KEY32(a) relation KEY32(b) ? a : b)
#define EXTREME64(a, relation, b)                                                                  \
    (IS_NAN64(a) || IS_NAN64(b) ? 0x7ff8000000000000 : KEY64(a) relation KEY64(b) ? a : b)

COMBINE_FN(sum_float32, float, a + b)
COMBINE_FN(min_float32, bits32, EXTREME32(a, <, b))
COMBINE_FN(max_float32, bits32, EXTREME32(a, >, b))
COMBINE_FN(prod_float32, float, a *b)
COMBINE_FN(sum_float64, double, a + b)
COMBINE_FN(min_float64, bits64, EXTREME64(a, <, b))
COMBINE_FN(max_float64, bits64, EXTREME64(a, >, b))
COMBINE_FN(prod_float64, double, a *b)
/* Unsigned operations wrap around, with the bits of two's complement. */
COMBINE_FN(sum_int32, uint32_t, a + b)
COMBINE_FN(prod_int32, uint32_t, a *b)
COMBINE_FN(min_int32, int32_t, a < b ? a : b)
COMBINE_FN(max_int32, int32_t, a > b ? a : b)
COMBINE_FN(sum_int64, uint64_t, a + b)
COMBINE_FN(prod_int64, uint64_t, a *b)
COMBINE_FN(min_int64, int64_t, a < b ? a : b)
COMBINE_FN(max_int64, int64_t, a > b ? a : b)

enum { N_OPS = LKS_MEAN - LKS_SUM + 1 };

/* 16-bit floats are widened to floats first. */
static combine_fn *const fns[][N_OPS] = {
    [LKS_FLOAT32] = {sum_float32, min_float32, max_float32, prod_float32, sum_float32},
    [LKS_FLOAT64] = {sum_float64, min_float64, max_float64, prod_float64, sum_float64},
    [LKS_INT32] = {sum_int32, min_int32, max_int32, prod_int32, NULL},
    [LKS_INT64] = {sum_int64, min_int64, max_int64, prod_int64, NULL},
};

lks_dtype lks__partial_type(lks_dtype dtype)
{
    return dtype == LKS_FLOAT16 || dtype == LKS_BFLOAT16 ? LKS_FLOAT32 : dtype;
}

static combine_fn *find(lks_dtype dtype, lks_op op)
{
    const lks_dtype type = lks__partial_type(dtype);
    return type < sizeof fns / sizeof fns[0] && op >= LKS_SUM && op <= LKS_MEAN
               ? fns[type][op - LKS_SUM]
               : NULL;
}

bool lks__can_combine(lks_dtype dtype, lks_op op)
{
    return find(dtype, op) != NULL;
}

const char *lks__op_name(lks_op op)
{
    switch (op) {
    case LKS_SUM:
        return "sum";
    case LKS_MIN:
        return "min";
    case LKS_MAX:
        return "max";
    case LKS_PROD:
        return "product";
    case LKS_MEAN:
        return "mean";
    }
    return "no operation";
}

static void widen(lks_dtype dtype, float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = dtype == LKS_FLOAT16 ? lks__f16_to_float(x[i]) : lks__bf16_to_float(x[i]);
}

static void narrow(lks_dtype dtype, uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = dtype == LKS_FLOAT16 ? lks__f16_from_float(x[i]) : lks__bf16_from_float(x[i]);
}

static void divide(lks_dtype type, void *buf, size_t n, int by)
{
    float *floats = buf;
    double *doubles = buf;
    for (size_t i = 0; i < n && type == LKS_FLOAT32; i++)
        floats[i] /= (float)by;
    for (size_t i = 0; i < n && type == LKS_FLOAT64; i++)
        doubles[i] /= by;
}

/* The result of a single part is computed, too, so that a NaN becomes quiet. Compilers omit a
 * multiplication by a constant 1. */
static void quiet_float32(float *out, const float *a, size_t n)
{
    static const volatile float one = 1;
    const float factor = one;
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] * factor;
}

static void quiet_float64(double *out, const double *a, size_t n)
{
    static const volatile double one = 1;
    const double factor = one;
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] * factor;
}

static void copy_single(lks_dtype type, lks_op op, combine_fn *fn, void *out, const void *a,
                        size_t n)
{
    if (op == LKS_MIN || op == LKS_MAX)
        fn(out, a, a, n); /* gives NaNs the same form as on several ranks */
    else if (type == LKS_FLOAT32)
        quiet_float32(out, a, n);
    else if (type == LKS_FLOAT64)
        quiet_float64(out, a, n);
    else
        memmove(out, a, n * lks_dtype_bytes(type));
}

/* Uses a stack of partial results: a value is a part, read in place or widened into the buffer of
 * its level, or a result in that buffer. */
static void combine_chunk(const struct lks__combine *c, combine_fn *fn, size_t at, size_t n)
{
    const lks_dtype type = lks__partial_type(c->dtype);
    const bool wide_in = c->parts_are_partial || type == c->dtype;
    const bool wide_out = c->dst_is_partial || type == c->dtype;
    const size_t in = lks_dtype_bytes(wide_in ? type : c->dtype);
    _Alignas(16) unsigned char temp[LKS__TREE_MAX_LEVELS + 1][CHUNK], result[CHUNK];
    const void *stack[LKS__TREE_MAX_LEVELS + 1];
    void *dst = (char *)c->dst + at * lks_dtype_bytes(wide_out ? type : c->dtype);
    void *whole = wide_out ? dst : (void *)result;
    int depth = 0;
    for (int i = 0; i < c->n_parts; i++) {
        const void *part = (const char *)c->parts[i] + at * in;
        if (!wide_in)
            widen(c->dtype, (float *)(void *)temp[depth], part, n);
        stack[depth] = wide_in ? part : temp[depth];
        depth++;
        for (int m = 0; m < c->merges[i]; m++) {
            bool last = i == c->n_parts - 1 && m == c->merges[i] - 1;
            void *out = last ? whole : temp[depth - 2];
            depth--;
            fn(out, stack[depth - 1], stack[depth], n);
            stack[depth - 1] = out;
        }
    }
    if (c->n_parts == 1)
        copy_single(type, c->op, fn, whole, stack[0], n);
    if (c->op == LKS_MEAN && !c->dst_is_partial)
        divide(type, whole, n, c->mean_of);
    if (!wide_out)
        narrow(c->dtype, dst, (const float *)(void *)result, n);
}

static void sum_floats(const struct lks__combine *c, size_t first, size_t n)
{
    struct lks__sum sum = {.parts = (const float *const *)c->parts,
                           .merges = c->merges,
                           .n_parts = c->n_parts,
                           .dst = c->dst,
                           .scale = 1,
                           .last = c->exec->k->sum_scaled};
    lks__sum_range(&sum, first, n, NULL);
    if (c->op == LKS_MEAN && !c->dst_is_partial)
        divide(LKS_FLOAT32, (float *)c->dst + first, n, c->mean_of);
}

void lks__combine_range(const struct lks__combine *c, size_t first, size_t n)
{
    if (c->dtype == LKS_FLOAT32 && (c->op == LKS_SUM || c->op == LKS_MEAN)) {
        sum_floats(c, first, n);
        return;
    }
    combine_fn *fn = find(c->dtype, c->op);
    const size_t most = CHUNK / lks_dtype_bytes(lks__partial_type(c->dtype));
    while (n > 0) {
        size_t some = n < most ? n : most;
        combine_chunk(c, fn, first, some);
        first += some;
        n -= some;
    }
}
