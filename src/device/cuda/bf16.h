/* cuda/bf16.h - bfloat16 in kernels, and a warp's products of it on tensor cores. What a GPU does
 * by one instruction, fibers.h does in C++. */
#ifndef LKS_CUDA_BF16_H
#define LKS_CUDA_BF16_H

#include "device/cuda/launch.h"

/* Two floats to nearest, ties to even, in one register: `low` in its lower half. */
static __device__ inline uint32_t lks_bf16_pair(float low, float high)
{
#ifdef __CUDACC__
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return lks_fibers::bf16_pair(low, high);
#endif
}

/* x to the nearest value that bfloat16 has. */
static __device__ inline float lks_bf16_rounded(float x)
{
    return __uint_as_float(lks_bf16_pair(x, 0.0f) << 16);
}

#endif
