/* cuda/embedding.cu - gpt2's embeddings and dropout of rows. Sums and masks have the CPU's bits. */
#include "device/cuda/cuda.h"
#include "device/cuda/rows.h"

static const unsigned THREADS = 256;

/* --- forward: a block for each row ------------------------------------------------------------ */

template <typename E, int N>
static __global__ void __launch_bounds__(THREADS)
    embed_rows(E *x, const int32_t *tokens, const float *wte, const float *wpe, size_t T, size_t C,
               lks__dropout drop)
{
    const size_t row = blockIdx.x, token = (size_t)tokens[row], position = row % T;
    for (size_t c = (size_t)threadIdx.x * N; c < C; c += (size_t)blockDim.x * N) {
        const lks_floats<N> p = lks_load<N>(wpe + position * C + c);
        lks_floats<N> v = lks_load<N>(wte + token * C + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] += p.at[k];
        lks_store<N>(x + row * C + c, lks_dropout_of<N>(drop, row * C + c, v));
    }
}

extern "C" void lks__cuda_embedding_fwd(const lks__exec *ex, lks__act *x, const int32_t *tokens,
                                        const float *wte, const float *wpe, size_t rows, size_t T,
                                        size_t C, const lks__dropout *drop)
{
    if (rows == 0)
        return;
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (8.0 + lks_act_bytes(halves)) * n, n);
    const bool fours = lks_in_fours(C, x, wte, wpe);
    LKS_LAUNCH_ACTS(embed_rows, halves, fours, dim3((unsigned)rows),
                    dim3(lks_row_threads(C, fours)), lks__cuda_stream(ex), LKS_ACTS(E, x), tokens,
                    wte, wpe, T, C, *drop);
}

template <typename E, int N>
static __global__ void __launch_bounds__(THREADS)
    drop_rows(E *y, const E *x, size_t C, lks__dropout drop)
{
    const size_t row = (size_t)blockIdx.x * C;
    for (size_t c = (size_t)threadIdx.x * N; c < C; c += (size_t)blockDim.x * N)
        lks_store<N>(y + row + c, lks_dropout_of<N>(drop, row + c, lks_load<N>(x + row + c)));
}

extern "C" void lks__cuda_dropout_rows(const lks__exec *ex, lks__act *y, const lks__act *x,
                                       size_t rows, size_t C, const lks__dropout *drop)
{
    if (rows == 0)
        return;
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, n);
    const bool fours = lks_in_fours(C, x, y);
    LKS_LAUNCH_ACTS(drop_rows, halves, fours, dim3((unsigned)rows), dim3(lks_row_threads(C, fours)),
                    lks__cuda_stream(ex), LKS_ACTS(E, y), LKS_ACTS(const E, x), C, *drop);
}

/* --- backward --------------------------------------------------------------------------------
 *
 * Every element of the tables gets its rows in their order, as on the CPU. So the rows are first
 * sorted by token: a row's place is the number of rows that come before it, which each thread
 * counts for one row. That is rows² comparisons: 0.3 milliseconds' for 65,536 rows on an H100, by
 * its peak. Then one block adds all rows of a token. */

struct sorted {
    int32_t *row; /* [rows] in the order of their tokens, then of their numbers */
    int32_t *run; /* [rows] rows of the same token from this place on; 0 if it isn't their first */
};

static __global__ void __launch_bounds__(THREADS)
    sort_rows(sorted s, const int32_t *tokens, int32_t rows)
{
    LKS_SHARED(int32_t, tile, THREADS);
    const int32_t row = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    const int32_t token = row < rows ? tokens[row] : 0;
    int32_t less = 0, equal_before = 0, equal = 0;
    for (int32_t first = 0; first < rows; first += (int32_t)THREADS) {
        const int32_t here = first + (int32_t)threadIdx.x;
        const int32_t n = rows - first < (int32_t)THREADS ? rows - first : (int32_t)THREADS;
        tile[threadIdx.x] = here < rows ? tokens[here] : 0;
        __syncthreads();
        for (int32_t i = 0; i < n; i++) {
            less += tile[i] < token;
            equal += tile[i] == token;
            equal_before += tile[i] == token && first + i < row;
        }
        __syncthreads();
    }
    if (row < rows) {
        s.row[less + equal_before] = row;
        s.run[less + equal_before] = equal_before == 0 ? equal : 0;
    }
}

