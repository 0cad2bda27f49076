/* compute/cuda/kernels/sum.cu - the sum of all ranks' nodes of a shard, in the canonical tree's
 * order, with the CPU's bits (comm/tree/sum.c), and its squares, in the lanes of the kernel
 * `sumsq`.
 */
#include "compute/cuda/cuda.h"
#include "compute/cuda/common/launch.h"
#include "compute/exchange.h"

static const unsigned THREADS = 256, LANES = 8;

/* A block of threads has one of the shard's. Each thread sums whole elements, with a stack of
 * partial sums in shared memory; then one thread a lane adds up the squares in order. */
static __global__ void __launch_bounds__(THREADS) sum_shard(const lks__shard_sum s)
{
    LKS_SHARED(float, stack, LKS__SHARD_LEVELS *THREADS);
    LKS_SHARED(float, sums, LKS__SHARD_BLOCK);
    LKS_SHARED(double, lanes, LANES);
    const lks__shard_block b = s.blocks[blockIdx.x];
    float *top = stack + threadIdx.x;
    for (unsigned i = threadIdx.x; i < b.count; i += THREADS) {
        float v = 0.0f;
        for (int p = 0; p < s.n_parts; p++) {
            const lks__shard_part part = s.parts[p];
            if (p > 0) {
                *top = v;
                top += THREADS;
            }
            v = part.slot < 0 ? s.own[-1 - part.slot][b.at + i]
                              : s.received[(size_t)part.slot * s.shard_floats + b.in_shard + i];
            for (unsigned m = part.merges; m > 0; m--) {
                top -= THREADS;
                v = *top + v;
            }
        }
        v *= s.scale;
        s.own[0][b.at + i] = v;
        sums[i] = v;
    }
    __syncthreads();
    if (threadIdx.x < LANES) {
        double lane = 0.0;
        for (unsigned i = threadIdx.x; i < b.count; i += LANES)
            lane += (double)sums[i] * (double)sums[i];
        lanes[threadIdx.x] = lane;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        s.squares[blockIdx.x] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                                ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

extern "C" void lks__cuda_sum_shard(cudaStream_t stream, const lks__shard_sum *s)
{
    if (s->n_blocks != 0) /* 4 (n_parts + 1) bytes, n_parts + 2 FLOPs an element */
        LKS_LAUNCH(sum_shard, dim3((unsigned)s->n_blocks), dim3(THREADS), stream, *s);
}
