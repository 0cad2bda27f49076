/* compute/cuda/kernels/memory.cu - zeros, sums, copies, searches and bfloat16 copies of arrays. */
#include "compute/cuda/common/rows.h"
#include "compute/cuda/cuda.h"

static const unsigned THREADS = 256, MAX_BLOCKS = 1 << 16;

/* Each thread takes four elements, and with more than MAX_BLOCKS blocks the next four after those
 * of all blocks. */
static dim3 blocks_for(size_t n)
{
    const size_t blocks = (n + 4 * THREADS - 1) / (4 * THREADS);
    return dim3(blocks < MAX_BLOCKS ? (unsigned)blocks : MAX_BLOCKS);
}

static __device__ inline size_t first_of_thread(void)
{
    return 4 * ((size_t)blockIdx.x * THREADS + threadIdx.x);
}

static __device__ inline size_t to_next(void)
{
    return (size_t)4 * THREADS * gridDim.x;
}

/* N elements of x, or zeros; `add`: added to those of y. */
template <int N, typename E> static __device__ inline void put(E *y, const E *x, size_t i, bool add)
{
    lks_floats<N> v = {};
    if (x != NULL)
        v = lks_load<N>(x + i);
    if (add) {
        const lks_floats<N> old = lks_load<N>(y + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] = old.at[k] + v.at[k];
    }
    lks_store<N>(y + i, v);
}

/* y = x, or y += x; x NULL: zeros. N is 4 if both are aligned, which a part of an array may not be.
 */
template <typename E, int N>
static __global__ void __launch_bounds__(THREADS) range(E *y, const E *x, size_t n, bool add)
{
    for (size_t i = first_of_thread(); i < n; i += to_next()) {
        if (N == 4 && i + 4 <= n) {
            put<4>(y, x, i, add);
            continue;
        }
        for (size_t j = i; j < n && j < i + 4; j++)
            put<1>(y, x, j, add);
    }
}

static void launch_range(const lks__exec *ex, void *y, const void *x, size_t n, bool add,
                         bool halves)
{
    if (n == 0)
        return;
    const double arrays = add ? 3 : x != NULL ? 2 : 1;
    lks__cuda_count(ex, arrays * lks_act_bytes(halves) * (double)n, add ? (double)n : 0.0);
    LKS_LAUNCH_ACTS(range, halves, lks_in_fours(0, y, x), blocks_for(n), dim3(THREADS),
                    lks__cuda_stream(ex), LKS_ACTS(E, y), LKS_ACTS(E, x), n, add);
}

extern "C" void lks__cuda_clear(const lks__exec *ex, float *x, size_t n)
{
    lks__cuda_written(ex, x, n * sizeof *x);
    launch_range(ex, x, NULL, n, false, false);
}

extern "C" void lks__cuda_accumulate(const lks__exec *ex, float *y, const float *x, size_t n)
{
    lks__cuda_written(ex, y, n * sizeof *y);
    launch_range(ex, y, x, n, true, false);
}

extern "C" void lks__cuda_copy(const lks__exec *ex, float *y, const float *x, size_t n)
{
    lks__cuda_written(ex, y, n * sizeof *y);
    launch_range(ex, y, x, n, false, false);
}

extern "C" void lks__cuda_act_clear(const lks__exec *ex, lks__act *x, size_t n)
{
    launch_range(ex, x, NULL, n, false, lks__cuda_halves(ex));
}

extern "C" void lks__cuda_act_accumulate(const lks__exec *ex, lks__act *y, const lks__act *x,
                                         size_t n)
{
    launch_range(ex, y, x, n, true, lks__cuda_halves(ex));
}

extern "C" void lks__cuda_act_copy(const lks__exec *ex, lks__act *y, const lks__act *x, size_t n)
{
    launch_range(ex, y, x, n, false, lks__cuda_halves(ex));
}

/* --- the first element that isn't finite ----------------------------------------------------- */

static __global__ void begin_search(uint64_t *first, size_t n)
{
    if (threadIdx.x == 0)
        *first = n;
}

/* The least index, whichever thread comes first. Elements that aren't finite are rare, so there is
 * no need to add up a block's first. */
template <typename E>
static __global__ void __launch_bounds__(THREADS) search(uint64_t *first, const E *x, size_t n)
{
    for (size_t i = first_of_thread(); i < n; i += to_next())
        for (size_t j = i; j < n && j < i + 4; j++)
            if (!isfinite(lks_element(x + j))) {
                atomicMin((unsigned long long *)first, (unsigned long long)j);
                break;
            }
}

static void launch_search(const lks__exec *ex, uint64_t *first, const void *x, size_t n,
                          bool halves)
{
    lks__cuda_count(ex, lks_act_bytes(halves) * (double)n, 0.0);
    LKS_LAUNCH(begin_search, dim3(1), dim3(32), lks__cuda_stream(ex), first, n);
    if (n != 0)
        LKS_LAUNCH_TYPED(search, halves, blocks_for(n), dim3(THREADS), lks__cuda_stream(ex), first,
                         LKS_ACTS(const E, x), n);
}

extern "C" void lks__cuda_first_not_finite(const lks__exec *ex, uint64_t *first, const float *x,
                                           size_t n)
{
    launch_search(ex, first, x, n, false);
}

extern "C" void lks__cuda_act_first_not_finite(const lks__exec *ex, uint64_t *first,
                                               const lks__act *x, size_t n)
{
    launch_search(ex, first, x, n, lks__cuda_halves(ex));
}

/* --- floats as bfloat16, for products --------------------------------------------------------- */

static const size_t CHUNK = 8192; /* elements of a block, if there are no rows */

/* A block for each row of `width`, of which the last may have fewer: there are n elements with
 * those between rows. blockIdx.y: the matrix. */
template <int N>
static __global__ void __launch_bounds__(256) round_rows(const lks__cuda_rounding r, size_t n)
{
    const float *x = r.x + blockIdx.y * r.stride_x + blockIdx.x * r.ldx;
    lks_half *y = (lks_half *)r.y + blockIdx.y * r.stride_y + blockIdx.x * r.ldy;
    const size_t left = n - blockIdx.x * r.ldx, width = r.width < left ? r.width : left;
    const float scale = r.scale != NULL ? r.scale[blockIdx.x] : 1.0f;
    for (size_t c = (size_t)threadIdx.x * N; c < width; c += (size_t)blockDim.x * N) {
        lks_floats<N> v = lks_load<N>(x + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] *= scale;
        lks_store<N>(y + c, v);
    }
}

extern "C" void lks__cuda_round(const lks__exec *ex, const lks__cuda_rounding *rounding)
{
    lks__cuda_rounding r = *rounding;
    size_t n = r.rows * r.ldx;
    if (r.rows == 0 || r.width == 0 || r.count == 0)
        return;
    if (r.scale == NULL && r.ldx == r.width && r.ldy == r.width) { /* other rows will do */
        r.ldx = r.ldy = r.width = n < CHUNK ? n : CHUNK;
        r.rows = (n + r.width - 1) / r.width;
    }
    lks__cuda_count(ex, 6.0 * (double)r.count * (double)r.rows * (double)r.width, 0.0);
    const bool fours = n % 4 == 0 && r.width % 4 == 0 && lks_in_fours(r.ldx, r.x, r.y) &&
                       r.ldy % 4 == 0 && r.stride_x % 4 == 0 && r.stride_y % 4 == 0;
    LKS_LAUNCH_FOURS(round_rows, fours, dim3((unsigned)r.rows, (unsigned)r.count),
                     dim3(lks_row_threads(r.width, fours)), lks__cuda_stream(ex), r, n);
}
