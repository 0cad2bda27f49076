/* tests/kernels/test_level.c - every kernel of one level (TEST_LEVEL) against the scalar reference:
 * odd sizes, unaligned starts, guarded buffers, infinities and NaN.
 *
 * Tolerances: eps = 2^-24 is one rounding. A result that is one formula of its element may differ
 * by a few roundings of its largest term. A sum of n terms may differ by a few roundings for each
 * term, and pairwise or blocked sums stay far below that: (8 + sqrt n) * eps * sum of |terms|. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "kernels/guard.h"
#include "kernels/level.h"
#include "kernels/reference/reference.h"

static const double eps = 0x1p-24;
lks__kernels lvl;
const lks__kernels ref = {
#define X(name, type) .name = lks__##name##_ref,
    LKS__REFERENCE_MAP(X)
#undef X
};

static const size_t sizes[] = {1,  2,  3,  5,  7,  8,   9,   15,  16,  17,  24,  31,
                               32, 33, 63, 64, 65, 127, 129, 257, 384, 387, 1000};
enum { N_SIZES = sizeof sizes / sizeof sizes[0], MAX_N = 1000, MAX_ROWS = 19 };
static float in[6][MAX_ROWS * MAX_N], want[4][MAX_ROWS * MAX_N];

static double sum_tol(size_t n)
{
    return (8 + sqrt((double)n)) * eps;
}

/* got[n] within tol * (scale + |want|) of want[n]; NaN and infinities must agree exactly. */
static void check_close(const char *what, const float *got, const float *want_x, size_t n,
                        double tol, double scale)
{
    for (size_t i = 0; i < n; i++) {
        double w = want_x[i], g = got[i];
        if (isnan(w) && isnan(g))
            continue;
        if (isfinite(w) ? !(fabs(g - w) <= tol * (scale + fabs(w))) : g != w)
            fail_msg("%s: element %zu of %zu is %.9g, should be %.9g (off by %.2g, allowed %.2g)",
                     what, i, n, g, w, fabs(g - w), tol * (scale + fabs(w)));
    }
}

/* For each size and place of the buffers. */
#define FOR_EACH(n, place)                                                                         \
    for (size_t s_ = 0, n; s_ < N_SIZES && (n = sizes[s_], 1); s_++)                               \
        for (int place = 0; place < GUARD_PLACES; place++)

static void copy(float *to, const float *from, size_t n)
{
    memcpy(to, from, n * sizeof *to);
}

TEST(test_layernorm_fwd)
{
    const size_t rows = 3;
    FOR_EACH(n, place)
    {
        for (int bias = 0; bias < 2; bias++) {
            for (size_t i = 0; i < rows * n; i++)
                in[3][i] = in[0][i] * 3 + 0.7f; /* a mean far from 0 */
            const float *x = guard_copy(in[3], rows * n, place);
            const float *gain = guard_copy(in[1], n, place);
            const float *b = bias ? guard_copy(in[2], n, place) : NULL;
            float *y = guard_copy(in[4], rows * n, place);
            float *mean = guard_copy(in[4], rows, place), *rstd = guard_copy(in[4], rows, place);

            ref.layernorm_fwd(want[0], want[1], want[2], in[3], in[1], bias ? in[2] : NULL, rows,
                              n);
            lvl.layernorm_fwd(y, mean, rstd, x, gain, b, rows, n);
            /* n == 1: the variance is only rounding error, and rstd enlarges it 300 times */
            double tol = sum_tol(n) * (n < 4 ? 400 : 4);
            check_close("layernorm_fwd y", y, want[0], rows * n, tol, 1);
            check_close("layernorm_fwd mean", mean, want[1], rows, sum_tol(n), 4);
            check_close("layernorm_fwd rstd", rstd, want[2], rows, tol, 0);
            lvl.layernorm_fwd(y, NULL, NULL, x, gain, b, rows, n);
            check_close("layernorm_fwd without statistics", y, want[0], rows * n, tol, 1);
            guard_release();
        }
    }
}

