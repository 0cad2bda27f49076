/* compute/cuda/attention/attention_64.cu - causal attention on tensor cores, for heads of 64
 * elements in bfloat16, as in GPT-2 and parameter-golf.
 *
 * Like attention.cu, but a warp computes a product of two tiles: instructions multiply [16, 16] by
 * [16, 8] and add in float32. All sizes are constants, and the next tiles are loaded while a warp
 * computes. A block of the forward pass processes 128 queries, 32 per warp, so that keys and values
 * that a warp loads from shared memory serve two products. Probabilities pass from one product to
 * the next in registers, since the sums of one have the layout of the other's operands. Operands
 * that a warp uses again in each tile stay in registers. */
#include "compute/cuda/attention/attention_64.h"
#include "compute/cuda/common/ptx.h"

enum {
    TILE = LKS_TILE,
    WARPS = 4,
    THREADS = WARPS * 32,
    CELLS = TILE * LKS_CHUNKS, /* chunks of a tile */
    SIDES = 2,                 /* of a warp's queries in the forward pass, 16 each */
    QUERIES = TILE * SIDES,    /* of a block, there */
    GROUP = 64,                /* heads: 16 MiB of keys and values of 1,024 tokens */
};

/* --- tiles ----------------------------------------------------------------------------------- */

/* Begin to copy 64 rows from r0 on. Rows beyond T become zeros. */
__device__ static void begin_tile(lks_chunk *tile, const lks_operand &m, unsigned r0, unsigned T)
{
    const unsigned number = threadIdx.x % LKS_CHUNKS, first = threadIdx.x / LKS_CHUNKS;
#pragma unroll
    for (unsigned k = 0; k < TILE; k += THREADS / LKS_CHUNKS) {
        const bool inside = r0 + first + k < T;
        const lks_half *row = m.at + (inside ? (size_t)(r0 + first + k) * m.ld : 0);
        lks_copy_16(&tile[lks_slot((int)(first + k), (int)number)], row + number * 8, inside);
    }
}

/* A warp's 16 rows in a product's operand layout, for each step. */
struct rows {
    uint32_t at[LKS_STEPS][4];
};

__device__ static rows all_rows(const lks_chunk *tile, int row)
{
    rows r;
#pragma unroll
    for (int k = 0; k < LKS_STEPS; k++)
        lks_load_left(r.at[k], tile, row, k);
    return r;
}

/* s += a y^T, of one step and 16 rows of y from row 8 n on; the first step begins the sums. */
template <int N>
__device__ static void add_step(lks_sums *s, const uint32_t (*a)[4], const lks_chunk *y, int n,
                                int step)
{
    uint32_t b[4];
    lks_load_right(b, y, n, step);
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (step == 0)
                lks_multiply(s[m].at[n + half], a[m], b + 2 * half);
            else
                lks_multiply_add(s[m].at[n + half], a[m], b + 2 * half);
        }
}

/* s = x y^T */
__device__ static void multiply_x_yt(lks_sums &s, const rows &x, const lks_chunk *y)
{
#pragma unroll
    for (int step = 0; step < LKS_STEPS; step++)
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n += 2)
            add_step<1>(&s, &x.at[step], y, n, step);
}

/* s[m] += p[m] y, for N groups of 16 rows. p is rounded. */
template <int N> __device__ static void add_p_y(lks_sums *s, const lks_sums *p, const lks_chunk *y)
{
#pragma unroll
    for (int step = 0; step < LKS_STEPS; step++) {
        uint32_t a[N][4];
#pragma unroll
        for (int m = 0; m < N; m++)
            lks_left_of(a[m], p[m], step);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n += 2) {
            uint32_t b[4];
            lks_load_right_of_rows(b, y, n, step);
#pragma unroll
            for (int m = 0; m < N; m++) {
                lks_multiply_add(s[m].at[n], a[m], b);
                lks_multiply_add(s[m].at[n + 1], a[m], b + 2);
            }
        }
    }
}

