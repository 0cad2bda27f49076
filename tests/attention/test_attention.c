/* Blocked attention against plain attention in double, at the level of LOCKSTEP_CPU. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/reference.h"
#include "base/number/checked.h"
#include "base/number/cpu.h"

enum { GUARD = 64 }; /* floats before and after a buffer that must not be written */

static lks__kernels kernels;

/* [GUARD][n][GUARD] floats that start 4 bytes after any greater alignment. All are NaN at first, so
 * an element that a call leaves out is found. */
struct buffer {
    float *all, *data;
    size_t n;
};

static const uint32_t canary = 0x7fc0abcd;

static struct buffer buffer_new(size_t n)
{
    struct buffer buf = {aligned_alloc(64, lks__round_up((n + 2 * GUARD) * 4 + 4, 64)), NULL, n};
    assert_non_null(buf.all);
    buf.data = buf.all + 1 + GUARD;
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        memcpy(buf.all + 1 + i, &canary, 4);
    return buf;
}

static void buffer_check(const struct buffer *buf)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_memory_equal(buf->all + 1 + i, &canary, 4);
        assert_memory_equal(buf->data + buf->n + i, &canary, 4);
    }
}

static void buffer_free(struct buffer *buf)
{
    buffer_check(buf);
    free(buf->all);
}

/* Sums of twelve uniform values: close enough to normal(0, 1). */
static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double s = -6;
        for (uint32_t r = 0; r < 3; r++) {
            uint32_t counter[4] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), r, 7}, words[4];
            lks__philox4x32(lks__philox_key_of(seed), counter, words);
            for (int l = 0; l < 4; l++)
                s += words[l] * 0x1p-32;
        }
        x[i] = (float)s;
    }
}

static double *widened(const float *x, size_t n)
{
    double *y = lks_test_malloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i];
    return y;
}

static double *doubles(size_t n)
{
    return lks_test_malloc(n * sizeof(double));
}

static lks__dropout dropout_of(double p)
{
    return (lks__dropout){.key = lks__philox_key_of(UINT64_C(0x123456789abcdef)),
                          .step = 11,
                          .vm = 3 << 16 | 2,
                          .site = 25,
                          .threshold = (uint32_t)(p * 4294967296.0),
                          .scale = (float)(1 / (1 - p))};
}

/* One forward and backward with all its tensors. */
struct run {
    lks__attention_shape shape;
    struct buffer qkv, dout, out, lse, dqkv;
};

static struct run run_new(size_t B, size_t T, size_t NH, size_t hs)
{
    struct run r = {.shape = {B, T, NH, hs, 0}};
    const size_t c = NH * hs;
    r.qkv = buffer_new(B * T * 3 * c);
    r.dqkv = buffer_new(B * T * 3 * c);
    r.dout = buffer_new(B * T * c);
    r.out = buffer_new(B * T * c);
    r.lse = buffer_new(B * NH * T);
    fill(r.qkv.data, r.qkv.n, 1);
    fill(r.dout.data, r.dout.n, 2);
    return r;
}

static void run_free(struct run *r)
{
    buffer_free(&r->qkv);
    buffer_free(&r->dqkv);
    buffer_free(&r->dout);
    buffer_free(&r->out);
    buffer_free(&r->lse);
}

static bool bf16; /* products of operands rounded to bfloat16 */

