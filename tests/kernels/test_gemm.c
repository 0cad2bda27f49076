/* tests/kernels/test_gemm.c - the GEMMs of one level (TEST_LEVEL), of floats and of floats rounded
 * to bfloat16: values against a triple loop in double, bits against the reference, and bits that
 * don't depend on threads, repetition or the operands' addresses. */
#include "support.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "kernels/guard.h"
#include "kernels/reference/reference.h"

static lks__kernels lvl;

/* Emulated are products of bfloat16: those of floats are the reference's. */
#ifdef TEST_EMULATED
enum { FLOATS = false };
#else
enum { FLOATS = true };
#endif

enum { MAX = 400 * 400 };
static float a[MAX], b[MAX], c[MAX];

typedef struct product {
    bool bf16;
    char ta, tb;
    size_t m, n, k;
    float alpha, beta;
    size_t pad; /* leading dimension minus row length */
} product;

static size_t lda(const product *p)
{
    return (p->ta == 'T' ? p->m : p->k) + p->pad;
}

static size_t ldb(const product *p)
{
    return (p->tb == 'T' ? p->k : p->n) + p->pad;
}

static size_t rows_a(const product *p)
{
    return p->ta == 'T' ? p->k : p->m;
}

static size_t rows_b(const product *p)
{
    return p->tb == 'T' ? p->n : p->k;
}

static void multiply(const product *p, const float *xa, const float *xb, float *xc)
{
    static _Thread_local _Alignas(64) char work[LKS__GEMM_WORK_BYTES];
    const size_t ldc = p->n + p->pad;
    if (p->bf16)
        lvl.gemm_bf16(p->ta, p->tb, p->m, p->n, p->k, p->alpha, xa, lda(p), xb, ldb(p), p->beta, xc,
                      ldc, work);
    else
        lvl.gemm(p->ta, p->tb, p->m, p->n, p->k, p->alpha, xa, lda(p), xb, ldb(p), p->beta, xc,
                 ldc);
}

/* The value that a product uses for x. */
static double seen(const product *p, float x)
{
    return p->bf16 ? lks__bf16_to_float(lks__bf16_from_float(x)) : x;
}

/* Elements from the first of the first row to the last of the last row. */
static size_t extent(size_t rows, size_t ld, size_t pad)
{
    return rows * ld - pad;
}

static void check(const product *p, guard_place place)
{
    size_t ldc = p->n + p->pad, n_c = extent(p->m, ldc, p->pad);
    const float *ga = guard_copy(a, extent(rows_a(p), lda(p), p->pad), place);
    const float *gb = guard_copy(b, extent(rows_b(p), ldb(p), p->pad), place);
    float *gc = guard_copy(c, n_c, place);
    if (p->beta == 0)
        for (size_t i = 0; i < p->m; i++)
            for (size_t j = 0; j < p->n; j++)
                gc[i * ldc + j] = NAN; /* must not be read */

    multiply(p, ga, gb, gc);

    static double wide_a[MAX], wide_b[MAX]; /* rows of A, columns of B */
    for (size_t q = 0; q < p->k; q++) {
        for (size_t i = 0; i < p->m; i++)
            wide_a[i * p->k + q] = seen(p, p->ta == 'T' ? a[q * lda(p) + i] : a[i * lda(p) + q]);
        for (size_t j = 0; j < p->n; j++)
            wide_b[j * p->k + q] = seen(p, p->tb == 'T' ? b[j * ldb(p) + q] : b[q * ldb(p) + j]);
    }
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < ldc && i * ldc + j < n_c; j++) {
            if (j >= p->n) { /* the gap between rows */
                assert_true(gc[i * ldc + j] == c[i * ldc + j]);
                continue;
            }
            double sum = 0, terms = 0;
            for (size_t q = 0; q < p->k; q++) {
                double term = wide_a[i * p->k + q] * wide_b[j * p->k + q];
                sum += term;
                terms += fabs(term);
            }
            double old = p->beta == 0 ? 0 : p->beta * c[i * ldc + j];
            double want = p->alpha * sum + old;
            /* a few roundings, and a random walk of one rounding for each term */
            double tol = 0x1p-24 * ((4 + sqrt((double)p->k)) * p->alpha * terms + 4 * fabs(old));
            if (!(fabs(gc[i * ldc + j] - want) <= tol))
                fail_msg("%s%c%c %zux%zux%zu pad %zu, element (%zu, %zu): %.9g, should be %.9g",
                         p->bf16 ? "bf16 " : "", p->ta, p->tb, p->m, p->n, p->k, p->pad, i, j,
                         gc[i * ldc + j], want);
        }
    }
    guard_release();
}

