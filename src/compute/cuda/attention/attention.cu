/* compute/cuda/attention/attention.cu - causal attention for any head size and with dropout,
 * without tensor cores. Heads of 64 elements in bfloat16 have a faster path (attention_64.cu).
 *
 * After Dao et al., FlashAttention (2022): no T x T matrix is kept, and backward computes the
 * probabilities again from the row's log-sum-exp. A *tile* is 64 x 64 floats in shared memory; a
 * block of 256 threads has three of them, 48 KiB. Each thread owns a square of 4 x 4 of a product
 * of two tiles. Heads are cut into *pieces* of 64 elements: products over the head add up pieces,
 * and a block keeps the sums of one or two pieces of its outputs in registers. Larger heads take
 * several blocks, which compute the scores again. With activations in bfloat16, products take
 * probabilities and their gradients rounded to it.
 *
 * Backward has a pass by tiles of keys for dk and dv and one by tiles of queries for dq. So each
 * sum belongs to one thread, in one order, and work space is one float for each row of scores. */
#include "compute/cuda/attention/attention_tiles.h"
#include "compute/cuda/common/reduce.h"

/* --- forward --------------------------------------------------------------------------------- */

/* Maximum over the 16 threads that share rows of a product; they are adjacent in a warp. */
__device__ static float row_max(float v)
{
    for (int m = FOURS / 2; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m)); /* ignores NaN, as the CPU does */
    return v;
}

