/* compute/cuda/attention/attention.cu - causal attention in float32, without tensor cores, for any
 * head size; and over kept keys and values, also with operands in bfloat16.
 *
 * After Dao et al., FlashAttention (2022): no T x T matrix is kept, and backward computes the
 * probabilities again from the row's log-sum-exp. A *tile* is 64 x 64 floats in shared memory; a
 * block of 256 threads has three of them, 48 KiB. Each thread owns a square of 4 x 4 of a product
 * of two tiles. Heads are cut into *pieces* of 64 elements: products over the head add up pieces,
 * and a block keeps the sums of up to 4 pieces of its outputs in registers. Larger heads take
 * several blocks, which compute the scores again.
 *
 * Backward has a pass by tiles of keys for dk and dv and one by tiles of queries for dq. So each
 * sum belongs to one thread, in one order, and work space is one float for each row of scores. */
#include "compute/cuda/attention/attention.h"
#include "compute/cuda/common/fours.h"
#include "compute/cuda/common/reduce.h"

enum {
    TILE = LKS_TILE,
    FOURS = TILE / 4, /* of a tile's row */
    SIDE = 4,         /* of a thread's square */
    THREADS = TILE / SIDE * TILE / SIDE,
    MAX_PIECES = 4, /* of a head, in one block's registers */
};

/* --- tiles ----------------------------------------------------------------------------------- */

/* Where a tile stores four number `four` of a row. Threads of a quarter of a warp that read the
 * same four of rows 0, 4, 8, … or different fours of one row read all of the 32 banks once. */
__device__ static int slot(int row, int four)
{
    return row * FOURS + (four ^ (row / SIDE % FOURS));
}

/* A matrix from which tiles are loaded; elements outside it count as 0. */
struct matrix {
    const float *at;
    unsigned ld, rows, columns; /* in 32 bits, which saves registers */
    bool fours;
};

/* Load the tile that begins at row r0 and column c0. */
__device__ static void load_tile(lks_four *tile, const matrix &m, unsigned r0, unsigned c0)
{
    for (unsigned i = threadIdx.x; i < TILE * FOURS; i += THREADS) {
        const unsigned row = r0 + i / FOURS, column = c0 + i % FOURS * 4;
        lks_four v = {};
        if (row < m.rows && column < m.columns)
            v = lks_four_at(m.at + (size_t)row * m.ld + column, {m.columns - column, m.fours});
        tile[slot(i / FOURS, i % FOURS)] = v;
    }
}

/* This thread's square of a product of tiles: rows 4 y to 4 y + 3, columns 4 x to 4 x + 3. */
struct square {
    float at[SIDE][SIDE];
};

__device__ static int square_y(void)
{
    return (int)threadIdx.x / FOURS;
}

__device__ static int square_x(void)
{
    return (int)threadIdx.x % FOURS;
}

