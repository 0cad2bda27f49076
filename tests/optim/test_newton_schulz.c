/* Newton-Schulz against the plain iteration in double: values, symmetry, threads, zeros. */
#include "optim/level.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "compute/cpu/layers/newton_schulz.h"

static const double a = 3.4445, b = -4.7750, c = 2.0315;

static lks__kernels kernels;

typedef struct shape {
    size_t rows, cols;
} shape;

/* Square, tall, wide, vectors; at, next to and across the borders of panels, tiles and blocks. */
static const shape shapes[] = {
    {1, 1},     {1, 9},     {9, 1},     {3, 3},     {3, 5},     {5, 3},     {7, 8},     {8, 7},
    {16, 16},   {31, 64},   {64, 33},   {127, 128}, {128, 127}, {128, 128}, {129, 129}, {130, 200},
    {200, 131}, {200, 200}, {137, 520}, {530, 70},  {1, 4097},  {4097, 1},  {257, 300}, {530, 515},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, 0, seed, 5}, words[4];
        lks__philox4x32(lks__philox_key_of(77), counter, words);
        x[i] = (float)((words[0] + (double)words[1]) * 0x1p-32 - 1.0);
    }
}

/* out[m, n] = p[m, k] q[k, n] */
static void product(double *out, const double *p, const double *q, size_t m, size_t n, size_t k)
{
    memset(out, 0, m * n * sizeof *out);
    for (size_t i = 0; i < m; i++)
        for (size_t l = 0; l < k; l++)
            for (size_t j = 0; j < n; j++)
                out[i * n + j] += p[i * k + l] * q[l * n + j];
}

static void transpose(double *out, const double *x, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[j * rows + i] = x[i * cols + j];
}

/* x <- ax + (b xxᵀ + c (xxᵀ)²) x for x[m, n]. */
static void plain_step(double *x, size_t m, size_t n)
{
    double *xt = level_memory(m * n * 8, 0), *y = level_memory(m * n * 8, 0);
    double *gram = level_memory(m * m * 8, 0), *square = level_memory(m * m * 8, 0);
    transpose(xt, x, m, n);
    product(gram, x, xt, m, m, n);
    product(square, gram, gram, m, m, m);
    for (size_t i = 0; i < m * m; i++)
        square[i] = b * gram[i] + c * square[i];
    product(y, square, x, m, n, m);
    for (size_t i = 0; i < m * n; i++)
        x[i] = a * x[i] + y[i];
    lks_test_free(xt, y, gram, square);
}

static void product_f(bool bf16, char tb, size_t m, size_t n, size_t k, float alpha, const float *x,
                      const float *y, size_t ldy, float beta, float *out)
{
    static _Alignas(64) char work[LKS__GEMM_WORK_BYTES];
    if (bf16)
        lks__gemm_bf16_plain('N', tb, m, n, k, alpha, x, k, y, ldy, beta, out, n, work);
    else
        lks__gemm_plain('N', tb, m, n, k, alpha, x, k, y, ldy, beta, out, n);
}

/* The same in float32, by whole products, of floats or of bfloat16 operands. */
static void plain_step_f(float *x, size_t m, size_t n, bool bf16)
{
    float *y = level_memory(m * n * 4, 0);
    float *gram = level_memory(m * m * 4, 0), *poly = level_memory(m * m * 4, 0);
    product_f(bf16, 'T', m, m, n, 1, x, x, n, 0, gram);
    memcpy(poly, gram, m * m * 4);
    product_f(bf16, 'N', m, m, m, (float)c, gram, gram, m, (float)b, poly);
    memcpy(y, x, m * n * 4);
    product_f(bf16, 'N', m, n, m, 1, poly, x, n, (float)a, y);
    memcpy(x, y, m * n * 4);
    lks_test_free(y, gram, poly);
}

static double distance(const double *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - (double)y[i]) * (x[i] - (double)y[i]);
    return sqrt(sum);
}

