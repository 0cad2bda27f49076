/* compute/cuda/common/launch.h - one source for kernels. nvcc makes code for GPUs of it. A host
 * compiler makes a program of it in which each CUDA thread is a fiber (tests/cuda/fibers.h), so
 * that sanitizers and tests without a GPU see the same source.
 *
 * Kernels use threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(),
 * __shfl_xor_sync() with a full mask, and the macros below; no atomics on floats, no inline PTX but
 * that of bf16.h, ptx.h and warpgroup.h. A block has a multiple of 32 threads, at most 1024. All
 * threads of a warp reach a shuffle, and all of a block reach __syncthreads(). */
#ifndef LKS_COMPUTE_CUDA_COMMON_LAUNCH_H
#define LKS_COMPUTE_CUDA_COMMON_LAUNCH_H

#include "compute/cuda/cuda.h"

#ifdef __CUDACC__

#include <cuda_runtime_api.h>

/* Shared memory of the block: T name[n], n a constant. It starts undefined. */
#define LKS_SHARED(T, name, n) __shared__ T name[n]

/* Put kernel(...) on the stream, unless it is only a rehearsal: `grid` and `block` are dim3. */
#define LKS_LAUNCH(kernel, grid, block, stream, ...)                                               \
    LKS_LAUNCH_NAMED(#kernel, (kernel), grid, block, stream, __VA_ARGS__)
#define LKS_LAUNCH_NAMED(name, kernel, grid, block, stream, ...)                                   \
    (lks__cuda_launches()                                                                          \
         ? (kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__), lks__cuda_launched(name))       \
         : (void)0)

#else
#include "fibers.h"
#endif

#endif
