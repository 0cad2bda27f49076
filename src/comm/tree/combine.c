#include "comm/tree/combine.h"

#include <string.h>

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
COMBINE_FN(sum_float64, double, a + b)
COMBINE_FN(min_float64, bits64, EXTREME64(a, <, b))
COMBINE_FN(max_float64, bits64, EXTREME64(a, >, b))
/* Unsigned additions wrap around, with the bits of two's complement. */
COMBINE_FN(sum_int32, uint32_t, a + b)
COMBINE_FN(min_int32, int32_t, a < b ? a : b)
COMBINE_FN(max_int32, int32_t, a > b ? a : b)
COMBINE_FN(sum_int64, uint64_t, a + b)
COMBINE_FN(min_int64, int64_t, a < b ? a : b)
COMBINE_FN(max_int64, int64_t, a > b ? a : b)

enum { N_OPS = LKS_MAX - LKS_SUM + 1 };

static combine_fn *const fns[][N_OPS] = {
    [LKS_FLOAT32] = {sum_float32, min_float32, max_float32},
    [LKS_FLOAT64] = {sum_float64, min_float64, max_float64},
    [LKS_INT32] = {sum_int32, min_int32, max_int32},
    [LKS_INT64] = {sum_int64, min_int64, max_int64},
};

static combine_fn *find(lks_dtype dtype, lks_op op)
{
    return dtype < sizeof fns / sizeof fns[0] && op >= LKS_SUM && op <= LKS_MAX
               ? fns[dtype][op - LKS_SUM]
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
    }
    return "no operation";
}

/* The sum of a single part is computed, too, so that a NaN becomes quiet. Compilers omit a
 * multiplication by a constant 1. */
static void sum_one_float64(double *out, const double *a, size_t n)
{
    static const volatile double one = 1;
    const double factor = one;
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] * factor;
}

/* Uses a stack of partial results: a value is a part, read in place, or the buffer of its level. */
static void combine_chunk(const struct lks__combine *c, combine_fn *fn, size_t at, size_t n)
{
    const size_t size = lks_dtype_bytes(c->dtype);
    _Alignas(16) unsigned char temp[LKS__TREE_MAX_LEVELS][CHUNK];
    const void *stack[LKS__TREE_MAX_LEVELS + 1];
    void *dst = (char *)c->dst + at * size;
    int depth = 0;
    for (int i = 0; i < c->n_parts; i++) {
        stack[depth++] = (const char *)c->parts[i] + at * size;
        for (int m = 0; m < c->merges[i]; m++) {
            bool last = i == c->n_parts - 1 && m == c->merges[i] - 1;
            void *out = last ? dst : temp[depth - 2];
            depth--;
            fn(out, stack[depth - 1], stack[depth], n);
            stack[depth - 1] = out;
        }
    }
    if (c->n_parts > 1)
        return;
    if (c->op == LKS_SUM && c->dtype == LKS_FLOAT64)
        sum_one_float64(dst, stack[0], n);
    else if (c->op == LKS_SUM)
        memmove(dst, stack[0], n * size);
    else
        fn(dst, stack[0], stack[0], n); /* gives NaNs the same form as on several ranks */
}

static void sum_floats(const struct lks__combine *c, size_t first, size_t n)
{
    const float *parts[LKS__COMBINE_PARTS];
    for (int i = 0; i < c->n_parts; i++)
        parts[i] = c->parts[i];
    struct lks__sum sum = {.parts = parts,
                           .merges = c->merges,
                           .n_parts = c->n_parts,
                           .dst = c->dst,
                           .scale = 1,
                           .last = lks__sum_last(c->exec)};
    lks__sum_range(&sum, first, n, NULL);
}

void lks__combine_range(const struct lks__combine *c, size_t first, size_t n)
{
    if (c->dtype == LKS_FLOAT32 && c->op == LKS_SUM) {
        sum_floats(c, first, n);
        return;
    }
    combine_fn *fn = find(c->dtype, c->op);
    const size_t most = CHUNK / lks_dtype_bytes(c->dtype);
    while (n > 0) {
        size_t some = n < most ? n : most;
        combine_chunk(c, fn, first, some);
        first += some;
        n -= some;
    }
}