TEST(test_layernorm_bwd)
{
    const size_t rows = 3;
    FOR_EACH(n, place)
    {
        for (int bias = 0; bias < 2; bias++) {
            /* any statistics will do: backward is a formula of them */
            const float mean[] = {0.1f, -0.3f, 0}, rstd[] = {1.7f, 0.6f, 2.3f};
            float *dx = guard_copy(in[3], rows * n, place);
            float *dgain = guard_copy(in[4], n, place);
            float *dbias = bias ? guard_copy(in[5], n, place) : NULL;
            copy(want[0], in[3], rows * n);
            copy(want[1], in[4], n);
            copy(want[2], in[5], n);

            ref.layernorm_bwd(want[0], want[1], bias ? want[2] : NULL, in[1], in[0], in[2], mean,
                              rstd, rows, n);
            lvl.layernorm_bwd(dx, dgain, dbias, guard_copy(in[1], rows * n, place),
                              guard_copy(in[0], rows * n, place), guard_copy(in[2], n, place),
                              guard_copy(mean, rows, place), guard_copy(rstd, rows, place), rows,
                              n);
            check_close("layernorm_bwd dx", dx, want[0], rows * n, sum_tol(n), 8);
            check_close("layernorm_bwd dgain", dgain, want[1], n, sum_tol(rows), 8);
            if (bias)
                check_close("layernorm_bwd dbias", dbias, want[2], n, sum_tol(rows), 4);
            guard_release();
        }
    }
}

/* From the flat middle into both tails, and values at which exp overflows or underflows. */
static void gelu_inputs(float *x, size_t n)
{
    const float special[] = {0,      -0.0f,  1e-30f, -1e-8f, 5.6f,  -5.6f, 9,
                             -13.4f, -14.1f, 20,     -20,    3e19f, -3e19f};
    for (size_t i = 0; i < n; i++)
        x[i] = i % 3 == 2 ? special[i % (sizeof special / sizeof special[0])] : in[0][i] * 6;
}

TEST(test_gelu)
{
    static const struct {
        const char *name;
        size_t fwd, bwd; /* offset in the table */
    } forms[] = {
        {"gelu_erf", offsetof(lks__kernels, gelu_erf_fwd), offsetof(lks__kernels, gelu_erf_bwd)},
        {"gelu_tanh", offsetof(lks__kernels, gelu_tanh_fwd), offsetof(lks__kernels, gelu_tanh_bwd)},
    };
    FOR_EACH(n, place)
    {
        gelu_inputs(in[3], n);
        for (int f = 0; f < 2; f++) {
#define ENTRY(table, type, field) (*(type **)(void *)((char *)&(table) + forms[f].field))
            float *x = guard_copy(in[3], n, place), *y = guard_copy(in[1], n, place);
            float *dy = guard_copy(in[2], n, place);

            ENTRY(ref, lks__activate_fwd_fn, fwd)(want[0], in[3], n);
            ENTRY(lvl, lks__activate_fwd_fn, fwd)(y, x, n);
            check_close(forms[f].name, y, want[0], n, 6 * eps, 1);
            ENTRY(ref, lks__activate_bwd_fn, bwd)(want[1], in[2], in[3], n);
            ENTRY(lvl, lks__activate_bwd_fn, bwd)(y, dy, x, n);
            check_close(forms[f].name, y, want[1], n, 8 * eps, 1);
            /* in place */
            ENTRY(lvl, lks__activate_bwd_fn, bwd)(dy, dy, x, n);
            assert_memory_equal(dy, y, n * sizeof *y);
            ENTRY(lvl, lks__activate_fwd_fn, fwd)(x, x, n);
            check_close(forms[f].name, x, want[0], n, 6 * eps, 1);
            guard_release();

            const float odd[] = {NAN, INFINITY, 1}, one[] = {1, 1, NAN};
            ENTRY(lvl, lks__activate_fwd_fn, fwd)(want[0], odd, 3);
            assert_true(isnan(want[0][0]) && want[0][1] == INFINITY && want[0][2] > 0.8f);
            ENTRY(lvl, lks__activate_bwd_fn, bwd)(want[0], one, odd, 3);
            assert_true(isnan(want[0][0]) && isnan(want[0][2]));
#undef ENTRY
        }
    }
}

TEST(test_rmsnorm)
{
    const size_t rows = 3;
    const float sizes_of_x[] = {1, 1e-3f, 0}; /* rows of small squares show eps */
    const float rms[] = {0.7f, 1.9f, 0.01f}; /* any values will do: backward is a formula of them */
    FOR_EACH(n, place)
    {
        for (size_t i = 0; i < rows * n; i++)
            in[3][i] = in[0][i] * sizes_of_x[i / n];
        const float *x = guard_copy(in[3], rows * n, place);
        float *y = guard_copy(in[4], rows * n, place), *r = guard_copy(in[4], rows, place);
        ref.rmsnorm_fwd(want[0], want[1], in[3], rows, n);
        lvl.rmsnorm_fwd(y, r, x, rows, n);
        check_close("rmsnorm_fwd y", y, want[0], rows * n, sum_tol(n), 0);
        check_close("rmsnorm_fwd rms", r, want[1], rows, sum_tol(n), 0);
        lvl.rmsnorm_fwd(y, NULL, x, rows, n);
        check_close("rmsnorm_fwd without rms", y, want[0], rows * n, sum_tol(n), 0);

        float *dx = guard_copy(in[4], rows * n, place);
        copy(want[0], in[4], rows * n);
        ref.rmsnorm_bwd(want[0], in[1], in[3], rms, rows, n);
        lvl.rmsnorm_bwd(dx, guard_copy(in[1], rows * n, place), x, guard_copy(rms, rows, place),
                        rows, n);
        check_close("rmsnorm_bwd dx", dx, want[0], rows * n, sum_tol(n), 8);
        guard_release();
    }
}

