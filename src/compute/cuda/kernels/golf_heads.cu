/* compute/cuda/kernels/golf_heads.cu - parameter-golf's query and key heads: RMSNorm, rotary
 * positions and the gain of queries. */
#include "compute/cuda/common/norms.h"
#include "compute/cuda/common/reduce.h"
#include "compute/cuda/common/rows.h"

/* lks__golf_heads with elements of type E. */
template <typename E> struct heads {
    size_t rows, T, n_head, n_kv_head, hs;
    const float *cosine, *sine, *gain;
    const E *q_raw, *k_raw;
    E *q, *k;
    float *q_rms, *k_rms;
};

template <typename E> static heads<E> heads_of(const lks__golf_heads &h)
{
    return {h.rows,
            h.T,
            h.n_head,
            h.n_kv_head,
            h.hs,
            h.cosine,
            h.sine,
            h.gain,
            LKS_ACTS(const E, h.q_raw),
            LKS_ACTS(const E, h.k_raw),
            LKS_ACTS(E, h.q),
            LKS_ACTS(E, h.k),
            h.q_rms,
            h.k_rms};
}

enum { HEAD_LANES = 8, HEADS = LKS_WARP / HEAD_LANES };

/* One head of one row: a query's, or a key's, which follow. Eight lanes process it, so a warp has
 * four heads of a row. A lane processes N elements of both of the head's halves, which the
 * rotation mixes, N more one step of the lanes later, and so on. */
template <typename E> struct head {
    const E *raw;
    const float *cosine, *sine;
    float gain;
    size_t at;     /* its first element among the queries, or the keys */
    size_t number; /* its own among all rows' */
    bool query;
};

/* i beyond the last head: the last one. */
template <typename E> __device__ static head<E> head_of(const heads<E> &h, size_t row, unsigned i)
{
    const unsigned all = (unsigned)(h.n_head + h.n_kv_head), n_head = (unsigned)h.n_head;
    const size_t position = (unsigned)row % (unsigned)h.T; /* 64 bits would take 70 instructions */
    head<E> one;
    i = i < all ? i : all - 1;
    one.query = i < n_head;
    one.number = one.query ? row * n_head + i : row * h.n_kv_head + (i - n_head);
    one.at = one.number * h.hs;
    one.raw = (one.query ? h.q_raw : h.k_raw) + one.at;
    one.gain = one.query ? h.gain[i] : 1.0f;
    one.cosine = h.cosine + position * (h.hs / 2);
    one.sine = h.sine + position * (h.hs / 2);
    return one;
}