__device__ static float row_sum(float v)
{
    for (int m = FOURS / 2; m > 0; m /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* Running maximum and sum of this thread's four rows; the sum covers only its own columns. */
struct softmax {
    float max[SIDE], sum[SIDE];
};

/* Replace scores of queries from i on with keys from j on by exp(score - maximum), 0 for keys after
 * the query; factor: the factor by which the caller scales earlier sums. */
__device__ static void softmax_square(softmax &w, square &s, float factor[SIDE], unsigned i,
                                      unsigned j)
{
    for (int r = 0; r < SIDE; r++) {
        float max = -INFINITY, sum = 0.0f;
        for (int k = 0; k < SIDE; k++)
            if (j + k <= i + r)
                max = fmaxf(max, s.at[r][k]);
        max = fmaxf(w.max[r], row_max(max));
        factor[r] = max == w.max[r] ? 1.0f : expf(w.max[r] - max);
        for (int k = 0; k < SIDE; k++) {
            s.at[r][k] = j + k <= i + r ? expf(s.at[r][k] - max) : 0.0f;
            sum += s.at[r][k];
        }
        w.sum[r] = w.sum[r] * factor[r] + sum;
        w.max[r] = max;
    }
}

template <typename E, int PIECES>
static __global__ void __launch_bounds__(THREADS, PIECES == 1 ? 2 : 1)
    attention_fwd(lks_attention a)
{
    LKS_SHARED(four, query, TILE * FOURS);
    LKS_SHARED(four, other, TILE * FOURS); /* keys, then values */
    LKS_SHARED(four, p, TILE * FOURS);
    const place at = place_of(a, a.shape.NH, PIECES, true);
    const matrix<E> q = head<E>(a, a.in.q, a.in.ldq, at.b, at.h);
    const matrix<E> k = head<E>(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const matrix<E> v = head<E>(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const unsigned i = at.t0 + square_y() * SIDE;               /* first of this thread's rows */
    const size_t row0 = (at.b * a.shape.NH + at.h) * a.shape.T; /* of scores */
    softmax w;
    square sum[PIECES] = {};
    for (int r = 0; r < SIDE; r++) {
        w.max[r] = -INFINITY;
        w.sum[r] = 0.0f;
    }
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE) {
        const unsigned j = j0 + square_x() * SIDE;
        const bool kept = j0 > 0 && a.shape.hs <= TILE;
        square s = scores(query, q, at.t0, kept, other, k, j0, a.scale);
        float factor[SIDE];
        softmax_square(w, s, factor, i, j);
        if (a.drop.threshold != 0)
            for (int r = 0; r < SIDE && j <= i + SIDE - 1; r++) {
                const uint32_t mask = lks_kept(a, row0 + i + r, j);
                for (int n = 0; n < SIDE; n++)
                    s.at[r][n] *= lks_factor(a, mask, n);
            }
        put_square<E>(p, s);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const unsigned c0 = (at.piece + piece) * TILE;
            if (c0 >= k.columns)
                break;
            __syncthreads();
            load_tile(other, v, j0, c0);
            __syncthreads();
            for (int r = 0; r < SIDE; r++)
                for (int n = 0; n < SIDE; n++)
                    sum[piece].at[r][n] *= factor[r];
            add_a_b<false>(sum[piece], p, other, fours_of(k.rows - j0));
        }
    }
    float inverse[SIDE];
    for (int r = 0; r < SIDE; r++) {
        const float total = row_sum(w.sum[r]);
        inverse[r] = 1.0f / total;
        if (a.lse != NULL && at.piece == 0 && square_x() == 0 && i + r < a.shape.T)
            a.lse[row0 + i + r] = w.max[r] + logf(total);
    }
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++)
        store_square<E>(a, a.out, a.c, at.b, at.h, at.t0, (at.piece + piece) * TILE, sum[piece],
                        inverse);
}

/* Pieces of a head that one block computes. */
static int pieces_of(size_t hs)
{
    return hs <= TILE ? 1 : MAX_PIECES;
}

static size_t tiles_of(size_t n)
{
    return (n + TILE - 1) / TILE;
}

/* A block for each tile of each head, and for each part of a head. */
static dim3 tiles_grid(const lks_attention &a, size_t heads)
{
    const size_t part = (size_t)pieces_of(a.shape.hs) * TILE;
    return dim3(
        (unsigned)(tiles_of(a.shape.T) * a.shape.B * heads * ((a.shape.hs + part - 1) / part)));
}

lks_attention lks_attention_of(const lks__exec *ex, const lks__attention_shape *shape,
                               const lks__attention_in *in, const lks__dropout *drop)
{
    lks_attention a = {};
    a.shape = *shape;
    if (shape->NKV == 0)
        a.shape.NKV = shape->NH;
    a.in = *in;
    if (drop != NULL)
        a.drop = *drop;
    a.scale = (float)(1.0 / sqrt((double)shape->hs));
    a.group = a.shape.NH / a.shape.NKV;
    a.c = shape->NH * shape->hs;
    a.halves = lks__cuda_halves(ex);
    a.together = lks__cuda_together(ex);
    a.wide = lks_in_fours(shape->hs, in->q, in->k, in->v) &&
             (shape->hs | in->ldq | in->ldkv) % (a.halves ? 8 : 4) == 0;
    return a;
}

/* Puts the kernel for this type of elements and head size on the stream. */
#define LAUNCH_PIECES(kernel, E, name, grid, stream, a)                                            \
    do {                                                                                           \
        if (pieces_of((a).shape.hs) == 1)                                                          \
            LKS_LAUNCH_NAMED(#kernel "<" name ", 1>", (kernel<E, 1>), grid, dim3(THREADS), stream, \
                             a);                                                                   \
        else                                                                                       \
            LKS_LAUNCH_NAMED(#kernel "<" name ", 2>", (kernel<E, MAX_PIECES>), grid,               \
                             dim3(THREADS), stream, a);                                            \
    } while (0)
#define LAUNCH_TILES(kernel, heads, stream, a)                                                     \
    do {                                                                                           \
        if ((a).halves)                                                                            \
            LAUNCH_PIECES(kernel, lks_half, "half", tiles_grid(a, heads), stream, a);              \
        else                                                                                       \
            LAUNCH_PIECES(kernel, float, "float", tiles_grid(a, heads), stream, a);                \
    } while (0)

/* Count a launch that computes `products` products of the scores below the diagonal and `each` more
 * operations per score, and moves `of_queries` matrices of the queries' size and `of_keys` of the
 * keys'. Tiles that are read again come from the second-level cache. */
static void count(const lks__exec *ex, const lks_attention &a, double products, double each,
                  double of_queries, double of_keys)
{
    const double heads = (double)(a.shape.B * a.shape.NH), T = (double)a.shape.T;
    const double rows = (double)(a.shape.B * a.shape.T), hs = (double)a.shape.hs;
    lks__cuda_count(ex,
                    lks_act_bytes(a.halves) * rows * hs *
                        (of_queries * (double)a.shape.NH + of_keys * (double)a.shape.NKV),
                    heads * T * (T + 1) / 2 * (products * 2 * hs + each));
}

extern "C" void lks__cuda_attention_fwd(const lks__exec *ex, const lks__attention_shape *shape,
                                        lks__act *out, float *lse, const lks__attention_in *in,
                                        const lks__dropout *drop)
{
    lks_attention a = lks_attention_of(ex, shape, in, drop);
    a.out = out;
    a.lse = lse;
    a.wide = a.wide && lks_in_fours(a.c, out);
    count(ex, a, 2, 20, 2, 2); /* q, out; k, v */
    if (lks_attention_is_64(a))
        lks_attention_fwd_64(lks__cuda_stream(ex), a);
    else
        LAUNCH_TILES(attention_fwd, a.shape.NH, lks__cuda_stream(ex), a);
}

/* --- backward -------------------------------------------------------------------------------- */

/* With P the probabilities, M dropout's factors, o = (P*M) v:
 *   dv = (P*M)^T do      dP = M * (do v^T)      dS = P * (dP - delta),  delta_i = do_i . o_i
 *   dq = dS k / sqrt(hs)                        dk = dS^T q / sqrt(hs) */

enum { DELTA_WARPS = 8 };

template <typename E> static __global__ void attention_delta(lks_attention a)
{
    const size_t i = (size_t)blockIdx.x * DELTA_WARPS + threadIdx.x / LKS_WARP; /* token, head */
    if (i >= a.shape.B * a.shape.T * a.shape.NH)
        return;
    const E *x = LKS_ACTS(const E, a.dout) + i * a.shape.hs;
    const E *y = LKS_ACTS(const E, a.f_out) + i * a.shape.hs;
    float sum = 0.0f;
    for (size_t d = threadIdx.x % LKS_WARP; d < a.shape.hs; d += LKS_WARP)
        sum = fmaf(lks_element(x + d), lks_element(y + d), sum);
    sum = lks_warp_sum(sum);
    const size_t row = i / a.shape.NH, h = i % a.shape.NH;
    const size_t b = row / a.shape.T, t = row % a.shape.T;
    if (threadIdx.x % LKS_WARP == 0)
        a.delta[(b * a.shape.NH + h) * a.shape.T + t] = sum;
}

static void launch_delta(const lks__exec *ex, const lks_attention &a)
{
    const size_t rows = a.shape.B * a.shape.T * a.shape.NH;
    const double n = (double)(rows * a.shape.hs);
    lks__cuda_count(ex, 2 * lks_act_bytes(a.halves) * n, 2 * n);
    if (lks_attention_is_64(a)) {
        lks_attention_delta_64(lks__cuda_stream(ex), a);
        return;
    }
    LKS_LAUNCH_TYPED(attention_delta, a.halves,
                     dim3((unsigned)((rows + DELTA_WARPS - 1) / DELTA_WARPS)),
                     dim3(DELTA_WARPS * LKS_WARP), lks__cuda_stream(ex), a);
}

/* Scores in s and dout v^T in d become P*M in s and dS in d, for queries from i and keys from j
 * on. */
__device__ static void grad_squares(const lks_attention &a, square &s, square &d, size_t b,
                                    size_t h, unsigned i, unsigned j)
{
    for (int r = 0; r < SIDE; r++) {
        const size_t row = (b * a.shape.NH + h) * a.shape.T + i + r;
        const bool inside = i + r < a.shape.T;
        const float lse = inside ? a.f_lse[row] : 0.0f, delta = inside ? a.delta[row] : 0.0f;
        const bool drops = a.drop.threshold != 0 && j <= i + r;
        const uint32_t kept = drops ? lks_kept(a, row, j) : 0;
        for (int n = 0; n < SIDE; n++) {
            const float p = inside && j + n <= i + r ? expf(s.at[r][n] - lse) : 0.0f;
            const float mask = drops ? lks_factor(a, kept, n) : 1.0f;
            d.at[r][n] = p * (mask * d.at[r][n] - delta);
            s.at[r][n] = p * mask;
        }
    }
}

template <typename E, int PIECES>
static __global__ void __launch_bounds__(THREADS, PIECES == 1 ? 2 : 1)
    attention_bwd_keys(lks_attention a)
{
    LKS_SHARED(four, x, TILE * FOURS); /* queries' side: q, then dout, then q again */
    LKS_SHARED(four, y, TILE * FOURS); /* keys' side: k, then v */
    LKS_SHARED(four, p, TILE * FOURS);
    const place at = place_of(a, a.shape.NKV, PIECES, false);
    const matrix<E> k = head<E>(a, a.in.k, a.in.ldkv, at.b, at.h);
    const matrix<E> v = head<E>(a, a.in.v, a.in.ldkv, at.b, at.h);
    const unsigned j = at.t0 + square_x() * SIDE;
    const bool whole = a.shape.hs <= TILE; /* scores() last loads a whole head */
    square dk[PIECES] = {}, dv[PIECES] = {};
    for (size_t g = 0; g < a.group; g++) {
        const size_t h = at.h * a.group + g;
        const matrix<E> q = head<E>(a, a.in.q, a.in.ldq, at.b, h),
                        dout = head<E>(a, a.dout, a.c, at.b, h);
        for (unsigned i0 = at.t0; i0 < k.rows; i0 += TILE) {
            const unsigned left = k.rows - i0;
            const int rows = left < TILE ? (int)left : (int)TILE;
            square s = scores(x, q, i0, false, y, k, at.t0, a.scale);
            square d = scores(x, dout, i0, false, y, v, at.t0, 1.0f);
            grad_squares(a, s, d, at.b, h, i0 + square_y() * SIDE, j);
            put_square<E>(p, s);
            __syncthreads();
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++) {
                const unsigned c0 = (at.piece + piece) * TILE;
                if (c0 >= k.columns)
                    break;
                if (!whole) {
                    __syncthreads();
                    load_tile(x, dout, i0, c0);
                    __syncthreads();
                }
                add_at_b(dv[piece], p, x, rows);
            }
            __syncthreads();
            put_square<E>(p, d);
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++) {
                const unsigned c0 = (at.piece + piece) * TILE;
                if (c0 >= k.columns)
                    break;
                __syncthreads();
                load_tile(x, q, i0, c0);
                __syncthreads();
                add_at_b(dk[piece], p, x, rows);
            }
        }
    }
    const float ones[SIDE] = {1.0f, 1.0f, 1.0f, 1.0f};
    const float scales[SIDE] = {a.scale, a.scale, a.scale, a.scale};
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const size_t c0 = (at.piece + piece) * TILE;
        store_square<E>(a, a.grads.dk, a.grads.ldkv, at.b, at.h, at.t0, c0, dk[piece], scales);
        store_square<E>(a, a.grads.dv, a.grads.ldkv, at.b, at.h, at.t0, c0, dv[piece], ones);
    }
}

