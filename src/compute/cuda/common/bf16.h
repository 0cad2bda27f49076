/* compute/cuda/common/bf16.h - bfloat16 in kernels, and a warp's products of it on tensor cores.
 * For each instruction of a GPU used here, fibers.h has C++ code. */
#ifndef LKS_COMPUTE_CUDA_COMMON_BF16_H
#define LKS_COMPUTE_CUDA_COMMON_BF16_H

#include "compute/cuda/common/launch.h"

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

/* x rounded to the nearest bfloat16 value. */
static __device__ inline float lks_bf16_rounded(float x)
{
    return __uint_as_float(lks_bf16_pair(x, 0.0f) << 16);
}

/* A warp works on matrices of [8, 8] numbers, eight of each row in 16 bytes of shared memory. Lanes
 * 8 m to 8 m + 7 name the rows of matrix m; to[m] becomes numbers 2 (lane % 4) and the next one of
 * row lane / 4. All lanes take part. */
static __device__ inline void lks_load_matrices(uint32_t to[4], const void *row)
{
#ifdef __CUDACC__
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
#else
    lks_fibers::load_matrices(to, row, false);
#endif
}

/* The same for the transposed matrices. */
static __device__ inline void lks_load_transposed(uint32_t to[4], const void *row)
{
#ifdef __CUDACC__
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
#else
    lks_fibers::load_matrices(to, row, true);
#endif
}

/* c += a b^T with a [16, 16], b [8, 16], both of bfloat16, and c [16, 8]. a: its four matrices, the
 * upper left, lower left, upper right and lower right one; b: the left and the right one; as
 * lks_load_matrices() loads them. c: numbers 2 (lane % 4) and the next one of row lane / 4, and of
 * the eighth row after it. */
static __device__ inline void lks_multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    lks_fibers::multiply_add(c, a, b);
#endif
}

/* c = a b^T: as lks_multiply_add(), but ignores the previous c. */
static __device__ inline void lks_multiply(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#else
    for (int i = 0; i < 4; i++)
        c[i] = 0.0f;
    lks_fibers::multiply_add(c, a, b);
#endif
}

#endif
