/* cuda/attention_bf16.cu - causal attention with operands of products in bfloat16, on tensor cores,
 * for any head size.
 *
 * As attention.cu, but a product of two tiles is a warp's: it has 16 of a tile's 64 rows, and
 * instructions that multiply [16, 16] by [16, 8] and add in float32. A block of 4 warps keeps up to
 * four tiles of bfloat16 in shared memory, 8 KiB each. Probabilities go from one product to the
 * next in registers, where the sums of one have the place of the other's operands.
 *
 * A head is cut into *pieces* of 64 elements, of which a block makes one. */
#include "device/cuda/attention.h"
#include "device/cuda/bf16.h"

enum {
    TILE = LKS_TILE,
    CHUNKS = TILE / 8, /* of a tile's row: 8 numbers, which a thread moves as one */
    WARPS = 4,
    THREADS = WARPS * 32,
    TILE_ROWS = THREADS / CHUNKS, /* that all threads load at once */
    ROWS = TILE / WARPS,          /* of a warp */
    STEPS = TILE / 16,            /* of a product over a tile's columns */
    COLUMNS = TILE / 8,           /* groups of 8 columns of a result */
};

/* The logarithms here are to base 2, as the GPU's instruction is. */
static const float LOG2_E = 1.44269504088896340736f, LN_2 = 0.69314718055994530942f;

struct alignas(16) chunk {
    uint32_t pair[4];
};

/* --- tiles ----------------------------------------------------------------------------------- */

/* Where a tile keeps a chunk of a row: eight rows' chunks of one number are in all of the 32 banks.
 */
__device__ static int slot(int row, int number)
{
    return row * CHUNKS + (number ^ (row % CHUNKS));
}

/* A head of an operand. */
struct operand {
    const lks_half *at;
    size_t ld;
};

/* Eight elements. */
__device__ static chunk eight_of(const lks_half *p)
{
    return *(const chunk *)p;
}

/* The same of the first n of eight, and zeros. */
__device__ static chunk some_of(const lks_half *p, unsigned n)
{
    chunk to;
#pragma unroll
    for (unsigned k = 0; k < 4; k++)
        to.pair[k] = lks_bf16_pair(2 * k < n ? lks_element(p + 2 * k) : 0.0f,
                                   2 * k + 1 < n ? lks_element(p + 2 * k + 1) : 0.0f);
    return to;
}

/* Columns that products take of a head: zeros behind hs make up the last step. */
__device__ static unsigned width_of(const lks_attention &a)
{
    return ((unsigned)a.shape.hs + 15) / 16 * 16;
}

/* The tile that begins at row r0 and at column c0. Rows beyond T are zeros. If rows can be moved by
 * eights, all loads of a thread begin before the first one has to be there. */
__device__ static void load_tile(const lks_attention &a, chunk *tile, const operand &m, unsigned r0,
                                 unsigned c0)
{
    const unsigned number = threadIdx.x % CHUNKS, column = c0 + number * 8;
    const unsigned first = threadIdx.x / CHUNKS, T = (unsigned)a.shape.T;
    const unsigned hs = (unsigned)a.shape.hs;
    const lks_half *p = m.at + (size_t)(r0 + first) * m.ld + column;
    if (column >= width_of(a))
        return;
    if (a.wide) {
        chunk mine[TILE / TILE_ROWS] = {};
#pragma unroll
        for (int k = 0; k < TILE / TILE_ROWS; k++)
            if (r0 + first + k * TILE_ROWS < T && column < hs)
                mine[k] = eight_of(p + k * TILE_ROWS * m.ld);
#pragma unroll
        for (int k = 0; k < TILE / TILE_ROWS; k++)
            tile[slot((int)first + k * TILE_ROWS, (int)number)] = mine[k];
        return;
    }
#pragma unroll 1
    for (int k = 0; k < TILE / TILE_ROWS; k++) {
        const bool inside = r0 + first + k * TILE_ROWS < T && column < hs;
        tile[slot((int)first + k * TILE_ROWS, (int)number)] =
            some_of(p + k * TILE_ROWS * m.ld, inside ? hs - column : 0);
    }
}

/* Steps of 16 columns that a tile from column c0 on has. */
__device__ static int steps_of(const lks_attention &a, unsigned c0)
{
    const unsigned left = (width_of(a) - c0) / 16;
    return left < STEPS ? (int)left : (int)STEPS;
}

__device__ static int lane(void)
{
    return (int)threadIdx.x % 32;
}

/* First of this warp's rows of a tile. */
__device__ static int own_row(void)
{
    return (int)threadIdx.x / 32 * ROWS;
}

