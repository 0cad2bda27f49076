/* compute/cuda/kernels/epilogue.cu - operations after a product: epilogues, activations, sums of
 * columns. */
#include "compute/cuda/cuda.h"
#include "compute/cuda/kernels/epilogue.h"
#include "compute/cuda/questions.h"

/* --- epilogues: a block for each row ---------------------------------------------------------- */

static const unsigned MOST = 512;  /* threads of a row */
static const unsigned AT_ONCE = 2; /* loads that a thread has under way of each matrix */

static unsigned threads_of(size_t width, bool fours)
{
    return lks_row_threads((width + AT_ONCE - 1) / AT_ONCE, fours, MOST);
}

template <typename E, int N>
static __global__ void __launch_bounds__(MOST)
    finish_rows(lks_epilogue<E> e, E *y, size_t ldy, size_t width)
{
    const size_t row = (size_t)blockIdx.x * ldy, step = (size_t)blockDim.x * N;
    const E *in = e.in != NULL ? e.in : y; /* a load without a condition waits for no other */
    for (size_t c0 = (size_t)threadIdx.x * N; c0 < width; c0 += AT_ONCE * step) {
        lks_floats<N> v[AT_ONCE], x[AT_ONCE];
        lks_load_batch(v, y + row, c0, step, width);
        lks_load_batch(x, in + row, c0, step, width);
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (i == 0 || c0 + i * step < width)
                lks_finish<N>(e, y, row + c0 + i * step, c0 + i * step, v[i], x[i]);
    }
}

/* Floating-point operations for an element; a function of the library counts as one of 10. */
static double flops_of(lks__epilogue_kind kind)
{
    switch (kind) {
    case LKS__EPILOGUE_GELU:
    case LKS__EPILOGUE_GELU_TANH:
        return 15;
    case LKS__EPILOGUE_GELU_BWD:
    case LKS__EPILOGUE_GELU_TANH_BWD:
        return 30;
    default:
        return 3;
    }
}

extern "C" void lks__cuda_epilogue(const lks__exec *ex, lks__act *y, size_t ldy, size_t rows,
                                   size_t width, const lks__epilogue *e)
{
    const bool halves = lks__cuda_halves(ex);
    if (rows == 0 || width == 0 || (e->kind == LKS__EPILOGUE_NONE && e->bias == NULL))
        return;
    const double n = (double)rows * (double)width;
    const int matrices = 1 + !lks_is_unchanged(e) + (e->in != NULL) + (e->out != NULL);
    lks__cuda_count(ex, lks_act_bytes(halves) * matrices * n, flops_of(e->kind) * n);
    const bool fours = width % 4 == 0 && lks_in_fours(ldy, y, e->bias, e->in, e->scale, e->out);
    LKS_LAUNCH_ACTS(finish_rows, halves, fours, dim3((unsigned)rows),
                    dim3(threads_of(width, fours)), lks__cuda_stream(ex),
                    lks_epilogue_of<E>(e, true), LKS_ACTS(E, y), ldy, width);
}

template <typename E, int N>
static __global__ void __launch_bounds__(MOST)
    activate_rows(lks__epilogue_kind kind, E *y, const E *x, size_t width)
{
    const size_t row = (size_t)blockIdx.x * width, step = (size_t)blockDim.x * N;
    for (size_t c0 = (size_t)threadIdx.x * N; c0 < width; c0 += AT_ONCE * step) {
        lks_floats<N> v[AT_ONCE];
        lks_load_batch(v, x + row, c0, step, width);
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) {
            if (i > 0 && c0 + i * step >= width)
                break;
#pragma unroll
            for (int k = 0; k < N; k++)
                v[i].at[k] = lks_activation<E>(kind, v[i].at[k]);
            lks_store<N>(y + row + c0 + i * step, v[i]);
        }
    }
}

