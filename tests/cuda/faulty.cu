/* faulty.cu - kernels with one fault each, of the kinds that kernels for GPUs have, and the same
 * kernels without it: test_faulty.c demands that the harness finds each, and nothing else.
 *
 * Usage: cuda_faults_BUILD NAME. It prints what is wrong with the results, if anything is. */
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "compute/cuda/common/bf16.h"
#include "compute/cuda/common/reduce.h"

namespace
{

enum fault {
    SOUND,
    EARLY_RETURN,
    OTHER_BARRIER,
    BARRIER_IN_BRANCH,
    SHUFFLE_IN_BRANCH,
    PART_OF_MASK,
    NO_BARRIER_BEFORE_USE,
    NO_BARRIER_AFTER_USE,
    WARP_BARRIER_FOR_BLOCK,
    SHUFFLE_FOR_BARRIER,
    SHARED_TOO_SHORT,
    SHARED_NOT_WRITTEN,
    ROW_TOO_LONG,
    ROW_BEFORE,
    BLOCKS_RACE,
    ORDER_OF_BLOCKS,
    ORDER_OF_THREADS,
    NOT_ALIGNED,
    INT_TOO_SMALL,
    EMPTY_GRID,
    TALL_GRID,
    LARGE_BLOCK,
    HALF_A_WARP,
    MUCH_SHARED,
    NO_BARRIER_BEFORE_MATRICES,
    MATRICES_NOT_ALIGNED,
    MATRICES_BY_HALF_A_WARP,
    PRODUCT_BY_HALF_A_WARP,
    FAULTS
};

const char *const names[FAULTS] = {
    "sound",
    "early_return",
    "other_barrier",
    "barrier_in_branch",
    "shuffle_in_branch",
    "part_of_mask",
    "no_barrier_before_use",
    "no_barrier_after_use",
    "warp_barrier_for_block",
    "shuffle_for_barrier",
    "shared_too_short",
    "shared_not_written",
    "row_too_long",
    "row_before",
    "blocks_race",
    "order_of_blocks",
    "order_of_threads",
    "not_aligned",
    "int_too_small",
    "empty_grid",
    "tall_grid",
    "large_block",
    "half_a_warp",
    "much_shared",
    "no_barrier_before_matrices",
    "matrices_not_aligned",
    "matrices_by_half_a_warp",
    "product_by_half_a_warp",
};

const unsigned THREADS = 64;

/* y[i] = x[the block's threads the other way round], twice. */
static __global__ void reverse_rows(float *y, const float *x, size_t n, fault f)
{
    LKS_SHARED(float, row, THREADS);
    LKS_SHARED(float, shorter, THREADS - 1);
    const unsigned t = threadIdx.x, other = THREADS - 1 - t;
    const size_t at = (size_t)blockIdx.x * THREADS + t;
    float *const to = f == SHARED_TOO_SHORT ? shorter : row;
    if (f == EARLY_RETURN && at >= n)
        return;
    if (f != SHARED_NOT_WRITTEN || t % 2 == 0)
        to[t] = at < n ? x[at] : 0.0f;
    if (f == OTHER_BARRIER && t < LKS_WARP)
        __syncthreads();
    else if (f == WARP_BARRIER_FOR_BLOCK)
        __syncwarp();
    else if (f == SHUFFLE_FOR_BARRIER)
        lks_warp_sum(1.0f);
    else if (f != NO_BARRIER_BEFORE_USE && (f != BARRIER_IN_BRANCH || t != 5))
        __syncthreads();
    const float v =
        to[f == SHUFFLE_FOR_BARRIER ? t / LKS_WARP * LKS_WARP + other % LKS_WARP : other];
    if (f != NO_BARRIER_AFTER_USE)
        __syncthreads();
    to[t] = v + 1.0f;
    __syncthreads();
    if (at < n)
        y[at] = to[f == SHUFFLE_FOR_BARRIER ? t : other];
}

/* y[row] = the sum of x's row of C, a warp for each. */
static __global__ void sum_rows(float *y, const float *x, unsigned C, fault f)
{
    const unsigned lane = threadIdx.x % LKS_WARP, row = threadIdx.x / LKS_WARP;
    float sum = 0.0f;
    if (f == ROW_BEFORE && lane == 0 && row == 0)
        sum = x[-1];
    for (unsigned c = lane; c < C + (f == ROW_TOO_LONG); c += LKS_WARP)
        sum += x[row * C + c];
    if (f == SHUFFLE_IN_BRANCH && lane >= 16)
        sum += 1.0f;
    else if (f == PART_OF_MASK)
        sum += __shfl_xor_sync(0xffffu, sum, 1);
    else
        sum = lks_warp_sum(sum);
    if (lane == 0)
        y[row] = sum;
}

/* *y += x of all blocks, whose order nobody knows. */
static __global__ void sum_blocks(float *y, const float *x, fault f)
{
    if (f == BLOCKS_RACE && threadIdx.x == 0)
        *y += x[blockIdx.x];
    /* without what a sanitizer would find, as if by an atomic addition */
    if (f == ORDER_OF_BLOCKS && threadIdx.x == 0) {
        float was, now;
        __atomic_load(y, &was, __ATOMIC_ACQUIRE);
        now = was + x[blockIdx.x];
        __atomic_store(y, &now, __ATOMIC_RELEASE);
    }
    if (f == ORDER_OF_THREADS && blockIdx.x == 0) {
        float was, now;
        __atomic_load(y, &was, __ATOMIC_ACQUIRE);
        now = was + x[threadIdx.x];
        __atomic_store(y, &now, __ATOMIC_RELEASE);
    }
}

/* y = x by fours, from element `at` on. */
static __global__ void copy_fours(float *y, const float *x, size_t at)
{
    *(float4 *)(y + at + 4 * threadIdx.x) = *(const float4 *)(x + at + 4 * threadIdx.x);
}

/* An index of 32 bits for a place beyond them, where nothing is read. */
static __global__ void far(float *y, int rows, int width)
{
    if (threadIdx.x == 0)
        y[0] = rows * width < 0 ? 1.0f : 0.0f;
}

/* y[16][8] = x x^T for the 16 rows of 16 numbers that x has, of which the second factor takes 8.
 * One warp rounds them, and the other one multiplies. */
static __global__ void multiply_rows(float *y, const float *x, fault f)
{
    LKS_SHARED(uint4, tile, 32);
    const unsigned lane = threadIdx.x % LKS_WARP;
    if (threadIdx.x >= LKS_WARP) {
        const float *from = x + lane * 8;
        tile[lane] = {lks_bf16_pair(from[0], from[1]), lks_bf16_pair(from[2], from[3]),
                      lks_bf16_pair(from[4], from[5]), lks_bf16_pair(from[6], from[7])};
    }
    if (f != NO_BARRIER_BEFORE_MATRICES)
        __syncthreads();
    if (threadIdx.x >= LKS_WARP)
        return;
    uint32_t a[4] = {}, b[4] = {};
    float c[4] = {};
    const char *row = (const char *)&tile[lane % 16 * 2 + lane / 16];
    if (f != MATRICES_BY_HALF_A_WARP || lane < 16)
        lks_load_matrices(a, row + (f == MATRICES_NOT_ALIGNED ? 2 : 0));
    lks_load_matrices(b, &tile[lane % 8 * 2 + lane / 8 % 2]);
    if (f != PRODUCT_BY_HALF_A_WARP || lane < 16)
        lks_multiply_add(c, a, b);
    for (unsigned i = 0; i < 4; i++)
        y[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

static __global__ void fill_shared(float *y)
{
    LKS_SHARED(float, a, 8 << 10);
    LKS_SHARED(float, b, 5 << 10);
    a[threadIdx.x] = b[threadIdx.x] = 1.0f;
    y[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
}

std::vector<float> numbers(size_t n)
{
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++)
        x[i] = (i % 5 != 0 ? 0.1f : 1e4f) * (float)(i + 1); /* another order has another sum */
    return x;
}

/* Memory of its own for each array, or a vector's capacity would hide an element too many. */
float *memory(const std::vector<float> &x)
{
    float *p = (float *)malloc(x.size() * sizeof *p);
    memcpy(p, x.data(), x.size() * sizeof *p);
    return p;
}

/* All results, one after the other. */
std::vector<float> results(fault f)
{
    const size_t n = 3 * THREADS + 17, rows = 4, C = 70;
    float *x = memory(numbers(n)), *y = memory(numbers(n)), *m = memory(numbers(rows * C));
    float *small = memory(numbers(256));
    std::vector<float> all;
    for (size_t i = 0; i < 256; i++)
        small[i] = (float)(i * i % 23) - 11.0f;
    LKS_LAUNCH(reverse_rows, dim3((unsigned)(n / THREADS) + 1), dim3(THREADS), NULL, y, x, n, f);
    all.insert(all.end(), y, y + n);
    LKS_LAUNCH(sum_rows, dim3(1), dim3(rows * LKS_WARP), NULL, y, m, (unsigned)C, f);
    all.insert(all.end(), y, y + rows);
    y[0] = 0.0f;
    LKS_LAUNCH(sum_blocks, dim3(f == EMPTY_GRID ? 0 : 7, f == TALL_GRID ? 65536 : 1),
               dim3(f == LARGE_BLOCK   ? 1056
                    : f == HALF_A_WARP ? 48
                                       : THREADS),
               NULL, y, x, f);
    all.push_back(y[0]);
    LKS_LAUNCH(copy_fours, dim3(1), dim3(32), NULL, y, x, (size_t)(f == NOT_ALIGNED));
    all.insert(all.end(), y + 1, y + 128);
    LKS_LAUNCH(far, dim3(1), dim3(32), NULL, y, f == INT_TOO_SMALL ? 1 << 20 : 1, 1 << 12);
    LKS_LAUNCH(multiply_rows, dim3(1), dim3(2 * LKS_WARP), NULL, y, small, f);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++) {
            float sum = 0.0f; /* exact: of small whole numbers */
            for (size_t k = 0; k < 16; k++)
                sum += small[i * 16 + k] * small[j * 16 + k];
            all.push_back(y[i * 8 + j] == sum ? 0.0f : NAN);
        }
    if (f == MUCH_SHARED)
        LKS_LAUNCH(fill_shared, dim3(1), dim3(32), NULL, y);
    free(small);
    free(x);
    free(y);
    free(m);
    return all;
}

} // namespace

int main(int argc, char **argv)
{
    int f = SOUND;
    while (f < FAULTS && (argc != 2 || strcmp(argv[1], names[f]) != 0))
        f++;
    if (f == FAULTS)
        return 2;
    std::vector<float> first;
    int bad = 0;
    for (unsigned seed = 0; seed < 5; seed++) {
        lks_fibers_order(seed);
        std::vector<float> now = results((fault)f);
        for (float v : now)
            if (isnan(v) && !(bad & 1)) {
                printf("a result is NaN\n");
                bad |= 1;
            }
        if (seed == 0)
            first = now;
        if (memcmp(first.data(), now.data(), now.size() * sizeof(float)) != 0 && !(bad & 2)) {
            printf("other bits in another order\n");
            bad |= 2;
        }
    }
    return bad != 0;
}