TEST(test_rope)
{
    const size_t heads = 3;
    FOR_EACH(half, place)
    {
        const size_t hs = 2 * half, n = heads * hs;
        if (half == MAX_N)
            continue;
        const float *x = guard_copy(in[0], n, place), *gain = guard_copy(in[3], heads, place);
        const float *cosine = guard_copy(in[1], half, place),
                    *sine = guard_copy(in[2], half, place);
        for (int with_gain = 0; with_gain < 2; with_gain++) {
            const float *g = with_gain ? gain : NULL;
            float *y = guard_copy(in[4], n, place), *rms = guard_copy(in[4], heads, place);
            ref.rope_fwd(want[0], want[1], in[0], in[1], in[2], with_gain ? in[3] : NULL, heads,
                         hs);
            lvl.rope_fwd(y, rms, x, cosine, sine, g, heads, hs);
            check_close("rope_fwd y", y, want[0], n, sum_tol(hs), 2);
            check_close("rope_fwd rms", rms, want[1], heads, sum_tol(hs), 0);

            float *dy = guard_copy(in[5], n, place), *dx = guard_copy(in[4], n, place);
            float *dgain = guard_copy(in[4], heads, place);
            copy(want[2], in[4], heads);
            ref.rope_bwd(want[0], with_gain ? want[2] : NULL, in[5], in[0], want[1], in[1], in[2],
                         with_gain ? in[3] : NULL, heads, hs);
            lvl.rope_bwd(dx, with_gain ? dgain : NULL, dy, x, rms, cosine, sine, g, heads, hs);
            /* a head of nearly 0 has a steep norm */
            double steep = 0;
            for (size_t h = 0; h < heads; h++)
                steep = fmax(steep, want[1][h]);
            check_close("rope_bwd dx", dx, want[0], n, 4 * sum_tol(hs), 2 * steep);
            check_close("rope_bwd dgain", dgain, want[2], heads, 4 * sum_tol(hs), (double)hs);
            lvl.rope_bwd(dy, NULL, dy, x, rms, cosine, sine, g, heads, hs);
            assert_memory_equal(dy, dx, n * sizeof *dx);
        }
        guard_release();
    }
}

/* Ties in both directions, the largest numbers, the smallest, infinities, NaNs with few bits. */
TEST(test_round_bf16)
{
    enum { N = 1000 };
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    uint32_t bits[N];
    for (uint32_t high = 0; high < 0x10000;) {
        for (size_t i = 0; i < N; i++)
            bits[i] = (high + (uint32_t)(i / 6)) << 16 | low[i % 6];
        memcpy(in[3], bits, sizeof bits);
        ref.round_bf16(want[0], in[3], N);
        lvl.round_bf16(want[1], in[3], N);
        assert_memory_equal(want[1], want[0], N * sizeof want[0][0]);
        high += N / 6;
    }
    FOR_EACH(n, place)
    {
        float *x = guard_copy(in[0], n, place), *y = guard_copy(in[1], n, place);
        ref.round_bf16(want[0], in[0], n);
        lvl.round_bf16(y, x, n);
        assert_memory_equal(y, want[0], n * sizeof *y);
        lvl.round_bf16(x, x, n);
        assert_memory_equal(x, want[0], n * sizeof *x);
        guard_release();
    }
}

TEST(test_relu2)
{
    FOR_EACH(n, place)
    {
        copy(in[3], in[0], n);
        in[3][n / 2] = NAN;
        in[3][n / 3] = -0.0f;
        float *x = guard_copy(in[3], n, place), *y = guard_copy(in[1], n, place);
        float *dy = guard_copy(in[2], n, place);
        ref.relu2_fwd(want[0], in[3], n);
        lvl.relu2_fwd(y, x, n);
        check_close("relu2_fwd", y, want[0], n, 0, 0);
        ref.relu2_bwd(want[1], in[2], in[3], n);
        lvl.relu2_bwd(y, dy, x, n);
        check_close("relu2_bwd", y, want[1], n, 0, 0);
        lvl.relu2_bwd(dy, dy, x, n);
        check_close("relu2_bwd in place", dy, want[1], n, 0, 0);
        lvl.relu2_fwd(x, x, n);
        check_close("relu2_fwd in place", x, want[0], n, 0, 0);
        guard_release();
    }
}

