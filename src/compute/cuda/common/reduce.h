/* compute/cuda/common/reduce.h - sums and maxima over a warp or a block, in an order that depends
 * only on the block's size: lanes by halves (i and i ^ 16, then i ^ 8, …), then warps in order.
 * Every thread gets the result, and all get the same bits. All threads of the warp, or of the
 * block, must take part. */
#ifndef LKS_COMPUTE_CUDA_COMMON_REDUCE_H
#define LKS_COMPUTE_CUDA_COMMON_REDUCE_H

#include "compute/cuda/common/launch.h"

static const unsigned LKS_WARP = 32, LKS_MAX_WARPS = 32; /* of a block */

template <class T> static __device__ inline T lks_warp_sum(T v)
{
    for (int lane = 16; lane > 0; lane /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* A NaN is ignored, as by fmaxf(), unless all are NaN. */
static __device__ inline float lks_warp_max(float v)
{
    for (int lane = 16; lane > 0; lane /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
    return v;
}

/* Combine the values of the block's warps, each equal in all threads of the warp, in the warps'
 * order. */
template <class T, class Combine>
static __device__ inline T lks_block_combine(T of_warp, Combine combine)
{
    LKS_SHARED(T, part, LKS_MAX_WARPS);
    if (threadIdx.x % LKS_WARP == 0)
        part[threadIdx.x / LKS_WARP] = of_warp;
    __syncthreads();
    T all = part[0];
    for (unsigned w = 1; w < blockDim.x / LKS_WARP; w++)
        all = combine(all, part[w]);
    __syncthreads(); /* the next call writes part */
    return all;
}

/* T: float or double. */
template <class T> static __device__ inline T lks_block_sum(T v)
{
    return lks_block_combine(lks_warp_sum(v), [](T a, T b) { return a + b; });
}

static __device__ inline float lks_block_max(float v)
{
    return lks_block_combine(lks_warp_max(v), [](float a, float b) { return fmaxf(a, b); });
}

#endif
