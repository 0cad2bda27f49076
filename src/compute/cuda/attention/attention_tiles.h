/* compute/cuda/attention/attention_tiles.h - tiles in shared memory and products of them, for
 * attention.cu: the tiles that a block has, and how its threads load, multiply and store them. */
#ifndef LKS_COMPUTE_CUDA_ATTENTION_ATTENTION_TILES_H
#define LKS_COMPUTE_CUDA_ATTENTION_ATTENTION_TILES_H

#include "compute/cuda/attention/attention.h"

enum {
    TILE = LKS_TILE,
    FOURS = TILE / 4, /* of a tile's row */
    SIDE = 4,         /* of a thread's square */
    THREADS = TILE / SIDE * TILE / SIDE,
    MAX_PIECES = 2, /* of a head, in one block's registers */
};

/* --- tiles ----------------------------------------------------------------------------------- */

typedef lks_floats<4> four;

/* Where a tile stores the four with that number of a row. Threads of a quarter of a warp that read
 * the same four of rows 0, 4, 8, … or different fours of one row read all of the 32 banks once. */
__device__ static int slot(int row, int number)
{
    return row * FOURS + (number ^ (row / SIDE % FOURS));
}

/* A matrix from which tiles are loaded; elements outside it count as 0. */
template <typename E> struct matrix {
    const E *at;
    unsigned ld, rows, columns; /* in 32 bits, which saves registers */
    bool fours;                 /* rows can be moved by fours */
};

/* Load the tile that begins at row r0 and column c0. */
template <typename E>
__device__ static void load_tile(four *tile, const matrix<E> &m, unsigned r0, unsigned c0)
{
    for (unsigned i = threadIdx.x; i < TILE * FOURS; i += THREADS) {
        const unsigned row = r0 + i / FOURS, column = c0 + i % FOURS * 4;
        const E *from = m.at + (size_t)row * m.ld + column;
        four v = {};
        if (row < m.rows && m.fours && column < m.columns)
            v = lks_load<4>(from);
        for (unsigned k = 0; k < 4 && row < m.rows && !m.fours; k++)
            v.at[k] = column + k < m.columns ? lks_element(from + k) : 0.0f;
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

/* s += a b, or with TURNED s += a b^T, over the first n fours of a's rows. */
template <bool TURNED>
__device__ static void add_a_b(square &s, const four *a, const four *b, int n)
{
    for (int d = 0; d < n; d++) {
        four ra[SIDE], rb[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            ra[i] = a[slot(square_y() * SIDE + i, d)];
            rb[i] = TURNED ? b[slot(square_x() * SIDE + i, d)] : b[slot(d * 4 + i, square_x())];
        }
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    s.at[i][j] = fmaf(ra[i].at[k], TURNED ? rb[j].at[k] : rb[k].at[j], s.at[i][j]);
    }
}

/* s += a^T b, over the first n rows of both tiles. */
__device__ static void add_at_b(square &s, const four *a, const four *b, int n)
{
    for (int r = 0; r < n; r++) {
        const four ra = a[slot(r, square_y())], rb = b[slot(r, square_x())];
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++)
                s.at[i][j] = fmaf(ra.at[i], rb.at[j], s.at[i][j]);
    }
}

/* An operand of the next product, as elements E hold it. */
template <typename E> __device__ static void put_square(four *tile, const square &s)
{
    for (int i = 0; i < SIDE; i++) {
        four v;
        for (int j = 0; j < SIDE; j++)
            v.at[j] = lks_as_stored((const E *)NULL, s.at[i][j]);
        tile[slot(square_y() * SIDE + i, square_x())] = v;
    }
}

/* Rows r0 + 4 y to r0 + 4 y + 3 of head h of a matrix, from column c0 + 4 x on = factor[row] * s.
 */
template <typename E>
__device__ static void store_square(const lks_attention &a, lks__act *x, size_t ld, size_t b,
                                    size_t h, size_t r0, size_t c0, const square &s,
                                    const float *factor)
{
    const size_t column = c0 + square_x() * SIDE;
    E *to = LKS_ACTS(E, x) + b * a.shape.T * ld + h * a.shape.hs + column;
    for (int i = 0; i < SIDE; i++) {
        const size_t row = r0 + square_y() * SIDE + i;
        four v;
        for (int j = 0; j < SIDE; j++)
            v.at[j] = s.at[i][j] * factor[i];
        if (row < a.shape.T && a.wide && column < a.shape.hs)
            lks_store<4>(to + row * ld, v);
        for (int j = 0; j < SIDE && row < a.shape.T && !a.wide; j++)
            if (column + j < a.shape.hs)
                lks_put(to + row * ld + j, v.at[j]);
    }
}

/* The least multiple-of-4 part of a tile that holds `left` elements, in fours. */
__device__ static int fours_of(unsigned left)
{
    return left < TILE ? (int)((left + 3) / 4) : (int)FOURS;
}

/* --- where a block works --------------------------------------------------------------------- */

/* The part of a call that one block computes. */
struct place {
    size_t b, h;    /* sequence; head of the queries, or of keys and values */
    unsigned t0;    /* first token of its tile */
    unsigned piece; /* first of the pieces of the head of which it makes the output */
};

/* Blocks with the most work begin first: `last_first` if those are the tiles at the end. */
__device__ static place place_of(const lks_attention &a, size_t heads, int pieces, bool last_first)
{
    const size_t tiles = (a.shape.T + TILE - 1) / TILE, all = a.shape.B * heads;
    const size_t parts = (a.shape.hs + TILE * pieces - 1) / (TILE * pieces);
    const size_t task = blockIdx.x / parts, tile = task / all;
    place p;
    p.b = task % all / heads;
    p.h = task % heads;
    p.t0 = (unsigned)(last_first ? tiles - 1 - tile : tile) * TILE;
    p.piece = (unsigned)(blockIdx.x % parts) * pieces;
    return p;
}

/* Head h of sequence b in a matrix of B sequences. */
template <typename E>
__device__ static matrix<E> head(const lks_attention &a, const lks__act *x, size_t ld, size_t b,
                                 size_t h)
{
    return {LKS_ACTS(const E, x) + b * a.shape.T * ld + h * a.shape.hs, (unsigned)ld,
            (unsigned)a.shape.T, (unsigned)a.shape.hs, a.wide};
}

/* s = q k^T / sqrt(hs), or any other product of two heads' tiles. The last pieces stay in the tiles
 * x and y. `kept`: x holds its only piece already. */
template <typename E>
__device__ static square scores(four *x, const matrix<E> &m, unsigned m0, bool kept, four *y,
                                const matrix<E> &n, unsigned n0, float scale)
{
    square s = {};
    for (unsigned c0 = 0; c0 < m.columns; c0 += TILE) {
        __syncthreads();
        if (!kept)
            load_tile(x, m, m0, c0);
        load_tile(y, n, n0, c0);
        __syncthreads();
        add_a_b<true>(s, x, y, fours_of(m.columns - c0));
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            s.at[i][j] *= scale;
    return s;
}

#endif