/* From values so small that the cap has no effect to far beyond it, NaN and the infinities. */
TEST(test_softcap)
{
    const float caps[] = {30, 0.5f};
    FOR_EACH(n, place)
    {
        for (int c = 0; c < 2; c++) {
            const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 1e-30f, 0, -0.0f};
            for (size_t i = 0; i < n; i++)
                in[3][i] = i % 5 == 4 ? odd[i / 5 % 8] : ldexpf(in[0][i], (int)(i % 12) - 4);
            float *x = guard_copy(in[3], n, place), *y = guard_copy(in[1], n, place);
            ref.softcap(want[0], in[3], n, caps[c]);
            lvl.softcap(y, x, n, caps[c]);
            check_close("softcap", y, want[0], n, 6 * eps, 0);
            lvl.softcap(x, x, n, caps[c]);
            check_close("softcap in place", x, want[0], n, 6 * eps, 0);
            guard_release();
        }
    }
}

/* The last target has a cap with which logits differ by more than exp can take, and the largest are
 * among the first 256. */
TEST(test_capped_xent)
{
    const float scale = 1.0f / 48;
    FOR_EACH(n, place)
    {
        for (int t = 0; t < 3; t++) {
            size_t target = t == 0 ? 0 : t == 1 ? n - 1 : n / 2;
            const float cap = t == 2 ? 200 : 9;
            for (size_t i = 0; i < n; i++)
                in[3][i] = in[0][i] * 20 - (t == 2 && i >= 256 ? 150.0f : 0.0f);
            float *x = guard_copy(in[3], n, place), *dx = guard_copy(in[1], n, place);
            double loss = ref.xent_cap_row(want[0], in[3], n, target, scale, cap);
            double got = lvl.xent_cap_row(dx, x, n, target, scale, cap);
            /* logits differ by roundings of the cap, and so do the exponents of softmax */
            assert_true(fabs(got - loss) <= 12 * eps * (1 + cap + fabs(loss)));
            check_close("xent_cap_row dx", dx, want[0], n, (16 + 6 * cap) * eps, scale);
            got = lvl.xent_cap_row(NULL, x, n, target, scale, cap);
            assert_true(fabs(got - loss) <= 12 * eps * (1 + cap + fabs(loss)));
            assert_memory_equal(x, in[3], n * sizeof *x);
            lvl.xent_cap_row(x, x, n, target, scale, cap);
            assert_memory_equal(x, dx, n * sizeof *x);
            guard_release();
        }
    }
    for (size_t at = 0; at < 77; at++) {
        copy(want[0], in[0], 77);
        want[0][at] = NAN;
        assert_true(isnan(lvl.xent_cap_row(want[1], want[0], 77, 5, 1, 9)));
        assert_true(isnan(lvl.xent_cap_row(NULL, want[0], 77, 5, 1, 9)));
        assert_true(isnan(ref.xent_cap_row(NULL, want[0], 77, 5, 1, 9)));
    }
}

/* Blocks of 19 rows with a leading dimension beyond cols; `diag` from "sees nothing" to "all". */
TEST(test_softmax)
{
    const size_t rows = MAX_ROWS;
    FOR_EACH(n, place)
    {
        const ptrdiff_t diags[] = {-25, -7, 0, (ptrdiff_t)n / 2, (ptrdiff_t)n};
        for (size_t d = 0; d < sizeof diags / sizeof diags[0] && n < MAX_N; d++) {
            size_t ld = n + 3, all = (rows - 1) * ld + n;
            float *s = guard_copy(in[0], all, place);
            for (size_t i = 0; i < all; i++)
                want[0][i] = s[i] = in[0][i] * 40; /* also far below the maximum */
            for (size_t i = 0; i < rows; i++) {
                want[1][i] = i % 4 == 0 ? -INFINITY : in[1][i] * 40;
                want[2][i] = i % 4 == 0 ? 0 : 1 + in[2][i] / 2;
            }
            float *max = guard_copy(want[1], rows, place), *sum = guard_copy(want[2], rows, place);
            float *factor = guard_copy(in[3], rows, place);

            ref.softmax_block(want[0], ld, rows, n, diags[d], want[1], want[2], want[3]);
            lvl.softmax_block(s, ld, rows, n, diags[d], max, sum, factor);
            assert_memory_equal(max, want[1], rows * sizeof *max);
            check_close("softmax_block S, and what lies between rows", s, want[0], all, 6 * eps,
                        1e-30);
            check_close("softmax_block sum", sum, want[2], rows, sum_tol(n), 0);
            check_close("softmax_block factor", factor, want[3], rows, 6 * eps, 1e-30);

            for (size_t i = 0; i < all; i++)
                want[0][i] = s[i] = in[0][i] * 40 - 40;
            ref.softmax_again(want[0], ld, rows, n, diags[d], in[1]);
            lvl.softmax_again(s, ld, rows, n, diags[d], guard_copy(in[1], rows, place));
            check_close("softmax_again", s, want[0], all, 6 * eps, 1e-30);
            guard_release();
        }
    }
}