/* A warp's sums: 16 rows of 64 columns. This thread has columns 8 n + 2 (lane % 4) and the next one
 * of row lane / 4 in at[n][0] and at[n][1], and of the eighth row after it in at[n][2] and
 * at[n][3]. */
struct sums {
    float at[COLUMNS][4];
};

__device__ static int sums_row(int which)
{
    return lane() / 4 + which / 2 * 8;
}

__device__ static int sums_column(int n, int which)
{
    return n * 8 + lane() % 4 * 2 + which % 2;
}

/* s += x y^T, over the first `steps` steps of both tiles' rows; x: this warp's rows. */
__device__ static void add_x_yt(sums &s, const chunk *x, const chunk *y, int steps)
{
    const int l = lane(), quarter = l / 8;
    for (int k = 0; k < steps; k++) {
        uint32_t a[4];
        lks_load_matrices(a, &x[slot(own_row() + quarter % 2 * 8 + l % 8, k * 2 + quarter / 2)]);
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            uint32_t b[4];
            lks_load_matrices(b, &y[slot(n * 8 + quarter / 2 * 8 + l % 8, k * 2 + quarter % 2)]);
            lks_multiply_add(s.at[n], a, b);
            lks_multiply_add(s.at[n + 1], a, b + 2);
        }
    }
}

/* s += p y, for the first `steps` steps of 16 columns of y. p is rounded. */
__device__ static void add_p_y(sums &s, const sums &p, const chunk *y, int steps)
{
    const int l = lane(), quarter = l / 8;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const float *left = p.at[2 * k], *right = p.at[2 * k + 1];
        const uint32_t a[4] = {lks_bf16_pair(left[0], left[1]), lks_bf16_pair(left[2], left[3]),
                               lks_bf16_pair(right[0], right[1]),
                               lks_bf16_pair(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < STEPS; n++) {
            if (n >= steps)
                break;
            uint32_t b[4];
            lks_load_transposed(b, &y[slot(k * 16 + quarter % 2 * 8 + l % 8, n * 2 + quarter / 2)]);
            lks_multiply_add(s.at[2 * n], a, b);
            lks_multiply_add(s.at[2 * n + 1], a, b + 2);
        }
    }
}

/* --- where a block works --------------------------------------------------------------------- */

/* Head h of sequence b in a matrix of B sequences. */
__device__ static operand head(const lks_attention &a, const lks__act *x, size_t ld, size_t b,
                               size_t h)
{
    return {LKS_ACTS(const lks_half, x) + b * a.shape.T * ld + h * a.shape.hs, ld};
}

/* Rows t0 on, column c0 on of head `h` of a matrix = factor[row / 8] * s. */
__device__ static void store_sums(const lks_attention &a, lks__act *out, size_t ld, size_t b,
                                  size_t h, unsigned t0, unsigned c0, const sums &s,
                                  const float factor[2])
{
    lks_half *to = LKS_ACTS(lks_half, out);
    const bool pairs =
        a.shape.hs % 2 == 0 && ld % 2 == 0 && (uintptr_t)to % (2 * sizeof(lks_half)) == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const size_t t = t0 + own_row() + sums_row(2 * r);
        lks_half *row = to + (b * a.shape.T + t) * ld + h * a.shape.hs;
        if (t >= a.shape.T)
            continue;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            const size_t c = c0 + sums_column(n, 0);
            const float x = factor[r] * s.at[n][2 * r], y = factor[r] * s.at[n][2 * r + 1];
            if (pairs && c < a.shape.hs) {
                lks_store<2>(row + c, {{x, y}});
            } else {
                if (c < a.shape.hs)
                    lks_put(row + c, x);
                if (c + 1 < a.shape.hs)
                    lks_put(row + c + 1, y);
            }
        }
    }
}

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

/* Over the 4 threads that share rows of sums. */
__device__ static float row_max(float v)
{
    for (int m = 2; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

__device__ static float row_sum(float v)
{
    for (int m = 2; m > 0; m /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* Running maximum and sum of this thread's two rows; the sum is that of its own columns. */
struct softmax {
    float max[2], sum[2];
};

/* Scores of queries from i0 on with keys from j0 on become 2^(score - maximum), 0 for keys behind
 * the query; factor: by which what was summed before is to be multiplied. */
__device__ static void softmax_sums(softmax &w, sums &s, float factor[2], float scale, unsigned i0,
                                    unsigned j0)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned i = i0 + own_row() + sums_row(2 * r);
        float max = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int k = 2 * r; k < 2 * r + 2; k++) {
                s.at[n][k] *= scale;
                if (j0 + sums_column(n, k) <= i)
                    max = fmaxf(max, s.at[n][k]);
            }
        max = fmaxf(w.max[r], row_max(max));
        factor[r] = max == w.max[r] ? 1.0f : exp2f(w.max[r] - max);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int k = 2 * r; k < 2 * r + 2; k++) {
                s.at[n][k] = j0 + sums_column(n, k) <= i ? exp2f(s.at[n][k] - max) : 0.0f;
                sum += s.at[n][k];
            }
        w.sum[r] = w.sum[r] * factor[r] + sum;
        w.max[r] = max;
    }
}