/* s += a b^T, over the first n fours of both tiles' rows. */
__device__ static void add_a_bt(square &s, const lks_four *a, const lks_four *b, int n)
{
    for (int d = 0; d < n; d++) {
        lks_four ra[SIDE], rb[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            ra[i] = a[slot(square_y() * SIDE + i, d)];
            rb[i] = b[slot(square_x() * SIDE + i, d)];
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    s.at[i][j] = fmaf(ra[i].at[k], rb[j].at[k], s.at[i][j]);
    }
}

/* s += a b, over the first n fours of a's rows. */
__device__ static void add_a_b(square &s, const lks_four *a, const lks_four *b, int n)
{
    for (int d = 0; d < n; d++) {
        lks_four ra[SIDE], rb[4];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            ra[i] = a[slot(square_y() * SIDE + i, d)];
            rb[i] = b[slot(d * 4 + i, square_x())];
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    s.at[i][j] = fmaf(ra[i].at[k], rb[k].at[j], s.at[i][j]);
    }
}

/* s += a^T b, over the first n rows of both tiles. */
__device__ static void add_at_b(square &s, const lks_four *a, const lks_four *b, int n)
{
    for (int r = 0; r < n; r++) {
        const lks_four ra = a[slot(r, square_y())], rb = b[slot(r, square_x())];
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
                s.at[i][j] = fmaf(ra.at[i], rb.at[j], s.at[i][j]);
    }
}

__device__ static void put_square(lks_four *tile, const square &s)
{
    for (int i = 0; i < SIDE; i++)
        tile[slot(square_y() * SIDE + i, square_x())] = {s.at[i][0], s.at[i][1], s.at[i][2],
                                                         s.at[i][3]};
}

/* Rows r0 + 4 y to r0 + 4 y + 3 of a matrix, from column c0 + 4 x on = factor[row] * s. */
__device__ static void store_square(float *to, size_t ld, size_t rows, size_t columns, bool fours,
                                    size_t r0, size_t c0, const square &s, const float *factor)
{
    const size_t column = c0 + square_x() * SIDE;
    for (int i = 0; i < SIDE; i++) {
        const size_t row = r0 + square_y() * SIDE + i;
        if (row < rows && column < columns)
            lks_four_put(to + row * ld + column, {columns - column, fours},
                         {s.at[i][0] * factor[i], s.at[i][1] * factor[i], s.at[i][2] * factor[i],
                          s.at[i][3] * factor[i]});
    }
}

/* The least multiple-of-4 part of a tile that holds `left` elements, in fours. */
__device__ static int fours_of(unsigned left)
{
    return left < TILE ? (int)((left + 3) / 4) : (int)FOURS;
}

/* --- where a block works --------------------------------------------------------------------- */

static size_t tiles_of(size_t n)
{
    return (n + TILE - 1) / TILE;
}

/* Head h of sequence b in a matrix of B sequences. */
__device__ static matrix head(const lks_attention &a, const lks__act *x, size_t ld, size_t b,
                              size_t h)
{
    return {LKS_ACTS(const float, x) + b * a.shape.T * ld + h * a.shape.hs, (unsigned)ld,
            (unsigned)a.shape.T, (unsigned)a.shape.hs, a.wide};
}

/* s = q k^T / sqrt(hs), or any other product of two heads' tiles. The last pieces stay in the tiles
 * x and y. `kept`: x holds its only piece already. */
__device__ static square scores(const lks_attention &a, lks_four *x, const matrix &m, unsigned m0,
                                bool kept, lks_four *y, const matrix &n, unsigned n0, float scale)
{
    square s = {};
    for (unsigned c0 = 0; c0 < m.columns; c0 += TILE) {
        __syncthreads();
        if (!kept)
            load_tile(x, m, m0, c0);
        load_tile(y, n, n0, c0);
        __syncthreads();
        add_a_bt(s, x, y, fours_of(m.columns - c0));
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            s.at[i][j] *= scale;
    return s;
}

__device__ static void put_words(uint32_t to[4], uint4 words)
{
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
}

/* Dropout's factors of elements e to e + 3 of the mask. */
__device__ static lks_four mask_at(const lks__dropout &drop, uint64_t e)
{
    const int shift = (int)(e % 4);
    uint32_t word[8];
    const uint4 low = lks_dropout_words(drop, (uint32_t)(e / 4));
    uint4 high = low;
    if (shift != 0)
        high = lks_dropout_words(drop, (uint32_t)(e / 4 + 1));
    put_words(word, low);
    put_words(word + 4, high);
    lks_four m;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t mine = word[k]; /* chosen without an index that the compiler doesn't know */
#pragma unroll
        for (int s = 1; s < 4; s++)
            mine = s == shift ? word[k + s] : mine;
        m.at[k] = lks_dropped(drop, mine, 1.0f);
    }
    return m;
}

/* Dropout's factors of the scores of query i of head h with four keys from j on. */
__device__ static lks_four mask_of(const lks_attention &a, size_t b, size_t h, unsigned i,
                                   unsigned j)
{
    return mask_at(a.drop, ((b * a.shape.NH + h) * a.shape.T + i) * a.shape.T + j);
}

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

template <int PIECES>
static __global__ void __launch_bounds__(THREADS, PIECES == 1 ? 2 : 1)
    attention_fwd_tiles(lks_attention a)
{
    LKS_SHARED(lks_four, query, TILE * FOURS);
    LKS_SHARED(lks_four, other, TILE * FOURS); /* keys, then values */
    LKS_SHARED(lks_four, p, TILE * FOURS);
    const lks_place at = lks_place_of(a, a.shape.NH, PIECES, true);
    const matrix q = head(a, a.in.q, a.in.ldq, at.b, at.h);
    const matrix k = head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const matrix v = head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const unsigned i = at.t0 + square_y() * SIDE; /* first of this thread's rows */
    softmax w;
    square sum[PIECES] = {};
    for (int r = 0; r < SIDE; r++) {
        w.max[r] = -INFINITY;
        w.sum[r] = 0.0f;
    }
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE) {
        const unsigned j = j0 + square_x() * SIDE;
        const bool kept = j0 > 0 && a.shape.hs <= TILE;
        square s = scores(a, query, q, at.t0, kept, other, k, j0, a.scale);
        float factor[SIDE];
        softmax_square(w, s, factor, i, j);
        if (a.drop.threshold != 0)
            for (int r = 0; r < SIDE && j <= i + SIDE - 1; r++) {
                const lks_four mask = mask_of(a, at.b, at.h, i + r, j);
                for (int n = 0; n < SIDE; n++)
                    s.at[r][n] *= mask.at[n];
            }
        put_square(p, s);
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
            add_a_b(sum[piece], p, other, fours_of(k.rows - j0));
        }
    }
    float inverse[SIDE];
    for (int r = 0; r < SIDE; r++) {
        const float total = row_sum(w.sum[r]);
        inverse[r] = 1.0f / total;
        if (a.lse != NULL && at.piece == 0 && square_x() == 0 && i + r < a.shape.T)
            a.lse[(at.b * a.shape.NH + at.h) * a.shape.T + i + r] = w.max[r] + logf(total);
    }
    float *out = LKS_ACTS(float, a.out) + at.b * a.shape.T * a.c + at.h * a.shape.hs;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++)
        store_square(out, a.c, a.shape.T, a.shape.hs, a.wide, at.t0, (at.piece + piece) * TILE,
                     sum[piece], inverse);
}