/* A NaN in a row's visible columns makes its sum NaN; in masked columns it has no effect. */
TEST(test_softmax_nan)
{
    for (size_t at = 0; at < 37; at++) {
        float s[2 * 37], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0}, factor[2];
        float s_ref[2 * 37], max_ref[2] = {-INFINITY, -INFINITY}, sum_ref[2] = {0}, factor_ref[2];
        copy(s, in[0], 2 * 37);
        s[at] = s[37 + at] = NAN;
        copy(s_ref, s, 2 * 37);
        ref.softmax_block(s_ref, 37, 2, 37, 17, max_ref, sum_ref, factor_ref);
        lvl.softmax_block(s, 37, 2, 37, 17, max, sum, factor);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(isnan(sum[i]) != 0, at <= 17 + i);
            assert_true(max[i] == max_ref[i]); /* of the other scores */
        }
        assert_true(factor[0] == 0);
        assert_true(s[36] == 0 && s[37 + 36] == 0);
    }
}

/* With the last target all logits are far below 0. */
TEST(test_xent)
{
    FOR_EACH(n, place)
    {
        for (int t = 0; t < 3; t++) {
            size_t target = t == 0 ? 0 : t == 1 ? n - 1 : n / 2;
            for (size_t i = 0; i < n; i++)
                in[3][i] = in[0][i] * 30 - (t == 2 ? 500.0f : 0.0f);
            float *x = guard_copy(in[3], n, place), *dx = guard_copy(in[1], n, place);
            float scale = 1.0f / 48;

            double loss = ref.xent_row(want[0], in[3], n, target, scale);
            double got = lvl.xent_row(dx, x, n, target, scale);
            assert_true(fabs(got - loss) <= 12 * eps * (1 + fabs(loss)));
            check_close("xent_row dx", dx, want[0], n, 8 * eps, scale);
            assert_true(lvl.xent_row(NULL, x, n, target, scale) == got);
            assert_memory_equal(x, in[3], n * sizeof *x);
            assert_true(lvl.xent_row(x, x, n, target, scale) == got);
            assert_memory_equal(x, dx, n * sizeof *x);
            guard_release();
        }
    }
    /* a vocabulary's length: the sum is as accurate as that of few terms */
    enum { V = 50304 };
    float *x = lks_test_malloc(V * sizeof *x), *dx = lks_test_malloc(V * sizeof *dx),
          *want_dx = lks_test_malloc(V * sizeof *x);
    fill_random(x, V, 4, 3);
    double loss = ref.xent_row(want_dx, x, V, 777, 1);
    assert_true(fabs(lvl.xent_row(dx, x, V, 777, 1) - loss) <= 4 * eps * (1 + loss));
    check_close("xent_row dx of a long row", dx, want_dx, V, 8 * eps, 1e-6);
    lks_test_free(x, dx, want_dx);
}

TEST(test_xent_odd)
{
    const float odd[] = {NAN, INFINITY};
    for (size_t at = 0; at < 77; at++)
        for (int o = 0; o < 2; o++) {
            copy(want[0], in[0], 77);
            want[0][at] = odd[o];
            assert_true(isnan(lvl.xent_row(want[1], want[0], 77, 5, 1)));
            assert_true(isnan(lvl.xent_row(NULL, want[0], 77, 5, 1)));
        }
    /* the greatest logit is found anywhere: exp doesn't take those so far above another */
    for (size_t at = 0; at < 77; at++) {
        copy(want[0], in[0], 77);
        want[0][at] = 1000;
        const double loss = ref.xent_row(NULL, want[0], 77, 5, 1);
        assert_true(fabs(lvl.xent_row(NULL, want[0], 77, 5, 1) - loss) <= 12 * eps * (1 + loss));
    }
    /* -inf is a probability of 0 */
    copy(want[0], in[0], 77);
    want[0][40] = -INFINITY;
    assert_true(isfinite(lvl.xent_row(want[1], want[0], 77, 5, 1)));
    assert_true(want[1][40] == 0);
    assert_true(lvl.xent_row(want[1], want[0], 77, 40, 1) == INFINITY);
}