/* The plain iteration in double on x[rows, cols], which becomes its result. Returns the distance of
 * the plain iteration in float32 from it. Roundings of one step grow up to a-fold in each later
 * step, so worst-case bounds are useless. But two good float32 versions have about equal errors,
 * and so have two with bfloat16 operands. */
static double plain(double *x, size_t rows, size_t cols, int steps, bool bf16)
{
    size_t m = rows < cols ? rows : cols, n = rows < cols ? cols : rows, count = m * n;
    double *wide = level_memory(count * 8, 0), norm = 0;
    float *wide_f = level_memory(count * 4, 0);
    for (size_t i = 0; i < count; i++)
        norm += x[i] * x[i];
    for (size_t i = 0; i < count; i++)
        x[i] /= sqrt(norm) + 1e-7;
    if (rows > cols)
        transpose(wide, x, rows, cols);
    else
        memcpy(wide, x, count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        wide_f[i] = (float)wide[i];
    for (int s = 0; s < steps; s++) {
        plain_step(wide, m, n);
        plain_step_f(wide_f, m, n, bf16);
    }
    double off = distance(wide, wide_f, count);
    if (rows > cols)
        transpose(x, wide, cols, rows);
    else
        memcpy(x, wide, count * sizeof *x);
    lks_test_free(wide, wide_f);
    return off;
}

/* An iterated copy of x; the caller frees. */
static float *iterated(const lks__exec *ex, const float *x, shape s, int steps)
{
    float *out = level_memory(s.rows * s.cols * 4, 0);
    void *work = level_memory(lks__newton_schulz_bytes(s.rows, s.cols), 0xff); /* NaN */
    memcpy(out, x, s.rows * s.cols * sizeof *x);
    lks__newton_schulz(ex, out, s.rows, s.cols, steps, &(lks__beat){NULL, NULL}, work);
    free(work);
    return out;
}

TEST(test_values)
{
    lks__exec ex = level_exec(&kernels, 2);
    static const int n_steps[4] = {0, 1, 2, 5};
    for (size_t i = 0; i < N_SHAPES; i++) {
        size_t count = shapes[i].rows * shapes[i].cols;
        float *x = level_memory(count * 4, 0);
        double *want = level_memory(count * 8, 0);
        fill(x, count, (uint32_t)i);
        /* the largest only test the borders of tiles, because the plain version is slow */
        size_t n = shapes[i].rows > 500 && shapes[i].cols > 500 ? 2 : 4;
        for (size_t s = 0; s < n; s++) {
            float *got = iterated(&ex, x, shapes[i], n_steps[s]);
            for (size_t e = 0; e < count; e++)
                want[e] = x[e];
            double most = 4 * plain(want, shapes[i].rows, shapes[i].cols, n_steps[s], false);
            most += 32 * 0x1p-24; /* a few roundings for a norm of about 1 */
            if (!(distance(want, got, count) <= most))
                fail_msg("%zux%zu, %d steps: at %g from the plain iteration, more than %g",
                         shapes[i].rows, shapes[i].cols, n_steps[s], distance(want, got, count),
                         most);
            free(got);
        }
        lks_test_free(want, x);
    }
    level_close(&ex);
}

TEST(test_bf16)
{
    static const shape some[] = {{1, 9}, {31, 64}, {128, 128}, {200, 131}, {137, 520}, {530, 70}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        size_t count = some[i].rows * some[i].cols;
        float *x = level_memory(count * 4, 0), *first = NULL;
        double *want = level_memory(count * 8, 0);
        fill(x, count, (uint32_t)(200 + i));
        for (size_t e = 0; e < count; e++)
            want[e] = x[e];
        double most = 4 * plain(want, some[i].rows, some[i].cols, 5, true), off;
        for (int threads = 1; threads <= 3; threads++) {
            lks__exec ex = level_exec(&kernels, threads);
            ex.bf16 = true;
            float *got = iterated(&ex, x, some[i], 5);
            first = threads == 1 ? got : first;
            assert_memory_equal(got, first, count * sizeof *got);
            if (threads != 1)
                free(got);
            level_close(&ex);
        }
        off = distance(want, first, count);
        if (!(off <= most) || off < most * 1e-2) /* as good as its operands, and not better */
            fail_msg("%zux%zu: at %g from the plain iteration, of at most %g", some[i].rows,
                     some[i].cols, off, most);
        lks_test_free(first, want, x);
    }
}

TEST(test_singular_values)
{
    /* X = rows of a rotation times 1, so all singular values are 1/2 once divided by the norm of
     * 2 */
    float x[4 * 4] = {1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1};
    lks__exec ex = level_exec(&kernels, 1);
    float *got = iterated(&ex, x, (shape){4, 4}, 5);
    double s = 0.5;
    for (int step = 0; step < 5; step++)
        s = a * s + b * s * s * s + c * s * s * s * s * s;
    for (int i = 0; i < 16; i++)
        assert_near(got[i], s * x[i] / 2, 2e-6);
    free(got);
    level_close(&ex);
}

TEST(test_threads)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        size_t count = shapes[i].rows * shapes[i].cols;
        float *x = level_memory(count * 4, 0), *want = NULL;
        fill(x, count, (uint32_t)(100 + i));
        for (int threads = 1; threads <= 4; threads++) {
            lks__exec ex = level_exec(&kernels, threads), alone = {.k = &kernels};
            float *got = iterated(threads == 4 ? &alone : &ex, x, shapes[i], 2);
            if (threads == 1)
                want = got;
            assert_memory_equal(got, want, count * sizeof *got);
            if (threads != 1)
                free(got);
            level_close(&ex);
        }
        lks_test_free(want, x);
    }
}