/* Pieces of a head that one block computes. */
static int pieces_of(size_t hs)
{
    return hs <= TILE ? 1 : hs <= 2 * TILE ? 2 : MAX_PIECES;
}

/* A block for each tile of each head, and for each part of a head. */
static dim3 tiles_grid(const lks_attention &a, size_t heads)
{
    const size_t part = (size_t)pieces_of(a.shape.hs) * TILE;
    return dim3(
        (unsigned)(tiles_of(a.shape.T) * a.shape.B * heads * ((a.shape.hs + part - 1) / part)));
}

static lks_attention attention_of(const lks__exec *ex, const lks__attention_shape *shape,
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
    a.wide = lks_in_fours(shape->hs, in->q, in->k, in->v) &&
             (shape->hs | in->ldq | in->ldkv) % (a.halves ? 8 : 4) == 0;
    return a;
}

/* Puts a kernel with the number of pieces that this head size needs on the stream. */
#define LAUNCH_TILES(kernel, grid, stream, a)                                                      \
    do {                                                                                           \
        if (pieces_of((a).shape.hs) == 1)                                                          \
            LKS_LAUNCH(kernel<1>, grid, dim3(THREADS), stream, a);                                 \
        else if (pieces_of((a).shape.hs) == 2)                                                     \
            LKS_LAUNCH(kernel<2>, grid, dim3(THREADS), stream, a);                                 \
        else                                                                                       \
            LKS_LAUNCH(kernel<MAX_PIECES>, grid, dim3(THREADS), stream, a);                        \
    } while (0)