/* --- where a block works --------------------------------------------------------------------- */

struct place {
    unsigned b, h, t0;
};

/* Heads are processed by groups, so that the data of a group stay in the second-level cache. In a
 * group, blocks with the most work begin first: `last_first` if those are the tiles at the end. */
__device__ static place place_of(const lks_attention &a, size_t n_heads, unsigned length,
                                 bool last_first)
{
    const unsigned heads = (unsigned)n_heads, tiles = ((unsigned)a.shape.T + length - 1) / length;
    const unsigned all = (unsigned)a.shape.B * heads, first = blockIdx.x / (GROUP * tiles) * GROUP;
    const unsigned n = all - first < (unsigned)GROUP ? all - first : (unsigned)GROUP;
    const unsigned task = blockIdx.x - first * tiles, tile = task / n, head = first + task % n;
    return {head / heads, head % heads, (last_first ? tiles - 1 - tile : tile) * length};
}

/* --- dropout --------------------------------------------------------------------------------- */

/* The scores of queries from i0 on with keys from j0 on that dropout keeps: bit 4 n + k for
 * at[n][k] of their sums. As bits, and before the products, they take few registers. */
__device__ static uint32_t kept_keys(const lks_attention &a, unsigned row0, unsigned i0,
                                     unsigned j0)
{
    uint32_t kept = 0;
#pragma unroll 1
    for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const unsigned i = i0 + lks_sums_row(k), j = j0 + lks_sums_column(n, k);
            if (j <= i) /* else no key counts */
                kept |= lks_kept<2>(a, row0 + i, j) << (4 * n + k);
        }
    return kept;
}

/* The same for sums whose rows are keys. */
__device__ static uint32_t kept_queries(const lks_attention &a, unsigned row0, unsigned i0,
                                        unsigned j0)
{
    uint32_t kept = 0;
#pragma unroll 1
    for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const unsigned i = i0 + lks_sums_column(n, k), j = j0 + lks_sums_row(k);
            if (j <= i)
                kept |= lks_kept<1>(a, row0 + i, j) << (4 * n + k);
        }
    return kept;
}

/* --- forward --------------------------------------------------------------------------------- */

/* Running maximum and sum of this thread's two rows; the sum covers only its own columns. */
struct softmax {
    float max[2], sum[2];
};

/* Replace scores by 2^(scale * (score - maximum)), and scale `out` and the sum to the new maximum.
 * Excluded scores are -INFINITY; the first tile has one that counts. */
__device__ static void softmax_sums(softmax &w, lks_sums &s, lks_sums &out, float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = w.max[r], sum = 0.0f;
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
            max = fmaxf(max, fmaxf(s.at[n][2 * r], s.at[n][2 * r + 1]));
        max = lks_row_max(max);
        const float factor = lks_exp2(scale * (w.max[r] - max)), offset = -max * scale;
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
            for (int k = 2 * r; k < 2 * r + 2; k++) {
                s.at[n][k] = lks_exp2(fmaf(s.at[n][k], scale, offset));
                sum += s.at[n][k];
                out.at[n][k] *= factor;
            }
        w.sum[r] = fmaf(w.sum[r], factor, sum);
        w.max[r] = max;
    }
}

/* Exclude scores of queries from i0 on with those keys from j0 on that come after the query. */
__device__ static void hide_later(lks_sums &s, unsigned i0, unsigned j0)
{
#pragma unroll
    for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (j0 + lks_sums_column(n, k) > i0 + lks_sums_row(k))
                s.at[n][k] = -INFINITY;
}

/* A warp's sums in the forward pass. */
struct forward {
    softmax w[SIDES];
    lks_sums out[SIDES];
};

/* For queries from i0 on, in `query` from row `own` on, and keys from j0 on. ALL: every key counts
 * for every query. */
