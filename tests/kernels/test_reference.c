/* tests/kernels/test_reference.c - the scalar reference, compiled in double (LKS_REAL=double):
 * backward against central differences of forward, forward against the formulas in another form.
 *
 * A central difference of step h has an error of h^2 f'''/6 plus rounding / h. For h = 1e-5 that is
 * about 1e-10 of the function's values, far below the tolerance of 1e-6. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/reference.h"

static const double h = 1e-5;

enum { ROWS = 3, N = 11, ALL = ROWS * N };

/* Values in [-1, 1) from a fixed linear congruence. */
static void fill(double *x, size_t n, uint64_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (double)(int64_t)state * 0x1p-63;
    }
}

static void check(double got, double want, double tol)
{
    if (!(fabs(got - want) <= tol * fmax(1, fabs(want))))
        fail_msg("%.12g should be %.12g", got, want);
}

/* A gradient within 1e-6 of a central difference, which is itself off by up to `noise`. */
static void check_gradient(double got, double difference)
{
    const double noise = 1e-9;
    if (!(fabs(got - difference) <= 1e-6 * fabs(difference) + noise))
        fail_msg("%.12g should be %.12g", got, difference);
}

typedef double loss_fn(void *ctx);

/* d loss / d *x by central difference. */
static double slope(double *x, loss_fn *loss, void *ctx)
{
    double old = *x;
    *x = old + h;
    double above = loss(ctx);
    *x = old - h;
    double below = loss(ctx);
    *x = old;
    return (above - below) / (2 * h);
}

/* --- LayerNorm: loss = <dy, y> ---------------------------------------------------------------- */

typedef struct norm {
    double x[ALL], gain[N], bias[N], dy[ALL];
    double y[ALL], mean[ROWS], rstd[ROWS];
    const double *bias_or_null;
} norm;

static double norm_loss(void *ctx)
{
    norm *t = ctx;
    lks__layernorm_fwd_ref(t->y, t->mean, t->rstd, t->x, t->gain, t->bias_or_null, ROWS, N);
    return lks__dot_ref(t->y, t->dy, ALL);
}

TEST(test_layernorm)
{
    for (int with_bias = 0; with_bias < 2; with_bias++) {
        norm t;
        double dx[ALL], dgain[N], dbias[N];
        fill(t.x, ALL, 1);
        fill(t.gain, N, 2);
        fill(t.bias, N, 3);
        fill(t.dy, ALL, 4);
        t.bias_or_null = with_bias ? t.bias : NULL;
        fill(dx, ALL, 5); /* gradients are added to what is there */
        fill(dgain, N, 6);
        fill(dbias, N, 7);

        norm_loss(&t);
        lks__layernorm_bwd_ref(dx, dgain, with_bias ? dbias : NULL, t.dy, t.x, t.gain, t.mean,
                               t.rstd, ROWS, N);
        double dx0[ALL], dgain0[N], dbias0[N];
        fill(dx0, ALL, 5);
        fill(dgain0, N, 6);
        fill(dbias0, N, 7);
        for (size_t i = 0; i < ALL; i++)
            check_gradient(dx[i] - dx0[i], slope(&t.x[i], norm_loss, &t));
        for (size_t j = 0; j < N; j++) {
            check_gradient(dgain[j] - dgain0[j], slope(&t.gain[j], norm_loss, &t));
            if (with_bias)
                check_gradient(dbias[j] - dbias0[j], slope(&t.bias[j], norm_loss, &t));
            else
                assert_true(dbias[j] == dbias0[j]);
        }
    }
}

/* The definition: each row has mean 0 and variance v / (v + 1e-5) before gain and bias. */
TEST(test_layernorm_statistics)
{
    double x[N], y[N], one[N], mean, rstd, sum = 0, squares = 0, var = 0;
    fill(x, N, 8);
    for (size_t j = 0; j < N; j++) {
        x[j] = 5 + 1e-2 * x[j]; /* a variance that eps can be seen beside */
        one[j] = 1;
    }
    lks__layernorm_fwd_ref(y, &mean, &rstd, x, one, NULL, 1, N);
    for (size_t j = 0; j < N; j++) {
        sum += y[j];
        squares += y[j] * y[j] / N;
        var += (x[j] - mean) * (x[j] - mean) / N;
    }
    check(sum, 0, 1e-12);
    check(squares, var / (var + 1e-5), 1e-12);
    check(rstd, 1 / sqrt(var + 1e-5), 1e-12);
}

