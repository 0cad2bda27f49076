/* compute/cuda/kernels/head.cu - cross-entropy of rows of logits and its gradient; formulas:
 * tests/kernels/reference/ref_xent.c. */
#include <float.h>

#include "compute/cuda/common/ptx.h"
#include "compute/cuda/common/reduce.h"
#include "compute/cuda/common/rows.h"
#include "compute/cuda/cuda.h"

static const unsigned THREADS = 256;
static const unsigned MOST = 512;  /* threads of a row */
static const unsigned AT_ONCE = 4; /* loads that a thread has on the way */

/* cap * tanh(x / cap), or x itself. */
static __device__ inline float capped(float x, float cap)
{
    return cap == 0.0f ? x : cap * tanhf(x / cap);
}

/* Elements of a row that a thread loads at once: N elements, N more one step later, and so on. */
template <int N> struct batch {
    lks_floats<N> v[AT_ONCE];
};

/* Capped logits from column c on; -inf beyond the row's end. */
template <int N, typename E>
static __device__ inline batch<N> batch_at(const E *row, size_t c, size_t end, float cap)
{
    batch<N> b;
    lks_load_batch(b.v, row, c, (size_t)blockDim.x * N, end);
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int k = 0; k < N; k++)
            b.v[i].at[k] =
                c + (size_t)i * blockDim.x * N < end ? capped(b.v[i].at[k], cap) : -INFINITY;
    return b;
}

/* A thread's running maximum, and the sum of exp(x - maximum). -FLT_MAX and not -inf, from which an
 * infinite x couldn't be subtracted. */
struct running {
    float max, sum;
};

static __device__ inline void raise(running *r, float max)
{
    if (max > r->max) {
        r->sum *= expf(r->max - max);
        r->max = max;
    }
}

template <int N> static __device__ inline void take(running *r, const batch<N> &b)
{
    float max = b.v[0].at[0];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int k = 0; k < N; k++)
            max = fmaxf(max, b.v[i].at[k]);
    raise(r, max);
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++)
#pragma unroll
        for (int k = 0; k < N; k++)
            r->sum += expf(b.v[i].at[k] - r->max);
}

/* Values of a row that its gradient needs. */
struct row_result {
    float max, one_by_sum, scale, by_cap; /* by_cap: 0 without a cap */
    size_t target;
};

/* (softmax - onehot) * scale, and through the cap's slope 1 - (l / cap)², for a capped logit l. */
static __device__ inline float slope(const row_result &r, float l, float hot)
{
    const float t = l * r.by_cap;
    return (expf(l - r.max) * r.one_by_sum - hot) * r.scale * (1.0f - t * t);
}

template <int N, typename E>
static __device__ inline void put_slopes(E *row, const row_result &r, size_t c, size_t end,
                                         const batch<N> &b)
{
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
        const size_t at = c + (size_t)i * blockDim.x * N;
        if (at >= end)
            break;
        const int target = r.target - at < (size_t)N ? (int)(r.target - at) : N; /* in v, or N */
        lks_floats<N> v;
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] = slope(r, b.v[i].at[k], k == target ? 1.0f : 0.0f);
        lks_store<N>(row + at, v);
    }
}

/* One block per row. A thread's first elements stay in registers, which is all of a short row. It
 * reads the rest of the row twice, the second time mostly from the second-level cache. */