TEST(test_dropout)
{
    const uint32_t thresholds[] = {0, 1u << 30, 3u << 30, UINT32_MAX};
    FOR_EACH(n, place)
    {
        for (int t = 0; t < 4; t++) {
            /* the last one crosses the counter's 32 bits */
            const uint64_t first[] = {0, 1, 6, 4099, 0x3fffffffeu};
            const lks__dropout d = {{{12, 34}}, 5, 6u << 16 | 7, 8, thresholds[t], 1.25f};
            for (size_t f = 0; f < sizeof first / sizeof first[0]; f++) {
                float *x = guard_copy(in[0], n, place), *y = guard_copy(in[1], n, place);
                ref.dropout(want[0], in[0], n, first[f], &d);
                lvl.dropout(y, x, n, first[f], &d);
                /* No rounding is left to the implementation. */
                assert_memory_equal(y, want[0], n * sizeof *y);
                lvl.dropout(x, x, n, first[f], &d);
                assert_memory_equal(x, want[0], n * sizeof *x);
                x[n / 2] = NAN; /* stays NaN, kept or dropped */
                lvl.dropout(x, x, n, first[f], &d);
                assert_true(isnan(x[n / 2]));
                guard_release();
            }
        }
    }
}

TEST(test_elementwise)
{
    FOR_EACH(n, place)
    {
        float *y = guard_copy(in[0], n, place);
        const float *x = guard_copy(in[1], n, place);
        copy(want[0], in[0], n);

        ref.add(want[0], in[1], n);
        lvl.add(y, x, n);
        assert_memory_equal(y, want[0], n * sizeof *y);
        ref.mul_add(want[0], in[1], in[2], n);
        lvl.mul_add(y, x, guard_copy(in[2], n, place), n);
        assert_memory_equal(y, want[0], n * sizeof *y);
        ref.mul(want[0], want[0], in[1], n);
        lvl.mul(y, y, x, n);
        assert_memory_equal(y, want[0], n * sizeof *y);
        ref.scale(want[0], 1.0f / 3, n);
        lvl.scale(y, 1.0f / 3, n);
        assert_memory_equal(y, want[0], n * sizeof *y);

        double terms = 0;
        for (size_t i = 0; i < n; i++)
            terms += fabs((double)in[0][i] * in[1][i]);
        const float *a = guard_copy(in[0], n, place);
        float got = lvl.dot(a, x, n), dot = ref.dot(in[0], in[1], n);
        check_close("dot", &got, &dot, 1, sum_tol(n), terms);

        /* the same bits at every level */
        assert_true(lvl.sumsq(a, n) == ref.sumsq(in[0], n));
        double lanes[2][8] = {{0.5, 2}, {0.5, 2}};
        ref.sum_scaled(want[0], in[0], in[1], 1.0f / 3, lanes[0], n);
        lvl.sum_scaled(y, a, x, 1.0f / 3, lanes[1], n);
        assert_memory_equal(y, want[0], n * sizeof *y);
        assert_memory_equal(lanes[1], lanes[0], sizeof lanes[0]);
        ref.sum_scaled(want[0], want[0], NULL, 0.7f, lanes[0], n); /* in place */
        lvl.sum_scaled(y, y, NULL, 0.7f, lanes[1], n);
        lvl.sum_scaled(y, y, NULL, 1, NULL, n);
        assert_memory_equal(y, want[0], n * sizeof *y);
        assert_memory_equal(lanes[1], lanes[0], sizeof lanes[0]);
        guard_release();
    }
    float huge[3] = {3e38f, 3e38f, 1}; /* squares beyond float, not beyond double */
    assert_true(lvl.sumsq(huge, 3) == ref.sumsq(huge, 3) && isfinite(lvl.sumsq(huge, 3)));
    huge[1] = NAN;
    assert_true(isnan(lvl.sumsq(huge, 3)) && isnan(lvl.dot(huge, huge, 3)));
}

TEST(test_rows)
{
    const size_t rows = MAX_ROWS;
    FOR_EACH(n, place)
    {
        if (n + 3 > MAX_N)
            continue;
        size_t ld = n + 3, all = (rows - 1) * ld + n;
        float *y = guard_copy(in[0], all, place);
        copy(want[0], in[0], all);
        ref.add_bias(want[0], ld, in[1], rows, n);
        lvl.add_bias(y, ld, guard_copy(in[1], n, place), rows, n);
        assert_memory_equal(y, want[0], all * sizeof *y);

        float *out = guard_copy(in[2], n, place);
        copy(want[1], in[2], n);
        ref.colsum(want[1], want[0], ld, rows, n);
        lvl.colsum(out, y, ld, rows, n);
        assert_memory_equal(out, want[1], n * sizeof *out); /* rows are added in order */
        guard_release();
    }
}