/* --- GELU ------------------------------------------------------------------------------------- */

typedef struct gelu {
    lks__activate_fwd_fn *fwd;
    double x;
} gelu;

static double gelu_loss(void *ctx)
{
    gelu *t = ctx;
    double y;
    t->fwd(&y, &t->x, 1);
    return y;
}

TEST(test_gelu)
{
    for (double x = -9; x <= 9; x += 0.0917) {
        gelu t = {lks__gelu_erf_fwd_ref, x};
        double dx, dy = -1.75;
        lks__gelu_erf_bwd_ref(&dx, &dy, &x, 1);
        check_gradient(dx, dy * slope(&t.x, gelu_loss, &t));
        t.fwd = lks__gelu_tanh_fwd_ref;
        lks__gelu_tanh_bwd_ref(&dx, &dy, &x, 1);
        check_gradient(dx, dy * slope(&t.x, gelu_loss, &t));
    }
    /* values of torch.nn.functional.gelu in float64, both forms, at 1 and -2.5 */
    double x[] = {1, -2.5}, y[2];
    lks__gelu_erf_fwd_ref(y, x, 2);
    check(y[0], 0.841344746068543, 1e-14);
    check(y[1], -0.015524163314440398, 1e-14);
    lks__gelu_tanh_fwd_ref(y, x, 2);
    check(y[0], 0.8411919906082768, 1e-14);
    check(y[1], -0.015084266089998577, 1e-14);
}

/* --- cross-entropy ---------------------------------------------------------------------------- */

typedef struct xent {
    double x[N];
    size_t target;
} xent;

static double xent_loss(void *ctx)
{
    xent *t = ctx;
    return lks__xent_row_ref(NULL, t->x, N, t->target, 1);
}

TEST(test_xent)
{
    for (size_t target = 0; target < N; target++) {
        xent t = {.target = target};
        double dx[N], in_place[N], sum = 0;
        fill(t.x, N, 9);
        for (size_t j = 0; j < N; j++)
            t.x[j] *= 5;
        double loss = lks__xent_row_ref(dx, t.x, N, target, 0.3);

        double total = 0; /* the textbook's form */
        for (size_t j = 0; j < N; j++)
            total += exp(t.x[j]);
        check(loss, -log(exp(t.x[target]) / total), 1e-13);
        for (size_t j = 0; j < N; j++) {
            check_gradient(dx[j], 0.3 * slope(&t.x[j], xent_loss, &t));
            sum += dx[j];
        }
        check(sum, 0, 1e-14);

        memcpy(in_place, t.x, sizeof in_place);
        assert_true(lks__xent_row_ref(in_place, in_place, N, target, 0.3) == loss);
        assert_memory_equal(in_place, dx, sizeof dx);
    }
}

typedef struct capped {
    double x[N], cap;
    size_t target;
} capped;

static double capped_loss(void *ctx)
{
    capped *t = ctx;
    return lks__xent_cap_row_ref(NULL, t->x, N, t->target, 1, t->cap);
}

/* The loss is xent_row's of what softcap makes of the row. */
TEST(test_capped_xent)
{
    for (size_t target = 0; target < N; target++) {
        capped t = {.target = target, .cap = 3};
        double dx[N], in_place[N], y[N];
        fill(t.x, N, 30);
        for (size_t j = 0; j < N; j++)
            t.x[j] *= 5;
        double loss = lks__xent_cap_row_ref(dx, t.x, N, target, 0.3, t.cap);

        lks__softcap_ref(y, t.x, N, t.cap);
        for (size_t j = 0; j < N; j++) {
            double e = exp(2 * t.x[j] / t.cap);
            check(y[j], t.cap * (e - 1) / (e + 1), 1e-13);
            check_gradient(dx[j], 0.3 * slope(&t.x[j], capped_loss, &t));
        }
        check(loss, lks__xent_row_ref(NULL, y, N, target, 1), 1e-13);

        memcpy(in_place, t.x, sizeof in_place);
        assert_true(lks__xent_cap_row_ref(in_place, in_place, N, target, 0.3, t.cap) == loss);
        assert_memory_equal(in_place, dx, sizeof dx);
        lks__softcap_ref(t.x, t.x, N, t.cap);
        assert_memory_equal(t.x, y, sizeof y);
    }
}