template <bool DROP, bool ALL>
__device__ static void add_tile(const lks_attention &a, const uint32_t kept[SIDES], forward &f,
                                const lks_chunk *query, int own, const lks_chunk *key,
                                const lks_chunk *value, unsigned i0, unsigned j0, float scale)
{
    lks_sums s[SIDES];
#pragma unroll
    for (int step = 0; step < LKS_STEPS; step++) {
        uint32_t x[SIDES][4];
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            lks_load_left(x[m], query, own + 16 * m, step);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n += 2)
            add_step<SIDES>(s, x, key, n, step);
    }
#pragma unroll
    for (int m = 0; m < SIDES; m++) {
        if (!ALL)
            hide_later(s[m], i0 + 16 * m, j0);
        softmax_sums(f.w[m], s[m], f.out[m], scale);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (DROP)
                    s[m].at[n][k] *= lks_factor(a, kept[m], 4 * n + k);
    }
    add_p_y<SIDES>(f.out, s, value);
}

template <bool DROP>
static __global__ void __launch_bounds__(THREADS, 2) attention_fwd_64(const lks_attention a)
{
    LKS_SHARED(lks_chunk, query, SIDES * CELLS);
    LKS_SHARED(lks_chunk, keys, 2 * CELLS);
    LKS_SHARED(lks_chunk, values, 2 * CELLS);
    const place at = place_of(a, a.shape.NH, QUERIES, true);
    const unsigned T = (unsigned)a.shape.T;
    const lks_operand q = lks_head(a, a.in.q, a.in.ldq, at.b, at.h);
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned i0 = at.t0 + own, end = at.t0 + QUERIES < T ? at.t0 + QUERIES : T;
    const unsigned row0 = lks_first_row(a, at.b, at.h);
    const float scale = a.scale * LKS_LOG2_E;
    forward f = {};
#pragma unroll
    for (int m = 0; m < SIDES; m++)
        f.w[m].max[0] = f.w[m].max[1] = -INFINITY;
    for (int m = 0; m < SIDES; m++)
        begin_tile(query + m * CELLS, q, at.t0 + m * TILE, T);
    begin_tile(keys, k, 0, T);
    begin_tile(values, v, 0, T);
    int turn = 0; /* of the two places of tiles */
#pragma unroll 1
    for (unsigned j0 = 0; j0 < end; j0 += TILE, turn = 1 - turn) {
        const lks_chunk *key = keys + turn * CELLS, *value = values + turn * CELLS;
        uint32_t kept[SIDES];
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            kept[m] = DROP ? kept_keys(a, row0, i0 + 16 * m, j0) : 0;
        lks_wait_copies();
        __syncthreads(); /* all have these tiles, and are done with the last ones */
        if (j0 + TILE < end) {
            begin_tile(keys + (1 - turn) * CELLS, k, j0 + TILE, T);
            begin_tile(values + (1 - turn) * CELLS, v, j0 + TILE, T);
        }
        if (j0 + TILE <= i0 + 1)
            add_tile<DROP, true>(a, kept, f, query, own, key, value, i0, j0, scale);
        else if (j0 < i0 + 16 * SIDES) /* else all keys come after this warp's queries */
            add_tile<DROP, false>(a, kept, f, query, own, key, value, i0, j0, scale);
    }
#pragma unroll
    for (int m = 0; m < SIDES; m++) {
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float total = lks_row_sum(f.w[m].sum[r]);
            const unsigned i = i0 + 16 * m + lks_sums_row(2 * r);
            inverse[r] = 1.0f / total;
            if (a.lse != NULL && lks_lane() % 4 == 0 && i < T)
                a.lse[row0 + i] = LKS_LN_2 * fmaf(f.w[m].max[r], scale, log2f(total));
        }
        lks_store_sums(a, a.out, a.c, at.b, at.h, i0 + 16 * m, f.out[m], inverse);
    }
}

/* --- backward -------------------------------------------------------------------------------- */