/* Probabilities of queries from i0 on with keys from j0 on, times dropout's factors. */
__device__ static void drop_sums(const lks_attention &a, sums &s, size_t b, size_t h, unsigned i0,
                                 unsigned j0)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const unsigned i = i0 + own_row() + sums_row(k), j = j0 + sums_column(n, k);
            const float2 mask = j <= i ? mask_pair(a, b, h, i, j) : make_float2(1.0f, 1.0f);
            s.at[n][k] *= mask.x;
            s.at[n][k + 1] *= mask.y;
        }
}

static __global__ void __launch_bounds__(THREADS, 4) attention_fwd_bf16(const lks_attention a)
{
    LKS_SHARED(chunk, query, TILE * CHUNKS);
    LKS_SHARED(chunk, key, TILE * CHUNKS);
    LKS_SHARED(chunk, value, TILE * CHUNKS);
    const lks_place at = lks_place_of(a, a.shape.NH, 1, true);
    const operand q = head(a, a.in.q, a.in.ldq, at.b, at.h);
    const operand k = head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const operand v = head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const unsigned piece = at.piece * TILE, width = (unsigned)a.shape.hs;
    softmax w = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    sums out = {};
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE) {
        sums s = {};
        float factor[2];
        for (unsigned c0 = 0; c0 < width; c0 += TILE) {
            __syncthreads();
            if (j0 == 0 || width > TILE)
                load_tile(a, query, q, at.t0, c0);
            load_tile(a, key, k, j0, c0);
            if (c0 == 0)
                load_tile(a, value, v, j0, piece);
            __syncthreads();
            add_x_yt(s, query, key, steps_of(a, c0));
        }
        softmax_sums(w, s, factor, a.scale * LOG2_E, at.t0, j0);
        if (a.drop.threshold != 0)
            drop_sums(a, s, at.b, at.h, at.t0, j0);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out.at[n][i] *= factor[i / 2];
        add_p_y(out, s, value, steps_of(a, piece));
    }
    float inverse[2];
    for (int r = 0; r < 2; r++) {
        const float total = row_sum(w.sum[r]);
        const size_t i = at.t0 + own_row() + sums_row(2 * r);
        inverse[r] = 1.0f / total;
        if (a.lse != NULL && piece == 0 && lane() % 4 == 0 && i < a.shape.T)
            a.lse[(at.b * a.shape.NH + at.h) * a.shape.T + i] = LN_2 * (w.max[r] + log2f(total));
    }
    store_sums(a, a.out, a.c, at.b, at.h, at.t0, piece, out, inverse);
}

/* --- backward -------------------------------------------------------------------------------- */

/* attention.cu has the formulas. What a block needs of its tile's or its loop's queries: */
struct of_query {
    float lse, delta; /* lse to base 2; beyond T the probabilities are 0 */
};

__device__ static of_query query_of(const lks_attention &a, size_t b, size_t h, unsigned i)
{
    const size_t row = (b * a.shape.NH + h) * a.shape.T + i;
    if (i >= a.shape.T)
        return {INFINITY, 0.0f};
    return {LOG2_E * a.f_lse[row], a.delta[row]};
}

/* A score and the gradient of its probability become P*M and dS. */
__device__ static void grad_of(const lks_attention &a, float &s, float &d, const of_query &of,
                               float mask, unsigned i, unsigned j)
{
    const float p = j <= i && i < a.shape.T ? exp2f(a.scale * LOG2_E * s - of.lse) : 0.0f;
    d = p * (mask * d - of.delta);
    s = p * mask;
}