/* --- RMSNorm, and queries and keys: loss = <dy, y> ------------------------------------------ */

typedef struct rms_norm {
    double x[ALL], dy[ALL], y[ALL], rms[ROWS];
} rms_norm;

static double rms_norm_loss(void *ctx)
{
    rms_norm *t = ctx;
    lks__rmsnorm_fwd_ref(t->y, t->rms, t->x, ROWS, N);
    return lks__dot_ref(t->y, t->dy, ALL);
}

TEST(test_rmsnorm)
{
    rms_norm t;
    double dx[ALL], dx0[ALL];
    fill(t.x, ALL, 31);
    fill(t.dy, ALL, 32);
    fill(dx, ALL, 33); /* gradients are added to what is there */
    fill(dx0, ALL, 33);
    rms_norm_loss(&t);
    lks__rmsnorm_bwd_ref(dx, t.dy, t.x, t.rms, ROWS, N);
    for (size_t i = 0; i < ALL; i++)
        check_gradient(dx[i] - dx0[i], slope(&t.x[i], rms_norm_loss, &t));

    for (size_t i = 0; i < ALL; i++) /* squares that eps can be seen beside */
        t.x[i] *= 1e-3;
    rms_norm_loss(&t);
    for (size_t i = 0; i < ROWS; i++) {
        double squares = 0;
        for (size_t j = 0; j < N; j++)
            squares += t.x[i * N + j] * t.x[i * N + j];
        check(t.rms[i], pow(squares / N + 0x1p-23, -0.5), 1e-13);
        check(t.y[i * N + 3], t.x[i * N + 3] * t.rms[i], 1e-13);
    }
}

enum { HEADS = 3, HS = 6, HALF = HS / 2 };

typedef struct rope {
    double x[HEADS * HS], dy[HEADS * HS], y[HEADS * HS], rms[HEADS];
    double cosine[HALF], sine[HALF], gain[HEADS];
    const double *gain_or_null;
} rope;

static double rope_loss(void *ctx)
{
    rope *t = ctx;
    lks__rope_fwd_ref(t->y, t->rms, t->x, t->cosine, t->sine, t->gain_or_null, HEADS, HS);
    return lks__dot_ref(t->y, t->dy, HEADS * HS);
}

TEST(test_rope)
{
    for (int with_gain = 0; with_gain < 2; with_gain++) {
        rope t;
        double dx[HEADS * HS], dgain[HEADS], dgain0[HEADS], length = 0;
        fill(t.x, HEADS * HS, 34);
        fill(t.dy, HEADS * HS, 35);
        fill(t.gain, HEADS, 36);
        fill(dgain, HEADS, 37);
        fill(dgain0, HEADS, 37);
        t.gain_or_null = with_gain ? t.gain : NULL;
        for (size_t j = 0; j < HALF; j++) {
            t.cosine[j] = cos(0.7 * (double)(j + 1));
            t.sine[j] = sin(0.7 * (double)(j + 1));
        }
        rope_loss(&t);
        double g = with_gain ? t.gain[0] : 1;
        /* element 1 of head 0, turned by -1.4 (element 1 + HALF is its other part) */
        check(t.y[1], g * t.rms[0] * (t.x[1] * cos(1.4) + t.x[1 + HALF] * sin(1.4)), 1e-14);
        check(t.y[1 + HALF], g * t.rms[0] * (t.x[1 + HALF] * cos(1.4) - t.x[1] * sin(1.4)), 1e-14);
        for (size_t j = 0; j < HS; j++)
            length += t.y[j] * t.y[j] / HS;
        check(sqrt(length), fabs(g), 1e-5); /* but for eps */

        lks__rope_bwd_ref(dx, with_gain ? dgain : NULL, t.dy, t.x, t.rms, t.cosine, t.sine,
                          t.gain_or_null, HEADS, HS);
        for (size_t i = 0; i < HEADS * HS; i++)
            check_gradient(dx[i], slope(&t.x[i], rope_loss, &t));
        for (size_t i = 0; i < HEADS && with_gain; i++)
            check_gradient(dgain[i] - dgain0[i], slope(&t.gain[i], rope_loss, &t));
        rope_loss(&t);
        lks__rope_bwd_ref(t.dy, NULL, t.dy, t.x, t.rms, t.cosine, t.sine, t.gain_or_null, HEADS,
                          HS);
        assert_memory_equal(t.dy, dx, sizeof dx);
    }
}