enum { DELTA_LANES = TILE / 8, DELTA_THREADS = 256, DELTA_ROWS = DELTA_THREADS / DELTA_LANES };

/* attention.cu has the formulas. Eight lanes process a head of a token; each loads 16 bytes. */
static __global__ void attention_delta_64(const lks_attention a)
{
    const unsigned heads = (unsigned)a.shape.NH, T = (unsigned)a.shape.T;
    const unsigned i = blockIdx.x * DELTA_ROWS + threadIdx.x / DELTA_LANES; /* token, head */
    const bool inside = i < a.shape.B * a.shape.T * a.shape.NH;
    float sum = 0.0f;
    if (inside) {
        const size_t at = (size_t)i * TILE + threadIdx.x % DELTA_LANES * 8;
        const lks_floats<8> x = lks_load<8>(LKS_ACTS(const lks_half, a.dout) + at),
                            y = lks_load<8>(LKS_ACTS(const lks_half, a.f_out) + at);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum = fmaf(x.at[k], y.at[k], sum);
    }
#pragma unroll
    for (int m = DELTA_LANES / 2; m > 0; m /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, m);
    const unsigned row = i / heads, h = i % heads;
    if (inside && threadIdx.x % DELTA_LANES == 0)
        a.delta[((size_t)(row / T) * heads + h) * T + row % T] = sum;
}

/* A score and the gradient of its probability become P*M and dS; mask: dropout's factor. */
__device__ static void grad_of(float &s, float &d, const lks_of_query &of, float scale, float mask)
{
    const float p = lks_exp2(fmaf(s, scale, -of.lse));
    d = p * (mask * d - of.delta);
    s = mask * p;
}

/* For queries from i0 on, and this warp's keys from j0 on. ALL: every key counts for every
 * query. */
template <bool DROP, bool ALL>
__device__ static void add_queries(const lks_attention &a, uint32_t kept, lks_sums &dk,
                                   lks_sums &dv, const rows &key, const rows &value,
                                   const lks_chunk *query, const lks_chunk *grad,
                                   const lks_of_query *of, unsigned i0, unsigned j0, float scale)
{
    lks_sums s, d;
    multiply_x_yt(s, key, query);
    multiply_x_yt(d, value, grad);
#pragma unroll
    for (int n = 0; n < LKS_COLUMNS; n++) {
        const lks_of_query pair[2] = {of[lks_sums_column(n, 0)], of[lks_sums_column(n, 1)]};
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const unsigned i = i0 + lks_sums_column(n, m), j = j0 + lks_sums_row(m);
            const float mask = DROP ? lks_factor(a, kept, 4 * n + m) : 1.0f;
            grad_of(s.at[n][m], d.at[n][m], pair[m % 2], scale, mask);
            if (!ALL && j > i)
                s.at[n][m] = d.at[n][m] = 0.0f;
        }
    }
    add_p_y<1>(&dv, &s, grad);
    add_p_y<1>(&dk, &d, query);
}

/* Rows of products are keys here, so that P and dS are in the layout that the next products
 * need. */
