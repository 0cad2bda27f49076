/* compute/cuda/kernels/muon.cu - Muon: momentum, norm and update of matrices; products by
 * lks__cuda_gemm_batch().
 *
 * Matrices of one shape are worked on at once, as many as the work space holds. A matrix's bits
 * don't depend on that, nor on its place among them. X is [rows, cols]; A and B = bA + cA^2 are
 * [n, n] for n the shorter side. The next X is aX + BX, or aX + XB if X is tall: both sums are the
 * products' own. */
#include "compute/cuda/cuda.h"
#include "compute/cuda/common/launch.h"
#include "compute/cuda/common/reduce.h"

#include <math.h>

enum {
    THREADS = 256,
    CHUNK = 4096, /* elements of a block */
};

static const float QUINTIC[3] = {3.4445f, -4.7750f, 2.0315f};

static size_t chunks(size_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* --- kernels --------------------------------------------------------------------------------- */

/* A block takes elements [first, end) of a matrix, a thread every THREADS-th of them. */
__device__ static size_t chunk_first(void)
{
    return (size_t)blockIdx.x * CHUNK + threadIdx.x;
}

__device__ static size_t chunk_end(size_t n)
{
    const size_t end = ((size_t)blockIdx.x + 1) * CHUNK;
    return end < n ? end : n;
}

/* The work of blocks of row y of a grid: a kernel's argument, so its lists are copied. */
struct matrices {
    float *params[LKS__UPDATE_PIECES], *momentum[LKS__UPDATE_PIECES];
    const float *grads[LKS__UPDATE_PIECES];
    size_t n; /* elements of each */
};

/* Work space for matrices of one shape, consecutive in each part. */
struct place {
    float *x, *next, *gram, *poly;
    double *sums;               /* of squares, one for each block */
    size_t matrix, square, row; /* from one matrix to the next: floats of X, floats of A, sums */
};

/* momentum = m momentum + g, x = g + m momentum, with each product rounded, as the CPU has them;
 * sums: of the squares of x. */
static __global__ void __launch_bounds__(THREADS)
    muon_average(const place p, const matrices all, float clip, float m)
{
    const float *grads = all.grads[blockIdx.y];
    float *momentum = all.momentum[blockIdx.y], *x = p.x + blockIdx.y * p.matrix;
    double sum = 0.0;
    for (size_t i = chunk_first(); i < chunk_end(all.n); i += THREADS) {
        const float g = grads[i] * clip, average = m * momentum[i] + g, u = g + m * average;
        momentum[i] = average;
        x[i] = u;
        sum += (double)u * (double)u;
    }
    sum = lks_block_sum(sum);
    if (threadIdx.x == 0)
        p.sums[blockIdx.y * p.row + blockIdx.x] = sum;
}

/* x = x / (its norm + 1e-7). Each block adds all sums of its matrix, in one order: they are few. */
static __global__ void __launch_bounds__(THREADS) muon_normalize(const place p, size_t n)
{
    const double *sums = p.sums + blockIdx.y * p.row;
    float *x = p.x + blockIdx.y * p.matrix;
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < gridDim.x; i += THREADS)
        sum += sums[i];
    const float inverse = (float)(1.0 / (sqrt(lks_block_sum(sum)) + 1e-7));
    for (size_t i = chunk_first(); i < chunk_end(n); i += THREADS)
        x[i] *= inverse;
}

/* Two roundings, as the CPU has them. */
static __global__ void __launch_bounds__(THREADS)
    muon_apply(const place p, const matrices all, float lr, float scale)
{
    const float *x = p.x + blockIdx.y * p.matrix;
    float *params = all.params[blockIdx.y];
    for (size_t i = chunk_first(); i < chunk_end(all.n); i += THREADS)
        params[i] -= lr * (x[i] * scale);
}

/* --- matrices of one shape ------------------------------------------------------------------- */

/* Bytes of work space for one matrix; `p`, unless it is NULL, becomes the work space of `count`,
 * which needs `count` times as much. */
static size_t place_of(place *p, char *work, size_t count, size_t rows, size_t cols)
{
    const size_t n = rows < cols ? rows : cols;
    const size_t matrix = round_up(rows * cols * sizeof(float));
    const size_t square = round_up(n * n * sizeof(float));
    const size_t row = round_up(chunks(rows * cols) * sizeof(double));
    if (p != NULL) {
        p->x = (float *)work;
        p->next = (float *)(work + count * matrix);
        p->gram = (float *)(work + 2 * count * matrix);
        p->poly = (float *)(work + count * (2 * matrix + square));
        p->sums = (double *)(work + 2 * count * (matrix + square));
        p->matrix = matrix / sizeof(float);
        p->square = square / sizeof(float);
        p->row = row / sizeof(double);
    }
    return 2 * (matrix + square) + row;
}