static double relu2_loss(void *ctx)
{
    double y;
    lks__relu2_fwd_ref(&y, ctx, 1);
    return y;
}

TEST(test_relu2)
{
    for (double x = -3; x <= 3; x += 0.0917) {
        double at = x, y, dx, dy = -1.75;
        lks__relu2_fwd_ref(&y, &x, 1);
        check(y, x > 0 ? x * x : 0, 0);
        lks__relu2_bwd_ref(&dx, &dy, &x, 1);
        check_gradient(dx, dy * slope(&at, relu2_loss, &at));
    }
    double odd[] = {NAN, 0, -INFINITY}, y[3];
    lks__relu2_fwd_ref(y, odd, 3);
    assert_true(isnan(y[0]) && y[1] == 0 && y[2] == 0);
}

/* 8 significant bits; what has no more stays, ties go to even. */
TEST(test_round_bf16)
{
    static const struct {
        double x, y;
    } cases[] = {
        {0, 0},
        {1, 1},
        {-1.9921875, -1.9921875},   /* all 8 bits */
        {0x1.01p0, 1},              /* a tie, to even: down */
        {0x1.03p0, 0x1.04p0},       /* up */
        {0x1.010002p0, 0x1.02p0},   /* just over a tie */
        {-0x1.02fffep0, -0x1.02p0}, /* just under one */
        {0x1.ffp3, 0x1p4},          /* into the next power */
        {0x1.fep127, 0x1.fep127},   /* the largest */
        {0x1.fffffep127, INFINITY}, /* float's largest */
        {0x1p-133, 0x1p-133},       /* the smallest */
        {0x1.8p-133, 0x1p-132},     /* a tie there */
        {INFINITY, INFINITY},
        {-INFINITY, -INFINITY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double y = 7;
        lks__round_bf16_ref(&y, &cases[i].x, 1);
        assert_true(y == cases[i].y);
    }
    double x[] = {NAN, -0.0}, y[2];
    lks__round_bf16_ref(y, x, 2);
    assert_true(isnan(y[0]) && y[1] == 0 && signbit(y[1]));
}

/* --- softmax in blocks ------------------------------------------------------------------------ */

/* Blocks of different widths one after another give the softmax of the whole row, and `again` gives
 * the probabilities from the log-sum-exp. */
TEST(test_softmax)
{
    enum { T = 23, BLOCK = 5 };
    double s[T][T], e[T][T], again[T][T], max[T], sum[T], factor[T], lse[T];
    fill(&s[0][0], T * T, 10);
    for (size_t i = 0; i < T; i++) {
        for (size_t j = 0; j < T; j++)
            e[i][j] = again[i][j] = s[i][j] *= 8;
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    for (size_t j0 = 0; j0 < T; j0 += BLOCK) {
        size_t cols = T - j0 < BLOCK ? T - j0 : BLOCK;
        lks__softmax_block_ref(&e[0][j0], T, T, cols, -(ptrdiff_t)j0, max, sum, factor);
        for (size_t i = 0; i < T; i++)
            for (size_t j = 0; j < j0; j++)
                e[i][j] *= factor[i];
    }
    for (size_t i = 0; i < T; i++)
        lse[i] = max[i] + log(sum[i]);
    lks__softmax_again_ref(&again[0][0], T, T, T, 0, lse);

    for (size_t i = 0; i < T; i++) {
        double total = 0;
        for (size_t j = 0; j <= i; j++)
            total += exp(s[i][j]);
        for (size_t j = 0; j < T; j++) {
            double p = j <= i ? exp(s[i][j]) / total : 0;
            check(e[i][j] / sum[i], p, 1e-13);
            check(again[i][j], p, 1e-13);
        }
        check(lse[i], log(total), 1e-13);
    }
}

typedef struct lse_of {
    double s[N];
} lse_of;

static double lse_loss(void *ctx)
{
    double e[N], max = -INFINITY, sum = 0, factor;
    memcpy(e, ((lse_of *)ctx)->s, sizeof e);
    lks__softmax_block_ref(e, N, 1, N, N, &max, &sum, &factor);
    return max + log(sum);
}

/* The log-sum-exp's gradient is the softmax. */
TEST(test_softmax_gradient)
{
    lse_of t;
    double p[N], lse;
    fill(t.s, N, 11);
    lse = lse_loss(&t);
    memcpy(p, t.s, sizeof p);
    lks__softmax_again_ref(p, N, 1, N, N, &lse);
    for (size_t j = 0; j < N; j++)
        check_gradient(p[j], slope(&t.s[j], lse_loss, &t));
}

/* --- dropout ---------------------------------------------------------------------------------- */

TEST(test_dropout)
{
    enum { LONG = 40000 };
    static double x[LONG], y[LONG], part[LONG], sum[LONG], x2[LONG];
    const lks__dropout d = {{{7, 8}}, 1, 2, 3, (uint32_t)(0.2 * 4294967296.0), 1.25f};
    fill(x, LONG, 12);
    lks__dropout_ref(y, x, LONG, 1001, &d);

    /* kept elements are scaled, the others 0; about 1 in 5 goes: 5 standard deviations are 0.01 */
    size_t dropped = 0;
    for (size_t i = 0; i < LONG; i++) {
        assert_true(y[i] == 0 || y[i] == x[i] * 1.25);
        dropped += y[i] == 0;
    }
    check(dropped / (double)LONG, 0.2, 0.01);

    /* linear, so backward is the same call */
    fill(x2, LONG, 13);
    for (size_t i = 0; i < LONG; i++)
        sum[i] = 3 * x[i] - x2[i];
    lks__dropout_ref(sum, sum, LONG, 1001, &d);
    lks__dropout_ref(part, x2, LONG, 1001, &d);
    for (size_t i = 0; i < LONG; i++)
        check(sum[i], 3 * y[i] - part[i], 1e-14);

    /* a part of the tensor has its part of the mask */
    lks__dropout_ref(part, x + 333, 4444, 1001 + 333, &d);
    assert_memory_equal(part, y + 333, 4444 * sizeof *y);

    /* every field of the key and the counter gives another mask */
    lks__dropout others[] = {d, d, d, d, d};
    others[0].step++, others[1].vm++, others[2].site++, others[3].key.k[0]++, others[4].key.k[1]++;
    for (size_t o = 0; o < 5; o++) {
        size_t equal = 0;
        lks__dropout_ref(part, x, LONG, 1001, &others[o]);
        for (size_t i = 0; i < LONG; i++)
            equal += (part[i] == 0) == (y[i] == 0);
        check(equal / (double)LONG, 0.2 * 0.2 + 0.8 * 0.8, 0.02);
    }

    /* the definition itself */
    uint32_t counter[4] = {1, 2, 3, 1001 / 4}, words[4];
    lks__philox4x32(d.key, counter, words);
    for (uint64_t e = 1001; e < 1004; e++)
        assert_int_equal(y[e - 1001] != 0, words[e % 4] >= d.threshold);
}

/* --- the rest --------------------------------------------------------------------------------- */

TEST(test_gemm)
{
    enum { M = 70, P = 67, K = 131, LD = 140 };
    static double a[LD * LD], b[LD * LD], c[LD * LD], c0[LD * LD];
    fill(a, LD * LD, 14);
    fill(b, LD * LD, 15);
    fill(c0, LD * LD, 16);
    for (int t = 0; t < 4; t++) {
        char ta = t & 1 ? 'T' : 'N', tb = t & 2 ? 'T' : 'N';
        memcpy(c, c0, sizeof c);
        lks__gemm_ref(ta, tb, M, P, K, 0.5, a, LD, b, LD, -2, c, LD);
        for (size_t i = 0; i < LD; i++)
            for (size_t j = 0; j < LD; j++) {
                if (i >= M || j >= P) {
                    assert_true(c[i * LD + j] == c0[i * LD + j]);
                    continue;
                }
                double sum = 0;
                for (size_t q = 0; q < K; q++)
                    sum += (t & 1 ? a[q * LD + i] : a[i * LD + q]) *
                           (t & 2 ? b[j * LD + q] : b[q * LD + j]);
                check(c[i * LD + j], 0.5 * sum - 2 * c0[i * LD + j], 1e-13);
            }
    }
}

TEST(test_rows_and_sums)
{
    double x[ALL], y[ALL], bias[N], out[N], out0[N];
    fill(x, ALL, 17);
    fill(bias, N, 18);
    fill(out, N, 19);
    memcpy(y, x, sizeof y);
    memcpy(out0, out, sizeof out);

    lks__add_bias_ref(y, N, bias, ROWS, N - 1);
    lks__colsum_ref(out, x, N, ROWS, N - 1);
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < N - 1; j++)
            assert_true(y[i * N + j] == x[i * N + j] + bias[j]);
        assert_true(y[i * N + N - 1] == x[i * N + N - 1]);
    }
    for (size_t j = 0; j < N - 1; j++)
        check(out[j], out0[j] + (x[j] + x[N + j] + x[2 * N + j]), 1e-15);
    assert_true(out[N - 1] == out0[N - 1]);

    double squares = 0;
    for (size_t i = 0; i < ALL; i++)
        squares += x[i] * x[i];
    check(lks__sumsq_ref(x, ALL), squares, 1e-14);
    check(lks__dot_ref(x, x, ALL), squares, 1e-14);

    memcpy(y, x, sizeof y);
    lks__scale_ref(y, 3, ALL);
    lks__add_ref(y, x, ALL);
    for (size_t i = 0; i < ALL; i++)
        check(y[i], 4 * x[i], 1e-15);
}