template <bool DROP>
static __global__ void __launch_bounds__(THREADS, 2) attention_bwd_keys_64(const lks_attention a)
{
    LKS_SHARED(lks_chunk, queries, 2 * CELLS);
    LKS_SHARED(lks_chunk, grads, 2 * CELLS);
    LKS_SHARED(lks_of_query, ofs, 2 * TILE);
    const place at = place_of(a, a.shape.NKV, TILE, false);
    const unsigned T = (unsigned)a.shape.T;
    const int own = (int)threadIdx.x / 32 * 16;
    const unsigned j0 = at.t0 + own;
    const float scale = a.scale * LKS_LOG2_E;
    begin_tile(queries, lks_head(a, a.in.k, a.in.ldkv, at.b, at.h), at.t0, T);
    begin_tile(grads, lks_head(a, a.in.v, a.in.ldkv, at.b, at.h), at.t0, T);
    lks_wait_copies();
    __syncthreads();
    const rows key = all_rows(queries, own), value = all_rows(grads, own);
    lks_sums dk = {}, dv = {};
    int turn = 1; /* keys and values may still be read at place 0 */
    const unsigned first = at.h * (unsigned)a.group, end = first + (unsigned)a.group;
    begin_tile(queries + CELLS, lks_head(a, a.in.q, a.in.ldq, at.b, first), at.t0, T);
    begin_tile(grads + CELLS, lks_head(a, a.dout, a.c, at.b, first), at.t0, T);
    if (threadIdx.x < TILE)
        ofs[TILE + threadIdx.x] =
            lks_query_of(a, lks_first_row(a, at.b, first), at.t0 + threadIdx.x);
    for (unsigned h = first; h < end; h++)
#pragma unroll 1
        for (unsigned i0 = at.t0; i0 < T; i0 += TILE, turn = 1 - turn) {
            const lks_chunk *query = queries + turn * CELLS, *grad = grads + turn * CELLS;
            const lks_of_query *of = ofs + turn * TILE;
            const int next = 1 - turn;
            const bool last = i0 + TILE >= T; /* of this head */
            const unsigned next_h = last ? h + 1 : h, next_i = last ? at.t0 : i0 + TILE;
            const bool more = next_h < end;
            const uint32_t kept = DROP ? kept_queries(a, lks_first_row(a, at.b, h), i0, j0) : 0;
            lks_of_query mine = {};
            lks_wait_copies();
            __syncthreads(); /* all have these tiles, and are done with the last ones */
            if (more) {
                begin_tile(queries + next * CELLS, lks_head(a, a.in.q, a.in.ldq, at.b, next_h),
                           next_i, T);
                begin_tile(grads + next * CELLS, lks_head(a, a.dout, a.c, at.b, next_h), next_i, T);
                if (threadIdx.x < TILE)
                    mine = lks_query_of(a, lks_first_row(a, at.b, next_h), next_i + threadIdx.x);
            }
            if (i0 > at.t0)
                add_queries<DROP, true>(a, kept, dk, dv, key, value, query, grad, of, i0, j0,
                                        scale);
            else
                add_queries<DROP, false>(a, kept, dk, dv, key, value, query, grad, of, i0, j0,
                                         scale);
            if (more && threadIdx.x < TILE)
                ofs[next * TILE + threadIdx.x] = mine;
        }
    const float ones[2] = {1.0f, 1.0f}, scales[2] = {a.scale, a.scale};
    lks_store_sums(a, a.grads.dk, a.grads.ldkv, at.b, at.h, j0, dk, scales);
    lks_store_sums(a, a.grads.dv, a.grads.ldkv, at.b, at.h, j0, dv, ones);
}

/* For keys from j0 on, and this warp's queries from i0 on. ALL: every key counts for every
 * query. */
template <bool DROP, bool ALL>
__device__ static void add_keys(const lks_attention &a, uint32_t kept, lks_sums &dq,
                                const rows &query, const rows &grad, const lks_chunk *key,
                                const lks_chunk *value, const lks_of_query of[2], unsigned i0,
                                unsigned j0, float scale)
{
    lks_sums s, d;
    multiply_x_yt(s, query, key);
    multiply_x_yt(d, grad, value);
#pragma unroll
    for (int n = 0; n < LKS_COLUMNS; n++)
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const unsigned i = i0 + lks_sums_row(m), j = j0 + lks_sums_column(n, m);
            const float mask = DROP ? lks_factor(a, kept, 4 * n + m) : 1.0f;
            grad_of(s.at[n][m], d.at[n][m], of[m / 2], scale, mask);
            if (!ALL && j > i)
                d.at[n][m] = 0.0f;
        }
    add_p_y<1>(&dq, &d, key);
}