template <typename E, int PIECES>
static __global__ void __launch_bounds__(THREADS, PIECES == 1 ? 2 : 1)
    attention_bwd_queries(lks_attention a)
{
    LKS_SHARED(four, x, TILE * FOURS); /* dout, then q */
    LKS_SHARED(four, y, TILE * FOURS); /* v, then k */
    LKS_SHARED(four, p, TILE * FOURS);
    const place at = place_of(a, a.shape.NH, PIECES, true);
    const matrix<E> q = head<E>(a, a.in.q, a.in.ldq, at.b, at.h),
                    dout = head<E>(a, a.dout, a.c, at.b, at.h);
    const matrix<E> k = head<E>(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const matrix<E> v = head<E>(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const bool whole = a.shape.hs <= TILE;
    square dq[PIECES] = {};
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE) {
        square d = scores(x, dout, at.t0, false, y, v, j0, 1.0f);
        square s = scores(x, q, at.t0, false, y, k, j0, a.scale);
        grad_squares(a, s, d, at.b, at.h, at.t0 + square_y() * SIDE, j0 + square_x() * SIDE);
        put_square<E>(p, d);
        __syncthreads();
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const unsigned c0 = (at.piece + piece) * TILE;
            if (c0 >= k.columns)
                break;
            if (!whole) {
                __syncthreads();
                load_tile(y, k, j0, c0);
                __syncthreads();
            }
            add_a_b<false>(dq[piece], p, y, fours_of(k.rows - j0));
        }
    }
    const float scales[SIDE] = {a.scale, a.scale, a.scale, a.scale};
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++)
        store_square<E>(a, a.grads.dq, a.grads.ldq, at.b, at.h, at.t0, (at.piece + piece) * TILE,
                        dq[piece], scales);
}