TEST(test_adamw)
{
    const lks__adamw a = {.decay = 1 - 3e-4f,
                          .one_m_b1 = 0.1f,
                          .b2 = 0.95f,
                          .one_m_b2 = 0.05f,
                          .step_size = 3e-3f,
                          .inv_sqrt_bc2 = 1.7f,
                          .eps = 1e-8f,
                          .clip = 0.3f};
    FOR_EACH(n, place)
    {
        for (size_t i = 0; i < n; i++)
            in[3][i] = in[2][i] * in[2][i]; /* v >= 0 */
        in[3][0] = in[5][0] = 0;            /* with g = v = 0 the denominator is only eps */
        float *p = guard_copy(in[0], n, place), *m = guard_copy(in[1], n, place);
        float *v = guard_copy(in[3], n, place);
        copy(want[0], in[0], n);
        copy(want[1], in[1], n);
        copy(want[2], in[3], n);

        ref.adamw(want[0], want[1], want[2], in[5], n, &a);
        lvl.adamw(p, m, v, guard_copy(in[5], n, place), n, &a);
        check_close("adamw m", m, want[1], n, 4 * eps, 1);
        check_close("adamw v", v, want[2], n, 4 * eps, 0);
        for (size_t i = 0; i < n; i++) { /* the step m / sqrt(v) may be far greater than p */
            double move = fabs(want[0][i] - in[0][i] * a.decay);
            check_close("adamw p", p + i, want[0] + i, 1, 8 * eps, 1 + move);
        }
        guard_release();
    }
}

/* Moments that would be subnormal are 0, and the smallest normal ones stay. */
TEST(test_small_moments)
{
    const lks__adamw a = {1, 0.5f, 0.5f, 0.5f, 1e-3f, 1, 1e-8f, 1};
    float p[3] = {0}, m[3] = {2 * FLT_MIN, -1.9f * FLT_MIN, NAN}, g[3] = {0};
    float v[3] = {1.9f * FLT_MIN, 2 * FLT_MIN, NAN};
    lvl.adamw(p, m, v, g, 3, &a);
    assert_true(m[0] == FLT_MIN && m[1] == 0 && v[0] == 0 && v[1] == FLT_MIN);
    assert_true(isnan(m[2]) && isnan(v[2]));
}

/* A kernel's bits depend only on values, not on the buffers' addresses. */
TEST(test_places)
{
    enum { N = 387 };
    float first[N];
    for (int place = 0; place < GUARD_PLACES; place++) {
        float *x = guard_copy(in[0], N, place), *y = guard_copy(in[0], N, place);
        float max = -INFINITY, sum = 0, factor;
        lvl.layernorm_fwd(y, NULL, NULL, x, guard_copy(in[1], N, place), NULL, 1, N);
        lvl.gelu_erf_fwd(y, y, N);
        y[0] = lvl.dot(x, y, N);
        lvl.softmax_block(y, N, 1, N, N, &max, &sum, &factor);
        y[1] = sum;
        y[2] = (float)lvl.xent_row(x, y, N, 3, 1);
        y[3] = lvl.dot(x, y, N);
        if (place == 0)
            copy(first, y, N);
        assert_memory_equal(y, first, sizeof first);
        guard_release();
    }
}

/* A row has the same bits alone and among others, with any block. */
TEST(test_rows_alone)
{
    enum { N = 129, ROWS = MAX_ROWS };
    float max[ROWS], sum[ROWS], factor[ROWS], m, l, f;
    lvl.layernorm_fwd(want[0], NULL, NULL, in[0], in[1], in[2], ROWS, N);
    copy(want[1], in[0], ROWS * N);
    for (size_t i = 0; i < ROWS; i++)
        max[i] = -INFINITY, sum[i] = 0;
    lvl.softmax_block(want[1], N, ROWS, N, 40, max, sum, factor);
    for (size_t i = 0; i < ROWS; i++) {
        lvl.layernorm_fwd(want[2], NULL, NULL, in[0] + i * N, in[1], in[2], 1, N);
        assert_memory_equal(want[2], want[0] + i * N, N * sizeof(float));
        copy(want[2], in[0] + i * N, N);
        m = -INFINITY, l = 0;
        lvl.softmax_block(want[2], N, 1, N, 40 + (ptrdiff_t)i, &m, &l, &f);
        assert_memory_equal(want[2], want[1] + i * N, N * sizeof(float));
        assert_true(m == max[i] && l == sum[i]);
    }
}

/* Products of a few rows, of operands as they are and rounded. An element's bits are those of its
 * row of x and its row of w alone, in whatever tile it is. */
