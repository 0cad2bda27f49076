/* Attention, and attention over kept keys: src/compute/cuda/attention/attention.cu and, with
 * heads of 64 in bfloat16, attention_64.cu. Results are compared with the formula in double
 * (attention/reference.h), with the CPU's operations, and with their own bits in other orders. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "attention/reference.h"
#include "base/number/bf16.h"
#include "host.h"

static bool halves, together;
static double tolerance;

static int use(bool in_halves, bool at_once)
{
    host_halves(halves = in_halves);
    host_together(together = at_once);
    tolerance = halves ? 1e-2 : 1e-5;
    return 0;
}

static int use_float32(void **state)
{
    return use(false, false);
}

/* Activations are stored in bfloat16. Probabilities and gradients of scores are rounded on their
 * way to the next product, too. */
static int use_bf16(void **state)
{
    return use(true, false);
}

/* As on a GPU whose warps multiply together: heads of 64 elements. */
static int use_together(void **state)
{
    return use(true, true);
}

#define BOTH(name)                                                                                 \
    static void name(void **state);                                                                \
    TEST_AS(name, , use_float32, NULL)                                                             \
    TEST_AS(name, _bf16, use_bf16, NULL)                                                           \
    static void name(void **state)
#define TOGETHER(name) TEST_AS(name, _together, use_together, NULL)

static const lks__exec *cpu_exec(void)
{
    static lks__exec ex;
    ex = *host_exec();
    ex.bf16 = halves;
    return &ex;
}

/* `pad`: floats between tokens. Without, rows of heads of 4 n elements are moved by fours. */
struct shape {
    lks__attention_shape s;
    size_t pad;
};

/* One score; less than a tile; tiles and a rest; heads of two and four pieces, with a rest, and of
 * more than a block can make; whole tiles and pieces; shared keys. */
static const struct shape shapes[] = {
    {{1, 1, 1, 1, 0}, 0},   {{2, 5, 2, 3, 1}, 1},   {{1, 66, 1, 20, 0}, 4},
    {{1, 9, 1, 127, 0}, 0}, {{1, 4, 2, 300, 1}, 0}, {{1, 65, 1, 130, 1}, 2},
    {{1, 3, 1, 256, 0}, 0}, {{1, 64, 1, 64, 0}, 0}, {{1, 130, 1, 8, 1}, 0},
};
/* Less than a tile; tiles and a rest; tokens that begin at multiples of 16 bytes, and heads that
 * don't; heads of two pieces; several tiles of a short head. */
static const struct shape bf16_shapes[] = {
    {{2, 5, 2, 3, 1}, 1},    {{1, 66, 1, 20, 0}, 4}, {{1, 5, 2, 12, 0}, 0},
    {{1, 100, 1, 70, 1}, 2}, {{1, 130, 2, 8, 1}, 0},
};
/* Heads of 64 elements, which have kernels of their own: a token; two blocks of the forward pass
 * and a rest, shared keys, rows of scores that begin anywhere in a mask's words; rows that can't be
 * moved by eights; more heads than a group has, with several tiles each. */
static const struct shape shapes_64[] = {
    {{1, 1, 1, 64, 0}, 0},
    {{1, 201, 2, 64, 1}, 8},
    {{1, 66, 1, 64, 0}, 4},
    {{13, 130, 5, 64, 0}, 0},
};
#if defined(LKS_TEST_THREAD)
enum { SHAPES = 3, BF16_SHAPES = 2, SHAPES_64 = 3 };
#elif defined(LKS_TEST_ADDRESS)
enum { SHAPES = 5, BF16_SHAPES = 3, SHAPES_64 = 4 };
#else
enum { SHAPES = sizeof shapes / sizeof *shapes };
enum { BF16_SHAPES = sizeof bf16_shapes / sizeof *bf16_shapes };
enum { SHAPES_64 = sizeof shapes_64 / sizeof *shapes_64 };
#endif

