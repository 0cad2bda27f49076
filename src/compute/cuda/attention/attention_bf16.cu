/* compute/cuda/attention/attention_bf16.cu - causal attention with operands of products in
 * bfloat16, on tensor cores, for any head size.
 *
 * Like attention.cu, but a warp computes a product of two tiles: it has 16 of a tile's 64 rows, and
 * instructions that multiply [16, 16] by [16, 8] and add in float32. A block of 4 warps keeps up to
 * four tiles of bfloat16 in shared memory, 8 KiB each. Probabilities pass from one product to the
 * next in registers, since the sums of one have the layout of the other's operands.
 *
 * A head is cut into *pieces* of 64 elements, of which a block computes one. */
#include "compute/cuda/attention/attention_bf16.h"

enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    TILE_ROWS = THREADS / LKS_CHUNKS, /* that all threads load at once */
    ROWS = LKS_TILE / WARPS,          /* of a warp */
};

/* --- tiles ----------------------------------------------------------------------------------- */

/* Eight elements. */
__device__ static lks_chunk eight_of(const lks_half *p)
{
    return *(const lks_chunk *)p;
}

/* The same of the first n of eight, and zeros. */
__device__ static lks_chunk some_of(const lks_half *p, unsigned n)
{
    lks_chunk to;
#pragma unroll
    for (unsigned k = 0; k < 4; k++)
        to.pair[k] = lks_bf16_pair(2 * k < n ? lks_element(p + 2 * k) : 0.0f,
                                   2 * k + 1 < n ? lks_element(p + 2 * k + 1) : 0.0f);
    return to;
}

/* Columns of a head that products use: after hs, zeros complete the last step. */
__device__ static unsigned width_of(const lks_attention &a)
{
    return ((unsigned)a.shape.hs + 15) / 16 * 16;
}

/* Load the tile that begins at row r0 and column c0. Rows beyond T are zeros. If rows can be moved
 * by eights, a thread begins all its loads before it waits for the first. */
__device__ static void load_tile(const lks_attention &a, lks_chunk *tile, const lks_operand &m,
                                 unsigned r0, unsigned c0)
{
    const unsigned number = threadIdx.x % LKS_CHUNKS, column = c0 + number * 8;
    const unsigned first = threadIdx.x / LKS_CHUNKS, T = (unsigned)a.shape.T;
    const unsigned hs = (unsigned)a.shape.hs;
    const lks_half *p = m.at + (size_t)(r0 + first) * m.ld + column;
    if (column >= width_of(a))
        return;
    if (a.wide) {
        lks_chunk mine[LKS_TILE / TILE_ROWS] = {};
#pragma unroll
        for (int k = 0; k < LKS_TILE / TILE_ROWS; k++)
            if (r0 + first + k * TILE_ROWS < T && column < hs)
                mine[k] = eight_of(p + k * TILE_ROWS * m.ld);
#pragma unroll
        for (int k = 0; k < LKS_TILE / TILE_ROWS; k++)
            tile[lks_slot((int)first + k * TILE_ROWS, (int)number)] = mine[k];
        return;
    }
#pragma unroll 1
    for (int k = 0; k < LKS_TILE / TILE_ROWS; k++) {
        const bool inside = r0 + first + k * TILE_ROWS < T && column < hs;
        tile[lks_slot((int)first + k * TILE_ROWS, (int)number)] =
            some_of(p + k * TILE_ROWS * m.ld, inside ? hs - column : 0);
    }
}

/* Number of steps of 16 columns in a tile from column c0 on. */
__device__ static int steps_of(const lks_attention &a, unsigned c0)
{
    const unsigned left = (width_of(a) - c0) / 16;
    return left < LKS_STEPS ? (int)left : (int)LKS_STEPS;
}

/* First of this warp's rows of a tile. */
__device__ static int own_row(void)
{
    return (int)threadIdx.x / 32 * ROWS;
}

/* s += x y^T, over the first `steps` steps of both tiles' rows; x: this warp's rows. */
__device__ static void add_x_yt(lks_sums &s, const lks_chunk *x, const lks_chunk *y, int steps)
{
    for (int step = 0; step < steps; step++) {
        uint32_t a[4];
        lks_load_left(a, x, own_row(), step);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n += 2) {
            uint32_t b[4];
            lks_load_right(b, y, n, step);
            lks_multiply_add(s.at[n], a, b);
            lks_multiply_add(s.at[n + 1], a, b + 2);
        }
    }
}