/* Count a launch that computes `products` products of the scores below the diagonal and `each` more
 * operations per score, and moves so many matrices of the queries' and of the keys' size. Tiles
 * that are read again come from the second-level cache. */
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
    lks_attention a = attention_of(ex, shape, in, drop);
    a.out = out;
    a.lse = lse;
    a.wide = a.wide && lks_in_fours(a.c, out);
    count(ex, a, 2, 20, 2, 2); /* q, out; k, v */
    if (a.halves)
        lks_attention_fwd_bf16(lks__cuda_stream(ex), a);
    else
        LAUNCH_TILES(attention_fwd_tiles, tiles_grid(a, a.shape.NH), lks__cuda_stream(ex), a);
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
        lks_four mask = {1.0f, 1.0f, 1.0f, 1.0f};
        if (a.drop.threshold != 0 && j <= i + r)
            mask = mask_of(a, b, h, i + r, j);
        for (int n = 0; n < SIDE; n++) {
            const float p = inside && j + n <= i + r ? expf(s.at[r][n] - lse) : 0.0f;
            d.at[r][n] = p * (mask.at[n] * d.at[r][n] - delta);
            s.at[r][n] = p * mask.at[n];
        }
    }
}

template <int PIECES>
static __global__ void __launch_bounds__(THREADS, PIECES == 1 ? 2 : 1)
    attention_bwd_keys(lks_attention a)
{
    LKS_SHARED(lks_four, x, TILE * FOURS); /* queries' side: q, then dout, then q again */
    LKS_SHARED(lks_four, y, TILE * FOURS); /* keys' side: k, then v */
    LKS_SHARED(lks_four, p, TILE * FOURS);
    const lks_place at = lks_place_of(a, a.shape.NKV, PIECES, false);
    const matrix k = head(a, a.in.k, a.in.ldkv, at.b, at.h);
    const matrix v = head(a, a.in.v, a.in.ldkv, at.b, at.h);
    const unsigned j = at.t0 + square_x() * SIDE;
    const bool whole = a.shape.hs <= TILE; /* scores() last loads a whole head */
    square dk[PIECES] = {}, dv[PIECES] = {};
    for (size_t g = 0; g < a.group; g++) {
        const size_t h = at.h * a.group + g;
        const matrix q = head(a, a.in.q, a.in.ldq, at.b, h), dout = head(a, a.dout, a.c, at.b, h);
        for (unsigned i0 = at.t0; i0 < k.rows; i0 += TILE) {
            const unsigned left = k.rows - i0;
            const int rows = left < TILE ? (int)left : (int)TILE;
            square s = scores(a, x, q, i0, false, y, k, at.t0, a.scale);
            square d = scores(a, x, dout, i0, false, y, v, at.t0, 1.0f);
            grad_squares(a, s, d, at.b, h, i0 + square_y() * SIDE, j);
            put_square(p, s);
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
            put_square(p, d);
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
    const size_t first = at.b * a.shape.T * a.grads.ldkv + at.h * a.shape.hs;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const size_t c0 = (at.piece + piece) * TILE;
        store_square(LKS_ACTS(float, a.grads.dk) + first, a.grads.ldkv, a.shape.T, a.shape.hs,
                     a.wide, at.t0, c0, dk[piece], scales);
        store_square(LKS_ACTS(float, a.grads.dv) + first, a.grads.ldkv, a.shape.T, a.shape.hs,
                     a.wide, at.t0, c0, dv[piece], ones);
    }
}

template <int PIECES>
static __global__ void __launch_bounds__(THREADS, PIECES == 1 ? 2 : 1)
    attention_bwd_queries(lks_attention a)
{
    LKS_SHARED(lks_four, x, TILE * FOURS); /* dout, then q */
    LKS_SHARED(lks_four, y, TILE * FOURS); /* v, then k */
    LKS_SHARED(lks_four, p, TILE * FOURS);
    const lks_place at = lks_place_of(a, a.shape.NH, PIECES, true);
    const matrix q = head(a, a.in.q, a.in.ldq, at.b, at.h), dout = head(a, a.dout, a.c, at.b, at.h);
    const matrix k = head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const matrix v = head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const bool whole = a.shape.hs <= TILE;
    square dq[PIECES] = {};
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE) {
        square d = scores(a, x, dout, at.t0, false, y, v, j0, 1.0f);
        square s = scores(a, x, q, at.t0, false, y, k, j0, a.scale);
        grad_squares(a, s, d, at.b, at.h, at.t0 + square_y() * SIDE, j0 + square_x() * SIDE);
        put_square(p, d);
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
            add_a_b(dq[piece], p, y, fours_of(k.rows - j0));
        }
    }
    const float scales[SIDE] = {a.scale, a.scale, a.scale, a.scale};
    float *to = LKS_ACTS(float, a.grads.dq) + at.b * a.shape.T * a.grads.ldq + at.h * a.shape.hs;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++)
        store_square(to, a.grads.ldq, a.shape.T, a.shape.hs, a.wide, at.t0,
                     (at.piece + piece) * TILE, dq[piece], scales);
}