/* q, k, v of a token lie side by side, in that order. */
struct problem {
    lks__attention_shape s; /* NKV is set */
    size_t ld, n;           /* floats of a token, and of all */
    size_t n_out, n_lse;
    float *qkv, *dout;
    lks__dropout drop;
};

/* Numbers that activations keep, and products take, as they are. */
static float *numbers(size_t n, unsigned seed, float size)
{
    float *x = host_randoms(n, seed);
    for (size_t i = 0; i < n; i++) {
        x[i] *= size;
        if (halves)
            x[i] = lks__bf16_to_float(lks__bf16_from_float(x[i]));
    }
    return x;
}

static struct problem problem_make(const struct shape *shape, double p, float size)
{
    struct problem t = {.s = shape->s, .drop = host_dropout(p)};
    if (t.s.NKV == 0)
        t.s.NKV = t.s.NH;
    t.ld = (t.s.NH + 2 * t.s.NKV) * t.s.hs + shape->pad;
    t.n = t.s.B * t.s.T * t.ld;
    t.n_out = t.s.B * t.s.T * t.s.NH * t.s.hs;
    t.n_lse = t.s.B * t.s.NH * t.s.T;
    t.qkv = numbers(t.n, 1, size);
    t.dout = numbers(t.n_out, 2, 1.0f);
    return t;
}

static lks__attention_in in_of(const struct problem *t, lks__act *qkv)
{
    const size_t k = t->s.NH * t->s.hs, v = k + t->s.NKV * t->s.hs;
    return (lks__attention_in){qkv, host_act_at(qkv, k), host_act_at(qkv, v), t->ld, t->ld};
}

struct results {
    float *out, *lse, *dqkv;
};

static struct results run(const lks__layers *layers, const lks__exec *ex, const struct problem *t,
                          const lks__dropout *drop)
{
    lks__act *out = host_empty_acts(t->n_out), *dqkv = host_acts(numbers(t->n, 3, 1.0f), t->n);
    const lks__act *dout = host_acts(t->dout, t->n_out);
    float *lse = host_floats(t->n_lse);
    const lks__attention_in in = in_of(t, host_acts(t->qkv, t->n)), g = in_of(t, dqkv);
    const lks__attention_grads grads = {(void *)g.q, (void *)g.k, (void *)g.v, t->ld, t->ld};
    layers->attention_fwd(ex, &t->s, out, lse, &in, drop);
    layers->attention_bwd(ex, &t->s, &grads, dout, &in, out, lse, drop);
    return (struct results){host_act_floats(out, t->n_out), lse, host_act_floats(dqkv, t->n)};
}

/* The CPU's activations are always floats. */
static struct results run_cpu(const struct problem *t, const lks__dropout *drop)
{
    host_halves(false);
    const struct results r = run(&lks__layers_cpu, cpu_exec(), t, drop);
    host_halves(halves);
    return r;
}

/* lse: NULL, or out. */
static float *forward(const struct problem *t, float *lse, const lks__dropout *drop)
{
    lks__act *out = host_empty_acts(t->n_out);
    const lks__attention_in in = in_of(t, host_acts(t->qkv, t->n));
    lks__cuda_attention_fwd(NULL, &t->s, out, lse, &in, drop);
    return host_act_floats(out, t->n_out);
}

static const lks__layers cuda = {
    .attention_fwd = lks__cuda_attention_fwd,
    .attention_bwd = lks__cuda_attention_bwd,
    .attention_cached_fwd = lks__cuda_attention_cached_fwd,
};

/* --- the formula ------------------------------------------------------------------------------ */

struct wanted {
    double *out, *lse, *dqkv;
};

/* The reference has a key/value head for each query head: each is repeated, and its gradients are
 * added up. */