TEST(test_values)
{
    static const size_t shapes[][3] = {
        {1, 1, 1},   {1, 2, 3},    {3, 1, 2},    {2, 3, 1},     {7, 9, 8},       {8, 8, 8},
        {16, 17, 5}, {31, 33, 65}, {1, 65, 64},  {65, 1, 127},  {127, 3, 129},   {64, 64, 64},
        {5, 130, 7}, {66, 67, 70}, {2, 2, 300},  {12, 300, 16}, {128, 384, 128}, {65, 128, 384},
        {300, 7, 9}, {9, 398, 33}, {3, 34, 391}, {5, 528, 20},  {17, 20, 1040}, /* 512: the largest
                                                                                   block */
    };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int t = FLOATS ? 0 : 4; t < 8; t++)
            for (int v = 0; v < 3; v++) {
                product p = {t & 4,
                             t & 1 ? 'T' : 'N',
                             t & 2 ? 'T' : 'N',
                             shapes[s][0],
                             shapes[s][1],
                             shapes[s][2],
                             v == 2 ? 0.125f : 1,
                             v == 0 ? 0 : 1,
                             v == 1 ? (size_t)3 : 0};
                check(&p, (guard_place)((s + t + v) % GUARD_PLACES));
            }
}

static void reference(const product *p, float *xc)
{
    const size_t ldc = p->n + p->pad;
    if (p->bf16)
        lks__gemm_bf16_ref(p->ta, p->tb, p->m, p->n, p->k, p->alpha, a, lda(p), b, ldb(p), p->beta,
                           xc, ldc, NULL);
    else
        lks__gemm_ref(p->ta, p->tb, p->m, p->n, p->k, p->alpha, a, lda(p), b, ldb(p), p->beta, xc,
                      ldc);
}

/* The order of sums is the reference's: by the level's product, with the library's help and
 * without, and in bfloat16 without instructions for it. */
static void check_bits(const product *p)
{
    static float got[MAX], want[MAX];
    const size_t n_c = extent(p->m, p->n + p->pad, p->pad);
    const lks__kernels both = lvl;
    memcpy(want, c, n_c * sizeof *want);
    reference(p, want);
    for (int own = 0; own < 2; own++) {
        memcpy(got, c, n_c * sizeof *got);
        if (own == 1)
            lks__kernels_open_own(lvl.level, &lvl);
        multiply(p, a, b, got);
        lvl = both;
        if (memcmp(got, want, n_c * sizeof *got) != 0)
            fail_msg("%s%c%c %zux%zux%zu pad %zu alpha %g beta %g, %s: not the reference's bits",
                     p->bf16 ? "bf16 " : "", p->ta, p->tb, p->m, p->n, p->k, p->pad,
                     (double)p->alpha, (double)p->beta, own == 1 ? "own" : "library");
    }
}

/* z + x y lies so near the middle between two floats that a sum in double would be that middle: a
 * second rounding would go to the even float, which is the wrong one. */
TEST(test_one_rounding)
{
    static const struct sum {
        float z, x, y, want;
    } sums[] = {{1, 0x1.001p-24f, 0x1.ffe002p-1f, 0x1.000002p0f},                 /* above it */
                {0x1.000002p0f, 0x1.000002p-24f, 0x1.fffffcp-1f, 0x1.000002p0f}}; /* below it */
    for (int i = 0; i < 4; i++) {
        const struct sum *s = &sums[i / 2];
        const float sign = i % 2 == 0 ? 1.0f : -1.0f, terms[] = {sign * s->z, sign * s->x};
        const float factors[] = {1, s->y};
        float got;
        multiply(&(product){false, 'N', 'N', 1, 1, 2, 1, 0, 0}, terms, factors, &got);
        assert_true(got == sign * s->want);
    }
}