/* s += p y, for the first `steps` steps of 16 columns of y. p is rounded. */
__device__ static void add_p_y(lks_sums &s, const lks_sums &p, const lks_chunk *y, int steps)
{
#pragma unroll
    for (int step = 0; step < LKS_STEPS; step++) {
        uint32_t a[4];
        lks_left_of(a, p, step);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n += 2) {
            if (n >= 2 * steps)
                break;
            uint32_t b[4];
            lks_load_right_of_rows(b, y, n, step);
            lks_multiply_add(s.at[n], a, b);
            lks_multiply_add(s.at[n + 1], a, b + 2);
        }
    }
}

/* --- where a block works --------------------------------------------------------------------- */

/* Dropout's factors of the scores of query i with keys j and j + 1. */
__device__ static float2 mask_pair(const lks_attention &a, size_t b, size_t h, unsigned i,
                                   unsigned j)
{
    const uint64_t e = ((b * a.shape.NH + h) * a.shape.T + i) * a.shape.T + j;
    float2 m = make_float2(1.0f, 1.0f);
#pragma unroll 1
    for (uint64_t four = e / 4; four <= (e + 1) / 4; four++) { /* mostly once */
        const uint4 words = lks_dropout_words(a.drop, (uint32_t)four);
        const unsigned first = (unsigned)(e - four * 4); /* 2^32 - 1: the one before these words */
        const uint32_t low = first == 0   ? words.x
                             : first == 1 ? words.y
                             : first == 2 ? words.z
                                          : words.w;
        const uint32_t high = first == 0   ? words.y
                              : first == 1 ? words.z
                              : first == 2 ? words.w
                                           : words.x;
        if (first < 4)
            m.x = lks_dropped(a.drop, low, 1.0f);
        m.y = lks_dropped(a.drop, high, 1.0f);
    }
    return m;
}

/* --- forward --------------------------------------------------------------------------------- */

/* Running maximum and sum of this thread's two rows; the sum covers only its own columns. */
struct softmax {
    float max[2], sum[2];
};

/* Replace scores of queries from i0 on with keys from j0 on by 2^(score - maximum), 0 for keys
 * after the query; factor: the factor by which the caller scales earlier sums. */
__device__ static void softmax_sums(softmax &w, lks_sums &s, float factor[2], float scale,
                                    unsigned i0, unsigned j0)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned i = i0 + own_row() + lks_sums_row(2 * r);
        float max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
            for (int k = 2 * r; k < 2 * r + 2; k++) {
                s.at[n][k] *= scale;
                if (j0 + lks_sums_column(n, k) <= i)
                    max = fmaxf(max, s.at[n][k]);
            }
        max = fmaxf(w.max[r], lks_row_max(max));
        factor[r] = max == w.max[r] ? 1.0f : exp2f(w.max[r] - max);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
            for (int k = 2 * r; k < 2 * r + 2; k++) {
                s.at[n][k] = j0 + lks_sums_column(n, k) <= i ? exp2f(s.at[n][k] - max) : 0.0f;
                sum += s.at[n][k];
            }
        w.sum[r] = w.sum[r] * factor[r] + sum;
        w.max[r] = max;
    }
}

/* Multiply probabilities of queries from i0 on with keys from j0 on by dropout's factors. */
__device__ static void drop_sums(const lks_attention &a, lks_sums &s, size_t b, size_t h,
                                 unsigned i0, unsigned j0)
{
#pragma unroll
    for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const unsigned i = i0 + own_row() + lks_sums_row(k), j = j0 + lks_sums_column(n, k);
            const float2 mask = j <= i ? mask_pair(a, b, h, i, j) : make_float2(1.0f, 1.0f);
            s.at[n][k] *= mask.x;
            s.at[n][k + 1] *= mask.y;
        }
}

