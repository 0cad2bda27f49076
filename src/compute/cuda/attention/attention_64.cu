/* compute/cuda/attention/attention_64.cu - causal attention on tensor cores, for heads of 64
 * elements in bfloat16, as in GPT-2 and parameter-golf.
 *
 * Like attention.cu, but a warp computes a product of two tiles, and adds in float32. All sizes are
 * constants, and the next tiles are loaded while a warp computes. Probabilities pass from one
 * product to the next in registers, since the sums of one have the layout of the other's operands.
 * Operands that a warp uses again in each tile stay in registers.
 *
 * On GPUs with these instructions, a block's four warps multiply together (TOGETHER, warpgroup.h),
 * and the block processes 64 queries or keys. On others, each warp multiplies [16, 16] by [16, 8].
 * There a block processes 128, because each load from shared memory then serves two products. */
#include "compute/cuda/attention/attention_64.h"

enum {
    TILE = LKS_TILE,
    WARPS = 4,
    THREADS = WARPS * 32,
    AT_ONCE = 64, /* most heads: 16 MiB of keys and values of 1,024 tokens */
};

template <bool TOGETHER> struct sizes {
    enum {
        SIDES = TOGETHER ? 1 : 2,                /* of a warp's rows, 16 each */
        LENGTH = TILE * SIDES,                   /* rows of a block */
        UNIT = TOGETHER ? TILE : LENGTH / WARPS, /* rows that take the same branches */
        /* Groups of 8 columns that the backward pass computes at once. */
        KEYS_PART = TOGETHER ? 4 : 2,
        QUERIES_PART = TOGETHER ? 8 : 2,
        /* Blocks per processor of the GPU, at least. */
        FWD_BLOCKS = TOGETHER ? 4 : 2,
        BWD_BLOCKS = TOGETHER ? 3 : 2,
    };
};

/* --- tiles ----------------------------------------------------------------------------------- */

/* Begin to copy 64 rows from r0 on. Rows beyond T become zeros. */
__device__ static void begin_tile(lks_tile &tile, const lks_operand &m, unsigned r0, unsigned T)
{
    const unsigned number = threadIdx.x % LKS_CHUNKS, first = threadIdx.x / LKS_CHUNKS;
#pragma unroll
    for (unsigned k = 0; k < TILE; k += THREADS / LKS_CHUNKS) {
        const bool inside = r0 + first + k < T;
        const lks_half *row = m.at + (inside ? (size_t)(r0 + first + k) * m.ld : 0);
        lks_copy_16(&tile.at[lks_slot((int)(first + k), (int)number)], row + number * 8, inside);
    }
}

/* Wait until all have the tiles whose copies this thread has begun, and are done with the last. */
template <bool TOGETHER> __device__ static void wait_tiles(void)
{
    lks_wait_copies();
    if (TOGETHER)
        lks_group_show();
    __syncthreads();
}

/* A warp's rows, from `own` on, of two matrices; t0: the block's first row. The four tiles are free
 * again afterwards. */
template <int SIDES>
__device__ static void own_rows(lks_rows<SIDES> &x, lks_rows<SIDES> &y, lks_tile *tiles,
                                const lks_operand &mx, const lks_operand &my, unsigned t0,
                                unsigned T, int own)
{
    for (int m = 0; m < SIDES; m++) {
        begin_tile(tiles[m], mx, t0 + m * TILE, T);
        begin_tile(tiles[SIDES + m], my, t0 + m * TILE, T);
    }
    wait_tiles<SIDES == 1>();
    x = lks_all_rows<SIDES>(tiles, own);
    y = lks_all_rows<SIDES>(tiles + SIDES, own);
    __syncthreads(); /* all have their rows */
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
    const unsigned all = (unsigned)a.shape.B * heads, groups = (all + AT_ONCE - 1) / AT_ONCE;
    const unsigned group = (all + groups - 1) / groups;
    const unsigned first = blockIdx.x / (group * tiles) * group;
    const unsigned n = all - first < group ? all - first : group;
    const unsigned task = blockIdx.x - first * tiles, tile = task / n, head = first + task % n;
    return {head / heads, head % heads, (last_first ? tiles - 1 - tile : tile) * length};
}

