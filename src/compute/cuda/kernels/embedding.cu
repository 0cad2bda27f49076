/* compute/cuda/kernels/embedding.cu - gpt2's embeddings and dropout of rows. Sums and masks have
 * the CPU's bits. */
#include "compute/cuda/cuda.h"
#include "compute/cuda/questions.h"
#include "compute/cuda/common/reduce.h"
#include "compute/cuda/common/rows.h"

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
 * sorted by token: each tile of rows in shared memory, and then each row gets its place, which is
 * the number of rows that come before it. It finds them by a binary search in every tile. Then one
 * block adds all rows of a token. */

enum { TILE = LKS__CUDA_SORT_ROWS };

struct sorted {
    int32_t *token, *of_tile; /* [rows] of each tile: its tokens in order, and their rows */
    int32_t *row;             /* [rows] in the order of their tokens, then of their numbers */
    int32_t *run; /* [rows] rows of the same token from this place on; 0 if it isn't their first */
};

/* A bitonic network: a block has a thread for each two rows of its tile. The row's number is in the
 * key, so no two keys are equal. */
static __global__ void __launch_bounds__(TILE / 2)
    sort_tiles(sorted s, const int32_t *tokens, size_t rows)
{
    LKS_SHARED(uint64_t, key, TILE);
    const size_t first = (size_t)blockIdx.x * TILE;
    const unsigned n = (unsigned)(rows - first < TILE ? rows - first : (size_t)TILE);
    const unsigned size = 2 * blockDim.x;
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x)
        key[i] = i < n ? (uint64_t)(uint32_t)tokens[first + i] << 32 | i : UINT64_MAX;
    for (unsigned ordered = 2; ordered <= size; ordered *= 2)
        for (unsigned step = ordered / 2; step > 0; step /= 2) {
            const unsigned low = 2 * threadIdx.x - (threadIdx.x & (step - 1)), high = low + step;
            const bool falling = (low & ordered) != 0;
            __syncthreads();
            const uint64_t a = key[low], b = key[high];
            if ((a > b) != falling) {
                key[low] = b;
                key[high] = a;
            }
        }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        s.token[first + i] = (int32_t)(key[i] >> 32);
        s.of_tile[first + i] = (int32_t)first + (int32_t)(uint32_t)key[i];
    }
}

/* Number of tokens less than `token` among n ordered ones. */
static __device__ inline int32_t less_than(const int32_t *tokens, int32_t n, int32_t token)
{
    int32_t at = 0;
#pragma unroll
    for (int32_t step = TILE; step > 0; step /= 2)
        if (at + step <= n && tokens[at + step - 1] < token)
            at += step;
    return at;
}

static __global__ void __launch_bounds__(THREADS) place_rows(sorted s, int32_t rows)
{
    const int32_t own = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (own >= rows)
        return;
    const int32_t token = s.token[own];
    int32_t less = 0, equal = 0, equal_before = 0;
#pragma unroll 2
    for (int32_t tile = 0; tile < (rows + TILE - 1) / TILE; tile++) {
        const int32_t first = tile * TILE, n = rows - first < TILE ? rows - first : TILE;
        const int32_t here = less_than(s.token + first, n, token);
        const int32_t equal_here = less_than(s.token + first, n, token + 1) - here;
        less += here;
        equal += equal_here;
        equal_before += tile < own / TILE    ? equal_here
                        : tile == own / TILE ? own - first - here
                                             : 0;
    }
    s.row[less + equal_before] = s.of_tile[own];
    s.run[less + equal_before] = equal_before == 0 ? equal : 0;
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
        s.token = (int32_t *)lks__cuda_work(ex, lks__cuda_sort_bytes(rows));
        if (s.token == NULL)
            return;
        s.of_tile = s.token + rows;
        s.row = s.of_tile + rows;
        s.run = s.row + rows;
        unsigned size = 2 * LKS_WARP;
        while (size < TILE && size < rows)
            size *= 2;
        lks__cuda_count(ex, 12.0 * (double)rows, 0.0);
        LKS_LAUNCH(sort_tiles, dim3((unsigned)((rows + TILE - 1) / TILE)), dim3(size / 2),
                   lks__cuda_stream(ex), s, tokens, rows);
        /* tokens that are searched come from the cache */
        lks__cuda_count(ex, 16.0 * (double)rows, 0.0);
        LKS_LAUNCH(place_rows, dim3((unsigned)((rows + THREADS - 1) / THREADS)), dim3(THREADS),
                   lks__cuda_stream(ex), s, (int32_t)rows);
        /* without the rows of tokens, whose number is unknown here */
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