static __global__ void __launch_bounds__(THREADS, 4) attention_fwd_bf16(const lks_attention a)
{
    LKS_SHARED(lks_chunk, query, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, key, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, value, LKS_TILE * LKS_CHUNKS);
    const lks_place at = lks_place_of(a, a.shape.NH, 1, true);
    const lks_operand q = lks_head(a, a.in.q, a.in.ldq, at.b, at.h);
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const unsigned piece = at.piece * LKS_TILE, width = (unsigned)a.shape.hs;
    softmax w = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    lks_sums out = {};
    for (unsigned j0 = 0; j0 <= at.t0; j0 += LKS_TILE) {
        lks_sums s = {};
        float factor[2];
        for (unsigned c0 = 0; c0 < width; c0 += LKS_TILE) {
            __syncthreads();
            if (j0 == 0 || width > LKS_TILE)
                load_tile(a, query, q, at.t0, c0);
            load_tile(a, key, k, j0, c0);
            if (c0 == 0)
                load_tile(a, value, v, j0, piece);
            __syncthreads();
            add_x_yt(s, query, key, steps_of(a, c0));
        }
        softmax_sums(w, s, factor, a.scale * LKS_LOG2_E, at.t0, j0);
        if (a.drop.threshold != 0)
            drop_sums(a, s, at.b, at.h, at.t0, j0);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out.at[n][i] *= factor[i / 2];
        add_p_y(out, s, value, steps_of(a, piece));
    }
    float inverse[2];
    for (int r = 0; r < 2; r++) {
        const float total = lks_row_sum(w.sum[r]);
        const size_t i = at.t0 + own_row() + lks_sums_row(2 * r);
        inverse[r] = 1.0f / total;
        if (a.lse != NULL && piece == 0 && lks_lane() % 4 == 0 && i < a.shape.T)
            a.lse[(at.b * a.shape.NH + at.h) * a.shape.T + i] =
                LKS_LN_2 * (w.max[r] + log2f(total));
    }
    lks_store_sums(a, a.out, a.c, at.b, at.h, at.t0 + own_row(), piece, out, inverse);
}

/* --- backward -------------------------------------------------------------------------------- */

/* Replace a score and the gradient of its probability by P*M and dS. */
__device__ static void grad_of(const lks_attention &a, float &s, float &d, const lks_of_query &of,
                               float mask, unsigned i, unsigned j)
{
    const float p = j <= i && i < a.shape.T ? exp2f(a.scale * LKS_LOG2_E * s - of.lse) : 0.0f;
    d = p * (mask * d - of.delta);
    s = p * mask;
}

/* Rows of products are keys here, so that P and dS are in the layout that the next products
 * need. */
static __global__ void __launch_bounds__(THREADS, 2) attention_bwd_keys_bf16(const lks_attention a)
{
    LKS_SHARED(lks_chunk, key, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, value, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, query, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, grad, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_of_query, of, LKS_TILE);
    const lks_place at = lks_place_of(a, a.shape.NKV, 1, false);
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h);
    const unsigned piece = at.piece * LKS_TILE, width = (unsigned)a.shape.hs;
    const bool whole = width <= LKS_TILE;
    lks_sums dk = {}, dv = {};
    for (size_t g = 0; g < a.group; g++) {
        const size_t h = at.h * a.group + g;
        const lks_operand q = lks_head(a, a.in.q, a.in.ldq, at.b, h);
        const lks_operand dout = lks_head(a, a.dout, a.c, at.b, h);
        for (unsigned i0 = at.t0; i0 < a.shape.T; i0 += LKS_TILE) {
            lks_sums s = {}, d = {};
            for (unsigned c0 = 0; c0 < width; c0 += LKS_TILE) {
                __syncthreads();
                if (!whole || (g == 0 && i0 == at.t0)) {
                    load_tile(a, key, k, at.t0, c0);
                    load_tile(a, value, v, at.t0, c0);
                }
                load_tile(a, query, q, i0, c0);
                load_tile(a, grad, dout, i0, c0);
                if (c0 == 0 && threadIdx.x < LKS_TILE)
                    of[threadIdx.x] = lks_query_of(a, at.b, h, i0 + threadIdx.x);
                __syncthreads();
                add_x_yt(s, key, query, steps_of(a, c0));
                add_x_yt(d, value, grad, steps_of(a, c0));
            }
#pragma unroll
            for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    const unsigned i = i0 + lks_sums_column(n, m);
                    const unsigned j = at.t0 + own_row() + lks_sums_row(m);
                    const bool dropped = a.drop.threshold != 0 && j <= i;
                    const float mask = dropped ? mask_pair(a, at.b, h, i, j).x : 1.0f;
                    grad_of(a, s.at[n][m], d.at[n][m], of[lks_sums_column(n, m)], mask, i, j);
                }
            if (!whole) {
                __syncthreads();
                load_tile(a, query, q, i0, piece);
                load_tile(a, grad, dout, i0, piece);
                __syncthreads();
            }
            add_p_y(dv, s, grad, steps_of(a, piece));
            add_p_y(dk, d, query, steps_of(a, piece));
        }
    }
    const float ones[2] = {1.0f, 1.0f}, scales[2] = {a.scale, a.scale};
    lks_store_sums(a, a.grads.dk, a.grads.ldkv, at.b, at.h, at.t0 + own_row(), piece, dk, scales);
    lks_store_sums(a, a.grads.dv, a.grads.ldkv, at.b, at.h, at.t0 + own_row(), piece, dv, ones);
}

