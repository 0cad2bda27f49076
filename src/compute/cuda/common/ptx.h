/* compute/cuda/common/ptx.h - copies into shared memory during arithmetic, and 2^x and 1/x by one
 * instruction. fibers.h has C++ code for copies. */
#ifndef LKS_COMPUTE_CUDA_COMMON_PTX_H
#define LKS_COMPUTE_CUDA_COMMON_PTX_H

#include "compute/cuda/common/launch.h"

/* Begin to copy 16 bytes, or, unless `inside`, to write 16 zero bytes. Both addresses are multiples
 * of 16; `to` is in shared memory. This thread sees them after lks_wait_copies(), others after a
 * barrier that follows it. */
static __device__ inline void lks_copy_16(void *to, const void *from, bool inside)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
#else
    lks_fibers::begin_copy(to, inside ? from : NULL);
#endif
}

/* Wait until all copies that this thread has begun are complete. */
static __device__ inline void lks_wait_copies(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_all;" : : : "memory");
#else
    lks_fibers::wait_copies();
#endif
}

/* Logarithm of e, so that e^x = 2^(LKS_LOG2_E x). */
static const float LKS_LOG2_E = 1.44269504088896340736f;

/* Off by 2^-22 of the result at most; 0 for results below 2^-126. */
static __device__ inline float lks_exp2(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* 1 / x, off by 2^-22 of the result. */
static __device__ inline float lks_reciprocal(float x)
{
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}

#endif