TEST(test_dot_rows)
{
    enum { MOST_ROWS = 9, MOST_OUT = 27, PAD = 3 };
    static float got[MOST_ROWS * (MOST_OUT + PAD)];
    static const size_t rows[] = {1, 2, 3, 4, 5, 7, MOST_ROWS};
    static const size_t outs[] = {1, 4, 5, 6, 8, 11, 16, MOST_OUT};
    FOR_EACH(n, place)
    {
        const bool bf16 = n % 2 == 0;
        if (MOST_ROWS * n > MAX_ROWS * MAX_N || MOST_OUT * (n + 1) > MAX_ROWS * MAX_N)
            continue;
        for (size_t i = 0; i < sizeof rows / sizeof *rows * (sizeof outs / sizeof *outs); i++) {
            const size_t m = rows[i % 7], out = outs[i / 7], ld = out + PAD;
            const float *x = guard_copy(in[0], m * n, place);
            const float *w = guard_copy(in[1], (out - 1) * (n + 1) + n, place); /* ldw: n + 1 */
            float *y = guard_copy(in[2], (m - 1) * ld + out, place), alone;
            ref.dot_rows(got, ld, in[0], n, in[1], n + 1, m, out, n, bf16);
            lvl.dot_rows(y, ld, x, n, w, n + 1, m, out, n, bf16);
            for (size_t r = 0; r < m; r++) {
                check_close("dot_rows", y + r * ld, got + r * ld, out, sum_tol(n) * sqrt((double)n),
                            1);
                for (size_t o = 0; o < out; o++) {
                    lvl.dot_rows(&alone, 1, x + r * n, n, w + o * (n + 1), n + 1, 1, 1, n, bf16);
                    assert_memory_equal(&alone, &y[r * ld + o], sizeof alone);
                }
                if (r + 1 < m) /* between the rows nothing is written */
                    assert_memory_equal(y + r * ld + out, in[2] + r * ld + out, PAD * sizeof *y);
            }
            guard_release();
        }
    }
    const float odd[] = {1, NAN, INFINITY}, one[] = {1, 1, 1};
    float y[2];
    lvl.dot_rows(y, 1, odd, 1, one, 1, 2, 1, 1, false);
    assert_true(y[0] == 1 && isnan(y[1]));
    lvl.dot_rows(y, 1, odd + 2, 1, one, 1, 1, 1, 1, true);
    assert_true(y[0] == INFINITY);
}

TEST(test_weighted_sum)
{
    const size_t rows = 13;
    FOR_EACH(n, place)
    {
        const size_t ld = n + n % 3;
        float *y = guard_copy(in[3], n, place);
        const float *a = guard_copy(in[0], rows, place);
        const float *x = guard_copy(in[1], (rows - 1) * ld + n, place);
        ref.weighted_sum(want[0], in[0], in[1], ld, rows, n);
        lvl.weighted_sum(y, a, x, ld, rows, n);
        check_close("weighted_sum", y, want[0], n, sum_tol(rows), 4);
        guard_release();
    }
}

/* A level uses what it adds to the level below: its row kernels up to AVX-512, its products in
 * bfloat16 always. */
TEST(test_own_versions)
{
    lks__kernels own, below;
    if (TEST_LEVEL == LKS__CPU_PLAIN)
        return;
    lks__kernels_open_own(TEST_LEVEL, &own);
    lks__kernels_open_own(lvl.level - 1, &below);
    const bool rows = TEST_LEVEL <= LKS__CPU_AVX512;
#define X(name, type)                                                                              \
    if ((own.name != below.name) != rows)                                                          \
        fail_msg(#name " is %sthat of the level below", rows ? "" : "not ");
    LKS__ROW_KERNEL_MAP(X)
    X(gemm, )
#undef X
    assert_true(own.gemm_bf16 != below.gemm_bf16);
    assert_true((own.gemm_bf16_tiles != below.gemm_bf16_tiles) == (TEST_LEVEL == LKS__CPU_AMX));
    assert_true(own.peak_bf16 != below.peak_bf16);
    assert_int_equal(own.level, TEST_LEVEL);
    /* Blocks of attention decide which scores are added together, and so bits. */
    assert_int_equal(lks__gemm_tiles.queries, 64);
    assert_int_equal(lks__gemm_tiles.far_queries, 64);
    assert_int_equal(own.gemm_bf16_tiles->queries, 64);
    assert_int_equal(own.gemm_bf16_tiles->far_queries, TEST_LEVEL == LKS__CPU_AMX ? 128 : 64);
}

int main(void)
{
    lks_test_need_level_of(TEST_LEVEL, &lvl); /* the machine's own level matters here */
    for (unsigned i = 0; i < sizeof in / sizeof in[0]; i++)
        fill_random(in[i], MAX_ROWS * MAX_N, 1, i + 1);
    return lks_test_run_all(NULL, NULL);
}
