/* compute/cuda/kernels/layernorm.cu - LayerNorm of rows; formulas:
 * tests/kernels/reference/ref_layernorm.c. */
#include "compute/cuda/common/reduce.h"
#include "compute/cuda/common/rows.h"
#include "compute/cuda/cuda.h"
#include "compute/cuda/questions.h"

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

static const unsigned MOST = 512;  /* threads of a block */
static const unsigned AT_ONCE = 4; /* loads that a thread has on the way of each matrix */

/* Values of a row that backward needs. */
struct row_stats {
    float mean, rstd, mean_d, mean_d_xhat; /* d = dy * gain */
};

/* In all lanes of the warp. */
template <int N, typename E>
static __device__ row_stats stats_of(const E *dy, const E *x, const float *gain, float mean,
                                     float rstd, size_t C)
{
    float d_sum = 0.0f, d_xhat_sum = 0.0f;
    for (size_t c0 = threadIdx.x % LKS_WARP * N; c0 < C; c0 += AT_ONCE * LKS_WARP * N) {
        lks_floats<N> vx[AT_ONCE], vdy[AT_ONCE], g[AT_ONCE];
        lks_load_batch(vx, x, c0, LKS_WARP * N, C);
        lks_load_batch(vdy, dy, c0, LKS_WARP * N, C);
        lks_load_batch(g, gain, c0, LKS_WARP * N, C);
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float d = c0 + i * LKS_WARP * N < C ? vdy[i].at[k] * g[i].at[k] : 0.0f;
                d_sum += d;
                d_xhat_sum = fmaf(d, (vx[i].at[k] - mean) * rstd, d_xhat_sum);
            }
    }
    return {mean, rstd, lks_warp_sum(d_sum) / (float)C, lks_warp_sum(d_xhat_sum) / (float)C};
}

/* One block per ROWS_A_PARTIAL rows. First its warps compute each row's sums. Then a thread
 * processes its columns, whose sums it keeps in registers; elements that are read twice then come
 * from a cache. partial: row b has C sums for dgain, then C for dbias; NULL: none is needed. */
template <typename E, int N>
static __global__ void __launch_bounds__(MOST)
    norm_rows_bwd(E *dx, float *partial, const E *dy, const E *x, const float *gain,
                  const float *mean, const float *rstd, size_t rows, size_t C)
{
    LKS_SHARED(row_stats, stats, ROWS_A_PARTIAL);
    const size_t first = (size_t)blockIdx.x * ROWS_A_PARTIAL;
    const unsigned n = rows - first < ROWS_A_PARTIAL ? (unsigned)(rows - first) : ROWS_A_PARTIAL;
    for (unsigned k = threadIdx.x / LKS_WARP; k < n; k += blockDim.x / LKS_WARP) {
        const size_t row = first + k;
        const row_stats s = stats_of<N>(dy + row * C, x + row * C, gain, mean[row], rstd[row], C);
        if (threadIdx.x % LKS_WARP == 0)
            stats[k] = s;
    }
    __syncthreads();
    for (size_t c = (size_t)threadIdx.x * N; c < C; c += (size_t)blockDim.x * N) {
        const lks_floats<N> g = lks_load<N>(gain + c);
        lks_floats<N> dgain = {}, dbias = {};
        for (unsigned k0 = 0; k0 < n; k0 += AT_ONCE) {
            lks_floats<N> vx[AT_ONCE], vdy[AT_ONCE], v[AT_ONCE];
            const size_t at = (first + k0) * C, end = (first + n) * C; /* down the rows */
            lks_load_batch(vx, x + c, at, C, end);
            lks_load_batch(vdy, dy + c, at, C, end);
            lks_load_batch(v, dx + c, at, C, end);
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; i++) {
                if (i > 0 && k0 + i >= n) /* the first is always one of the rows */
                    continue;
                const row_stats s = stats[k0 + i];
#pragma unroll
                for (int k = 0; k < N; k++) {
                    const float xhat = (vx[i].at[k] - s.mean) * s.rstd, d = vdy[i].at[k] * g.at[k];
                    v[i].at[k] = fmaf(s.rstd, d - s.mean_d - xhat * s.mean_d_xhat, v[i].at[k]);
                    dgain.at[k] += vdy[i].at[k] * xhat;
                    dbias.at[k] += vdy[i].at[k];
                }
                lks_store<N>(dx + (first + k0 + i) * C + c, v[i]);
            }
        }
        if (partial != NULL) {
            lks_store<N>(partial + (size_t)blockIdx.x * 2 * C + c, dgain);
            lks_store<N>(partial + ((size_t)blockIdx.x * 2 + 1) * C + c, dbias);
        }
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
    const bool neighbours = dgain != NULL && dbias == dgain + C; /* one launch for both */
    if (dgain != NULL)
        lks__cuda_column_sums(ex, dgain, sums, 2 * C, blocks, neighbours ? 2 * C : C);
    if (dbias != NULL && !neighbours)
        lks__cuda_column_sums(ex, dbias, sums + C, 2 * C, blocks, C);
}
