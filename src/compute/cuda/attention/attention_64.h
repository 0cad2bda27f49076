/* compute/cuda/attention/attention_64.h - tiles of bfloat16 in shared memory, a warp's sums, and
 * products of both on tensor cores, by a warp alone or by four together: for attention_64.cu. */
#ifndef LKS_COMPUTE_CUDA_ATTENTION_ATTENTION_64_H
#define LKS_COMPUTE_CUDA_ATTENTION_ATTENTION_64_H

#include "compute/cuda/attention/attention.h"
#include "compute/cuda/common/bf16.h"
#include "compute/cuda/common/ptx.h"
#include "compute/cuda/common/warpgroup.h"

enum {
    LKS_CHUNKS = LKS_TILE / 8,  /* of a tile's row: 8 numbers, which a thread moves as one */
    LKS_COLUMNS = LKS_TILE / 8, /* groups of 8 columns of a result */
    LKS_STEPS = LKS_TILE / 16,  /* of a product over a tile's columns */
};

/* The logarithms here are to base 2, as the GPU's instruction is. */
static const float LKS_LN_2 = 0.69314718055994530942f;

struct alignas(16) lks_chunk {
    uint32_t pair[4];
};

/* 64 rows of a head in shared memory; instructions of a warpgroup want this alignment. */
struct alignas(1024) lks_tile {
    lks_chunk at[LKS_TILE * LKS_CHUNKS];
};

/* Where a tile keeps a chunk of a row: eight rows' chunks of one number are in all of the 32 banks.
 */
static __device__ inline int lks_slot(int row, int number)
{
    return row * LKS_CHUNKS + (number ^ (row % LKS_CHUNKS));
}

/* A head of an operand. */
struct lks_operand {
    const lks_half *at;
    size_t ld;
};

static __device__ inline int lks_lane(void)
{
    return (int)threadIdx.x % 32;
}

/* A warp's sums: 16 rows of 8 N columns. This thread has columns 8 n + 2 (lane % 4) and the next
 * one of row lane / 4 in at[n][0] and at[n][1], and of the eighth row after it in at[n][2] and
 * at[n][3]. */
template <int N> struct lks_part {
    float at[N][4];
};
typedef lks_part<LKS_COLUMNS> lks_sums;

static __device__ inline int lks_sums_row(int which)
{
    return lks_lane() / 4 + which / 2 * 8;
}

static __device__ inline int lks_sums_column(int n, int which)
{
    return n * 8 + lks_lane() % 4 * 2 + which % 2;
}

/* The chunk of 16 rows that this lane names when its warp loads four matrices of 8 rows: a matrix's
 * neighbour is below it, then to the right, or else first to the right. For the next 16 columns,
 * flip bit 1 of it: rows begin at multiples of 8. */
static __device__ inline int lks_lane_slot(bool below_first)
{
    const int l = lks_lane(), low = l / 8 % 2, high = l / 16;
    return lks_slot((below_first ? low : high) * 8 + l % 8, below_first ? high : low);
}

/* Operands of one instruction. The left one: 16 rows of a tile from `row` on, a multiple of 8, in a
 * step of 16 columns. */
static __device__ inline void lks_load_left(uint32_t a[4], const lks_chunk *tile, int row, int step)
{
    lks_load_matrices(a, &tile[row * LKS_CHUNKS + (lks_lane_slot(true) ^ 2 * step)]);
}

/* The same 16 rows and columns of the left one, from sums, which are rounded. */
static __device__ inline void lks_left_of(uint32_t a[4], const float sums[][4], int step)
{
    const float *left = sums[2 * step], *right = sums[2 * step + 1];
    a[0] = lks_bf16_pair(left[0], left[1]);
    a[1] = lks_bf16_pair(left[2], left[3]);
    a[2] = lks_bf16_pair(right[0], right[1]);
    a[3] = lks_bf16_pair(right[2], right[3]);
}

/* Two right ones, b and b + 2, of a product with y^T: groups n and n + 1 of 8 rows of y, n even. */
static __device__ inline void lks_load_right(uint32_t b[4], const lks_chunk *y, int n, int step)
{
    lks_load_matrices(b, &y[n * 8 * LKS_CHUNKS + (lks_lane_slot(false) ^ 2 * step)]);
}

/* Two of a product with y, whose rows are summed over: groups n and n + 1 of 8 columns, n even. */
static __device__ inline void lks_load_right_of_rows(uint32_t b[4], const lks_chunk *y, int n,
                                                     int step)
{
    lks_load_transposed(b, &y[step * 16 * LKS_CHUNKS + (lks_lane_slot(true) ^ n)]);
}

/* A warp's rows in a product's operand layout, for each step. */
template <int SIDES> struct lks_rows {
    uint32_t at[LKS_STEPS][SIDES][4];
};

/* From row `row` on, SIDES times 16 of them. */
template <int SIDES>
static __device__ inline lks_rows<SIDES> lks_all_rows(const lks_tile *tiles, int row)
{
    lks_rows<SIDES> r;
#pragma unroll
    for (int k = 0; k < LKS_STEPS; k++)
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            lks_load_left(r.at[k][m], tiles->at, row + 16 * m, k);
    return r;
}