template <typename E, int N>
static __global__ void __launch_bounds__(THREADS)
    add_tokens(float *dwte, sorted s, const int32_t *tokens, const E *dx, size_t C)
{
    const int32_t *row = s.row + blockIdx.x;
    const int32_t n = s.run[blockIdx.x];
    const size_t c = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (n == 0 || c >= C)
        return;
    float *to = dwte + (size_t)tokens[row[0]] * C + c;
    lks_floats<N> sum = lks_load<N>(to);
#pragma unroll 8
    for (int32_t i = 0; i < n; i++) {
        const lks_floats<N> d = lks_load<N>(dx + (size_t)row[i] * C + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum.at[k] += d.at[k];
    }
    lks_store<N>(to, sum);
}

template <typename E, int N>
static __global__ void __launch_bounds__(THREADS)
    add_positions(float *dwpe, const E *dx, size_t rows, size_t T, size_t C)
{
    const size_t c = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (c >= C)
        return;
    lks_floats<N> sum = lks_load<N>(dwpe + (size_t)blockIdx.x * C + c);
#pragma unroll 8
    for (size_t row = blockIdx.x; row < rows; row += T) {
        const lks_floats<N> d = lks_load<N>(dx + row * C + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum.at[k] += d.at[k];
    }
    lks_store<N>(dwpe + (size_t)blockIdx.x * C + c, sum);
}

/* Blocks of `threads` for N columns a thread. */
static dim3 grid_of(size_t rows, size_t C, unsigned n, unsigned threads)
{
    return dim3((unsigned)rows, (unsigned)((C + threads * n - 1) / (threads * n)));
}

extern "C" void lks__cuda_embedding_bwd(const lks__exec *ex, float *dwte, float *dwpe,
                                        const lks__act *dx, const int32_t *tokens, size_t rows,
                                        size_t T, size_t C)
{
    if (rows == 0)
        return;
    const bool halves = lks__cuda_halves(ex);
    const double added = (double)(rows * C);
    const bool fours = lks_in_fours(C, dx, dwte, dwpe);
    const unsigned n = fours ? 4 : 1, threads = lks_row_threads(C, fours);
    if (dwte != NULL) {
        sorted s;
        s.row = (int32_t *)lks__cuda_work(ex, 2 * rows * sizeof *s.row);
        if (s.row == NULL)
            return;
        s.run = s.row + rows;
        lks__cuda_count(ex, 12.0 * (double)rows, 0.0); /* tokens, again and again from the cache */
        LKS_LAUNCH(sort_rows, dim3((unsigned)((rows + THREADS - 1) / THREADS)), dim3(THREADS),
                   lks__cuda_stream(ex), s, tokens, (int32_t)rows);
        /* without the rows of tokens, of which nobody here knows how many there are */
        lks__cuda_count(ex, lks_act_bytes(halves) * added, added);
        LKS_LAUNCH_ACTS(add_tokens, halves, fours, grid_of(rows, C, n, threads), dim3(threads),
                        lks__cuda_stream(ex), dwte, s, tokens, LKS_ACTS(const E, dx), C);
    }
    if (dwpe != NULL) {
        const size_t positions = rows < T ? rows : T;
        lks__cuda_count(ex, lks_act_bytes(halves) * added + 8.0 * (double)(positions * C), added);
        LKS_LAUNCH_ACTS(add_positions, halves, fours, grid_of(positions, C, n, threads),
                        dim3(threads), lks__cuda_stream(ex), dwpe, LKS_ACTS(const E, dx), rows, T,
                        C);
    }
}
