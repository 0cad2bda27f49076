/* cuda/reduce.h - sums and maxima over a warp or a block, in an order of the block's size alone:
 * lanes by halves (i and i ^ 16, then i ^ 8, …), then warps in order. Every thread gets the result,
 * and all get the same bits. All threads of the warp, or of the block, must take part. */
#ifndef LKS_CUDA_REDUCE_H
#define LKS_CUDA_REDUCE_H

#include "device/cuda/launch.h"

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

/* T: float or double. */
template <class T> static __device__ inline T lks_block_sum(T v)
{
    LKS_SHARED(T, part, LKS_MAX_WARPS);
    v = lks_warp_sum(v);
    if (threadIdx.x % LKS_WARP == 0)
        part[threadIdx.x / LKS_WARP] = v;
    __syncthreads();
    T sum = part[0];
    for (unsigned w = 1; w < blockDim.x / LKS_WARP; w++)
        sum += part[w];
    __syncthreads(); /* the next call writes part */
    return sum;
}

/* Two sums at the cost of one's barriers. */
static __device__ inline float2 lks_block_sum2(float a, float b)
{
    LKS_SHARED(float2, part, LKS_MAX_WARPS);
    a = lks_warp_sum(a);
    b = lks_warp_sum(b);
    if (threadIdx.x % LKS_WARP == 0)
        part[threadIdx.x / LKS_WARP] = make_float2(a, b);
    __syncthreads();
    float2 sum = part[0];
    for (unsigned w = 1; w < blockDim.x / LKS_WARP; w++) {
        sum.x += part[w].x;
        sum.y += part[w].y;
    }
    __syncthreads();
    return sum;
}

static __device__ inline float lks_block_max(float v)
{
    LKS_SHARED(float, part, LKS_MAX_WARPS);
    v = lks_warp_max(v);
    if (threadIdx.x % LKS_WARP == 0)
        part[threadIdx.x / LKS_WARP] = v;
    __syncthreads();
    float max = part[0];
    for (unsigned w = 1; w < blockDim.x / LKS_WARP; w++)
        max = fmaxf(max, part[w]);
    __syncthreads();
    return max;
}

#endif
