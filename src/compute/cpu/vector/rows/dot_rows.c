/* compute/cpu/vector/rows/dot_rows.c - products of a few rows; formulas in
 * tests/kernels/reference/ref_dot_rows.c.
 *
 * Each element has one accumulator, in which lane l adds the terms l, l + LANES, … in order. The
 * tiles only determine which elements share loads, so they change no bit. Their sizes fit in the
 * registers of the level. */
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec.h"

enum {
    MOST_ROWS = VECTORS == 32 ? 4 : 2,
    OUTS = VECTORS == 32 ? 6 : 3,       /* outputs of several rows */
    OUTS_ALONE = VECTORS == 32 ? 8 : 4, /* of one row: enough to hide the latency of an addition */
};

#define INLINE static inline __attribute__((always_inline))

INLINE vf operand(vf x, const bool bf16)
{
    return bf16 ? v_round_bf16(x) : x;
}

/* rows x outs elements; called with constants. */
INLINE void tile(float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t ldw,
                 size_t in, const size_t rows, const size_t outs, const bool bf16)
{
    vf sum[MOST_ROWS][OUTS_ALONE], xv[MOST_ROWS];
    size_t i = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < outs; o++)
            sum[r][o] = v_zero();
    for (; i + LANES <= in; i += LANES) {
        for (size_t r = 0; r < rows; r++)
            xv[r] = operand(v_load(x + r * ldx + i), bf16);
        for (size_t o = 0; o < outs; o++) {
            const vf wv = operand(v_load(w + o * ldw + i), bf16);
            for (size_t r = 0; r < rows; r++)
                sum[r][o] = v_fma(xv[r], wv, sum[r][o]);
        }
    }
    if (i < in) {
        const vmask mask = v_mask(in - i);
        for (size_t r = 0; r < rows; r++)
            xv[r] = operand(v_load_mask(x + r * ldx + i, mask), bf16);
        for (size_t o = 0; o < outs; o++) {
            const vf wv = operand(v_load_mask(w + o * ldw + i, mask), bf16);
            for (size_t r = 0; r < rows; r++)
                sum[r][o] = v_fma(xv[r], wv, sum[r][o]);
        }
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < outs; o++)
            y[r * ldy + o] = v_hsum(sum[r][o]);
}

/* All rows of `outs` outputs. */
INLINE void strip(float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t ldw,
                  size_t rows, size_t in, const size_t outs, const bool bf16)
{
    size_t r = 0;
    for (; r + MOST_ROWS <= rows; r += MOST_ROWS)
        tile(y + r * ldy, ldy, x + r * ldx, ldx, w, ldw, in, MOST_ROWS, outs, bf16);
    for (; r + 2 <= rows; r += 2)
        tile(y + r * ldy, ldy, x + r * ldx, ldx, w, ldw, in, 2, outs, bf16);
    if (r < rows)
        tile(y + r * ldy, ldy, x + r * ldx, ldx, w, ldw, in, 1, outs, bf16);
}

INLINE void dot_rows(float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t ldw,
                     size_t rows, size_t out, size_t in, const bool bf16)
{
    size_t o = 0;
    if (rows == 1)
        for (; o + OUTS_ALONE <= out; o += OUTS_ALONE)
            tile(y + o, ldy, x, ldx, w + o * ldw, ldw, in, 1, OUTS_ALONE, bf16);
    else
        for (; o + OUTS <= out; o += OUTS)
            strip(y + o, ldy, x, ldx, w + o * ldw, ldw, rows, in, OUTS, bf16);
    for (; o < out; o++)
        strip(y + o, ldy, x, ldx, w + o * ldw, ldw, rows, in, 1, bf16);
}

void VERSION(dot_rows)(float *y, size_t ldy, const float *x, size_t ldx, const float *w, size_t ldw,
                       size_t rows, size_t out, size_t in, bool bf16)
{
    if (bf16)
        dot_rows(y, ldy, x, ldx, w, ldw, rows, out, in, true);
    else
        dot_rows(y, ldy, x, ldx, w, ldw, rows, out, in, false);
}

void VERSION(weighted_sum)(float *y, const float *a, const float *x, size_t ldx, size_t rows,
                           size_t n)
{
    enum { STRIP = 4 };
    size_t j = 0;
    for (; j + STRIP * LANES <= n; j += STRIP * LANES) {
        vf sum[STRIP];
        for (int l = 0; l < STRIP; l++)
            sum[l] = v_zero();
        for (size_t i = 0; i < rows; i++) {
            const vf weight = v_set1(a[i]);
            for (int l = 0; l < STRIP; l++)
                sum[l] = v_fma(weight, v_load(x + i * ldx + j + LANES * l), sum[l]);
        }
        for (int l = 0; l < STRIP; l++)
            v_store(y + j + LANES * l, sum[l]);
    }
    for (; j < n; j += LANES) {
        const vmask mask = v_mask(n - j);
        vf sum = v_zero();
        for (size_t i = 0; i < rows; i++)
            sum = v_fma(v_set1(a[i]), v_load_mask(x + i * ldx + j, mask), sum);
        v_store_mask(y + j, mask, sum);
    }
}
