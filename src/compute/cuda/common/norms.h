/* compute/cuda/common/norms.h - RMSNorms of parameter-golf: formulas of an element, and how rows
 * are divided among warps and slabs. */
#ifndef LKS_COMPUTE_CUDA_COMMON_NORMS_H
#define LKS_COMPUTE_CUDA_COMMON_NORMS_H

#include "compute/cuda/common/reduce.h"
#include "compute/cuda/questions.h"

#include <float.h>
#include <math.h>

enum {
    LKS_WARPS = 8, /* of a block */
    LKS_SLAB = LKS__CUDA_GOLF_ROWS,
};

/* Rows of the slab that begins at row r0. */
static __device__ inline size_t lks_slab_rows(size_t rows, size_t r0)
{
    return r0 + LKS_SLAB < rows ? (size_t)LKS_SLAB : rows - r0;
}

static inline size_t lks_slabs(size_t rows)
{
    return (rows + LKS_SLAB - 1) / LKS_SLAB;
}

/* The place of this thread's warp among those of all blocks. */
static __device__ inline size_t lks_warp_index(void)
{
    return (size_t)blockIdx.x * LKS_WARPS + threadIdx.x / LKS_WARP;
}

static inline dim3 lks_warps_grid(size_t n)
{
    return dim3((unsigned)((n + LKS_WARPS - 1) / LKS_WARPS));
}

static const dim3 lks_warps_block(LKS_WARPS *LKS_WARP);

static __device__ inline float lks_reciprocal_rms(float squares, size_t n)
{
    return 1.0f / sqrtf(squares / (float)n + FLT_EPSILON);
}

/* The gradient of one element of a norm's input. */
static __device__ inline float lks_norm_grad(float dy, float x, float rms, float mean)
{
    return rms * (dy - x * rms * mean);
}

#endif