extern "C" void lks__cuda_activation_fwd(const lks__exec *ex, lks__epilogue_kind kind, lks__act *y,
                                         const lks__act *x, size_t rows, size_t width)
{
    const bool halves = lks__cuda_halves(ex);
    if (rows == 0 || width == 0)
        return;
    const double n = (double)rows * (double)width;
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, flops_of(kind) * n);
    const bool fours = lks_in_fours(width, x, y);
    LKS_LAUNCH_ACTS(activate_rows, halves, fours, dim3((unsigned)rows),
                    dim3(threads_of(width, fours)), lks__cuda_stream(ex), kind, LKS_ACTS(E, y),
                    LKS_ACTS(E, x), width);
}

/* --- sums of columns --------------------------------------------------------------------------
 *
 * A block has 32 columns, a lane each, and SLAB rows, which its warps take in turn; then the warps'
 * sums are added in order. If there are several slabs, a second launch adds their sums in order. */

static const unsigned COLUMNS = 32, WARPS = 16, SLAB = LKS__CUDA_SUM_ROWS;

/* sums[slab][column]; `add`: added to the previous sums. */
template <typename E>
static __global__ void __launch_bounds__(COLUMNS *WARPS)
    sum_columns(float *sums, const E *x, size_t ld, size_t rows, size_t width, bool add)
{
    LKS_SHARED(float, part, WARPS *COLUMNS);
    const unsigned lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS;
    const size_t c = (size_t)blockIdx.x * COLUMNS + lane, first = (size_t)blockIdx.y * SLAB;
    const size_t end = rows - first < SLAB ? rows : first + SLAB;
    float sum = 0.0f;
    if (c < width)
        for (size_t r = first + warp; r < end; r += WARPS)
            sum += lks_element(x + r * ld + c);
    part[warp * COLUMNS + lane] = sum;
    __syncthreads();
    if (warp == 0 && c < width) {
        sum = part[lane];
        for (unsigned w = 1; w < WARPS; w++)
            sum += part[w * COLUMNS + lane];
        float *to = sums + (size_t)blockIdx.y * width + c;
        *to = add ? *to + sum : sum;
    }
}

static void launch_sums(const lks__exec *ex, float *sums, const void *x, bool halves, size_t ld,
                        size_t rows, size_t width, bool add)
{
    const double n = (double)rows * (double)width;
    lks__cuda_count(ex, lks_act_bytes(halves) * n, n);
    LKS_LAUNCH_TYPED(
        sum_columns, halves,
        dim3((unsigned)((width + COLUMNS - 1) / COLUMNS), (unsigned)((rows + SLAB - 1) / SLAB)),
        dim3(COLUMNS * WARPS), lks__cuda_stream(ex), sums, LKS_ACTS(E, x), ld, rows, width, add);
}

static void add_columns(const lks__exec *ex, float *sums, const void *x, bool halves, size_t ld,
                        size_t rows, size_t C)
{
    if (rows == 0 || C == 0)
        return;
    float *of_slabs = NULL;
    if (rows > SLAB)
        of_slabs = (float *)lks__cuda_work(ex, lks__cuda_sums_bytes(rows, C));
    for (; rows > SLAB && of_slabs != NULL; of_slabs += rows * C) {
        launch_sums(ex, of_slabs, x, halves, ld, rows, C, false);
        x = of_slabs;
        halves = false;
        ld = C;
        rows = (rows + SLAB - 1) / SLAB;
    }
    if (rows <= SLAB)
        launch_sums(ex, sums, x, halves, ld, rows, C, true);
}

extern "C" void lks__cuda_column_sums(const lks__exec *ex, float *sums, const float *x, size_t ld,
                                      size_t rows, size_t C)
{
    add_columns(ex, sums, x, false, ld, rows, C);
}

extern "C" void lks__cuda_act_sums(const lks__exec *ex, float *sums, const lks__act *x, size_t ld,
                                   size_t rows, size_t C)
{
    add_columns(ex, sums, x, lks__cuda_halves(ex), ld, rows, C);
}