extern "C" void lks__cuda_attention_bwd(const lks__exec *ex, const lks__attention_shape *shape,
                                        const lks__attention_grads *grads, const lks__act *dout,
                                        const lks__attention_in *in, const lks__act *out,
                                        const float *lse, const lks__dropout *drop)
{
    lks_attention a = lks_attention_of(ex, shape, in, drop);
    const size_t rows = shape->B * shape->T * shape->NH;
    a.grads = *grads;
    a.f_out = out;
    a.f_lse = lse;
    a.dout = dout;
    a.wide = a.wide && lks_in_fours(a.c, dout, out, grads->dq, grads->dk, grads->dv) &&
             grads->ldq % 4 == 0 && grads->ldkv % 4 == 0;
    a.delta = (float *)lks__cuda_work(ex, rows * sizeof *a.delta);
    if (a.delta == NULL)
        return;
    launch_delta(ex, a);
    count(ex, a, 4, 10, 2, 4); /* q, dout; k, v, dk, dv */
    if (lks_attention_is_64(a))
        lks_attention_bwd_keys_64(lks__cuda_stream(ex), a);
    else
        LAUNCH_TILES(attention_bwd_keys, a.shape.NKV, lks__cuda_stream(ex), a);
    count(ex, a, 3, 10, 3, 2); /* q, dout, dq; k, v */
    if (lks_attention_is_64(a))
        lks_attention_bwd_queries_64(lks__cuda_stream(ex), a);
    else
        LAUNCH_TILES(attention_bwd_queries, a.shape.NH, lks__cuda_stream(ex), a);
}
