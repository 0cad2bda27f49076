/* tests/kernels/test_kinds.c - which products a library computes: those whose bits are ours. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "compute/cpu/products/kinds.h"
#include "kernels/guard.h"
#include "kernels/reference/reference.h"

enum { M = 37, N = 40, K = 600, ELEMENTS = 640 * 80 };
static float a[ELEMENTS], b[ELEMENTS];

/* One unit in the last place. */
static void spoil(float *x)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    bits++;
    memcpy(x, &bits, sizeof bits);
}

static int n_library;
static size_t wrong_m;      /* with so many rows the library has another order of sums */
static bool wrong_shifted;  /* or with operands that aren't aligned */
static bool reads_c;        /* or it reads C although beta is 0 */
static bool fused;          /* or it rounds beta * C + alpha * sum once */
static bool backwards;      /* or it adds the last terms first */
static bool flushes;        /* or it gives 0 in place of subnormal numbers */
static bool starts_at_term; /* or it doesn't add a sum's only term to 0, so -0 stays */

static void library(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *x,
                    size_t ldx, const float *y, size_t ldy, float beta, float *c, size_t ldc)
{
    __atomic_add_fetch(&n_library, 1, __ATOMIC_RELAXED);
    assert_true(k <= LKS__GEMM_DEPTH);
    if (reads_c && beta == 0.0f)
        c[0] *= 0.0f;
    const float first = c[0];
    float sum;
    lks__gemm_ref(ta, tb, 1, 1, k, 1, x, ldx, y, ldy, 0, &sum, 1);
    lks__gemm_ref(ta, tb, m, n, k, alpha, x, ldx, y, ldy, beta, c, ldc);
    if (reads_c && beta == 0.0f)
        c[0] += first;
    if (fused && beta != 0.0f)
        c[0] = (float)((double)alpha * sum + (double)beta * first);
    for (size_t i = 0; backwards && i < m * n; i++) {
        c[i / n * ldc + i % n] = 0.0f;
        for (size_t p = k; p-- > 0;)
            c[i / n * ldc + i % n] =
                fmaf(x[i / n * ldx + p], y[i % n * ldy + p], c[i / n * ldc + i % n]);
    }
    for (size_t i = 0; i < m * n; i++) {
        float *z = &c[i / n * ldc + i % n];
        if (flushes && fabsf(*z) < FLT_MIN)
            *z *= 0.0f;
        if (starts_at_term && k == 1 && beta == 0.0f)
            *z = alpha * (x[i / n * ldx] * y[i % n * ldy]);
    }
    if (m == wrong_m || (wrong_shifted && (uintptr_t)x % 16 != 0))
        spoil(&c[(m - 1) * ldc + n - 1]);
}

/* Another function, so that kinds are forgotten. */
static void own(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *x,
                size_t ldx, const float *y, size_t ldy, float beta, float *c, size_t ldc)
{
    lks__gemm_ref(ta, tb, m, n, k, alpha, x, ldx, y, ldy, beta, c, ldc);
}

static void start(void)
{
    lks__kinds_open(library, lks__gemm_ref);
    lks__kinds_open(library, own);
    wrong_m = 0;
    wrong_shifted = reads_c = fused = backwards = flushes = starts_at_term = false;
    n_library = 0;
}

/* A product, which must have the reference's bits; returns how many of its kinds were new, and how
 * many the library has of those. */
static lks__gemm_kinds product(size_t m, size_t k, float alpha, float beta)
{
    static float c[M * N], want[M * N];
    for (size_t i = 0; i < M * N; i++)
        c[i] = want[i] = (float)i;
    const lks__gemm_kinds before = lks__kernels_gemm_kinds();
    lks__kinds_gemm('N', 'T', m, N, k, alpha, a, K, b, K, beta, c, N);
    lks__gemm_ref('N', 'T', m, N, k, alpha, a, K, b, K, beta, want, N);
    assert_memory_equal(c, want, sizeof c);
    const lks__gemm_kinds after = lks__kernels_gemm_kinds();
    return (lks__gemm_kinds){after.library - before.library, after.own - before.own};
}

