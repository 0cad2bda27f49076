/* cuda/layernorm.cu - LayerNorm of rows; formulas: kernels/ref_layernorm.c. */
#include "device/cuda/cuda.h"
#include "device/cuda/questions.h"
#include "device/cuda/reduce.h"
#include "device/cuda/rows.h"

static const unsigned ROWS_A_BLOCK = 8; /* forward: a warp for each */
/* backward: rows whose sums are in one row of `partial` */
static const unsigned ROWS_A_PARTIAL = LKS__CUDA_NORM_ROWS;

/* A row is read from memory once and then twice from the first-level cache: the variance needs the
 * mean, or it would be a difference of large numbers. */
template <typename E, int N>
static __global__ void __launch_bounds__(ROWS_A_BLOCK *LKS_WARP)
    norm_rows(E *y, float *mean, float *rstd, const E *x, const float *gain, const float *bias,
              size_t rows, size_t C)
{
    const unsigned lane = threadIdx.x % LKS_WARP;
    const size_t row = (size_t)blockIdx.x * ROWS_A_BLOCK + threadIdx.x / LKS_WARP;
    if (row >= rows)
        return;
    x += row * C;
    y += row * C;

    float sum = 0.0f, squares = 0.0f;
    for (size_t c = lane * N; c < C; c += LKS_WARP * N) {
        const lks_floats<N> v = lks_load<N>(x + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += v.at[k];
    }
    const float m = lks_warp_sum(sum) / (float)C;
    for (size_t c = lane * N; c < C; c += LKS_WARP * N) {
        const lks_floats<N> v = lks_load<N>(x + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            squares = fmaf(v.at[k] - m, v.at[k] - m, squares);
    }
    const float r = 1.0f / sqrtf(lks_warp_sum(squares) / (float)C + 1e-5f);
    for (size_t c = lane * N; c < C; c += LKS_WARP * N) {
        const lks_floats<N> g = lks_load<N>(gain + c);
        lks_floats<N> v = lks_load<N>(x + c), b = {};
        if (bias != NULL)
            b = lks_load<N>(bias + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] = fmaf((v.at[k] - m) * r, g.at[k], b.at[k]);
        lks_store<N>(y + c, v);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}

extern "C" void lks__cuda_layernorm_rows_fwd(const lks__exec *ex, lks__act *y, float *mean,
                                             float *rstd, const lks__act *x, const float *gain,
                                             const float *bias, size_t rows, size_t C)
{
    if (rows == 0)
        return;
    const dim3 grid((unsigned)((rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK));
    const dim3 block(ROWS_A_BLOCK * LKS_WARP);
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, 8 * n);
    LKS_LAUNCH_ACTS(norm_rows, halves, lks_in_fours(C, x, y, gain, bias), grid, block,
                    lks__cuda_stream(ex), LKS_ACTS(E, y), mean, rstd, LKS_ACTS(const E, x), gain,
                    bias, rows, C);
}

template <int N>
static __device__ inline lks_floats<N> plus(lks_floats<N> a, const lks_floats<N> &b)
{
#pragma unroll
    for (int k = 0; k < N; k++)
        a.at[k] += b.at[k];
    return a;
}

static const unsigned MOST = 1024; /* threads of a block */

/* A block for ROWS_A_PARTIAL rows, one after the other; a thread has the same columns in all of
 * them. The sums of its first N columns stay in registers, which is all for C up to 4,096; those of
 * further columns are added up in `partial` itself. partial: row b has C sums for dgain, then C for
 * dbias; NULL: none is wanted. A row is read from memory once: its second reading finds it in the
 * first-level cache. */
template <typename E, int N>
static __global__ void __launch_bounds__(MOST)
    norm_rows_bwd(E *dx, float *partial, const E *dy, const E *x, const float *gain,
                  const float *mean, const float *rstd, size_t rows, size_t C)
{
    const size_t first = (size_t)blockIdx.x * ROWS_A_PARTIAL, own = threadIdx.x * N;
    const size_t end = rows - first < ROWS_A_PARTIAL ? rows : first + ROWS_A_PARTIAL;
    lks_floats<N> own_dgain = {}, own_dbias = {};
    if (partial != NULL)
        partial += (size_t)blockIdx.x * 2 * C;

    for (size_t row = first; row < end; row++) {
        const float m = mean[row], r = rstd[row];
        float d_sum = 0.0f, d_xhat_sum = 0.0f;
        for (size_t c = own; c < C; c += blockDim.x * N) {
            const lks_floats<N> vx = lks_load<N>(x + row * C + c), g = lks_load<N>(gain + c);
            const lks_floats<N> vdy = lks_load<N>(dy + row * C + c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float d = vdy.at[k] * g.at[k];
                d_sum += d;
                d_xhat_sum = fmaf(d, (vx.at[k] - m) * r, d_xhat_sum);
            }
        }
        const float2 sums = lks_block_sum2(d_sum, d_xhat_sum);
        const float mean_d = sums.x / (float)C, mean_d_xhat = sums.y / (float)C;
        for (size_t c = own; c < C; c += blockDim.x * N) {
            const lks_floats<N> vx = lks_load<N>(x + row * C + c), g = lks_load<N>(gain + c);
            const lks_floats<N> vdy = lks_load<N>(dy + row * C + c);
            lks_floats<N> v = lks_load<N>(dx + row * C + c), dgain;
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float xhat = (vx.at[k] - m) * r;
                v.at[k] = fmaf(r, vdy.at[k] * g.at[k] - mean_d - xhat * mean_d_xhat, v.at[k]);
                dgain.at[k] = vdy.at[k] * xhat;
            }
            lks_store<N>(dx + row * C + c, v);
            if (c == own) {
                own_dgain = plus(own_dgain, dgain);
                own_dbias = plus(own_dbias, vdy);
            } else if (partial != NULL) {
                const bool more = row != first;
                lks_store<N>(partial + c, more ? plus(dgain, lks_load<N>(partial + c)) : dgain);
                lks_store<N>(partial + C + c, more ? plus(vdy, lks_load<N>(partial + C + c)) : vdy);
            }
        }
    }
    if (partial != NULL && own < C) {
        lks_store<N>(partial + own, own_dgain);
        lks_store<N>(partial + C + own, own_dbias);
    }
}

extern "C" void lks__cuda_layernorm_rows_bwd(const lks__exec *ex, lks__act *dx, float *dgain,
                                             float *dbias, const lks__act *dy, const lks__act *x,
                                             const float *gain, const float *mean,
                                             const float *rstd, size_t rows, size_t C,
                                             float *partial)
{
    if (rows == 0)
        return;
    const size_t blocks = (rows + ROWS_A_PARTIAL - 1) / ROWS_A_PARTIAL;
    float *sums = dgain != NULL || dbias != NULL ? partial : NULL;
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex,
                    4 * lks_act_bytes(halves) * n + (sums != NULL ? 8.0 * (double)(blocks * C) : 0),
                    18 * n);
    const bool fours = lks_in_fours(C, dx, dy, x, gain, sums);
    LKS_LAUNCH_ACTS(norm_rows_bwd, halves, fours, dim3((unsigned)blocks),
                    dim3(lks_row_threads(C, fours, MOST)), lks__cuda_stream(ex), LKS_ACTS(E, dx),
                    sums, LKS_ACTS(const E, dy), LKS_ACTS(const E, x), gain, mean, rstd, rows, C);
    if (dgain != NULL)
        lks__cuda_column_sums(ex, dgain, sums, 2 * C, blocks, C);
    if (dbias != NULL)
        lks__cuda_column_sums(ex, dbias, sums + C, 2 * C, blocks, C);
}