/* Sizes around the tiles and panels of every level, and inner dimensions around the blocks. */
TEST(test_order)
{
    static const size_t ks[] = {1, 60, 255, 256, 257, 384, 512, 1536};
    static const size_t sizes[][2] = {{1, 1},  {1, 100}, {5, 17},  {6, 16},   {7, 31},
                                      {8, 48}, {13, 49}, {37, 65}, {64, 100}, {100, 97}};
    static const float alphas[] = {1, 0.125f, 0.3f}, betas[] = {0, 1, -4.775f};
    const int forms = lvl.level < LKS__CPU_AVX512_BF16 ? 2 : 1;
    for (int bf16 = 0; bf16 < (FLOATS ? forms : 0); bf16++)
        for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
                for (size_t t = 0; t < 4; t++) {
                    const size_t mix = i + s + t;
                    check_bits(&(product){bf16, t & 1 ? 'T' : 'N', t & 2 ? 'T' : 'N', sizes[s][0],
                                          sizes[s][1], ks[i], alphas[mix % 3], betas[mix / 3 % 3],
                                          mix % 2 * 3});
                }
}

TEST(test_empty)
{
    float x[4] = {1, 2, 3, 4};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        multiply(&(product){bf16, 'N', 'N', 0, 2, 2, 1, 0, 0}, a, b, x);
        multiply(&(product){bf16, 'N', 'N', 2, 0, 2, 1, 0, 0}, a, b, x);
        assert_true(x[0] == 1 && x[3] == 4);
        multiply(&(product){bf16, 'N', 'N', 2, 2, 0, 1, 1, 0}, a, b, x); /* C = beta * C */
        assert_true(x[0] == 1 && x[3] == 4);
    }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        x[0] = x[3] = 1;
        multiply(&(product){bf16, 'N', 'N', 2, 2, 0, 1, 0, 0}, a, b, x);
        assert_true(x[0] == 0 && x[3] == 0);
    }
}

TEST(test_nan)
{
    float x[2 * 3] = {1, 2, NAN, 4, 5, 6}, y[3 * 2] = {1, 0, 0, 1, 0, 0}, z[4];
    for (int bf16 = 0; bf16 < 2; bf16++) {
        multiply(&(product){bf16, 'N', 'N', 2, 2, 3, 1, 0, 0}, x, y, z);
        assert_true(isnan(z[0]) && isnan(z[1]) && z[2] == 4 && z[3] == 5);
    }
}

/* Integers whose sums are exact in float, in any order: every bit must be right. */
TEST(test_exact)
{
    static float xa[64 * 300], xb[300 * 70], xc[64 * 70];
    for (size_t i = 0; i < sizeof xa / sizeof xa[0]; i++)
        xa[i] = (float)(i * 7 % 31) - 15;
    for (size_t i = 0; i < sizeof xb / sizeof xb[0]; i++)
        xb[i] = (float)(i * 11 % 37) - 18;
    for (int t = 0; t < 8; t++) {
        const product p = {t & 4, t & 1 ? 'T' : 'N', t & 2 ? 'T' : 'N', 64, 70, 300, 1, 0, 0};
        multiply(&p, xa, xb, xc);
        for (size_t i = 0; i < p.m; i++)
            for (size_t j = 0; j < p.n; j++) {
                double want = 0;
                for (size_t q = 0; q < p.k; q++)
                    want += (double)(p.ta == 'T' ? xa[q * p.m + i] : xa[i * p.k + q]) *
                            (double)(p.tb == 'T' ? xb[j * p.k + q] : xb[q * p.n + j]);
                assert_true(xc[i * p.n + j] == want);
            }
    }
}

/* The tiles of a step, in the orders of forward and both gradients. */
static const product tiles[] = {
    {false, 'N', 'T', 128, 384, 128, 1, 0, 0}, {false, 'N', 'N', 128, 384, 128, 1, 1, 0},
    {false, 'T', 'N', 128, 384, 128, 1, 1, 0}, {false, 'N', 'T', 37, 65, 384, 1, 0, 1},
    {false, 'T', 'N', 65, 130, 129, 1, 1, 3},  {true, 'N', 'T', 128, 384, 128, 1, 0, 0},
    {true, 'N', 'N', 128, 384, 128, 1, 1, 0},  {true, 'T', 'N', 128, 384, 128, 1, 1, 0},
    {true, 'N', 'T', 37, 65, 384, 1, 0, 1},    {true, 'T', 'N', 65, 130, 129, 1, 1, 3},
};
enum { N_TILES = sizeof tiles / sizeof tiles[0], TILE_C = 128 * 387 };

static void run_tile(const product *p, const float *xa, const float *xb, float *xc)
{
    memcpy(xc, c, TILE_C * sizeof *xc);
    multiply(p, xa, xb, xc);
}