static struct wanted formula(const struct problem *t)
{
    const lks__attention_shape s = {t->s.B, t->s.T, t->s.NH, t->s.hs, 0};
    const size_t c = s.NH * s.hs, group = s.NH / t->s.NKV, rows = s.B * s.T;
    double *qkv = host_doubles(rows * 3 * c), *dqkv = host_doubles(rows * 3 * c),
           *dout = host_doubles(t->n_out);
    double *mask = NULL;
    struct wanted w = {host_doubles(t->n_out), host_doubles(t->n_lse), host_doubles(t->n)};
    if (t->drop.threshold != 0) {
        mask = host_doubles(t->n_lse * s.T);
        reference_mask(&s, mask, &t->drop);
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 3 * c; i++) {
            const size_t h = i % c / s.hs, d = i % s.hs;
            const size_t kv = c + (i / c - 1) * t->s.NKV * s.hs + h / group * s.hs + d;
            qkv[r * 3 * c + i] = (double)t->qkv[r * t->ld + (i < c ? i : kv)];
        }
    for (size_t i = 0; i < t->n_out; i++)
        dout[i] = (double)t->dout[i];
    reference_fwd(&s, w.out, w.lse, qkv, mask);
    reference_bwd(&s, dqkv, dout, qkv, mask);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 3 * c; i++) {
            const size_t h = i % c / s.hs, d = i % s.hs;
            const size_t kv = c + (i / c - 1) * t->s.NKV * s.hs + h / group * s.hs + d;
            w.dqkv[r * t->ld + (i < c ? i : kv)] += dqkv[r * 3 * c + i];
        }
    return w;
}

/* Elements between tokens aren't written. */
static void fill_pads(const struct problem *t, double *dqkv)
{
    const float *before = numbers(t->n, 3, 1.0f);
    const size_t used = (t->s.NH + 2 * t->s.NKV) * t->s.hs;
    for (size_t i = 0; i < t->n; i++)
        if (i % t->ld >= used)
            dqkv[i] = (double)before[i];
}

static void check(const struct shape *shape, double p, float size)
{
    const struct problem t = problem_make(shape, p, size);
    const struct wanted want = formula(&t);
    fill_pads(&t, want.dqkv);
    struct results first = {0};
    EACH_ORDER(seed)
    {
        if (halves && seed > 1) /* enough, and each takes longer */
            break;
        const struct results got = run(&cuda, NULL, &t, &t.drop);
        if (seed == 0)
            first = got;
        assert_close(got.out, want.out, t.n_out, tolerance);
        assert_close(got.lse, want.lse, t.n_lse, tolerance);
        assert_close(got.dqkv, want.dqkv, t.n, tolerance);
        assert_bits(got.out, first.out, t.n_out);
        assert_bits(got.lse, first.lse, t.n_lse);
        assert_bits(got.dqkv, first.dqkv, t.n);
    }
    const struct results cpu = run_cpu(&t, &t.drop);
    assert_close_floats(first.out, cpu.out, t.n_out, tolerance);
    assert_close_floats(first.lse, cpu.lse, t.n_lse, tolerance);
    assert_close_floats(first.dqkv, cpu.dqkv, t.n, tolerance);
}

TEST_WITH(test_matches_formula, use_float32, NULL)
{
    for (size_t i = 0; i < SHAPES; i += halves ? 4 : 2)
        check(&shapes[i], 0.0, 1.0f);
}

TEST_WITH(test_heads_of_64, use_bf16, NULL)
{
    /* Both kinds of products share the code that the last shape tests. */
    for (size_t i = 0; i < (together ? 3 : SHAPES_64); i++)
        check(&shapes_64[i], 0.0, 1.0f);
    check(&shapes_64[1], 0.3, 1.0f);
}
TOGETHER(test_heads_of_64)

BOTH(test_matches_formula_with_dropout)
{
    for (size_t i = 0; i < (halves ? BF16_SHAPES : SHAPES); i++)
        check(halves ? &bf16_shapes[i] : &shapes[i], 0.3, 1.0f);
}

/* Rows of which one probability is nearly 1, and others vanish. */
BOTH(test_large_scores)
{
    const struct shape shape = {{1, 66, 1, 12, 0}, 0}, of_64 = {{1, 66, 1, 64, 0}, 0};
    check(&shape, 0.0, 6.0f);
    if (halves)
        check(&of_64, 0.0, 6.0f);
}
TOGETHER(test_large_scores)