/* Sum over the lanes of a head. */
static __device__ float head_sum(float v)
{
    for (int lane = HEAD_LANES / 2; lane > 0; lane /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* N elements of both halves of a head, or of its angles' cosines and sines. */
template <int N> struct pair {
    lks_floats<N> a, b;
};

template <int N, typename A> static __device__ pair<N> pair_at(const A *a, const A *b, size_t j)
{
    return {lks_load<N>(a + j), lks_load<N>(b + j)};
}

template <int N, typename E>
static __device__ void pair_put(E *p, size_t j, size_t half, const pair<N> &v)
{
    lks_store<N>(p + j, v.a);
    lks_store<N>(p + half + j, v.b);
}

template <int N> static __device__ float pair_product(const pair<N> &u, const pair<N> &v, float sum)
{
    for (int k = 0; k < N; k++) {
        sum = fmaf(u.a.at[k], v.a.at[k], sum);
        sum = fmaf(u.b.at[k], v.b.at[k], sum);
    }
    return sum;
}

template <int N>
static __device__ pair<N> turned(pair<N> v, const pair<N> &angles, float rms, float gain)
{
    for (int k = 0; k < N; k++) {
        const float a = v.a.at[k] * rms, b = v.b.at[k] * rms;
        v.a.at[k] = gain * (a * angles.a.at[k] + b * angles.b.at[k]);
        v.b.at[k] = gain * (b * angles.a.at[k] - a * angles.b.at[k]);
    }
    return v;
}

/* One warp per row. A lane's first elements of a head stay in registers, which is all for heads of
 * up to 64 elements; the rest is loaded a second time. */
template <typename E, int N>
static __global__ void __launch_bounds__(LKS_WARPS *LKS_WARP, 5) golf_heads_fwd(heads<E> h)
{
    const size_t row = lks_warp_index(), half = h.hs / 2, first = threadIdx.x % HEAD_LANES * N;
    const unsigned all = (unsigned)(h.n_head + h.n_kv_head);
    if (row >= h.rows)
        return;
    const head<E> last = head_of(h, row, all);
    pair<N> angles = {};
    if (first < half)
        angles = pair_at<N>(last.cosine, last.sine, first);
    for (unsigned quad = 0; quad < all; quad += HEADS) {
        const unsigned i = quad + threadIdx.x % LKS_WARP / HEAD_LANES;
        const size_t own = i < all ? first : half; /* beyond the last head there is nothing */
        const head<E> one = head_of(h, row, i);
        const E *raw = one.raw;
        pair<N> x = {};
        if (own < half)
            x = pair_at<N>(raw, raw + half, own);
        float squares = pair_product(x, x, 0.0f);
#pragma unroll 1
        for (size_t j = own + HEAD_LANES * N; j < half; j += HEAD_LANES * N) {
            const pair<N> v = pair_at<N>(raw, raw + half, j);
            squares = pair_product(v, v, squares);
        }
        const float rms = lks_reciprocal_rms(head_sum(squares), h.hs);
        E *y = (one.query ? h.q : h.k) + one.at;
        if (own < half)
            pair_put<N>(y, own, half, turned(x, angles, rms, one.gain));
#pragma unroll 1
        for (size_t j = own + HEAD_LANES * N; j < half; j += HEAD_LANES * N)
            pair_put<N>(y, j, half,
                        turned(pair_at<N>(raw, raw + half, j), pair_at<N>(one.cosine, one.sine, j),
                               rms, one.gain));
        if (own == 0)
            (one.query ? h.q_rms : h.k_rms)[one.number] = rms;
    }
}

extern "C" void lks__cuda_golf_heads_fwd(const lks__exec *ex, const lks__golf_heads *h)
{
    const double n = (double)(h->rows * (h->n_head + h->n_kv_head) * h->hs);
    const bool halves = lks__cuda_halves(ex);
    const bool fours = lks_in_fours(h->hs / 2, h->q_raw, h->k_raw, h->q, h->k, h->cosine, h->sine);
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, 9 * n); /* angles come from the cache */
    LKS_LAUNCH_ACTS(golf_heads_fwd, halves, fours, lks_warps_grid(h->rows), lks_warps_block,
                    lks__cuda_stream(ex), heads_of<E>(*h));
}

/* dy through the rotation. */
template <int N> static __device__ pair<N> turned_back(pair<N> v, const pair<N> &angles)
{
    for (int k = 0; k < N; k++) {
        const float p = v.a.at[k], q = v.b.at[k];
        v.a.at[k] = p * angles.a.at[k] - q * angles.b.at[k];
        v.b.at[k] = p * angles.b.at[k] + q * angles.a.at[k];
    }
    return v;
}

template <int N>
static __device__ pair<N> pair_grad(pair<N> u, const pair<N> &x, float gain, float rms, float mean)
{
    for (int k = 0; k < N; k++) {
        u.a.at[k] = gain * lks_norm_grad(u.a.at[k], x.a.at[k], rms, mean);
        u.b.at[k] = gain * lks_norm_grad(u.b.at[k], x.b.at[k], rms, mean);
    }
    return u;
}

/* A warp processes four heads of two rows of a slab, and the warps' sums of the gain's gradient are
 * added in their order. In place: each element is read and written by one thread only. */
template <typename E, int N>
static __global__ void __launch_bounds__(LKS_WARPS *LKS_WARP, 3)
    golf_heads_bwd(heads<E> h, E *dq, E *dk, float *partial)
{
    LKS_SHARED(float, sums, LKS_WARPS *HEADS);
    const size_t half = h.hs / 2, first = threadIdx.x % HEAD_LANES * N;
    const size_t r0 = (size_t)blockIdx.x * LKS_SLAB, end = r0 + lks_slab_rows(h.rows, r0);
    const unsigned i = blockIdx.y * HEADS + threadIdx.x % LKS_WARP / HEAD_LANES;
    const size_t own = i < h.n_head + h.n_kv_head ? first : half; /* as above */
    float dgain = 0.0f;
    for (size_t row = r0 + threadIdx.x / LKS_WARP; row < end; row += LKS_WARPS) {
        const head<E> one = head_of(h, row, i);
        const E *raw = one.raw;
        E *d = (one.query ? dq : dk) + one.at;
        const float rms = (one.query ? h.q_rms : h.k_rms)[one.number];
        pair<N> x = {}, u = {};
        if (own < half) {
            x = pair_at<N>(raw, raw + half, own);
            u = turned_back(pair_at<N>(d, d + half, own), pair_at<N>(one.cosine, one.sine, own));
        }
        float sum = pair_product(u, x, 0.0f);
#pragma unroll 1
        for (size_t j = own + HEAD_LANES * N; j < half; j += HEAD_LANES * N)
            sum = pair_product(
                turned_back(pair_at<N>(d, d + half, j), pair_at<N>(one.cosine, one.sine, j)),
                pair_at<N>(raw, raw + half, j), sum);
        const float m = head_sum(sum) * rms; /* sum of u * xhat */
        const float mean = m / (float)h.hs;
        dgain += m;
        if (own < half)
            pair_put<N>(d, own, half, pair_grad(u, x, one.gain, rms, mean));
#pragma unroll 1
        for (size_t j = own + HEAD_LANES * N; j < half; j += HEAD_LANES * N) {
            u = turned_back(pair_at<N>(d, d + half, j), pair_at<N>(one.cosine, one.sine, j));
            x = pair_at<N>(raw, raw + half, j);
            pair_put<N>(d, j, half, pair_grad(u, x, one.gain, rms, mean));
        }
    }
    if (partial == NULL)
        return;
    if (first == 0)
        sums[threadIdx.x / LKS_WARP * HEADS + threadIdx.x % LKS_WARP / HEAD_LANES] = dgain;
    __syncthreads();
    const unsigned of = blockIdx.y * HEADS + threadIdx.x;
    if (threadIdx.x < HEADS && of < h.n_head) {
        float sum = sums[threadIdx.x];
        for (unsigned w = 1; w < LKS_WARPS; w++)
            sum += sums[w * HEADS + threadIdx.x];
        partial[blockIdx.x * h.n_head + of] = sum;
    }
}

extern "C" void lks__cuda_golf_heads_bwd(const lks__exec *ex, const lks__golf_heads *h,
                                         lks__act *dq, lks__act *dk, float *dgain, float *partial)
{
    const double n = (double)(h->rows * (h->n_head + h->n_kv_head) * h->hs);
    const bool halves = lks__cuda_halves(ex);
    const bool fours = lks_in_fours(h->hs / 2, h->q_raw, h->k_raw, dq, dk, h->cosine, h->sine);
    lks__cuda_count(ex, 3 * lks_act_bytes(halves) * n, 20 * n);
    const unsigned quads = (unsigned)((h->n_head + h->n_kv_head + HEADS - 1) / HEADS);
    LKS_LAUNCH_ACTS(golf_heads_bwd, halves, fours, dim3((unsigned)lks_slabs(h->rows), quads),
                    lks_warps_block, lks__cuda_stream(ex), heads_of<E>(*h), LKS_ACTS(E, dq),
                    LKS_ACTS(E, dk), dgain != NULL ? partial : (float *)NULL);
    if (dgain != NULL)
        lks__cuda_column_sums(ex, dgain, partial, h->n_head, lks_slabs(h->rows), h->n_head);
}