static void run_go(struct run *r, int n_threads, const lks__dropout *drop)
{
    lks__exec ex = {.k = &kernels, .bf16 = bf16};
    assert_ok(lks__attention_check(&r->shape));
    assert_ok(
        lks__pool_open(n_threads, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    for (int t = 0; t < n_threads; t++) /* results must not depend on old contents of scratch */
        memset(lks__pool_scratch(ex.pool, t), 0xff, LKS__EXEC_SCRATCH_BYTES);
    const lks__attention_in in =
        lks__attention_packed(&r->shape, lks__acts(r->qkv.data), sizeof(float));
    const lks__attention_grads grads =
        lks__attention_packed_grads(&r->shape, lks__acts(r->dqkv.data), sizeof(float));
    lks__attention_fwd(&ex, &r->shape, lks__acts(r->out.data), r->lse.data, &in, drop);
    lks__attention_bwd(&ex, &r->shape, &grads, lks__acts(r->dout.data), &in, lks__acts(r->out.data),
                       r->lse.data, drop);
    lks__pool_close(ex.pool);
}

/* Greatest |got - want|; NaN if any result is NaN. */
static double distance(const float *got, const double *want, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - want[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

static double greatest(const double *x, size_t n)
{
    double m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, fabs(x[i]));
    return m;
}

static void expect_near(const char *what, const struct run *r, const struct buffer *got,
                        const double *want, double tolerance)
{
    const double d = distance(got->data, want, got->n);
    tolerance *= fmax(1, greatest(want, got->n));
    if (!(d <= tolerance))
        fail_msg("%s of B=%zu T=%zu NH=%zu hs=%zu is %g off, allowed %g", what, r->shape.B,
                 r->shape.T, r->shape.NH, r->shape.hs, d, tolerance);
}

/* `tolerance` is relative to the greatest value of each tensor, or absolute if that is < 1. */
static void compare(const struct run *r, const lks__dropout *drop, double tolerance)
{
    const size_t T = r->shape.T;
    double *qkv = widened(r->qkv.data, r->qkv.n), *dout = widened(r->dout.data, r->dout.n);
    double *out = doubles(r->out.n), *lse = doubles(r->lse.n), *dqkv = doubles(r->dqkv.n);
    double *mask = NULL;
    if (drop != NULL) {
        mask = doubles(r->lse.n * T);
        reference_mask(&r->shape, mask, drop);
    }
    reference_fwd(&r->shape, out, lse, qkv, mask);
    reference_bwd(&r->shape, dqkv, dout, qkv, mask);
    expect_near("out", r, &r->out, out, tolerance);
    expect_near("lse", r, &r->lse, lse, tolerance);
    expect_near("dqkv", r, &r->dqkv, dqkv, tolerance);
    lks_test_free(mask, dqkv, lse, out, dout, qkv);
}

/* Each score is a sum of hs products and each output one of up to T. With values near 1, errors
 * grow with the square root of either, and exp() multiplies by the scores' own size (up to ~5).
 * Rounding to bfloat16 happens once for each operand, so it doesn't grow along a sum. */
static double tolerance_of(const lks__attention_shape *s)
{
    return bf16 ? 4 * 0x1p-8 : FLT_EPSILON * (sqrt((double)s->hs) + sqrt((double)s->T) + 4);
}

static const lks__attention_shape shapes[] = {
    {1, 1, 1, 1, 0},    {2, 2, 3, 3, 0},     {3, 31, 2, 17, 0},  {2, 32, 3, 32, 0},
    {1, 33, 5, 3, 0},   {2, 64, 2, 32, 0},   {1, 65, 3, 17, 0},  {1, 127, 1, 64, 0},
    {1, 128, 2, 1, 0},  {1, 200, 2, 128, 0}, {1, 256, 2, 64, 0}, {1, 257, 1, 9, 0},
    {2, 300, 1, 17, 0}, {1, 513, 2, 32, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void matches_reference(const lks__dropout *drop)
{
    for (int i = 0; i < N_SHAPES; i++) {
        struct run r = run_new(shapes[i].B, shapes[i].T, shapes[i].NH, shapes[i].hs);
        struct buffer qkv = buffer_new(r.qkv.n), dout = buffer_new(r.dout.n);
        memcpy(qkv.data, r.qkv.data, qkv.n * sizeof(float));
        memcpy(dout.data, r.dout.data, dout.n * sizeof(float));
        run_go(&r, 1, drop);
        compare(&r, drop, tolerance_of(&r.shape));
        assert_memory_equal(qkv.data, r.qkv.data, qkv.n * sizeof(float));
        assert_memory_equal(dout.data, r.dout.data, dout.n * sizeof(float));
        buffer_free(&qkv);
        buffer_free(&dout);
        run_free(&r);
    }
}

TEST(test_matches_reference)
{
    matches_reference(NULL);
}

TEST(test_matches_reference_with_dropout)
{
    const lks__dropout light = dropout_of(0.2), heavy = dropout_of(0.75);
    matches_reference(&light);
    matches_reference(&heavy);
}

/* Check the plain backward: central differences of sum(out * dout) in double. */
TEST(test_reference_gradient)
{
    const lks__attention_shape shape = {2, 5, 2, 3, 0};
    const size_t n_out = 2 * 5 * 6, n_qkv = 3 * n_out, n_mask = 2 * 2 * 5 * 5;
    const lks__dropout drop = dropout_of(0.3);
    float x[180], w[60];
    assert_true(n_qkv == 180 && n_out == 60);
    fill(x, n_qkv, 3);
    fill(w, n_out, 4);
    double *qkv = widened(x, n_qkv), *dout = widened(w, n_out), *dqkv = doubles(n_qkv);
    double *out = doubles(n_out), *lse = doubles(n_mask), *mask = doubles(n_mask);
    reference_mask(&shape, mask, &drop);
    for (int dropped = 0; dropped < 2; dropped++) {
        const double *m = dropped ? mask : NULL;
        reference_bwd(&shape, dqkv, dout, qkv, m);
        for (size_t e = 0; e < n_qkv; e++) {
            const double step = 1e-5, at = qkv[e];
            double loss[2] = {0, 0};
            for (int side = 0; side < 2; side++) {
                qkv[e] = side ? at + step : at - step;
                reference_fwd(&shape, out, lse, qkv, m);
                for (size_t i = 0; i < n_out; i++)
                    loss[side] += out[i] * dout[i];
            }
            qkv[e] = at;
            const double slope = (loss[1] - loss[0]) / (2 * step);
            if (!(fabs(slope - dqkv[e]) <= 1e-6 * fmax(1, fabs(slope))))
                fail_msg("gradient %zu is %.9g, its finite difference %.9g", e, dqkv[e], slope);
        }
    }
    lks_test_free(mask, lse, out, dqkv, dout, qkv);
}

/* Dropout drops about p of the probabilities and scales the others: if every v is 1, an output is
 * the sum of a row's scaled probabilities, 1 on average. */
TEST(test_dropout_keeps_the_mean)
{
    const lks__dropout drop = dropout_of(0.4);
    struct run r = run_new(4, 200, 3, 1);
    double mean = 0;
    for (size_t t = 0; t < 4 * 200; t++)
        for (size_t h = 0; h < 3; h++)
            r.qkv.data[t * 9 + 6 + h] = 1;
    run_go(&r, 1, &drop);
    for (size_t i = 0; i < r.out.n; i++)
        mean += r.out.data[i];
    mean /= (double)r.out.n;
    /* 2400 rows, most of them means over dozens of columns: 0.02 is at least five standard
     * deviations. */
    assert_true(fabs(mean - 1) < 0.02);
    run_free(&r);
}

static void expect_same(const struct buffer *a, const struct buffer *b)
{
    assert_memory_equal(a->data, b->data, a->n * sizeof(float));
}

static void same_bits_for_any_threads(void)
{
    static const lks__attention_shape odd[] = {
        {3, 37, 3, 5, 0}, {1, 257, 5, 24, 0}, {2, 520, 1, 33, 0}};
    const lks__dropout drop = dropout_of(0.1);
    for (int i = 0; i < 6; i++) {
        const lks__attention_shape *s = &odd[i / 2];
        const lks__dropout *d = i % 2 ? &drop : NULL;
        struct run one = run_new(s->B, s->T, s->NH, s->hs);
        run_go(&one, 1, d);
        for (int n_threads = 2; n_threads <= 3; n_threads++) {
            struct run more = run_new(s->B, s->T, s->NH, s->hs);
            run_go(&more, n_threads, d);
            expect_same(&one.out, &more.out);
            expect_same(&one.lse, &more.lse);
            expect_same(&one.dqkv, &more.dqkv);
            run_free(&more);
        }
        run_free(&one);
    }
}

TEST(test_same_bits_for_any_threads)
{
    same_bits_for_any_threads();
}

/* A sequence's results don't depend on the other sequences. */
TEST(test_same_bits_for_any_batch)
{
    struct run one = run_new(1, 300, 2, 20), more = run_new(3, 300, 2, 20);
    run_go(&one, 1, NULL);
    run_go(&more, 1, NULL);
    assert_memory_equal(one.out.data, more.out.data, one.out.n * sizeof(float));
    assert_memory_equal(one.lse.data, more.lse.data, one.lse.n * sizeof(float));
    assert_memory_equal(one.dqkv.data, more.dqkv.data, one.dqkv.n * sizeof(float));
    run_free(&one);
    run_free(&more);
}

/* Grouped queries in separate buffers, against plain attention on a packed copy that repeats each
 * key/value head for each of its query heads: forward gives the same values, and backward the sum
 * over the copies' gradients. */
TEST(test_grouped_queries)
{
    static const lks__attention_shape grouped[] = {
        {2, 5, 4, 2, 2}, {1, 70, 6, 6, 3}, {2, 257, 4, 16, 1}, {1, 300, 8, 8, 4}, {2, 33, 3, 4, 3},
    };
    const lks__dropout drop = dropout_of(0.2);
    for (int i = 0; i < 10; i++) {
        const lks__attention_shape *s = &grouped[i / 2];
        const lks__dropout *d = i % 2 ? &drop : NULL;
        const size_t c = s->NH * s->hs, kv = s->NKV * s->hs, rows = s->B * s->T, pad = 3;
        struct run plain = run_new(s->B, s->T, s->NH, s->hs);
        struct buffer q = buffer_new(rows * (c + pad)), k = buffer_new(rows * (kv + pad)),
                      v = buffer_new(rows * (kv + pad));
        for (size_t t = 0; t < rows; t++) {
            float *packed = plain.qkv.data + t * 3 * c;
            memcpy(q.data + t * (c + pad), packed, c * sizeof(float));
            for (size_t e = 0; e < c; e++) { /* each head is a copy of the first of its group */
                size_t of = e / s->hs / (s->NH / s->NKV) * s->hs + e % s->hs;
                size_t from = of / s->hs * (s->NH / s->NKV) * s->hs + e % s->hs;
                packed[c + e] = packed[c + from];
                packed[2 * c + e] = packed[2 * c + from];
                k.data[t * (kv + pad) + of] = packed[c + from];
                v.data[t * (kv + pad) + of] = packed[2 * c + from];
            }
        }
        run_go(&plain, 1, d);

        struct buffer dkv[3][2]; /* by number of threads */
        struct buffer dq[3], out[3], lse = buffer_new(plain.lse.n);
        for (int n = 0; n < 3; n++) {
            lks__exec ex = {.k = &kernels};
            dq[n] = buffer_new(rows * c);
            out[n] = buffer_new(rows * c);
            dkv[n][0] = buffer_new(rows * kv);
            dkv[n][1] = buffer_new(rows * kv);
            const lks__attention_in in = {lks__acts(q.data), lks__acts(k.data), lks__acts(v.data),
                                          c + pad, kv + pad};
            const lks__attention_grads grads = {lks__acts(dq[n].data), lks__acts(dkv[n][0].data),
                                                lks__acts(dkv[n][1].data), c, kv};
            assert_ok(lks__attention_check(s));
            assert_ok(
                lks__pool_open(n + 1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
            lks__attention_fwd(&ex, s, lks__acts(out[n].data), lse.data, &in, d);
            lks__attention_bwd(&ex, s, &grads, lks__acts(plain.dout.data), &in,
                               lks__acts(out[n].data), lse.data, d);
            lks__pool_close(ex.pool);
            expect_same(&dq[0], &dq[n]);
            expect_same(&out[0], &out[n]);
            expect_same(&dkv[0][0], &dkv[n][0]);
            expect_same(&dkv[0][1], &dkv[n][1]);
        }

        double *want_q = doubles(rows * c), *want[2] = {doubles(rows * kv), doubles(rows * kv)};
        double *want_out = widened(plain.out.data, rows * c);
        memset(want[0], 0, rows * kv * sizeof(double));
        memset(want[1], 0, rows * kv * sizeof(double));
        for (size_t t = 0; t < rows; t++)
            for (size_t e = 0; e < c; e++) {
                const float *packed = plain.dqkv.data + t * 3 * c;
                size_t of = e / s->hs / (s->NH / s->NKV) * s->hs + e % s->hs;
                want_q[t * c + e] = packed[e];
                want[0][t * kv + of] += packed[c + e];
                want[1][t * kv + of] += packed[2 * c + e];
            }
        const double tolerance = 2 * tolerance_of(s) * (double)(s->NH / s->NKV);
        expect_near("grouped out", &plain, &out[0], want_out, tolerance);
        expect_near("grouped dq", &plain, &dq[0], want_q, tolerance);
        expect_near("grouped dk", &plain, &dkv[0][0], want[0], tolerance);
        expect_near("grouped dv", &plain, &dkv[0][1], want[1], tolerance);
        lks_test_free(want_q, want[0], want[1], want_out);
        for (int n = 0; n < 3; n++) {
            buffer_free(&dq[n]);
            buffer_free(&out[n]);
            buffer_free(&dkv[n][0]);
            buffer_free(&dkv[n][1]);
        }
        buffer_free(&q);
        buffer_free(&k);
        buffer_free(&v);
        buffer_free(&lse);
        run_free(&plain);
    }
}

TEST(test_no_dropout_is_no_dropout)
{
    const lks__dropout none = dropout_of(0);
    struct run a = run_new(2, 70, 2, 8), b = run_new(2, 70, 2, 8);
    run_go(&a, 1, NULL);
    run_go(&b, 1, &none);
    expect_same(&a.out, &b.out);
    expect_same(&a.dqkv, &b.dqkv);
    run_free(&a);
    run_free(&b);
}

TEST(test_lse_may_be_null)
{
    struct run a = run_new(2, 70, 2, 8), b = run_new(2, 70, 2, 8);
    lks__exec ex = {.k = &kernels};
    run_go(&a, 1, NULL);
    assert_ok(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    const lks__attention_in in =
        lks__attention_packed(&b.shape, lks__acts(b.qkv.data), sizeof(float));
    lks__attention_fwd(&ex, &b.shape, lks__acts(b.out.data), NULL, &in, NULL);
    lks__pool_close(ex.pool);
    expect_same(&a.out, &b.out);
    run_free(&a);
    run_free(&b);
}

/* A later token changes no bit of a row, and gets no gradient from it. */
TEST(test_causal)
{
    static const size_t lengths[] = {50, 300};
    for (int i = 0; i < 2; i++) {
        const size_t T = lengths[i], NH = 2, hs = 12, c = NH * hs, cut = T * 2 / 3;
        struct run a = run_new(1, T, NH, hs), b = run_new(1, T, NH, hs);
        fill(b.qkv.data + cut * 3 * c, (T - cut) * 3 * c, 99);
        memset(a.dout.data + cut * c, 0, (T - cut) * c * sizeof(float));
        memset(b.dout.data + cut * c, 0, (T - cut) * c * sizeof(float));
        run_go(&a, 1, NULL);
        run_go(&b, 1, NULL);
        assert_memory_equal(a.out.data, b.out.data, cut * c * sizeof(float));
        assert_memory_not_equal(a.out.data + cut * c, b.out.data + cut * c, c * sizeof(float));
        for (size_t e = cut * 3 * c; e < T * 3 * c; e++)
            assert_true(a.dqkv.data[e] == 0);
        assert_memory_equal(a.dqkv.data, b.dqkv.data, cut * 3 * c * sizeof(float));
        run_free(&a);
        run_free(&b);
    }
}

/* Scores of about 10^5. With small whole numbers times 2^n and hs = 16 each score is exact in
 * float, so out stays as accurate as usual. But backward has lse only in float's precision, and a
 * probability has that relative error. */
TEST(test_large_scores)
{
    struct run r = run_new(1, 300, 2, 16);
    for (size_t t = 0; t < 300; t++)
        for (size_t e = 0; e < 64; e++) {
            float *x = &r.qkv.data[t * 96 + e];
            *x = 64 * rintf(*x * 2);
        }
    run_go(&r, 1, NULL);
    double *qkv = widened(r.qkv.data, r.qkv.n), *out = doubles(r.out.n);
    double *lse = widened(r.lse.data, r.lse.n);
    const double greatest_lse = greatest(lse, r.lse.n);
    assert_true(greatest_lse > 5e4);
    compare(&r, NULL, tolerance_of(&r.shape) + greatest_lse * FLT_EPSILON);
    /* Forward alone, with a tight tolerance: */
    reference_fwd(&r.shape, out, lse, qkv, NULL);
    expect_near("out", &r, &r.out, out, tolerance_of(&r.shape));
    lks_test_free(lse, out, qkv);
    run_free(&r);
}

/* Near the end of float's range nothing overflows: the greatest score of a row takes all weight,
 * and an output is one of the values. */
TEST(test_huge_scores)
{
    struct run r = run_new(1, 300, 1, 4);
    for (size_t t = 0; t < 300; t++)
        for (size_t e = 0; e < 8; e++)
            r.qkv.data[t * 12 + e] *= 1e17f;
    run_go(&r, 1, NULL);
    for (size_t i = 0; i < r.out.n; i++)
        assert_true(fabsf(r.out.data[i]) <= 6.001f);
    for (size_t i = 0; i < r.lse.n; i++)
        assert_true(isfinite(r.lse.data[i]));
    for (size_t i = 0; i < 4; i++) /* the first row sees only itself */
        assert_true(r.out.data[i] == r.qkv.data[8 + i]);
    for (size_t i = 0; i < r.dqkv.n; i++)
        assert_true(isfinite(r.dqkv.data[i]));
    run_free(&r);
}

/* Equal scores give plain means: tests the division by the sum of weights. */
TEST(test_equal_scores_give_means)
{
    struct run r = run_new(1, 300, 1, 2);
    for (size_t t = 0; t < 300; t++) {
        float *x = r.qkv.data + t * 6;
        x[0] = x[1] = 0;
        x[4] = (float)t;
        x[5] = 1;
    }
    run_go(&r, 1, NULL);
    for (size_t t = 0; t < 300; t++) {
        assert_true(fabs((double)r.out.data[2 * t] - (double)t / 2) <= 1e-6 * (double)(t + 1));
        assert_true(fabs((double)r.out.data[2 * t + 1] - 1) <= 1e-6);
        assert_true(fabs((double)r.lse.data[t] - log((double)t + 1)) <= 1e-6);
    }
    run_free(&r);
}

/* Attention over kept keys and values: two tokens, in one pass and in two. The second one's score
 * of itself is -x * x, of the first one 0. In bfloat16 x becomes 1, and the weight exp(-1) becomes
 * 0.3671875 where it multiplies the value, not in the sum of weights. */
TEST(test_cached)
{
    const float x = 1 + 0x1p-9f, q[2] = {0, x}, k[2] = {0, -x}, v[2] = {0, x};
    for (int half = 0; half < 2; half++)
        for (size_t step = 1; step <= 2; step++) {
            float kept[2][2] = {{NAN, NAN}, {NAN, NAN}}, out[2] = {NAN, NAN};
            lks__exec ex = {.k = &kernels, .bf16 = half};
            assert_ok(
                lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
            for (size_t at = 0; at < 2; at += step) {
                const lks__attention_shape shape = {1, step, 1, 1, 0};
                const lks__attention_cache cache = {lks__acts(kept[0]), lks__acts(kept[1]), 2, at};
                const lks__attention_in in = {lks__acts(q + at), lks__acts(k + at),
                                              lks__acts(v + at), 1, 1};
                lks__attention_cached_fwd(&ex, &shape, lks__acts(out + at), &cache, &in);
            }
            lks__pool_close(ex.pool);
            const double weight = half ? exp(-1) : exp(-(double)x * (double)x);
            const double want = half ? 0.3671875 : weight * (double)x;
            assert_true(out[0] == 0);
            assert_near(out[1], want / (1 + weight), 1e-6);
        }
}

TEST(test_check)
{
    static const lks__attention_shape good[] = {{1, 1, 1, 1, 0},
                                                {12, 64, 4, 32, 0},
                                                {64, 1024, 12, 64, 0},
                                                {16, 32768, 1, 64, 0},
                                                {1, 131072, 1, 64, 0}};
    static const lks__attention_shape bad[] = {
        {0, 64, 4, 32, 0},
        {12, 0, 4, 32, 0},
        {12, 64, 0, 32, 0},
        {12, 64, 4, 0, 0},
        {1, LKS__EXEC_SCRATCH_BYTES / 4, 1, 32, 0},
        {1, SIZE_MAX, 1, 32, 0},
        {17, 32768, 1, 64, 0},
        {SIZE_MAX, 2, SIZE_MAX, 2, 0},
        {1, 2, 2, SIZE_MAX / 16, 0},
        {1, 64, 4, 32, 3},
        {1, 2, 1, (size_t)1 << 59, 0}, /* more bytes than PTRDIFF_MAX, but no more than SIZE_MAX */
        {2, 1, 1, (size_t)1 << 59, 0},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_ok(lks__attention_check(&good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(LKS_ERR_CONFIG, lks__attention_check(&bad[i]), "attention");
}

TEST(test_bf16)
{
    bf16 = true;
    matches_reference(NULL);
    same_bits_for_any_threads();
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(NULL, NULL);
}
