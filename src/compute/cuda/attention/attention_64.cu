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
    SIDES = 2,                 /* of a warp's rows, 16 each */
    LENGTH = TILE * SIDES,     /* rows of a block */
    PART = 2,                  /* groups of 8 columns that the backward pass computes at once */
    GROUP = 64,                /* most heads: 16 MiB of keys and values of 1,024 tokens */
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

/* A warp's rows in a product's operand layout, for each step. */
struct rows {
    uint32_t at[LKS_STEPS][SIDES][4];
};

__device__ static rows all_rows(const lks_chunk *tile, int row)
{
    rows r;
#pragma unroll
    for (int k = 0; k < LKS_STEPS; k++)
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            lks_load_left(r.at[k][m], tile, row + 16 * m, k);
    return r;
}

/* s += a y^T, of one step and 16 rows of y from row 8 n on; the first step begins the sums. */
template <int N>
__device__ static void add_step(lks_part<N> s[SIDES], const uint32_t a[SIDES][4],
                                const lks_chunk *y, int n, int step)
{
    uint32_t b[4];
    lks_load_right(b, y, n, step);
#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (step == 0)
                lks_multiply(s[m].at[n + half], a[m], b + 2 * half);
            else
                lks_multiply_add(s[m].at[n + half], a[m], b + 2 * half);
        }
}

/* s = x y^T for 8 N rows of y */
template <int N>
__device__ static void multiply_x_yt(lks_part<N> s[SIDES], const rows &x, const lks_chunk *y)
{
#pragma unroll
    for (int step = 0; step < LKS_STEPS; step++)
#pragma unroll
        for (int n = 0; n < N; n += 2)
            add_step(s, x.at[step], y, n, step);
}