/* Products begin, and lks_wait_for() makes their sums readable. SIDES is 1 if four warps multiply
 * together (warpgroup.h): each has 16 rows. Otherwise a warp multiplies alone, for 16 SIDES. */

/* s += a y^T, of one step and 16 rows of y from row 8 n on; the first step begins the sums. */
template <int SIDES, int N>
static __device__ inline void lks_add_step(lks_part<N> s[SIDES], const uint32_t a[SIDES][4],
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
template <int SIDES, int N>
static __device__ inline void lks_multiply_x_yt(lks_part<N> s[SIDES], const lks_rows<SIDES> &x,
                                                const lks_chunk *y)
{
    if constexpr (SIDES == 1) {
        lks_group_begin();
#pragma unroll
        for (int step = 0; step < LKS_STEPS; step++)
            lks_group_step<false, N>(s->at, x.at[step][0], y, step, step > 0);
        lks_group_end();
    } else {
#pragma unroll
        for (int step = 0; step < LKS_STEPS; step++)
#pragma unroll
            for (int n = 0; n < N; n += 2)
                lks_add_step<SIDES>(s, x.at[step], y, n, step);
    }
}

/* The left operands of p, which is rounded. */
template <int SIDES, int N> struct lks_lefts {
    uint32_t at[N / 2][SIDES][4];
};

/* s[m] += p[m] y, for 8 N rows of y. p is rounded into `left`, which must stay until the end. */
template <int SIDES, int N>
static __device__ inline void lks_add_p_y(lks_sums s[SIDES], lks_lefts<SIDES, N> &left,
                                          const lks_part<N> p[SIDES], const lks_chunk *y)
{
#pragma unroll
    for (int step = 0; step < N / 2; step++)
#pragma unroll
        for (int m = 0; m < SIDES; m++)
            lks_left_of(left.at[step][m], p[m].at, step);
    if constexpr (SIDES == 1) {
        lks_group_begin();
#pragma unroll
        for (int step = 0; step < N / 2; step++)
            lks_group_step<true, LKS_COLUMNS>(s->at, left.at[step][0], y, step, true);
        lks_group_end();
    } else {
#pragma unroll
        for (int step = 0; step < N / 2; step++)
#pragma unroll
            for (int n = 0; n < LKS_COLUMNS; n += 2) {
                uint32_t b[4];
                lks_load_right_of_rows(b, y, n, step);
#pragma unroll
                for (int m = 0; m < SIDES; m++) {
                    lks_multiply_add(s[m].at[n], left.at[step][m], b);
                    lks_multiply_add(s[m].at[n + 1], left.at[step][m], b + 2);
                }
            }
    }
}

/* The sums are complete, and at most PENDING products that began later aren't. */
template <int PENDING, int SIDES, int N>
static __device__ inline void lks_wait_for(lks_part<N> s[SIDES])
{
    if constexpr (SIDES == 1)
        lks_group_wait<PENDING, N>(s->at);
}

/* Head h of sequence b in a matrix of B sequences. */
static __device__ inline lks_operand lks_head(const lks_attention &a, const lks__act *x, size_t ld,
                                              size_t b, size_t h)
{
    return {LKS_ACTS(const lks_half, x) + b * a.shape.T * ld + h * a.shape.hs, ld};
}

/* Over the 4 threads that share rows of sums. */
static __device__ inline float lks_row_max(float v)
{
    for (int m = 2; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

static __device__ inline float lks_row_sum(float v)
{
    for (int m = 2; m > 0; m /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* Rows row0 on, 16 of them, of head `h` of a matrix = factor[row / 8] * s. */
static __device__ inline void lks_store_sums(const lks_attention &a, lks__act *out, size_t ld,
                                             size_t b, size_t h, unsigned row0, const lks_sums &s,
                                             const float factor[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const size_t t = row0 + lks_sums_row(2 * r);
        if (t >= a.shape.T)
            continue;
        lks_half *row = LKS_ACTS(lks_half, out) + (b * a.shape.T + t) * ld + h * LKS_TILE;
#pragma unroll
        for (int n = 0; n < LKS_COLUMNS; n++)
            lks_store<2>(row + lks_sums_column(n, 0),
                         {{factor[r] * s.at[n][2 * r], factor[r] * s.at[n][2 * r + 1]}});
    }
}

/* Number of the row of scores of the head's first query. 32 bits save registers: a GPU's memory
 * hasn't so many heads of 64 elements. */
static __device__ inline unsigned lks_first_row(const lks_attention &a, unsigned b, unsigned h)
{
    return (b * (unsigned)a.shape.NH + h) * (unsigned)a.shape.T;
}

/* attention.cu has the formulas. A block's data per query of its tile or its loop: */
struct lks_of_query {
    float lse, delta; /* lse to base 2; beyond T the probabilities are 0 */
};

static __device__ inline lks_of_query lks_query_of(const lks_attention &a, unsigned row0,
                                                   unsigned i)
{
    if (i >= a.shape.T)
        return {INFINITY, 0.0f};
    return {LKS_LOG2_E * a.f_lse[row0 + i], a.delta[row0 + i]};
}

#endif