/* Without log-sum-exps, and with a mask that drops nothing, out has the same bits. */
BOTH(test_options)
{
    const struct shape shape = {{1, 9, 2, 5, 1}, 0};
    const struct problem t = problem_make(&shape, 0.0, 1.0f);
    const float *want = forward(&t, host_floats(t.n_lse), NULL);
    assert_bits(forward(&t, NULL, &t.drop), want, t.n_out);
}

/* Backward takes an output that begins anywhere. */
BOTH(test_unaligned_output)
{
    enum { AT = 1 };
    const struct shape shape = {{1, 66, 1, 64, 0}, 0};
    const struct problem t = problem_make(&shape, 0.0, 1.0f);
    const struct results want = run(&cuda, NULL, &t, NULL);
    float *moved = host_floats(t.n_out + AT);
    memcpy(moved + AT, want.out, t.n_out * sizeof *moved);
    lks__act *dqkv = host_empty_acts(t.n);
    const lks__attention_in in = in_of(&t, host_acts(t.qkv, t.n)), g = in_of(&t, dqkv);
    const lks__attention_grads grads = {(void *)g.q, (void *)g.k, (void *)g.v, t.ld, t.ld};
    lks__cuda_attention_bwd(NULL, &t.s, &grads, host_acts(t.dout, t.n_out), &in,
                            host_act_at(host_acts(moved, t.n_out + AT), AT), want.lse, NULL);
    assert_close_floats(host_act_floats(dqkv, t.n), want.dqkv, t.n, tolerance);
}

#ifndef LKS_TEST_THREAD /* the same launches as above, with more blocks */
/* A head's bits don't depend on the other heads, on the batch, or on how rows are moved. */
static void check_same_bits_alone(size_t HS, size_t pad)
{
    enum { T = 65 };
    const struct shape alone = {{1, T, 1, HS, 1}, 0}, many = {{2, T, 2, HS, 2}, pad};
    const struct problem t = problem_make(&alone, 0.0, 1.0f);
    struct problem u = problem_make(&many, 0.0, 1.0f);
    for (size_t i = 0; i < T; i++) /* the last head of the last sequence */
        for (size_t d = 0; d < HS; d++) {
            for (size_t part = 0; part < 3; part++)
                u.qkv[(T + i) * u.ld + (2 * part + 1) * HS + d] = t.qkv[i * t.ld + part * HS + d];
            u.dout[((T + i) * 2 + 1) * HS + d] = t.dout[i * HS + d];
        }
    const struct results a = run(&cuda, NULL, &t, NULL), b = run(&cuda, NULL, &u, NULL);
    for (size_t i = 0; i < T; i++) {
        assert_bits(b.out + ((T + i) * 2 + 1) * HS, a.out + i * HS, HS);
        for (size_t part = 0; part < 3; part++)
            assert_bits(b.dqkv + (T + i) * u.ld + (2 * part + 1) * HS,
                        a.dqkv + i * t.ld + part * HS, HS);
    }
}

BOTH(test_same_bits_alone)
{
    check_same_bits_alone(8, 3);
    if (halves)
        check_same_bits_alone(64, 8); /* by the same kernels */
}
TOGETHER(test_same_bits_alone)
#endif

/* A token's bits don't depend on later tokens. A NaN in a key reaches all tokens from it on. */
static void check_causal(size_t HS)
{
    enum { T = 70, AT = 30 };
    const struct shape shape = {{1, T, 1, HS, 1}, 0};
    struct problem t = problem_make(&shape, 0.0, 1.0f);
    float *lse = host_floats(T);
    const float *want = forward(&t, lse, NULL);
    for (size_t i = AT * t.ld; i < t.n; i++)
        t.qkv[i] *= 100.0f;
    assert_bits(forward(&t, lse, NULL), want, AT * HS);
    t.qkv[AT * t.ld + HS] = NAN;
    const float *out = forward(&t, lse, NULL);
    assert_bits(out, want, AT * HS);
    for (size_t i = AT; i < T; i++)
        assert_true(isnan(lse[i]) && isnan(out[i * HS]));
}

