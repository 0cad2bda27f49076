/* Muon's updates: src/compute/cuda/kernels/muon.cu, with a plain product (host.c). */
#include "support.h"

#include <math.h>

#include "host.h"

/* One element; wide, tall and square; more than one block's elements. */
static const struct {
    size_t rows, cols;
} shapes[] = {{1, 1}, {3, 5}, {5, 3}, {1, 9}, {33, 40}, {64, 64}, {70, 61}, {61, 70}};
enum { SHAPES = sizeof shapes / sizeof *shapes, PADDING = 16 };

static const double LR = 0.7, MOMENTUM = 0.95, CLIP = 0.5, TOLERANCE = 1e-5;

/* The CPU's update goes on into the padding behind a matrix, which is zero. */
struct matrix {
    size_t rows, cols, n;
    float *params, *momentum, *grads;
};

static float *padded(size_t n, unsigned seed)
{
    float *x = host_randoms(n + PADDING, seed);
    for (size_t i = n; i < n + PADDING; i++)
        x[i] = 0.0f;
    return x;
}

static struct matrix matrix_make(size_t rows, size_t cols, unsigned number)
{
    const size_t n = rows * cols;
    const unsigned seed = (unsigned)(1000 * rows + cols) + 3 * number;
    return (struct matrix){
        rows, cols, n, padded(n, seed), padded(n, seed + 1), padded(n, seed + 2)};
}

/* Update copies of `n` matrices as one list, each in memory of just its size if the device is CUDA,
 * with work space for `places` of the largest. */
static void update(const lks__layers *layers, const lks__exec *ex, const struct matrix *all,
                   size_t n, int steps, size_t places, struct matrix *results)
{
    const size_t padding = ex == NULL ? 0 : PADDING;
    lks__muon_list list = {
        .lr = LR, .momentum = MOMENTUM, .clip = CLIP, .ns_steps = steps, .n_pieces = n};
    for (size_t i = 0; i < n; i++) {
        struct matrix *m = &results[i];
        const size_t bytes = layers->update_muon_bytes(ex, all[i].rows, all[i].cols);
        *m = all[i];
        m->params = host_copy(all[i].params, m->n + padding);
        m->momentum = host_copy(all[i].momentum, m->n + padding);
        m->grads = host_copy(all[i].grads, m->n + padding);
        list.piece[i].rows = m->rows;
        list.piece[i].cols = m->cols;
        list.piece[i].params = m->params;
        list.piece[i].momentum = m->momentum;
        list.piece[i].grads = m->grads;
        list.work_bytes = bytes > list.work_bytes ? bytes : list.work_bytes;
    }
    list.work_bytes *= places;
    list.work = host_work(list.work_bytes);
    layers->update_muon(ex, &list);
}

static const lks__layers cuda = {
    .update_muon = lks__cuda_update_muon,
    .update_muon_bytes = lks__cuda_update_muon_bytes,
};

/* --- the formula ------------------------------------------------------------------------------ */

/* c[m, n] = a[m, k] b[k, n] */
static void multiply(double *c, const double *a, const double *b, size_t m, size_t n, size_t k)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            c[i * n + j] = 0.0;
            for (size_t p = 0; p < k; p++)
                c[i * n + j] += a[i * k + p] * b[p * n + j];
        }
}

/* x <- a x + (b A + c A^2) x with A = x x^T, as it stands in layers.h for a matrix that isn't tall.
 */
static void iterate(double *x, size_t rows, size_t cols)
{
    double *t = host_doubles(rows * cols), *gram = host_doubles(rows * rows);
    double *square = host_doubles(rows * rows), *add = host_doubles(rows * cols);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            t[j * rows + i] = x[i * cols + j];
    multiply(gram, x, t, rows, rows, cols);
    multiply(square, gram, gram, rows, rows, rows);
    for (size_t i = 0; i < rows * rows; i++)
        square[i] = -4.7750 * gram[i] + 2.0315 * square[i];
    multiply(add, square, x, rows, cols, rows);
    for (size_t i = 0; i < rows * cols; i++)
        x[i] = 3.4445 * x[i] + add[i];
}

/* Parameters after an update; a tall matrix is iterated on as its transpose. */
static double *formula(const struct matrix *m, int steps)
{
    const bool tall = m->rows > m->cols;
    const size_t rows = tall ? m->cols : m->rows, cols = tall ? m->rows : m->cols;
    double *x = host_doubles(m->n), *params = host_wide(m->params, m->n), squares = 0.0;
    for (size_t i = 0; i < m->n; i++) {
        const double g = (double)m->grads[i] * CLIP;
        const double u = g + MOMENTUM * (MOMENTUM * (double)m->momentum[i] + g);
        x[tall ? i % m->cols * m->rows + i / m->cols : i] = u;
        squares += u * u;
    }
    for (size_t i = 0; i < m->n; i++)
        x[i] /= sqrt(squares) + 1e-7;
    for (int step = 0; step < steps; step++)
        iterate(x, rows, cols);
    for (size_t i = 0; i < m->n; i++)
        params[i] -= LR * sqrt(tall ? (double)m->rows / (double)m->cols : 1.0) *
                     x[tall ? i % m->cols * m->rows + i / m->cols : i];
    return params;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void check(size_t rows, size_t cols, int steps)
{
    const struct matrix m = matrix_make(rows, cols, 0);
    const double *want = formula(&m, steps);
    struct matrix first, cpu;
    EACH_ORDER(seed)
    {
        struct matrix got;
        update(&cuda, NULL, &m, 1, steps, 1, &got);
        if (seed == 0)
            first = got;
        assert_close(got.params, want, m.n, TOLERANCE);
        assert_bits(got.params, first.params, m.n);
        assert_bits(got.momentum, first.momentum, m.n);
    }
    update(&lks__layers_cpu, host_exec(), &m, 1, steps, 1, &cpu);
    assert_close_floats(first.params, cpu.params, m.n, TOLERANCE);
    assert_bits(first.momentum, cpu.momentum, m.n); /* no sum is in it */
}

TEST(test_matches_formula)
{
    for (size_t i = 0; i < SHAPES; i++) {
        check(shapes[i].rows, shapes[i].cols, 0);
        check(shapes[i].rows, shapes[i].cols, 5);
    }
}

/* A matrix has the same bits alone and in any list, however many are worked on at once. */
TEST(test_lists)
{
    enum { EACH = 3, N = EACH * SHAPES };
    struct matrix all[N], reversed[N], forwards[N], backwards[N], alone;
    for (size_t i = 0; i < N; i++) {
        all[i] = matrix_make(shapes[i % SHAPES].rows, shapes[i % SHAPES].cols, (unsigned)i);
        reversed[N - 1 - i] = all[i];
    }
    update(&cuda, NULL, all, N, 2, 2, forwards);
    update(&cuda, NULL, reversed, N, 2, EACH, backwards);
    for (size_t i = 0; i < N; i++) {
        update(&cuda, NULL, &all[i], 1, 2, 1, &alone);
        assert_bits(forwards[i].params, alone.params, alone.n);
        assert_bits(backwards[N - 1 - i].params, alone.params, alone.n);
        assert_bits(forwards[i].momentum, alone.momentum, alone.n);
    }
}