template <typename E, int N>
static __global__ void __launch_bounds__(MOST)
    xent_row(lks__xent o, E *logits, const int32_t *targets, double *row_loss)
{
    E *row = logits + (size_t)blockIdx.x * o.ld;
    const size_t target = (size_t)targets[blockIdx.x], whole = o.V / N * N;
    const size_t first = (size_t)threadIdx.x * N, step = (size_t)AT_ONCE * blockDim.x * N;
    const size_t rest = whole + threadIdx.x; /* of a row whose length N doesn't divide */
    const float of_target = capped(lks_element(row + target), o.softcap);
    running mine = {-FLT_MAX, 0.0f};
    batch<N> kept = {};
    if (first < whole) {
        kept = batch_at<N>(row, first, whole, o.softcap);
        take(&mine, kept);
    }
    for (size_t c = first + step; c < whole; c += step)
        take(&mine, batch_at<N>(row, c, whole, o.softcap));
    if (rest < o.V) {
        const float l = capped(lks_element(row + rest), o.softcap);
        raise(&mine, l);
        mine.sum += expf(l - mine.max);
    }
    const float max = lks_block_max(mine.max);
    const double sum = lks_block_sum((double)mine.sum * (double)expf(mine.max - max));
    if (threadIdx.x == 0)
        row_loss[blockIdx.x] = log(sum) - ((double)of_target - (double)max);
    if (!o.grad)
        return;
    /* All threads have read the target's logit: they have met in the sums. */
    const row_result r = {max, (float)(1.0 / sum), o.scale,
                          o.softcap == 0.0f ? 0.0f : 1.0f / o.softcap, target};
    put_slopes<N>(row, r, first, whole, kept);
    for (size_t c = first + step; c < whole; c += step)
        put_slopes<N>(row, r, c, whole, batch_at<N>(row, c, whole, o.softcap));
    if (rest < o.V)
        lks_put(row + rest,
                slope(r, capped(lks_element(row + rest), o.softcap), rest == target ? 1.0f : 0.0f));
}

/* --- long rows in bfloat16 without a cap: each is read once, and stays in registers ----------- */

static const unsigned LONG = 1024, FOURS = 13; /* threads of a row; fours of logits of a thread */

/* Four logits as they are stored. */
struct alignas(8) four_logits {
    uint32_t pair[2];
};