BOTH(test_causal)
{
    check_causal(4);
    if (halves)
        check_causal(64);
}
TOGETHER(test_causal)

/* --- over kept keys and values ---------------------------------------------------------------- */

/* `T` tokens in passes of `step`, or of any number if that is 0; the cache has room for two more.
 */
static float *cached(const lks__layers *layers, const lks__exec *ex, const struct problem *t,
                     size_t step, lks__attention_cache *cache)
{
    const size_t T = t->s.T, B = t->s.B, c = t->s.NH * t->s.hs;
    const size_t n_cache = B * t->s.NKV * (T + 2) * t->s.hs;
    float *out = host_floats(t->n_out);
    *cache = (lks__attention_cache){host_acts(numbers(n_cache, 4, 1.0f), n_cache),
                                    host_acts(numbers(n_cache, 5, 1.0f), n_cache), T + 2, 0};
    for (size_t n; cache->at < T; cache->at += n) {
        n = step != 0 ? step : 1 + cache->at;
        n = n < T - cache->at ? n : T - cache->at;
        float *qkv = host_floats(B * n * t->ld);
        lks__act *part = host_empty_acts(B * n * c);
        for (size_t b = 0; b < B; b++)
            memcpy(qkv + b * n * t->ld, t->qkv + (b * T + cache->at) * t->ld,
                   n * t->ld * sizeof *qkv);
        const lks__attention_in in = in_of(t, host_acts(qkv, B * n * t->ld));
        lks__attention_shape shape = t->s;
        shape.T = n;
        layers->attention_cached_fwd(ex, &shape, part, cache, &in);
        for (size_t b = 0; b < B; b++)
            memcpy(out + (b * T + cache->at) * c, host_act_floats(part, B * n * c) + b * n * c,
                   n * c * sizeof *out);
    }
    return out;
}

static void check_cached(const struct shape *shape)
{
    const struct problem t = problem_make(shape, 0.0, 1.0f);
    const struct wanted want = formula(&t);
    const size_t n_cache = t.s.B * t.s.NKV * (t.s.T + 2) * t.s.hs;
    lks__attention_cache whole, other;
    const float *first = NULL, *keys = NULL, *values = NULL;
    EACH_ORDER(seed)
    {
        float *out = cached(&cuda, NULL, &t, t.s.T, &whole);
        assert_close(out, want.out, t.n_out, tolerance);
        if (seed == 0)
            first = out;
        assert_bits(out, first, t.n_out);
        keys = host_act_floats(whole.k, n_cache);
        values = host_act_floats(whole.v, n_cache);
#ifdef LKS_TEST_THREAD /* to which a pass is like another */
        if (t.s.T > 100)
            break;
#endif
        assert_bits(cached(&cuda, NULL, &t, seed, &other), first, t.n_out);
        assert_bits(host_act_floats(other.k, n_cache), keys, n_cache);
        assert_bits(host_act_floats(other.v, n_cache), values, n_cache);
    }
    host_halves(false);
    assert_close_floats(first, cached(&lks__layers_cpu, cpu_exec(), &t, t.s.T, &other), t.n_out,
                        tolerance);
    assert_bits(host_act_floats(other.k, n_cache), keys, n_cache);
    assert_bits(host_act_floats(other.v, n_cache), values, n_cache);
    host_halves(halves);
}

BOTH(test_cached)
{
    static const struct shape all[] = {
        {{1, 1, 1, 1, 0}, 0},    {{2, 7, 4, 6, 2}, 1},   {{1, 10, 2, 64, 1}, 0},
        {{1, 131, 1, 40, 1}, 0}, {{1, 5, 2, 130, 1}, 0}, {{1, 3, 1, 300, 0}, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_cached(&all[i]);
}