extern "C" size_t lks__cuda_update_muon_bytes(const lks__exec *ex, size_t rows, size_t cols)
{
    return place_of(NULL, NULL, 1, rows, cols);
}

/* One step of Newton-Schulz: X becomes the next X. */
static void iterate(const lks__exec *ex, place *p, size_t count, size_t rows, size_t cols)
{
    const bool tall = rows > cols;
    const size_t n = tall ? cols : rows;
    lks__cuda_batch gram = {}, poly = {}, next = {};
    gram.count = poly.count = next.count = count;
    gram.m = gram.n = poly.m = poly.n = poly.k = n;

    gram.ta = tall ? 'T' : 'N';
    gram.tb = tall ? 'N' : 'T';
    gram.k = tall ? rows : cols;
    gram.alpha = 1.0f;
    gram.a = gram.b = p->x;
    gram.c = gram.d = p->gram;
    gram.stride_a = gram.stride_b = p->matrix;
    gram.stride_d = p->square;
    lks__cuda_gemm_batch(ex, &gram);

    poly.ta = poly.tb = 'N';
    poly.alpha = QUINTIC[2];
    poly.beta = QUINTIC[1];
    poly.a = poly.b = poly.c = p->gram;
    poly.d = p->poly;
    poly.stride_a = poly.stride_b = poly.stride_d = p->square;
    lks__cuda_gemm_batch(ex, &poly);

    next.ta = next.tb = 'N';
    next.m = rows;
    next.n = cols;
    next.k = n;
    next.alpha = 1.0f;
    next.beta = QUINTIC[0];
    next.a = tall ? p->x : p->poly;
    next.b = tall ? p->poly : p->x;
    next.stride_a = tall ? p->matrix : p->square;
    next.stride_b = tall ? p->square : p->matrix;
    next.c = p->x;
    next.d = p->next;
    next.stride_d = p->matrix;
    lks__cuda_gemm_batch(ex, &next);

    float *x = p->x;
    p->x = p->next;
    p->next = x;
}

static void update(const lks__exec *ex, const lks__muon_list *list, const matrices &all,
                   size_t count, size_t rows, size_t cols)
{
    const float scale = rows > cols ? (float)sqrt((double)rows / (double)cols) : 1.0f;
    const dim3 grid((unsigned)chunks(all.n), (unsigned)count), block(THREADS);
    const double n = (double)count * (double)all.n;
    place p;
    place_of(&p, (char *)list->work, count, rows, cols);
    lks__cuda_count(ex, 20 * n, 7 * n);
    LKS_LAUNCH(muon_average, grid, block, lks__cuda_stream(ex), p, all, (float)list->clip,
               (float)list->momentum);
    lks__cuda_count(ex, 8 * n, n);
    LKS_LAUNCH(muon_normalize, grid, block, lks__cuda_stream(ex), p, all.n);
    for (int step = 0; step < list->ns_steps; step++)
        iterate(ex, &p, count, rows, cols);
    lks__cuda_count(ex, 12 * n, 3 * n);
    LKS_LAUNCH(muon_apply, grid, block, lks__cuda_stream(ex), p, all, (float)list->lr, scale);
}

extern "C" void lks__cuda_update_muon(const lks__exec *ex, const lks__muon_list *list)
{
    bool done[LKS__UPDATE_PIECES] = {};
    for (size_t first = 0; first < list->n_pieces; first++) {
        if (done[first])
            continue;
        const size_t rows = list->piece[first].rows, cols = list->piece[first].cols;
        const size_t most = list->work_bytes / place_of(NULL, NULL, 1, rows, cols);
        matrices all = {};
        size_t count = 0;
        all.n = rows * cols;
        for (size_t i = first; i < list->n_pieces; i++) {
            if (done[i] || list->piece[i].rows != rows || list->piece[i].cols != cols)
                continue;
            if (count == most) { /* the rest of this shape comes after these */
                update(ex, list, all, count, rows, cols);
                count = 0;
            }
            all.params[count] = list->piece[i].params;
            all.momentum[count] = list->piece[i].momentum;
            all.grads[count++] = list->piece[i].grads;
            lks__cuda_written(ex, list->piece[i].params, all.n * sizeof(float));
            done[i] = true;
        }
        if (count != 0)
            update(ex, list, all, count, rows, cols);
    }
}