static __device__ inline float logit(const four_logits &x, int k)
{
    const uint32_t pair = x.pair[k / 2];
    return __uint_as_float(k % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

/* Those from column c on. Beyond the row's end they are -inf. */
static __device__ inline four_logits logits_at(const lks_half *row, unsigned c, unsigned end)
{
    four_logits x = {{0xff80ff80u, 0xff80ff80u}};
    if (c + 4 <= end)
        return *(const four_logits *)(row + c);
    for (unsigned k = 0; k < 3 && c + k < end; k++) {
        const uint32_t bits = row[c + k].bits;
        x.pair[k / 2] = k % 2 == 0 ? 0xff800000u | bits : (x.pair[0] & 0xffffu) | bits << 16;
    }
    return x;
}

/* e^x by one instruction, off by 2^-22 of the result. */
static __device__ inline float fast_exp(float x)
{
    return lks_exp2(LKS_LOG2_E * x);
}

static __global__ void __launch_bounds__(LONG)
    xent_long(lks__xent o, lks_half *logits, const int32_t *targets, double *row_loss)
{
    lks_half *row = logits + (size_t)blockIdx.x * o.ld;
    const unsigned V = (unsigned)o.V, target = (unsigned)targets[blockIdx.x];
    four_logits x[FOURS];
    const float of_target = lks_element(row + target);
    float max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < FOURS; i++)
        x[i] = logits_at(row, (i * LONG + threadIdx.x) * 4, V);
#pragma unroll
    for (unsigned i = 0; i < FOURS; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            max = fmaxf(max, logit(x[i], k));
    max = lks_block_max(max);
#pragma unroll
    for (unsigned i = 0; i < FOURS; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum += fast_exp(logit(x[i], k) - max);
    const double all = lks_block_sum((double)sum);
    if (threadIdx.x == 0)
        row_loss[blockIdx.x] = log(all) - ((double)of_target - (double)max);
    if (!o.grad)
        return;
    const float by_sum = (float)(1.0 / all); /* all threads have read the target's logit */
#pragma unroll
    for (unsigned i = 0; i < FOURS; i++) {
        const unsigned c = (i * LONG + threadIdx.x) * 4;
        lks_floats<4> v;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float hot = c + k == target ? 1.0f : 0.0f;
            v.at[k] = (fast_exp(logit(x[i], k) - max) * by_sum - hot) * o.scale;
        }
        if (c + 4 <= V)
            lks_store<4>(row + c, v);
        else
            for (unsigned k = 0; k < 3 && c + k < V; k++)
                lks_put(row + c + k, k == 0 ? v.at[0] : k == 1 ? v.at[1] : v.at[2]);
    }
}

extern "C" void lks__cuda_xent_rows(const lks__exec *ex, const lks__xent *xent, lks__act *logits,
                                    const int32_t *targets, double *row_loss)
{
    if (xent->rows == 0)
        return;
    const double n = (double)(xent->rows * xent->V), passes = xent->grad ? 2 : 1;
    const bool halves = lks__cuda_halves(ex);
    lks__cuda_count(ex, lks_act_bytes(halves) * passes * n,
                    ((xent->grad ? 30 : 12) + (xent->softcap != 0 ? 20 : 0) * passes) * n);
    const bool fours = lks_in_fours(xent->ld, logits);
    if (halves && fours && xent->softcap == 0 && xent->V > (size_t)MOST * AT_ONCE * 4 &&
        xent->V <= (size_t)LONG * FOURS * 4)
        LKS_LAUNCH(xent_long, dim3((unsigned)xent->rows), dim3(LONG), lks__cuda_stream(ex), *xent,
                   LKS_ACTS(lks_half, logits), targets, row_loss);
    else
        LKS_LAUNCH_ACTS(xent_row, halves, fours, dim3((unsigned)xent->rows),
                        dim3(lks_row_threads((xent->V + AT_ONCE - 1) / AT_ONCE, fours, MOST)),
                        lks__cuda_stream(ex), *xent, LKS_ACTS(E, logits), targets, row_loss);
}

static const unsigned MEAN_THREADS = 1024, MEAN_LOADS = 8;

/* One block: a thread adds every 1,024th number, and loads eight of them at once. Then the block
 * adds up the threads' sums. So the order depends only on the number of rows. */
static __global__ void __launch_bounds__(MEAN_THREADS)
    mean_of_rows(float *loss, const double *row_loss, size_t rows)
{
    double sum = 0.0, v[MEAN_LOADS];
    for (size_t first = threadIdx.x; first < rows; first += MEAN_LOADS * MEAN_THREADS) {
#pragma unroll
        for (unsigned k = 0; k < MEAN_LOADS; k++) {
            const size_t row = first + k * MEAN_THREADS;
            v[k] = row < rows ? row_loss[row] : 0.0;
        }
#pragma unroll
        for (unsigned k = 0; k < MEAN_LOADS; k++)
            sum += v[k];
    }
    sum = lks_block_sum(sum);
    if (threadIdx.x == 0)
        *loss = (float)(sum / (double)rows);
}

extern "C" void lks__cuda_mean_loss(const lks__exec *ex, float *loss, const double *row_loss,
                                    size_t rows)
{
    lks__cuda_count(ex, 8.0 * (double)rows, (double)rows);
    LKS_LAUNCH(mean_of_rows, dim3(1), dim3(MEAN_THREADS), lks__cuda_stream(ex), loss, row_loss,
               rows);
}

template <typename E>
static __global__ void __launch_bounds__(THREADS)
    cap_row(float *y, const E *logits, size_t n, float cap)
{
    const size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (c < n)
        y[c] = capped(lks_element(logits + c), cap);
}

extern "C" void lks__cuda_cap_logits(const lks__exec *ex, float *y, const lks__act *logits,
                                     size_t n, float cap)
{
    if (n == 0)
        return;
    const bool halves = lks__cuda_halves(ex);
    lks__cuda_count(ex, (4.0 + lks_act_bytes(halves)) * (double)n,
                    (cap != 0.0f ? 20.0 : 0.0) * (double)n);
    LKS_LAUNCH_TYPED(cap_row, halves, dim3((unsigned)((n + THREADS - 1) / THREADS)), dim3(THREADS),
                     lks__cuda_stream(ex), y, LKS_ACTS(const E, logits), n, cap);
}