static void expect(lks__gemm_kinds kinds, size_t library_kinds, size_t own_kinds)
{
    assert_int_equal(kinds.library, library_kinds);
    assert_int_equal(kinds.own, own_kinds);
}

/* The first test, while unused memory is zeros, whose sum shows no order. */
TEST(test_wrong_order)
{
    start();
    backwards = true;
    expect(product(M, 100, 1, 0), 0, 1);
    expect(product(M, 3, 1, 0), 0, 1);
}

TEST(test_right)
{
    start();
    /* three blocks: the first, those in the middle, and the last */
    expect(product(M, K, 1, 0), 3, 0);
    const int checked = n_library;
    expect(product(M, K, 1, 0), 0, 0); /* known: no further comparison */
    assert_int_equal(n_library, checked + 3);
    expect(product(M, LKS__GEMM_DEPTH, 1, 0), 0, 0);
    expect(product(M, LKS__GEMM_DEPTH, 0.5f, 0), 1, 0); /* alpha and beta belong to the kind */
    expect(product(M, LKS__GEMM_DEPTH, 1, 0.5f), 1, 0);
    expect(product(M, 0, 1, 0.5f), 0, 0);
    expect(product(0, K, 1, 0), 0, 0);
}

TEST(test_wrong_kind)
{
    start();
    wrong_m = M;
    expect(product(M, K, 1, 0), 0, 3);
    const int checked = n_library;
    expect(product(M, K, 1, 0), 0, 0);
    assert_int_equal(n_library, checked);
    expect(product(M - 1, K, 1, 0), 3, 0);
}

TEST(test_wrong_if_not_aligned)
{
    start();
    wrong_shifted = true;
    expect(product(M, 100, 1, 0), 0, 1);
}

TEST(test_reads_c)
{
    start();
    reads_c = true;
    expect(product(M, 100, 1, 0), 0, 1);
    expect(product(M, 100, 1, 1), 1, 0);
}

TEST(test_fused)
{
    start();
    fused = true;
    expect(product(M, 100, 0.3f, 0), 1, 0);
    expect(product(M, 100, 0.3f, 0.7f), 0, 1);
}

/* The drawn operands have rows of subnormal numbers, and of zeros of both signs. */
TEST(test_small_numbers)
{
    start();
    flushes = true;
    expect(product(M, 100, 1, 0), 0, 1);
    start();
    starts_at_term = true;
    expect(product(M, 1, 1, 0), 0, 1);
}

/* More kinds than the table has room for, the library's or not: the rest are our own. */
TEST(test_full)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        start();
        wrong_shifted = wrong;
        static float c[1100];
        for (size_t m = 1; m <= 1100; m++)
            lks__kinds_gemm('N', 'N', m, 1, 1, 1, a, 1, b, 1, 0, c, 1);
        expect(lks__kernels_gemm_kinds(), wrong ? 0 : 1024, wrong ? 1024 : 0);
        for (size_t m = 0; m < 1100; m++)
            assert_true(c[m] == a[m] * b[0]);
    }
}

static void *worker(void *arg)
{
    float c[M * N], want[M * N];
    for (size_t m = 1; m <= M; m++) {
        lks__kinds_gemm('N', 'T', m, N, 60, 1, a, K, b, K, 0, c, N);
        lks__gemm_ref('N', 'T', m, N, 60, 1, a, K, b, K, 0, want, N);
        if (memcmp(c, want, m * N * sizeof *c) != 0)
            return arg;
    }
    return NULL;
}

TEST(test_threads)
{
    start();
    pthread_t threads[4];
    wrong_m = 7;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, worker, threads), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    expect(lks__kernels_gemm_kinds(), M - 1, 1); /* each kind was compared once */
}

int main(void)
{
    fill_random(a, ELEMENTS, 1, 1);
    fill_random(b, ELEMENTS, 1, 2);
    return lks_test_run_all(NULL, NULL);
}
