/* reduce.cu - kernels that do nothing but reduce: test_reduce.c. One-dimensional blocks. */
#include "compute/cuda/common/reduce.h"

static __global__ void reduce_all(float *sums, float *maxima, double *wide, const float *x)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float v = x[at];
    /* Each twice in a row: the second call writes the memory that the first has read. */
    sums[at] = lks_block_sum(v) + 0.0f * lks_block_sum(1.0f);
    maxima[at] = fmaxf(lks_block_max(v), lks_block_max(v - 1.0f));
    wide[at] = lks_block_sum((double)v);
}

extern "C" void reduce_launch(float *sums, float *maxima, double *wide, const float *x,
                              unsigned blocks, unsigned threads)
{
    LKS_LAUNCH(reduce_all, dim3(blocks), dim3(threads), NULL, sums, maxima, wide, x);
}

/* One element of each warp from its right neighbour, by shared memory and a barrier of the warp. */
static __global__ void rotate_warps(float *y, const float *x)
{
    LKS_SHARED(float, row, 1024);
    const unsigned t = threadIdx.x, warp = t / LKS_WARP * LKS_WARP;
    row[t] = x[t];
    __syncwarp();
    y[t] = row[warp + (t + 1) % LKS_WARP];
}

extern "C" void rotate_launch(float *y, const float *x, unsigned threads)
{
    LKS_LAUNCH(rotate_warps, dim3(1), dim3(threads), NULL, y, x);
}