extern "C" void lks__cuda_attention_bwd(const lks__exec *ex, const lks__attention_shape *shape,
                                        const lks__attention_grads *grads, const lks__act *dout,
                                        const lks__attention_in *in, const lks__act *out,
                                        const float *lse, const lks__dropout *drop)
{
    lks_attention a = attention_of(ex, shape, in, drop);
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
    if (a.halves)
        lks_attention_bwd_keys_bf16(lks__cuda_stream(ex), a);
    else
        LAUNCH_TILES(attention_bwd_keys, tiles_grid(a, a.shape.NKV), lks__cuda_stream(ex), a);
    count(ex, a, 3, 10, 3, 2); /* q, dout, dq; k, v */
    if (a.halves)
        lks_attention_bwd_queries_bf16(lks__cuda_stream(ex), a);
    else
        LAUNCH_TILES(attention_bwd_queries, tiles_grid(a, a.shape.NH), lks__cuda_stream(ex), a);
}

/* --- over kept keys and values --------------------------------------------------------------- */

enum {
    KEYS = 128, /* processed at once, one per thread */
    DIMS = 2,   /* elements of the output that a thread sums */
};

/* Element 0 of a position of key/value head h of sequence b, in the cache's k or v. */
__device__ static size_t cache_at(const lks_attention &a, const lks__attention_cache &cache,
                                  size_t b, size_t h, size_t position)
{
    return ((b * a.shape.NKV + h) * cache.T + position) * a.shape.hs;
}

/* Copy keys and values of the new tokens to the cache: one warp per head of a token. */
template <typename E>
static __global__ void attention_keep(lks_attention a, lks__attention_cache cache)
{
    const size_t i = (size_t)blockIdx.x * DELTA_WARPS + threadIdx.x / LKS_WARP;
    if (i >= a.shape.B * a.shape.T * a.shape.NKV)
        return;
    const size_t row = i / a.shape.NKV, h = i % a.shape.NKV;
    const size_t to = cache_at(a, cache, row / a.shape.T, h, cache.at + row % a.shape.T);
    const size_t from = row * a.in.ldkv + h * a.shape.hs;
    const E *k = LKS_ACTS(const E, a.in.k) + from, *v = LKS_ACTS(const E, a.in.v) + from;
    for (size_t d = threadIdx.x % LKS_WARP; d < a.shape.hs; d += LKS_WARP) {
        lks_put(LKS_ACTS(E, cache.k) + to + d, lks_element(k + d));
        lks_put(LKS_ACTS(E, cache.v) + to + d, lks_element(v + d));
    }
}

template <typename E> __device__ static float dot(const E *x, const E *y, size_t n, bool fours)
{
    lks_four sum = {};
    for (size_t d = 0; d < n; d += 4) {
        const lks_four u = lks_four_at(x + d, {n - d, fours}),
                       v = lks_four_at(y + d, {n - d, fours});
        for (int k = 0; k < 4; k++)
            sum.at[k] = fmaf(u.at[k], v.at[k], sum.at[k]);
    }
    return (sum.at[0] + sum.at[1]) + (sum.at[2] + sum.at[3]);
}

/* One query, of one new token, over all keys up to its own. Each thread computes a key's score.
 * Then groups of threads, one thread per element of the output, add up values of every groups-th
 * key. All borders are counted from the first key on, so a token's bits depend only on its position
 * and on the keys and values. */