/* Lanes and their order are part of the definition: sums of other orders would differ here. */
TEST(test_sumsq_order)
{
    const double root = 0x1p27; /* 2^54 + 1 rounds to 2^54, and 2^54 + 4 doesn't */
    double x[16] = {root, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    double want = (((root * root + 1) + 2) + 4) + 8; /* ((0+4)+(2+6))+((1+5)+(3+7)) */
    assert_true(lks__sumsq_ref(x, 16) == want);
    double y[16], lanes[8] = {0};
    lks__sum_scaled_ref(y, x, x, 0.5, lanes, 8); /* cut at a multiple of 8 */
    lks__sum_scaled_ref(y + 8, x + 8, x + 8, 0.5, lanes, 8);
    assert_true(lks__sumsq_of_lanes(lanes) == want);
    for (int i = 0; i < 16; i++)
        assert_true(y[i] == x[i]);
}

/* torch.optim.AdamW's formula over several steps, written as its documentation does. */
TEST(test_adamw)
{
    const double lr = 3e-3, b1 = 0.9, b2 = 0.95, wd = 0.1, eps = 1e-8, clip = 0.37;
    double p[N], m[N] = {0}, v[N] = {0}, g[N], want_p[N], want_m[N] = {0}, want_v[N] = {0};
    fill(p, N, 20);
    memcpy(want_p, p, sizeof p);
    for (int t = 1; t <= 5; t++) {
        fill(g, N, 20 + t);
        const lks__adamw a = {.decay = 1 - lr * wd,
                              .one_m_b1 = 1 - b1,
                              .b2 = b2,
                              .one_m_b2 = 1 - b2,
                              .step_size = lr / (1 - pow(b1, t)),
                              .inv_sqrt_bc2 = 1 / sqrt(1 - pow(b2, t)),
                              .eps = eps,
                              .clip = clip};
        lks__adamw_ref(p, m, v, g, N, &a);
        for (size_t i = 0; i < N; i++) {
            double grad = clip * g[i];
            want_p[i] -= lr * wd * want_p[i];
            want_m[i] = b1 * want_m[i] + (1 - b1) * grad;
            want_v[i] = b2 * want_v[i] + (1 - b2) * grad * grad;
            double m_hat = want_m[i] / (1 - pow(b1, t)), v_hat = want_v[i] / (1 - pow(b2, t));
            want_p[i] -= lr * m_hat / (sqrt(v_hat) + eps);
            check(m[i], want_m[i], 1e-13);
            check(v[i], want_v[i], 1e-13);
            check(p[i], want_p[i], 1e-13);
        }
    }
}