static __global__ void __launch_bounds__(THREADS, 3)
    attention_bwd_queries_bf16(const lks_attention a)
{
    LKS_SHARED(lks_chunk, query, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, grad, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, key, LKS_TILE * LKS_CHUNKS);
    LKS_SHARED(lks_chunk, value, LKS_TILE * LKS_CHUNKS);
    const lks_place at = lks_place_of(a, a.shape.NH, 1, true);
    const lks_operand q = lks_head(a, a.in.q, a.in.ldq, at.b, at.h);
    const lks_operand dout = lks_head(a, a.dout, a.c, at.b, at.h);
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const unsigned piece = at.piece * LKS_TILE, i = at.t0 + own_row() + lks_sums_row(0);
    const unsigned width = (unsigned)a.shape.hs;
    const bool whole = width <= LKS_TILE;
    const lks_of_query of[2] = {lks_query_of(a, at.b, at.h, i), lks_query_of(a, at.b, at.h, i + 8)};
    lks_sums dq = {};
    for (unsigned j0 = 0; j0 <= at.t0; j0 += LKS_TILE) {
        lks_sums s = {}, d = {};
        for (unsigned c0 = 0; c0 < width; c0 += LKS_TILE) {
            __syncthreads();
            if (!whole || j0 == 0) {
                load_tile(a, query, q, at.t0, c0);
                load_tile(a, grad, dout, at.t0, c0);
            }
            load_tile(a, key, k, j0, c0);
            load_tile(a, value, v, j0, c0);
            __syncthreads();
            add_x_yt(s, query, key, steps_of(a, c0));
            add_x_yt(d, grad, value, steps_of(a, c0));
        }
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
            for (int m = 0; m < 4; m += 2) {
                const unsigned own = i + m / 2 * 8, j = j0 + lks_sums_column(n, m);
                const bool dropped = a.drop.threshold != 0 && j <= own;
                const float2 mask =
                    dropped ? mask_pair(a, at.b, at.h, own, j) : make_float2(1.0f, 1.0f);
                grad_of(a, s.at[n][m], d.at[n][m], of[m / 2], mask.x, own, j);
                grad_of(a, s.at[n][m + 1], d.at[n][m + 1], of[m / 2], mask.y, own, j + 1);
            }
        if (!whole) {
            __syncthreads();
            load_tile(a, key, k, j0, piece);
            __syncthreads();
        }
        add_p_y(dq, d, key, steps_of(a, piece));
    }
    const float scales[2] = {a.scale, a.scale};
    lks_store_sums(a, a.grads.dq, a.grads.ldq, at.b, at.h, at.t0 + own_row(), piece, dq, scales);
}

/* --- launches -------------------------------------------------------------------------------- */

/* A block for each tile of each head, and for each piece of a head. Queries are read once, keys and
 * values for each tile of queries from the second-level cache. With heads of more than one piece
 * each piece computes the scores again, which isn't counted. */
static dim3 tiles_grid(const lks_attention &a, size_t heads)
{
    const size_t tiles = (a.shape.T + LKS_TILE - 1) / LKS_TILE,
                 pieces = (a.shape.hs + LKS_TILE - 1) / LKS_TILE;
    return dim3((unsigned)(tiles * a.shape.B * heads * pieces));
}

void lks_attention_fwd_bf16(cudaStream_t stream, const lks_attention &a)
{
    if (lks_attention_is_64(a))
        lks_attention_fwd_64(stream, a);
    else
        LKS_LAUNCH(attention_fwd_bf16, tiles_grid(a, a.shape.NH), dim3(THREADS), stream, a);
}

void lks_attention_bwd_keys_bf16(cudaStream_t stream, const lks_attention &a)
{
    if (lks_attention_is_64(a))
        lks_attention_bwd_keys_64(stream, a);
    else
        LKS_LAUNCH(attention_bwd_keys_bf16, tiles_grid(a, a.shape.NKV), dim3(THREADS), stream, a);
}

void lks_attention_bwd_queries_bf16(cudaStream_t stream, const lks_attention &a)
{
    if (lks_attention_is_64(a))
        lks_attention_bwd_queries_64(stream, a);
    else
        LKS_LAUNCH(attention_bwd_queries_bf16, tiles_grid(a, a.shape.NH), dim3(THREADS), stream, a);
}