/* s[m] += p[m] y, for 8 N rows of y. p is rounded. */
template <int N>
__device__ static void add_p_y(lks_sums s[SIDES], const lks_part<N> p[SIDES], const lks_chunk *y)
{
#pragma unroll
    for (int step = 0; step < N / 2; step++) {
        uint32_t a[SIDES][4];
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            lks_left_of(a[m], p[m], step);
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n += 2) {
            uint32_t b[4];
            lks_load_right_of_rows(b, y, n, step);
#pragma unroll
            for (int m = 0; m < SIDES; m++) {
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

/* Heads are processed by groups of about the same size, so that the data of a group stay in the
 * second-level cache. In a group, blocks with the most work begin first, so that the GPU's
 * processors finish together: `last_first` if those are the tiles at the end. */
__device__ static place place_of(const lks_attention &a, size_t n_heads, unsigned length,
                                 bool last_first)
{
    const unsigned heads = (unsigned)n_heads, tiles = ((unsigned)a.shape.T + length - 1) / length;
    const unsigned all = (unsigned)a.shape.B * heads, groups = (all + GROUP - 1) / GROUP;
    const unsigned group = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x / (group * tiles) * group;
    const unsigned n = all - first < group ? all - first : group;
    const unsigned task = blockIdx.x - first * tiles, tile = task / n, head = first + task % n;
    return {head / heads, head % heads, (last_first ? tiles - 1 - tile : tile) * length};
}

/* --- dropout --------------------------------------------------------------------------------- */

/* The scores of 16 queries from i0 on with keys from j0 on that dropout keeps: bit 4 n + k for
 * at[n][k] of their sums. As bits, and before the products, they take few registers. */
__device__ static uint32_t kept_keys(const lks_attention &a, unsigned row0, unsigned i0,
                                     unsigned j0, int columns = LKS_COLUMNS)
{
    uint32_t kept = 0;
#pragma unroll 1
    for (int n = 0; n < columns; n++)
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const unsigned i = i0 + lks_sums_row(k), j = j0 + lks_sums_column(n, k);
            if (j <= i) /* else no key counts */
                kept |= lks_kept<2>(a, row0 + i, j) << (4 * n + k);
        }
    return kept;
}

/* The bit for number at[n][k] of a warp's rows 16 m on, in a part. */
__device__ static int bit_of(int m, int n, int k)
{
    return (m * PART + n) * 4 + k;
}

/* Those of all of a warp's queries with the keys of a part. */
__device__ static uint32_t kept_keys_of_part(const lks_attention &a, unsigned row0, unsigned i0,
                                             unsigned j0)
{
    uint32_t kept = 0;
    for (int m = 0; m < SIDES; m++)
        kept |= kept_keys(a, row0, i0 + 16 * m, j0, PART) << bit_of(m, 0, 0);
    return kept;
}

/* The same for sums whose rows are keys. */
__device__ static uint32_t kept_queries(const lks_attention &a, unsigned row0, unsigned i0,
                                        unsigned j0)
{
    uint32_t kept = 0;
#pragma unroll 1
    for (int n = 0; n < PART; n++)
#pragma unroll 1
        for (int m = 0; m < SIDES; m++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + lks_sums_column(n, k), j = j0 + 16 * m + lks_sums_row(k);
                if (j <= i)
                    kept |= lks_kept<1>(a, row0 + i, j) << bit_of(m, n, k);
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
            add_step(s, x, key, n, step);
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
    add_p_y(f.out, s, value);
}

template <bool DROP>
static __global__ void __launch_bounds__(THREADS, 2) attention_fwd_64(const lks_attention a)
{
    LKS_SHARED(lks_chunk, query, SIDES * CELLS);
    LKS_SHARED(lks_chunk, keys, 2 * CELLS);
    LKS_SHARED(lks_chunk, values, 2 * CELLS);
    const place at = place_of(a, a.shape.NH, LENGTH, true);
    const unsigned T = (unsigned)a.shape.T;
    const lks_operand q = lks_head(a, a.in.q, a.in.ldq, at.b, at.h);
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned i0 = at.t0 + own, end = at.t0 + LENGTH < T ? at.t0 + LENGTH : T;
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

/* For 8 PART queries from i0 on, which begin in `query` and `grad`, and this warp's keys from j0
 * on. ALL: every key counts for every query. */
template <bool DROP, bool ALL>
__device__ static void add_queries(const lks_attention &a, uint32_t kept, lks_sums dk[SIDES],
                                   lks_sums dv[SIDES], const rows &key, const rows &value,
                                   const lks_chunk *query, const lks_chunk *grad,
                                   const lks_of_query *of, unsigned i0, unsigned j0, float scale)
{
    lks_part<PART> s[SIDES], d[SIDES];
    multiply_x_yt(s, key, query);
    multiply_x_yt(d, value, grad);
#pragma unroll
    for (int n = 0; n < PART; n++) {
        const lks_of_query pair[2] = {of[lks_sums_column(n, 0)], of[lks_sums_column(n, 1)]};
#pragma unroll
        for (int m = 0; m < SIDES; m++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + lks_sums_column(n, k), j = j0 + 16 * m + lks_sums_row(k);
                const float mask = DROP ? lks_factor(a, kept, bit_of(m, n, k)) : 1.0f;
                grad_of(s[m].at[n][k], d[m].at[n][k], pair[k % 2], scale, mask);
                if (!ALL && j > i)
                    s[m].at[n][k] = d[m].at[n][k] = 0.0f;
            }
    }
    add_p_y(dv, s, grad);
    add_p_y(dk, d, query);
}

/* Rows of products are keys here, so that P and dS are in the layout that the next products
 * need. */
template <bool DROP>
static __global__ void __launch_bounds__(THREADS, 2) attention_bwd_keys_64(const lks_attention a)
{
    LKS_SHARED(lks_chunk, tiles, 4 * CELLS); /* queries, gradients, and the next ones */
    LKS_SHARED(lks_of_query, ofs, 2 * TILE);
    const place at = place_of(a, a.shape.NKV, LENGTH, false);
    const unsigned T = (unsigned)a.shape.T;
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned j0 = at.t0 + own;
    lks_chunk *values = tiles + 2 * CELLS;
    const float scale = a.scale * LKS_LOG2_E;
    for (int m = 0; m < SIDES; m++) {
        begin_tile(tiles + m * CELLS, lks_head(a, a.in.k, a.in.ldkv, at.b, at.h), at.t0 + m * TILE,
                   T);
        begin_tile(values + m * CELLS, lks_head(a, a.in.v, a.in.ldkv, at.b, at.h), at.t0 + m * TILE,
                   T);
    }
    lks_wait_copies();
    __syncthreads();
    const rows key = all_rows(tiles, own), value = all_rows(values, own);
    lks_sums dk[SIDES] = {}, dv[SIDES] = {};
    int turn = 0;
    const unsigned first = at.h * (unsigned)a.group, end = first + (unsigned)a.group;
    __syncthreads(); /* all have their rows */
    begin_tile(tiles, lks_head(a, a.in.q, a.in.ldq, at.b, first), at.t0, T);
    begin_tile(tiles + CELLS, lks_head(a, a.dout, a.c, at.b, first), at.t0, T);
    if (threadIdx.x < TILE)
        ofs[threadIdx.x] = lks_query_of(a, lks_first_row(a, at.b, first), at.t0 + threadIdx.x);
    for (unsigned h = first; h < end; h++)
#pragma unroll 1
        for (unsigned i0 = at.t0; i0 < T; i0 += TILE, turn = 1 - turn) {
            const int next = 1 - turn;
            const bool last = i0 + TILE >= T; /* of this head */
            const unsigned next_h = last ? h + 1 : h, next_i = last ? at.t0 : i0 + TILE;
            const bool more = next_h < end;
            lks_of_query mine = {};
            lks_wait_copies();
            __syncthreads(); /* all have these tiles, and are done with the last ones */
            if (more) {
                lks_chunk *to = tiles + next * 2 * CELLS;
                begin_tile(to, lks_head(a, a.in.q, a.in.ldq, at.b, next_h), next_i, T);
                begin_tile(to + CELLS, lks_head(a, a.dout, a.c, at.b, next_h), next_i, T);
                if (threadIdx.x < TILE)
                    mine = lks_query_of(a, lks_first_row(a, at.b, next_h), next_i + threadIdx.x);
            }
#pragma unroll 1
            for (int r = 0; r < TILE; r += 8 * PART) {
                const unsigned i = i0 + r;
                if (i + 8 * PART <= j0)
                    continue; /* all queries come before this warp's keys */
                const lks_chunk *query = tiles + turn * 2 * CELLS + r * LKS_CHUNKS;
                const lks_chunk *grad = query + CELLS;
                const lks_of_query *of = ofs + turn * TILE + r;
                const uint32_t kept = DROP ? kept_queries(a, lks_first_row(a, at.b, h), i, j0) : 0;
                if (i + 1 >= j0 + 16 * SIDES)
                    add_queries<DROP, true>(a, kept, dk, dv, key, value, query, grad, of, i, j0,
                                            scale);
                else
                    add_queries<DROP, false>(a, kept, dk, dv, key, value, query, grad, of, i, j0,
                                             scale);
            }
            if (more && threadIdx.x < TILE)
                ofs[next * TILE + threadIdx.x] = mine;
        }
    const float ones[2] = {1.0f, 1.0f}, scales[2] = {a.scale, a.scale};
#pragma unroll
    for (int m = 0; m < SIDES; m++) {
        lks_store_sums(a, a.grads.dk, a.grads.ldkv, at.b, at.h, j0 + 16 * m, dk[m], scales);
        lks_store_sums(a, a.grads.dv, a.grads.ldkv, at.b, at.h, j0 + 16 * m, dv[m], ones);
    }
}

/* For 8 PART keys from j0 on, which begin in `key` and `value`, and this warp's queries from i0 on.
 * ALL: every key counts for every query. */
template <bool DROP, bool ALL>
__device__ static void add_keys(const lks_attention &a, uint32_t kept, lks_sums dq[SIDES],
                                const rows &query, const rows &grad, const lks_chunk *key,
                                const lks_chunk *value, const lks_of_query of[SIDES][2],
                                unsigned i0, unsigned j0, float scale)
{
    lks_part<PART> s[SIDES], d[SIDES];
    multiply_x_yt(s, query, key);
    multiply_x_yt(d, grad, value);
#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int n = 0; n < PART; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + 16 * m + lks_sums_row(k), j = j0 + lks_sums_column(n, k);
                const float mask = DROP ? lks_factor(a, kept, bit_of(m, n, k)) : 1.0f;
                grad_of(s[m].at[n][k], d[m].at[n][k], of[m][k / 2], scale, mask);
                if (!ALL && j > i)
                    d[m].at[n][k] = 0.0f;
            }
    add_p_y(dq, d, key);
}

template <bool DROP>
static __global__ void __launch_bounds__(THREADS, 2) attention_bwd_queries_64(const lks_attention a)
{
    LKS_SHARED(lks_chunk, tiles, 4 * CELLS); /* keys, values, and the next ones */
    const place at = place_of(a, a.shape.NH, LENGTH, true);
    const unsigned T = (unsigned)a.shape.T;
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned i0 = at.t0 + own, end = at.t0 + LENGTH < T ? at.t0 + LENGTH : T;
    lks_chunk *grads = tiles + 2 * CELLS;
    const float scale = a.scale * LKS_LOG2_E;
    const unsigned row0 = lks_first_row(a, at.b, at.h);
    lks_of_query of[SIDES][2];
    for (int m = 0; m < SIDES; m++) {
        begin_tile(tiles + m * CELLS, lks_head(a, a.in.q, a.in.ldq, at.b, at.h), at.t0 + m * TILE,
                   T);
        begin_tile(grads + m * CELLS, lks_head(a, a.dout, a.c, at.b, at.h), at.t0 + m * TILE, T);
    }
#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            of[m][r] = lks_query_of(a, row0, i0 + 16 * m + lks_sums_row(2 * r));
    lks_wait_copies();
    __syncthreads();
    const rows query = all_rows(tiles, own), grad = all_rows(grads, own);
    lks_sums dq[SIDES] = {};
    int turn = 0;
    __syncthreads(); /* all have their rows */
    begin_tile(tiles, k, 0, T);
    begin_tile(tiles + CELLS, v, 0, T);
#pragma unroll 1
    for (unsigned j0 = 0; j0 < end; j0 += TILE, turn = 1 - turn) {
        lks_wait_copies();
        __syncthreads(); /* all have these tiles, and are done with the last ones */
        if (j0 + TILE < end) {
            begin_tile(tiles + (1 - turn) * 2 * CELLS, k, j0 + TILE, T);
            begin_tile(tiles + (1 - turn) * 2 * CELLS + CELLS, v, j0 + TILE, T);
        }
#pragma unroll 1
        for (int r = 0; r < TILE; r += 8 * PART) {
            const unsigned j = j0 + r;
            if (j >= i0 + 16 * SIDES)
                break; /* all keys come after this warp's queries */
            const lks_chunk *key = tiles + turn * 2 * CELLS + r * LKS_CHUNKS;
            const lks_chunk *value = key + CELLS;
            const uint32_t kept = DROP ? kept_keys_of_part(a, row0, i0, j) : 0;
            if (j + 8 * PART <= i0 + 1)
                add_keys<DROP, true>(a, kept, dq, query, grad, key, value, of, i0, j, scale);
            else
                add_keys<DROP, false>(a, kept, dq, query, grad, key, value, of, i0, j, scale);
        }
    }
    const float scales[2] = {a.scale, a.scale};
#pragma unroll
    for (int m = 0; m < SIDES; m++)
        lks_store_sums(a, a.grads.dq, a.grads.ldq, at.b, at.h, i0 + 16 * m, dq[m], scales);
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
    LAUNCH(attention_fwd_64, grid_of(a, a.shape.NH, LENGTH), stream, a);
}

void lks_attention_delta_64(cudaStream_t stream, const lks_attention &a)
{
    const size_t n = a.shape.B * a.shape.T * a.shape.NH;
    LKS_LAUNCH(attention_delta_64, dim3((unsigned)((n + DELTA_ROWS - 1) / DELTA_ROWS)),
               dim3(DELTA_THREADS), stream, a);
}

void lks_attention_bwd_keys_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_bwd_keys_64, grid_of(a, a.shape.NKV, LENGTH), stream, a);
}

void lks_attention_bwd_queries_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_bwd_queries_64, grid_of(a, a.shape.NH, LENGTH), stream, a);
}
