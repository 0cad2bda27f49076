/* compute/cuda/common/warpgroup.h - products by four neighbouring warps together (a warpgroup) on
 * the tensor cores of GPUs of capability 9.0, about twice as fast as a warp's own (bf16.h).
 *
 * A product multiplies x [64, 16 s], of which each warp has 16 rows in registers, by y or y^T in
 * shared memory. Registers have the same layouts as in bf16.h. Rows of y have 64 numbers in the
 * order of lks_slot(), and begin at a multiple of 1,024 bytes: NVIDIA's swizzle of 128 bytes.
 *
 * lks_group_begin(), steps and lks_group_end() begin a product, and lks_group_wait() makes its
 * registers readable. Until then nothing may change x, y and the result. All threads of the
 * warpgroup take part. Before the first product with copied tiles, each thread that copied calls
 * lks_group_show() after lks_wait_copies(), and then all meet at a barrier. */
#ifndef LKS_COMPUTE_CUDA_COMMON_WARPGROUP_H
#define LKS_COMPUTE_CUDA_COMMON_WARPGROUP_H

#include "compute/cuda/common/launch.h"

/* 1: this pass of the compiler makes code for GPUs that have the instructions. */
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LKS_GROUPS 1
#else
#define LKS_GROUPS 0
#endif

static __device__ inline void lks_group_show(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

static __device__ inline void lks_group_begin(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#endif
}

static __device__ inline void lks_group_end(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
#endif
}

#define LKS_FOUR(c, n)    "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define LKS_SIXTEEN(c, n) LKS_FOUR(c, n), LKS_FOUR(c, n + 1), LKS_FOUR(c, n + 2), LKS_FOUR(c, n + 3)

/* Wait until at most PENDING products are under way, and c's isn't one of them. */
template <int PENDING, int N> static __device__ inline void lks_group_wait(float c[N][4])
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    /* It names the registers, so that nothing reads them before. */
    if constexpr (N == 4)
        asm volatile("wgmma.wait_group.sync.aligned %16;"
                     : LKS_SIXTEEN(c, 0)
                     : "n"(PENDING)
                     : "memory");
    else
        asm volatile("wgmma.wait_group.sync.aligned %32;"
                     : LKS_SIXTEEN(c, 0), LKS_SIXTEEN(c, 4)
                     : "n"(PENDING)
                     : "memory");
#endif
}

/* How the instruction finds a tile: its address, 1,024 bytes from 8 rows to the next, the swizzle.
 */
static __device__ inline uint64_t lks_group_tile(const void *y)
{
#ifdef __CUDACC__
    const uint64_t at = (uint64_t)__cvta_generic_to_shared(y);
    return (at & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
#else
    return (uint64_t)(uintptr_t)y;
#endif
}

/* One step, of 16 columns of x, which are in a: c [16, 8 N] of this warp = x y^T, for N * 8 rows
 * of y and its columns from 16 step on; or, if ROWS, x y, for its rows from 16 step on and N = 8.
 * `add`: to c. */
template <bool ROWS, int N>
static __device__ inline void lks_group_step(float c[N][4], const uint32_t a[4], const void *y,
                                             int step, bool add)
{
    static_assert(N == 8 || (N == 4 && !ROWS), "other shapes have no instruction here");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint64_t tile = lks_group_tile((const char *)y + step * (ROWS ? 16 * 128 : 32));
    if constexpr (N == 4)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
                     : LKS_SIXTEEN(c, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"((int)add)
                     : "memory");
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "
                     "%31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                     : LKS_SIXTEEN(c, 0), LKS_SIXTEEN(c, 4)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"((int)add),
                       "n"((int)ROWS)
                     : "memory");
#elif !defined(__CUDACC__)
    lks_fibers::group_step(c, N, a, y, step, ROWS, add);
#endif
}

#undef LKS_FOUR
#undef LKS_SIXTEEN

#endif