template <typename E>
static __global__ void __launch_bounds__(KEYS)
    attention_cached(lks_attention a, lks__attention_cache cache)
{
    LKS_SHARED(float, p, KEYS);
    LKS_SHARED(float, parts, KEYS *DIMS);
    const size_t hs = a.shape.hs, blocks = (hs + KEYS * DIMS - 1) / (KEYS * DIMS);
    const size_t task = blockIdx.x / blocks, c0 = blockIdx.x % blocks * KEYS * DIMS;
    const size_t row = task / a.shape.NH, h = task % a.shape.NH, b = row / a.shape.T;
    const size_t n = cache.at + row % a.shape.T + 1; /* keys that it sees */
    const size_t kv = cache_at(a, cache, b, h / a.group, 0);
    const E *q = LKS_ACTS(const E, a.in.q) + row * a.in.ldq + h * hs;
    const E *k = LKS_ACTS(const E, cache.k) + kv, *v = LKS_ACTS(const E, cache.v) + kv;
    unsigned lanes = LKS_WARP; /* threads of a group */
    while (lanes < hs && lanes < KEYS)
        lanes *= 2;
    const unsigned groups = KEYS / lanes, group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    float max = -INFINITY, sum = 0.0f, out[DIMS] = {};
    for (size_t j0 = 0; j0 < n; j0 += KEYS) {
        const size_t j = j0 + threadIdx.x;
        const float s = j < n ? a.scale * dot(q, k + j * hs, hs, a.wide) : -INFINITY;
        const float top = fmaxf(max, lks_block_max(s)),
                    factor = max == top ? 1.0f : expf(max - top);
        const float e = j < n ? expf(s - top) : 0.0f;
        p[threadIdx.x] = lks_as_stored(q, e);  /* an operand */
        sum = sum * factor + lks_block_sum(e); /* which waits for all threads' p */
        max = top;
        for (int m = 0; m < DIMS; m++) {
            const size_t c = c0 + lane + m * lanes;
            out[m] *= factor;
            for (size_t i = group; i < KEYS && j0 + i < n && c < hs; i += groups)
                out[m] = fmaf(p[i], lks_element(v + (j0 + i) * hs + c), out[m]);
        }
        __syncthreads();
    }
    for (int m = 0; m < DIMS; m++)
        parts[m * KEYS + threadIdx.x] = out[m];
    __syncthreads();
    for (int m = 0; m < DIMS; m++) {
        const size_t c = c0 + lane + m * lanes;
        float total = 0.0f;
        for (unsigned g = 0; g < groups; g++)
            total += parts[m * KEYS + g * lanes + lane];
        if (group == 0 && c < hs)
            lks_put(LKS_ACTS(E, a.out) + row * a.c + h * hs + c, total / sum);
    }
}

/* Keys and values that several queries read come from the second-level cache. */
extern "C" void lks__cuda_attention_cached_fwd(const lks__exec *ex,
                                               const lks__attention_shape *shape, lks__act *out,
                                               const lks__attention_cache *cache,
                                               const lks__attention_in *in)
{
    lks_attention a = attention_of(ex, shape, in, NULL);
    const size_t heads = shape->B * shape->T * a.shape.NKV,
                 queries = shape->B * shape->T * shape->NH;
    const size_t blocks = (shape->hs + KEYS * DIMS - 1) / (KEYS * DIMS);
    a.out = out;
    a.wide = a.wide && lks_in_fours(shape->hs, cache->k, cache->v);
    const double keys = (double)(cache->at + shape->T), hs = (double)shape->hs;
    const double seen = (double)cache->at + ((double)shape->T + 1) / 2; /* by a query, on average */
    const double bytes = lks_act_bytes(a.halves);
    lks__cuda_count(ex, bytes * 4 * (double)heads * hs, 0.0);
    LKS_LAUNCH_TYPED(attention_keep, a.halves,
                     dim3((unsigned)((heads + DELTA_WARPS - 1) / DELTA_WARPS)),
                     dim3(DELTA_WARPS * LKS_WARP), lks__cuda_stream(ex), a, *cache);
    lks__cuda_count(ex,
                    bytes * 2 * hs * ((double)queries + (double)(shape->B * a.shape.NKV) * keys),
                    (double)queries * seen * 4 * hs);
    LKS_LAUNCH_TYPED(attention_cached, a.halves, dim3((unsigned)(queries * blocks)), dim3(KEYS),
                     lks__cuda_stream(ex), a, *cache);
}