TEST(test_places)
{
    for (size_t t = FLOATS ? 0 : N_TILES / 2; t < N_TILES; t++) {
        const product *p = &tiles[t];
        float *want = NULL;
        for (int place = 0; place < 8; place++) { /* each operand aligned or not */
            const float *ga = guard_copy(a, extent(rows_a(p), lda(p), p->pad), place & 1);
            const float *gb = guard_copy(b, extent(rows_b(p), ldb(p), p->pad), place >> 1 & 1);
            float *gc = guard_copy(c, TILE_C, place >> 2);
            run_tile(p, ga, gb, gc);
            if (place == 0)
                want = gc;
            assert_memory_equal(gc, want, TILE_C * sizeof *gc);
        }
        guard_release();
    }
}

#ifdef TEST_EMULATED
enum { THREADS = 2, REPEATS = N_TILES };
#else
enum { THREADS = 4, REPEATS = TEST_LEVEL == LKS__CPU_PLAIN ? N_TILES / 2 : 25 };
#endif
static float expected[N_TILES][TILE_C];

/* Returns NULL when all products had the expected bits. */
static void *worker(void *arg)
{
    static const char wrong[] = "other bits";
    float *xc = malloc(TILE_C * sizeof *xc);
    void *verdict = xc == NULL ? (void *)(size_t)wrong : NULL;
    lks__kernels_thread_init();
    for (size_t r = 0; xc != NULL && r < REPEATS; r++) {
        const size_t t = (r + *(size_t *)arg) % N_TILES;
        run_tile(&tiles[t], a, b, xc);
        if (memcmp(xc, expected[t], TILE_C * sizeof *xc) != 0)
            verdict = (void *)(size_t)wrong;
    }
    free(xc);
    return verdict;
}

TEST(test_threads)
{
    pthread_t threads[THREADS];
    size_t first[THREADS];

    for (size_t t = 0; t < N_TILES; t++)
        run_tile(&tiles[t], a, b, expected[t]);
    for (size_t i = 0; i < THREADS; i++) {
        first[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, worker, &first[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *verdict;
        assert_int_equal(pthread_join(threads[i], &verdict), 0);
        assert_null(verdict);
    }
    assert_int_equal(lks__kernels_check(), LKS_OK);
}

#ifdef TEST_TWIN
/* The emulated instructions (emulated/immintrin.h) against the processor's: equal up to a few
 * roundings, also for operands that are denormal, infinite or NaN. */
lks__gemm_bf16_fn TEST_TWIN;
TEST(test_twin)
{
    static _Alignas(64) char work[LKS__GEMM_WORK_BYTES];
    static float xa[TILE_C * 2], got[TILE_C], want[TILE_C];
    static const float odd[] = {1e-39f, -3e-20f, 2e-19f, 1e30f, INFINITY, -0.0f, NAN};
    lks__kernels_thread_init();
    for (size_t t = 0; t < N_TILES; t++)
        for (int special = 0; special < 2; special++) {
            const product *p = &tiles[t];
            if (!p->bf16)
                continue;
            memcpy(xa, a, sizeof xa);
            for (size_t i = 0; special && i < sizeof xa / sizeof xa[0]; i += 1009)
                xa[i] = odd[i / 1009 % (sizeof odd / sizeof odd[0])];
            run_tile(p, xa, b, got);
            memcpy(want, c, sizeof want);
            TEST_TWIN(p->ta, p->tb, p->m, p->n, p->k, p->alpha, xa, lda(p), b, ldb(p), p->beta,
                      want, p->n + p->pad, work);
            for (size_t i = 0; i < TILE_C; i++)
                if (isfinite(want[i]))
                    assert_near(got[i], want[i], 0x1p-20 * ((double)p->k + fabs(want[i])));
                else
                    assert_true(isnan(want[i]) ? isnan(got[i]) : got[i] == want[i]);
        }
}
#endif

int main(void)
{
#ifdef TEST_EMULATED
    lks__gemm_bf16_fn TEST_EMULATED;
    assert_ok(lks__kernels_open(LKS__CPU_PLAIN, &lvl));
    lvl.gemm_bf16 = TEST_EMULATED;
#else
    lks_test_need_level_of(TEST_LEVEL, &lvl); /* the machine's own level matters here */
#endif
    printf("matrix products: %s\n", lks__kernels_gemm_library(&lvl));
    fill_random(a, MAX, 1, 1);
    fill_random(b, MAX, 1, 2);
    fill_random(c, MAX, 1, 3);
    return lks_test_run_all(NULL, NULL);
}