template <bool DROP>
static __global__ void __launch_bounds__(THREADS, 3) attention_bwd_queries_64(const lks_attention a)
{
    LKS_SHARED(lks_chunk, keys, 2 * CELLS);
    LKS_SHARED(lks_chunk, values, 2 * CELLS);
    const place at = place_of(a, a.shape.NH, TILE, true);
    const unsigned T = (unsigned)a.shape.T;
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const int own = (int)threadIdx.x / 32 * 16;
    const unsigned i0 = at.t0 + own, i = i0 + lks_sums_row(0);
    const float scale = a.scale * LKS_LOG2_E;
    const unsigned row0 = lks_first_row(a, at.b, at.h);
    const lks_of_query of[2] = {lks_query_of(a, row0, i), lks_query_of(a, row0, i + 8)};
    begin_tile(keys, lks_head(a, a.in.q, a.in.ldq, at.b, at.h), at.t0, T);
    begin_tile(values, lks_head(a, a.dout, a.c, at.b, at.h), at.t0, T);
    lks_wait_copies();
    __syncthreads();
    const rows query = all_rows(keys, own), grad = all_rows(values, own);
    lks_sums dq = {};
    int turn = 1; /* queries may still be read at place 0 */
    begin_tile(keys + CELLS, k, 0, T);
    begin_tile(values + CELLS, v, 0, T);
#pragma unroll 1
    for (unsigned j0 = 0; j0 <= at.t0; j0 += TILE, turn = 1 - turn) {
        const lks_chunk *key = keys + turn * CELLS, *value = values + turn * CELLS;
        const uint32_t kept = DROP ? kept_keys(a, row0, i0, j0) : 0;
        lks_wait_copies();
        __syncthreads(); /* all have these tiles, and are done with the last ones */
        if (j0 < at.t0) {
            begin_tile(keys + (1 - turn) * CELLS, k, j0 + TILE, T);
            begin_tile(values + (1 - turn) * CELLS, v, j0 + TILE, T);
            add_keys<DROP, true>(a, kept, dq, query, grad, key, value, of, i0, j0, scale);
        } else {
            add_keys<DROP, false>(a, kept, dq, query, grad, key, value, of, i0, j0, scale);
        }
    }
    const float scales[2] = {a.scale, a.scale};
    lks_store_sums(a, a.grads.dq, a.grads.ldq, at.b, at.h, i0, dq, scales);
}

/* --- launches -------------------------------------------------------------------------------- */

bool lks_attention_is_64(const lks_attention &a)
{
    return a.halves && a.shape.hs == TILE && a.wide;
}

/* Puts the kernel with or without dropout on the stream. */
#define LAUNCH(kernel, grid, stream, a)                                                            \
    do {                                                                                           \
        if ((a).drop.threshold != 0)                                                               \
            LKS_LAUNCH(kernel<true>, grid, dim3(THREADS), stream, a);                              \
        else                                                                                       \
            LKS_LAUNCH(kernel<false>, grid, dim3(THREADS), stream, a);                             \
    } while (0)

static dim3 grid_of(const lks_attention &a, size_t heads, size_t length)
{
    return dim3((unsigned)((a.shape.T + length - 1) / length * a.shape.B * heads));
}

void lks_attention_fwd_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_fwd_64, grid_of(a, a.shape.NH, QUERIES), stream, a);
}

void lks_attention_delta_64(cudaStream_t stream, const lks_attention &a)
{
    const size_t n = a.shape.B * a.shape.T * a.shape.NH;
    LKS_LAUNCH(attention_delta_64, dim3((unsigned)((n + DELTA_ROWS - 1) / DELTA_ROWS)),
               dim3(DELTA_THREADS), stream, a);
}

void lks_attention_bwd_keys_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_bwd_keys_64, grid_of(a, a.shape.NKV, TILE), stream, a);
}

void lks_attention_bwd_queries_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_bwd_queries_64, grid_of(a, a.shape.NH, TILE), stream, a);
}
