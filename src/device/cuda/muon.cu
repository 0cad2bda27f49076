/* cuda/muon.cu - Muon: momentum, norm and update of a matrix; products by lks__cuda_gemm().
 *
 * Matrices are worked on one after the other, in the same place, so their order changes no bit.
 * X is [rows, cols], A and bA + cA^2 + aI are [n, n] for n the shorter side: with a on the
 * diagonal, the next X is one product. */
#include "device/cuda/cuda.h"
#include "device/cuda/launch.h"
#include "device/cuda/reduce.h"

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

/* momentum = m momentum + g, x = g + m momentum, with each product rounded, as the CPU has them;
 * sums[block]: of the squares of x. */
static __global__ void __launch_bounds__(THREADS)
    muon_average(float *x, double *sums, float *momentum, const float *grads, float clip, float m,
                 size_t n)
{
    double sum = 0.0;
    for (size_t i = chunk_first(); i < chunk_end(n); i += THREADS) {
        const float g = grads[i] * clip, average = m * momentum[i] + g, u = g + m * average;
        momentum[i] = average;
        x[i] = u;
        sum += (double)u * (double)u;
    }
    sum = lks_block_sum(sum);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

/* x = x / (its norm + 1e-7). Each block adds all sums, in one order: they are few. */
static __global__ void __launch_bounds__(THREADS)
    muon_normalize(float *x, const double *sums, size_t n_sums, size_t n)
{
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < n_sums; i += THREADS)
        sum += sums[i];
    const float inverse = (float)(1.0 / (sqrt(lks_block_sum(sum)) + 1e-7));
    for (size_t i = chunk_first(); i < chunk_end(n); i += THREADS)
        x[i] *= inverse;
}

/* poly[n, n] = a I + b gram */
static __global__ void __launch_bounds__(THREADS)
    muon_polynomial(float *poly, const float *gram, float a, float b, size_t n)
{
    for (size_t i = chunk_first(); i < chunk_end(n * n); i += THREADS)
        poly[i] = b * gram[i] + (i / n == i % n ? a : 0.0f);
}

/* Two roundings, as the CPU has them. */
static __global__ void __launch_bounds__(THREADS)
    muon_apply(float *params, const float *x, float lr, float scale, size_t n)
{
    for (size_t i = chunk_first(); i < chunk_end(n); i += THREADS)
        params[i] -= lr * (x[i] * scale);
}

/* --- a matrix -------------------------------------------------------------------------------- */

/* Work space: X and the next X, A, the polynomial, and sums of squares. */
struct place {
    float *x, *next, *gram, *poly;
    double *sums;
    size_t bytes;
};

static place place_of(char *work, size_t rows, size_t cols)
{
    const size_t n = rows < cols ? rows : cols;
    const size_t matrix = round_up(rows * cols * sizeof(float));
    const size_t square = round_up(n * n * sizeof(float));
    place p;
    p.x = (float *)work;
    p.next = (float *)(work + matrix);
    p.gram = (float *)(work + 2 * matrix);
    p.poly = (float *)(work + 2 * matrix + square);
    p.sums = (double *)(work + 2 * (matrix + square));
    p.bytes = 2 * (matrix + square) + round_up(chunks(rows * cols) * sizeof(double));
    return p;
}

extern "C" size_t lks__cuda_update_muon_bytes(const lks__exec *ex, size_t rows, size_t cols)
{
    return place_of(NULL, rows, cols).bytes;
}

/* One step of Newton-Schulz: X becomes the next X. With N = rows cols and n the shorter side, the
 * products have 4 N n + 2 n^3 operations; the kernel between them moves 8 n^2 bytes. */
static void iterate(const lks__exec *ex, place *p, size_t rows, size_t cols)
{
    const bool tall = rows > cols;
    const size_t n = tall ? cols : rows;
    if (tall)
        lks__cuda_gemm(ex, 'T', 'N', n, n, rows, 1.0f, p->x, cols, p->x, cols, 0.0f, p->gram, n);
    else
        lks__cuda_gemm(ex, 'N', 'T', n, n, cols, 1.0f, p->x, cols, p->x, cols, 0.0f, p->gram, n);
    LKS_LAUNCH(muon_polynomial, dim3((unsigned)chunks(n * n)), dim3(THREADS), lks__cuda_stream(ex),
               p->poly, p->gram, QUINTIC[0], QUINTIC[1], n);
    lks__cuda_gemm(ex, 'N', 'N', n, n, n, QUINTIC[2], p->gram, n, p->gram, n, 1.0f, p->poly, n);
    if (tall)
        lks__cuda_gemm(ex, 'N', 'N', rows, cols, n, 1.0f, p->x, cols, p->poly, n, 0.0f, p->next,
                       cols);
    else
        lks__cuda_gemm(ex, 'N', 'N', rows, cols, n, 1.0f, p->poly, n, p->x, cols, 0.0f, p->next,
                       cols);
    float *x = p->x;
    p->x = p->next;
    p->next = x;
}

/* Beside the products: 20 bytes an element and 6 operations to average, 8 bytes to normalize, 12
 * bytes and 3 operations to apply. */
extern "C" void lks__cuda_update_muon(const lks__exec *ex, const lks__muon_list *list)
{
    for (size_t i = 0; i < list->n_pieces; i++) {
        const size_t rows = list->piece[i].rows, cols = list->piece[i].cols, n = rows * cols;
        const float scale = rows > cols ? (float)sqrt((double)rows / (double)cols) : 1.0f;
        const dim3 grid((unsigned)chunks(n)), block(THREADS);
        place p = place_of((char *)list->work, rows, cols);
        LKS_LAUNCH(muon_average, grid, block, lks__cuda_stream(ex), p.x, p.sums,
                   list->piece[i].momentum, list->piece[i].grads, (float)list->clip,
                   (float)list->momentum, n);
        LKS_LAUNCH(muon_normalize, grid, block, lks__cuda_stream(ex), p.x, p.sums, chunks(n), n);
        for (int step = 0; step < list->ns_steps; step++)
            iterate(ex, &p, rows, cols);
        LKS_LAUNCH(muon_apply, grid, block, lks__cuda_stream(ex), list->piece[i].params, p.x,
                   (float)list->lr, scale, n);
    }
}