/* Rows of products are keys here, so that P and dS stand as the next products need them. */
static __global__ void __launch_bounds__(THREADS, 2) attention_bwd_keys_bf16(const lks_attention a)
{
    LKS_SHARED(chunk, key, TILE * CHUNKS);
    LKS_SHARED(chunk, value, TILE * CHUNKS);
    LKS_SHARED(chunk, query, TILE * CHUNKS);
    LKS_SHARED(chunk, grad, TILE * CHUNKS);
    LKS_SHARED(of_query, of, TILE);
    const lks_place at = lks_place_of(a, a.shape.NKV, 1, false);
    const operand k = head(a, a.in.k, a.in.ldkv, at.b, at.h);
    const operand v = head(a, a.in.v, a.in.ldkv, at.b, at.h);
    const unsigned piece = at.piece * TILE, width = (unsigned)a.shape.hs;
    const bool whole = width <= TILE;
    sums dk = {}, dv = {};
    for (size_t g = 0; g < a.group; g++) {
        const size_t h = at.h * a.group + g;
        const operand q = head(a, a.in.q, a.in.ldq, at.b, h);
        const operand dout = head(a, a.dout, a.c, at.b, h);
        for (unsigned i0 = at.t0; i0 < a.shape.T; i0 += TILE) {
            sums s = {}, d = {};
            for (unsigned c0 = 0; c0 < width; c0 += TILE) {
                __syncthreads();
                if (!whole || (g == 0 && i0 == at.t0)) {
                    load_tile(a, key, k, at.t0, c0);
                    load_tile(a, value, v, at.t0, c0);
                }
                load_tile(a, query, q, i0, c0);
                load_tile(a, grad, dout, i0, c0);
                if (c0 == 0 && threadIdx.x < TILE)
                    of[threadIdx.x] = query_of(a, at.b, h, i0 + threadIdx.x);
                __syncthreads();
                add_x_yt(s, key, query, steps_of(a, c0));
                add_x_yt(d, value, grad, steps_of(a, c0));
            }
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    const unsigned i = i0 + sums_column(n, m);
                    const unsigned j = at.t0 + own_row() + sums_row(m);
                    const bool dropped = a.drop.threshold != 0 && j <= i;
                    const float mask = dropped ? mask_pair(a, at.b, h, i, j).x : 1.0f;
                    grad_of(a, s.at[n][m], d.at[n][m], of[sums_column(n, m)], mask, i, j);
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
    store_sums(a, a.grads.dk, a.grads.ldkv, at.b, at.h, at.t0, piece, dk, scales);
    store_sums(a, a.grads.dv, a.grads.ldkv, at.b, at.h, at.t0, piece, dv, ones);
}

static __global__ void __launch_bounds__(THREADS, 3)
    attention_bwd_queries_bf16(const lks_attention a)
{
    LKS_SHARED(chunk, query, TILE * CHUNKS);
    LKS_SHARED(chunk, grad, TILE * CHUNKS);
    LKS_SHARED(chunk, key, TILE * CHUNKS);
    LKS_SHARED(chunk, value, TILE * CHUNKS);
    const lks_place at = lks_place_of(a, a.shape.NH, 1, true);
    const operand q = head(a, a.in.q, a.in.ldq, at.b, at.h);
    const operand dout = head(a, a.dout, a.c, at.b, at.h);
    const operand k = head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const operand v = head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const unsigned piece = at.piece * TILE, i = at.t0 + own_row() + sums_row(0);
    const unsigned width = (unsigned)a.shape.hs;
    const bool whole = width <= TILE;
    const of_query of[2] = {query_of(a, at.b, at.h, i), query_of(a, at.b, at.h, i + 8)};
    sums dq = {};
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE) {
        sums s = {}, d = {};
        for (unsigned c0 = 0; c0 < width; c0 += TILE) {
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
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int m = 0; m < 4; m += 2) {
                const unsigned own = i + m / 2 * 8, j = j0 + sums_column(n, m);
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
    store_sums(a, a.grads.dq, a.grads.ldq, at.b, at.h, at.t0, piece, dq, scales);
}

/* --- launches -------------------------------------------------------------------------------- */

/* A block for each tile of each head, and for each piece of a head. Queries are read once, keys and
 * values for each tile of queries from the second-level cache. With heads of more than one piece
 * each piece computes the scores again, which isn't counted. */
static dim3 tiles_grid(const lks_attention &a, size_t heads)
{
    const size_t tiles = (a.shape.T + TILE - 1) / TILE, pieces = (a.shape.hs + TILE - 1) / TILE;
    return dim3((unsigned)(tiles * a.shape.B * heads * pieces));
}

void lks_attention_fwd_bf16(cudaStream_t stream, const lks_attention &a)
{
    LKS_LAUNCH(attention_fwd_bf16, tiles_grid(a, a.shape.NH), dim3(THREADS), stream, a);
}

void lks_attention_bwd_keys_bf16(cudaStream_t stream, const lks_attention &a)
{
    LKS_LAUNCH(attention_bwd_keys_bf16, tiles_grid(a, a.shape.NKV), dim3(THREADS), stream, a);
}

void lks_attention_bwd_queries_bf16(cudaStream_t stream, const lks_attention &a)
{
    LKS_LAUNCH(attention_bwd_queries_bf16, tiles_grid(a, a.shape.NH), dim3(THREADS), stream, a);
}