TEST(test_zeros)
{
    lks__exec ex = level_exec(&kernels, 2);
    const shape s = {130, 40};
    size_t count = s.rows * s.cols;
    float *x = level_memory(count * 4, 0);
    float *got = iterated(&ex, x, s, 5);
    for (size_t i = 0; i < count; i++)
        assert_true(got[i] == 0.0f);
    free(got);
    /* zero rows stay zero; rows far below 1e-7 of the norm stay small and finite */
    fill(x, count / 2, 1);
    got = iterated(&ex, x, s, 5);
    for (size_t i = 0; i < count; i++)
        assert_true(i < count / 2 ? isfinite(got[i]) : got[i] == 0.0f);
    free(got);
    for (size_t i = 0; i < count; i++)
        x[i] *= 1e-30f;
    got = iterated(&ex, x, s, 5);
    for (size_t i = 0; i < count; i++)
        assert_near(got[i], 0.0, 1e-19);
    lks_test_free(got, x);
    level_close(&ex);
}

TEST(test_figures)
{
    const json_t *figure = lks_test_figure("golf_optim.json"), *one;
    lks__exec ex = level_exec(&kernels, 2);
    size_t index;
    assert_true(json_array_size(lks_test_member(figure, "orthogonal")) == 5);
    json_array_foreach(lks_test_member(figure, "orthogonal"), index, one)
    {
        shape s = {(size_t)lks_test_number(one, "rows"), (size_t)lks_test_number(one, "cols")};
        float *x = level_memory(s.rows * s.cols * 4, 0);
        level_fill(x, s.rows * s.cols, (uint64_t)lks_test_number(one, "seed"));
        float *got = iterated(&ex, x, s, (int)lks_test_number(one, "steps"));
        const json_t *want = lks_test_member(one, "result");
        assert_int_equal(json_array_size(want), s.rows * s.cols);
        for (size_t i = 0; i < s.rows * s.cols; i++)
            assert_near(got[i], json_number_value(json_array_get(want, i)), 1e-5);
        lks_test_free(got, x);
    }
    level_close(&ex);
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(NULL, NULL);
}