/* --- dropout --------------------------------------------------------------------------------- */

/* Four keys of a query share a call of the generator. So lanes that hold scores of the same four
 * share the calls, and then the bits. */

/* The scores of 16 queries from i0 on with keys from j0 on that dropout keeps: bit 4 n + k for
 * at[n][k] of their sums. As bits, and before the products, they take few registers. All lanes take
 * part. */
__device__ static uint32_t kept_keys(const lks_attention &a, unsigned row0, unsigned i0,
                                     unsigned j0, int columns = LKS_COLUMNS)
{
    const int half = lks_lane() % 2; /* of the four keys; and of the rows, for which it calls */
    const unsigned i = i0 + lks_sums_row(2 * half);
    uint32_t kept = 0;
#pragma unroll 1
    for (int n = 0; n < columns; n++) {
        const unsigned j = j0 + n * 8 + lks_lane() % 4 / 2 * 4;
        uint32_t bits = j <= i ? lks_kept(a, row0 + i, j) << 4 * half : 0; /* 0: no key counts */
        bits |= __shfl_xor_sync(0xffffffffu, bits, 1);
        bits >>= 2 * half;
        kept |= ((bits & 3) | (bits >> 4 & 3) << 2) << 4 * n;
    }
    return kept;
}

/* The bit for number at[n][k] of a warp's rows 16 m on, in a part of `columns` groups of columns.
 */
__device__ static int bit_of(int columns, int m, int n, int k)
{
    return (m * columns + n) * 4 + k;
}

/* Those of all of a warp's queries with the keys of a part. */
template <int SIDES, int PART>
__device__ static uint32_t kept_keys_of_part(const lks_attention &a, unsigned row0, unsigned i0,
                                             unsigned j0)
{
    uint32_t kept = 0;
    for (int m = 0; m < SIDES; m++)
        kept |= kept_keys(a, row0, i0 + 16 * m, j0, PART) << bit_of(PART, m, 0, 0);
    return kept;
}

