/* compute/cpu/products/gemm.c - C[m,n] = alpha * op(A) op(B) + beta * C, for machines without a
 * GEMM library; compute/cpu/reference/ref_gemm.c defines it.
 *
 * op(B) is copied in blocks of at most DEPTH x COLS, whose rows are whole vectors. Each element has
 * one accumulator for a block, which adds the terms in order of k; tiles only determine which
 * elements share loads, so they change no bit. ROWS * WIDTH accumulators, a row of the block and
 * one value of A fit in the registers of the level. */
#include <stdbool.h>

#include "compute/cpu/vector/vec_register.h"
#include "compute/cpu/vector/x86.h"

enum { WIDTH = LANES == 16 ? 4 : 2, COLS = WIDTH * LANES, ROWS = 6, DEPTH = 128 };

#define INLINE static inline __attribute__((always_inline))

/* Shared by all tiles of one block of op(B). */
struct block {
    const float *b; /* [depth, COLS] */
    size_t depth, cols;
    float alpha, beta;
};

/* block[p][j] = op(B)[p][j], followed by zeros after the last column. */
static void copy_block(float *block, char tb, const float *b, size_t ldb, size_t depth, size_t cols)
{
    for (size_t p = 0; p < depth; p++)
        for (size_t j = 0; j < COLS; j++)
            block[p * COLS + j] = j >= cols ? 0.0f : tb == 'T' ? b[j * ldb + p] : b[p * ldb + j];
}

/* rows x block->cols elements of C; called with a constant number of rows. A's element [r][p] is
 * a[r * row_step + p * step]. */
INLINE void tile(const struct block *block, const float *a, size_t row_step, size_t step, float *c,
                 size_t ldc, const size_t rows)
{
    vf sum[ROWS][WIDTH];
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < WIDTH; v++)
            sum[r][v] = v_zero();
    for (size_t p = 0; p < block->depth; p++) {
        vf b[WIDTH];
        for (size_t v = 0; v < WIDTH; v++)
            b[v] = v_load(block->b + p * COLS + v * LANES);
        for (size_t r = 0; r < rows; r++) {
            const vf x = v_set1(a[r * row_step + p * step]);
            for (size_t v = 0; v < WIDTH; v++)
                sum[r][v] = v_fma(x, b[v], sum[r][v]);
        }
    }
    for (size_t v = 0; v < WIDTH && v * LANES < block->cols; v++) {
        const vmask mask = v_mask(block->cols - v * LANES);
        for (size_t r = 0; r < rows; r++) {
            float *to = c + r * ldc + v * LANES;
            vf kept = v_zero(); /* with beta == 0, C isn't read: it may hold anything, even NaN */
            if (block->beta != 0.0f)
                kept = v_mul(v_set1(block->beta), v_load_mask(to, mask));
            v_store_mask(to, mask, v_fma(v_set1(block->alpha), sum[r][v], kept));
        }
    }
}

void VERSION(gemm)(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                   size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    float copy[DEPTH * COLS];
    const size_t row_step = ta == 'T' ? 1 : lda, step = ta == 'T' ? lda : 1;
    for (size_t j = 0; j < n; j += COLS) {
        for (size_t p = 0; p == 0 || p < k; p += DEPTH) {
            const struct block block = {.b = copy,
                                        .depth = k - p < DEPTH ? k - p : DEPTH,
                                        .cols = n - j < COLS ? n - j : COLS,
                                        .alpha = alpha,
                                        .beta = p == 0 ? beta : 1.0f};
            const float *from = a + p * step;
            size_t i = 0;
            copy_block(copy, tb, tb == 'T' ? b + j * ldb + p : b + p * ldb + j, ldb, block.depth,
                       block.cols);
            for (; i + ROWS <= m; i += ROWS)
                tile(&block, from + i * row_step, row_step, step, c + i * ldc + j, ldc, ROWS);
            for (; i < m; i++)
                tile(&block, from + i * row_step, row_step, step, c + i * ldc + j, ldc, 1);
        }
    }
}
