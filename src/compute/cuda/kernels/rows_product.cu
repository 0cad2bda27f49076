/* compute/cuda/kernels/rows_product.cu - products of a few rows, for passes over new tokens
 * only. */
#include "compute/cuda/common/reduce.h"
#include "compute/cuda/cuda.h"
#include "compute/cuda/kernels/epilogue.h"

static const unsigned WARPS = 8, ROWS = 8;

/* A warp has one row of w, which it reads once for ROWS rows of x, and x comes from the caches.
 * Each lane adds up its columns in order, and the lanes' sums are added as lks_warp_sum() does:
 * however many rows there are, one row's sum is the same. */
template <typename E, int N>
static __global__ void __launch_bounds__(WARPS *LKS_WARP)
    dot_rows(lks_epilogue<E> e, E *y, size_t ldy, const E *x, const float *w, size_t rows,
             size_t out, size_t in)
{
    const unsigned lane = threadIdx.x % LKS_WARP;
    const size_t column = (size_t)blockIdx.x * WARPS + threadIdx.x / LKS_WARP;
    const size_t first = (size_t)blockIdx.y * ROWS;
    const unsigned n = rows - first < ROWS ? (unsigned)(rows - first) : ROWS;
    if (column >= out)
        return;
    x += first * in;
    w += column * in;

    float sum[ROWS] = {};
    for (size_t i = lane * N; i < in; i += LKS_WARP * N) {
        lks_floats<N> vw = lks_load<N>(w + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            vw.at[k] = lks_as_stored(x, vw.at[k]); /* an operand as x is */
#pragma unroll
        for (unsigned r = 0; r < ROWS; r++) {
            if (r >= n)
                break;
            const lks_floats<N> vx = lks_load<N>(x + r * in + i);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[r] = fmaf(vx.at[k], vw.at[k], sum[r]);
        }
    }
    lks_floats<1> mine = {};
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++) {
        const float s = lks_warp_sum(sum[r]);
        if (lane == r)
            mine.at[0] = s;
    }
    if (lane < n) {
        const size_t at = (first + lane) * ldy + column;
        lks_floats<1> input = {};
        if (e.in != NULL)
            input = lks_load<1>(e.in + at);
        lks_finish<1>(e, y, at, column, mine, input);
    }
}

extern "C" void lks__cuda_linear_rows_fwd(const lks__exec *ex, lks__act *y, size_t ldy,
                                          const lks__act *x, const float *w, size_t rows,
                                          size_t out, size_t in, const lks__epilogue *epilogue)
{
    const bool halves = lks__cuda_halves(ex);
    if (rows == 0 || out == 0)
        return;
    const dim3 grid((unsigned)((out + WARPS - 1) / WARPS), (unsigned)((rows + ROWS - 1) / ROWS));
    const dim3 block(WARPS * LKS_WARP);
    const double n = (double)rows, each = (double)in * (double)out;
    lks__cuda_count(ex, 4 * each + lks_act_bytes(halves) * n * (double)(in + out), 2 * n * each);
    const bool fours = lks_in_fours(in, x, w);
    LKS_LAUNCH_ACTS(dot_rows, halves, fours, grid, block, lks__cuda_stream(ex),
                    lks_epilogue_of<E>(epilogue, false), LKS_ACTS(E, y), ldy, LKS_ACTS(E, x), w,
                    rows, out, in);
}