/* The same for sums whose rows are keys. */
template <int SIDES, int PART>
__device__ static uint32_t kept_queries(const lks_attention &a, unsigned row0, unsigned i0,
                                        unsigned j0)
{
    const int key = lks_lane() / 4 % 4; /* of the four; and the score of at[n] for which it calls */
    uint32_t kept = 0;
#pragma unroll 1
    for (int n = 0; n < PART; n++)
#pragma unroll 1
        for (int m = 0; m < SIDES; m++) {
            const unsigned i = i0 + lks_sums_column(n, key);
            const unsigned j = j0 + 16 * m + lks_sums_row(key) / 4 * 4;
            uint32_t bits = j <= i ? lks_kept(a, row0 + i, j) << 4 * key : 0;
            bits |= __shfl_xor_sync(0xffffffffu, bits, 4);
            bits |= __shfl_xor_sync(0xffffffffu, bits, 8);
#pragma unroll
            for (int k = 0; k < 4; k++)
                kept |= (bits >> (4 * k + key) & 1) << bit_of(PART, m, n, k);
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
template <int SIDES> struct forward {
    softmax w[SIDES];
    lks_sums out[SIDES];
};

/* For queries from i0 on, in `query` from row `own` on, or in `mine`, and keys from j0 on. ALL:
 * every key counts for every query. */
template <bool DROP, bool ALL, int SIDES>
__device__ static void add_tile(const lks_attention &a, const uint32_t kept[SIDES],
                                forward<SIDES> &f, const lks_tile *query,
                                const lks_rows<SIDES> &mine, int own, const lks_tile &key,
                                const lks_tile &value, unsigned i0, unsigned j0, float scale)
{
    lks_sums s[SIDES];
    if constexpr (SIDES == 1) {
        lks_multiply_x_yt<SIDES>(s, mine, key.at);
    } else { /* both sides' would take too many registers */
#pragma unroll
        for (int step = 0; step < LKS_STEPS; step++) {
            uint32_t x[SIDES][4];
#pragma unroll
            for (int m = 0; m < SIDES; m++)
                lks_load_left(x[m], query->at, own + 16 * m, step);
#pragma unroll
            for (int n = 0; n < LKS_COLUMNS; n += 2)
                lks_add_step<SIDES>(s, x, key.at, n, step);
        }
    }
    lks_wait_for<0, SIDES>(s);
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
    lks_lefts<SIDES, LKS_COLUMNS> left;
    lks_add_p_y<SIDES>(f.out, left, s, value.at);
    lks_wait_for<0, SIDES>(f.out);
}

template <bool DROP, bool TOGETHER>
static __global__ void __launch_bounds__(THREADS, sizes<TOGETHER>::FWD_BLOCKS)
    attention_fwd_64(const lks_attention a)
{
    enum { SIDES = sizes<TOGETHER>::SIDES, UNIT = sizes<TOGETHER>::UNIT };
    enum { LENGTH = sizes<TOGETHER>::LENGTH };
    LKS_SHARED(lks_tile, query, SIDES);
    LKS_SHARED(lks_tile, keys, 2);
    LKS_SHARED(lks_tile, values, 2);
    if (TOGETHER && !LKS_GROUPS)
        return;
    const place at = place_of(a, a.shape.NH, LENGTH, true);
    const unsigned T = (unsigned)a.shape.T;
    const lks_operand q = lks_head(a, a.in.q, a.in.ldq, at.b, at.h);
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned i0 = at.t0 + own, end = at.t0 + LENGTH < T ? at.t0 + LENGTH : T;
    const unsigned unit = at.t0 + own / UNIT * UNIT;
    const unsigned row0 = lks_first_row(a, at.b, at.h);
    const float scale = a.scale * LKS_LOG2_E;
    forward<SIDES> f = {};
#pragma unroll
    for (int m = 0; m < SIDES; m++)
        f.w[m].max[0] = f.w[m].max[1] = -INFINITY;
    for (int m = 0; m < SIDES; m++)
        begin_tile(query[m], q, at.t0 + m * TILE, T);
    begin_tile(keys[0], k, 0, T);
    begin_tile(values[0], v, 0, T);
    lks_rows<SIDES> mine;
    if (TOGETHER) {
        wait_tiles<TOGETHER>();
        mine = lks_all_rows<SIDES>(query, own);
    }
    int turn = 0; /* of the two places of tiles */
#pragma unroll 1
    for (unsigned j0 = 0; j0 < end; j0 += TILE, turn = 1 - turn) {
        uint32_t kept[SIDES];
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            kept[m] = DROP ? kept_keys(a, row0, i0 + 16 * m, j0) : 0;
        wait_tiles<TOGETHER>();
        if (j0 + TILE < end) {
            begin_tile(keys[1 - turn], k, j0 + TILE, T);
            begin_tile(values[1 - turn], v, j0 + TILE, T);
        }
        if (j0 + TILE <= unit + 1)
            add_tile<DROP, true, SIDES>(a, kept, f, query, mine, own, keys[turn], values[turn], i0,
                                        j0, scale);
        else if (j0 < unit + UNIT) /* else all keys come after these queries */
            add_tile<DROP, false, SIDES>(a, kept, f, query, mine, own, keys[turn], values[turn], i0,
                                         j0, scale);
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

/* For 8 PART queries from i0 on, which begin in `query` and `grad`, and this warp's keys from j0
 * on. ALL: every key counts for every query. */
template <bool DROP, bool ALL, int SIDES, int PART>
__device__ static void
add_queries(const lks_attention &a, uint32_t kept, lks_sums dk[SIDES], lks_sums dv[SIDES],
            const lks_rows<SIDES> &key, const lks_rows<SIDES> &value, const lks_chunk *query,
            const lks_chunk *grad, const lks_of_query *of, unsigned i0, unsigned j0, float scale)
{
    lks_part<PART> s[SIDES], d[SIDES];
    lks_multiply_x_yt<SIDES>(s, key, query);
    lks_multiply_x_yt<SIDES>(d, value, grad);
    lks_wait_for<1, SIDES>(s);
#pragma unroll
    for (int n = 0; n < PART; n++)
#pragma unroll
        for (int m = 0; m < SIDES; m++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + lks_sums_column(n, k), j = j0 + 16 * m + lks_sums_row(k);
                const float p =
                    lks_exp2(fmaf(s[m].at[n][k], scale, -of[lks_sums_column(n, k)].lse));
                s[m].at[n][k] = ALL || j <= i ? p : 0.0f;
            }
    lks_wait_for<0, SIDES>(d);
#pragma unroll
    for (int n = 0; n < PART; n++)
#pragma unroll
        for (int m = 0; m < SIDES; m++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + lks_sums_column(n, k), j = j0 + 16 * m + lks_sums_row(k);
                const float mask = DROP ? lks_factor(a, kept, bit_of(PART, m, n, k)) : 1.0f;
                const float delta = of[lks_sums_column(n, k)].delta, p = s[m].at[n][k];
                d[m].at[n][k] = ALL || j <= i ? p * (mask * d[m].at[n][k] - delta) : 0.0f;
                s[m].at[n][k] = mask * p;
            }
    lks_lefts<SIDES, PART> p_left, d_left;
    lks_add_p_y<SIDES>(dv, p_left, s, grad);
    lks_add_p_y<SIDES>(dk, d_left, d, query);
    lks_wait_for<0, SIDES>(dv);
    lks_wait_for<0, SIDES>(dk);
}

/* Rows of products are keys here, so that P and dS are in the layout that the next products
 * need. */
template <bool DROP, bool TOGETHER>
static __global__ void __launch_bounds__(THREADS, sizes<TOGETHER>::BWD_BLOCKS)
    attention_bwd_keys_64(const lks_attention a)
{
    enum { SIDES = sizes<TOGETHER>::SIDES, UNIT = sizes<TOGETHER>::UNIT };
    enum { LENGTH = sizes<TOGETHER>::LENGTH, PART = sizes<TOGETHER>::KEYS_PART };
    LKS_SHARED(lks_tile, tiles, 4); /* queries, gradients, and the next ones */
    LKS_SHARED(lks_of_query, ofs, 2 * TILE);
    if (TOGETHER && !LKS_GROUPS)
        return;
    const place at = place_of(a, a.shape.NKV, LENGTH, false);
    const unsigned T = (unsigned)a.shape.T;
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned j0 = at.t0 + own, unit = at.t0 + own / UNIT * UNIT;
    const float scale = a.scale * LKS_LOG2_E;
    lks_rows<SIDES> key, value;
    own_rows(key, value, tiles, lks_head(a, a.in.k, a.in.ldkv, at.b, at.h),
             lks_head(a, a.in.v, a.in.ldkv, at.b, at.h), at.t0, T, own);
    lks_sums dk[SIDES] = {}, dv[SIDES] = {};
    int turn = 0;
    const unsigned first = at.h * (unsigned)a.group, end = first + (unsigned)a.group;
    begin_tile(tiles[0], lks_head(a, a.in.q, a.in.ldq, at.b, first), at.t0, T);
    begin_tile(tiles[1], lks_head(a, a.dout, a.c, at.b, first), at.t0, T);
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
            wait_tiles<TOGETHER>();
            if (more) {
                lks_tile *to = tiles + next * 2;
                begin_tile(to[0], lks_head(a, a.in.q, a.in.ldq, at.b, next_h), next_i, T);
                begin_tile(to[1], lks_head(a, a.dout, a.c, at.b, next_h), next_i, T);
                if (threadIdx.x < TILE)
                    mine = lks_query_of(a, lks_first_row(a, at.b, next_h), next_i + threadIdx.x);
            }
#pragma unroll 1
            for (int r = 0; r < TILE; r += 8 * PART) {
                const unsigned i = i0 + r;
                if (i + 8 * PART <= unit)
                    continue; /* all queries come before these keys */
                const lks_chunk *query = tiles[turn * 2].at + r * LKS_CHUNKS;
                const lks_chunk *grad = tiles[turn * 2 + 1].at + r * LKS_CHUNKS;
                const lks_of_query *of = ofs + turn * TILE + r;
                const uint32_t kept =
                    DROP ? kept_queries<SIDES, PART>(a, lks_first_row(a, at.b, h), i, j0) : 0;
                if (i + 1 >= unit + UNIT)
                    add_queries<DROP, true, SIDES, PART>(a, kept, dk, dv, key, value, query, grad,
                                                         of, i, j0, scale);
                else
                    add_queries<DROP, false, SIDES, PART>(a, kept, dk, dv, key, value, query, grad,
                                                          of, i, j0, scale);
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
template <bool DROP, bool ALL, int SIDES, int PART>
__device__ static void
add_keys(const lks_attention &a, uint32_t kept, lks_sums dq[SIDES], const lks_rows<SIDES> &query,
         const lks_rows<SIDES> &grad, const lks_chunk *key, const lks_chunk *value,
         const lks_of_query of[SIDES][2], unsigned i0, unsigned j0, float scale)
{
    lks_part<PART> s[SIDES], d[SIDES];
    lks_multiply_x_yt<SIDES>(s, query, key);
    lks_multiply_x_yt<SIDES>(d, grad, value);
    lks_wait_for<1, SIDES>(s);
#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int n = 0; n < PART; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + 16 * m + lks_sums_row(k), j = j0 + lks_sums_column(n, k);
                const float p = lks_exp2(fmaf(s[m].at[n][k], scale, -of[m][k / 2].lse));
                s[m].at[n][k] = ALL || j <= i ? p : 0.0f;
            }
    lks_wait_for<0, SIDES>(d);
#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int n = 0; n < PART; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const unsigned i = i0 + 16 * m + lks_sums_row(k), j = j0 + lks_sums_column(n, k);
                const float mask = DROP ? lks_factor(a, kept, bit_of(PART, m, n, k)) : 1.0f;
                const float delta = of[m][k / 2].delta, p = s[m].at[n][k];
                d[m].at[n][k] = ALL || j <= i ? p * (mask * d[m].at[n][k] - delta) : 0.0f;
            }
    lks_lefts<SIDES, PART> left;
    lks_add_p_y<SIDES>(dq, left, d, key);
    lks_wait_for<0, SIDES>(dq);
}

template <bool DROP, bool TOGETHER>
static __global__ void __launch_bounds__(THREADS, sizes<TOGETHER>::BWD_BLOCKS)
    attention_bwd_queries_64(const lks_attention a)
{
    enum { SIDES = sizes<TOGETHER>::SIDES, UNIT = sizes<TOGETHER>::UNIT };
    enum { LENGTH = sizes<TOGETHER>::LENGTH, PART = sizes<TOGETHER>::QUERIES_PART };
    LKS_SHARED(lks_tile, tiles, 4); /* keys, values, and the next ones */
    if (TOGETHER && !LKS_GROUPS)
        return;
    const place at = place_of(a, a.shape.NH, LENGTH, true);
    const unsigned T = (unsigned)a.shape.T;
    const lks_operand k = lks_head(a, a.in.k, a.in.ldkv, at.b, at.h / a.group);
    const lks_operand v = lks_head(a, a.in.v, a.in.ldkv, at.b, at.h / a.group);
    const int own = (int)threadIdx.x / 32 * 16 * SIDES; /* first of this warp's rows */
    const unsigned i0 = at.t0 + own, end = at.t0 + LENGTH < T ? at.t0 + LENGTH : T;
    const unsigned unit = at.t0 + own / UNIT * UNIT;
    const float scale = a.scale * LKS_LOG2_E;
    const unsigned row0 = lks_first_row(a, at.b, at.h);
    lks_of_query of[SIDES][2];
#pragma unroll
    for (int m = 0; m < SIDES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            of[m][r] = lks_query_of(a, row0, i0 + 16 * m + lks_sums_row(2 * r));
    lks_rows<SIDES> query, grad;
    own_rows(query, grad, tiles, lks_head(a, a.in.q, a.in.ldq, at.b, at.h),
             lks_head(a, a.dout, a.c, at.b, at.h), at.t0, T, own);
    lks_sums dq[SIDES] = {};
    int turn = 0;
    begin_tile(tiles[0], k, 0, T);
    begin_tile(tiles[1], v, 0, T);
#pragma unroll 1
    for (unsigned j0 = 0; j0 < end; j0 += TILE, turn = 1 - turn) {
        wait_tiles<TOGETHER>();
        if (j0 + TILE < end) {
            begin_tile(tiles[(1 - turn) * 2], k, j0 + TILE, T);
            begin_tile(tiles[(1 - turn) * 2 + 1], v, j0 + TILE, T);
        }
#pragma unroll 1
        for (int r = 0; r < TILE; r += 8 * PART) {
            const unsigned j = j0 + r;
            if (j >= unit + UNIT)
                break; /* all keys come after these queries */
            const lks_chunk *key = tiles[turn * 2].at + r * LKS_CHUNKS;
            const lks_chunk *value = tiles[turn * 2 + 1].at + r * LKS_CHUNKS;
            const uint32_t kept = DROP ? kept_keys_of_part<SIDES, PART>(a, row0, i0, j) : 0;
            if (j + 8 * PART <= unit + 1)
                add_keys<DROP, true, SIDES, PART>(a, kept, dq, query, grad, key, value, of, i0, j,
                                                  scale);
            else
                add_keys<DROP, false, SIDES, PART>(a, kept, dq, query, grad, key, value, of, i0, j,
                                                   scale);
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

static dim3 grid_of(const lks_attention &a, size_t heads)
{
    const size_t length = a.together ? (size_t)sizes<true>::LENGTH : (size_t)sizes<false>::LENGTH;
    return dim3((unsigned)((a.shape.T + length - 1) / length * a.shape.B * heads));
}

/* Put the kernel for this call, of `heads`, on the stream. */
#define LAUNCH(kernel, stream, a, heads)                                                           \
    do {                                                                                           \
        const bool drops = (a).drop.threshold != 0;                                                \
        if ((a).together && drops)                                                                 \
            LAUNCH_ONE(kernel, true, true, stream, a, heads);                                      \
        else if ((a).together)                                                                     \
            LAUNCH_ONE(kernel, false, true, stream, a, heads);                                     \
        else if (drops)                                                                            \
            LAUNCH_ONE(kernel, true, false, stream, a, heads);                                     \
        else                                                                                       \
            LAUNCH_ONE(kernel, false, false, stream, a, heads);                                    \
    } while (0)
#define LAUNCH_ONE(kernel, drops, together, stream, a, heads)                                      \
    LKS_LAUNCH_NAMED(#kernel "<" #drops ", " #together ">", (kernel<drops, together>),             \
                     grid_of(a, heads), dim3(THREADS), stream, a)

void lks_attention_fwd_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_fwd_64, stream, a, a.shape.NH);
}

void lks_attention_delta_64(cudaStream_t stream, const lks_attention &a)
{
    const size_t n = a.shape.B * a.shape.T * a.shape.NH;
    LKS_LAUNCH(attention_delta_64, dim3((unsigned)((n + DELTA_ROWS - 1) / DELTA_ROWS)),
               dim3(DELTA_THREADS), stream, a);
}

void lks_attention_bwd_keys_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_bwd_keys_64, stream, a, a.shape.NKV);
}

void lks_attention_bwd_queries_64(cudaStream_t stream, const lks_attention &a)
{
    LAUNCH(attention_bwd_queries_64, stream, a, a.shape.NH);
}
