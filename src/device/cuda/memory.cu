/* cuda/memory.cu - zeros, sums, copies and searches of whole arrays. */
#include "device/cuda/cuda.h"
#include "device/cuda/rows.h"

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

/* y = x, or y += x; x NULL: zeros. `wide`: both are aligned, which a part of an array may not be.
 */
static __global__ void __launch_bounds__(THREADS)
    range(float *y, const float *x, size_t n, bool add, bool wide)
{
    for (size_t i = first_of_thread(); i < n; i += to_next()) {
        if (wide && i + 4 <= n) {
            float4 v = x != NULL ? *(const float4 *)(x + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (add) {
                const float4 old = *(const float4 *)(y + i);
                v = make_float4(old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w);
            }
            *(float4 *)(y + i) = v;
            continue;
        }
        for (size_t j = i; j < n && j < i + 4; j++) {
            const float v = x != NULL ? x[j] : 0.0f;
            y[j] = add ? y[j] + v : v;
        }
    }
}

static void launch_range(const lks__exec *ex, float *y, const float *x, size_t n, bool add)
{
    lks__cuda_written(ex, y, n * sizeof *y);
    if (n == 0)
        return;
    lks__cuda_count(ex, (add ? 12.0 : x != NULL ? 8.0 : 4.0) * (double)n, add ? (double)n : 0.0);
    LKS_LAUNCH(range, blocks_for(n), dim3(THREADS), lks__cuda_stream(ex), y, x, n, add,
               lks_in_fours(0, y, x));
}

extern "C" void lks__cuda_clear(const lks__exec *ex, float *x, size_t n)
{
    launch_range(ex, x, NULL, n, false);
}

extern "C" void lks__cuda_accumulate(const lks__exec *ex, float *y, const float *x, size_t n)
{
    launch_range(ex, y, x, n, true);
}

extern "C" void lks__cuda_copy(const lks__exec *ex, float *y, const float *x, size_t n)
{
    launch_range(ex, y, x, n, false);
}

/* --- the first element that isn't finite ----------------------------------------------------- */

static __global__ void begin_search(uint64_t *first, size_t n)
{
    if (threadIdx.x == 0)
        *first = n;
}

/* The least index, whichever thread comes first. Elements that aren't finite are rare, so there is
 * no need to add up a block's first. */
static __global__ void __launch_bounds__(THREADS) search(uint64_t *first, const float *x, size_t n)
{
    for (size_t i = first_of_thread(); i < n; i += to_next())
        for (size_t j = i; j < n && j < i + 4; j++)
            if (!isfinite(x[j])) {
                atomicMin((unsigned long long *)first, (unsigned long long)j);
                break;
            }
}

extern "C" void lks__cuda_first_not_finite(const lks__exec *ex, uint64_t *first, const float *x,
                                           size_t n)
{
    lks__cuda_count(ex, 4.0 * (double)n, 0.0);
    LKS_LAUNCH(begin_search, dim3(1), dim3(32), lks__cuda_stream(ex), first, n);
    if (n != 0)
        LKS_LAUNCH(search, blocks_for(n), dim3(THREADS), lks__cuda_stream(ex), first, x, n);
}
