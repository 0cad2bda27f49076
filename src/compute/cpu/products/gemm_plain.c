/* compute/cpu/products/gemm_plain.c - the product that tests/kernels/reference/ref_gemm.c defines,
 * in plain C.
 *
 * op(B) is copied in tiles of at most DEPTH x COLS. */
#include "compute/cpu/kernels.h"
#include "compute/cpu/vector/fused.h"

enum { DEPTH = LKS__GEMM_DEPTH, COLS = 32, VECTORS = COLS / LKS__WIDE_LANES };

/* acc[j] = x * b[j] + acc[j], rounded once. */
static inline void multiply_add(lks__wides *acc, lks__wide x, const lks__wides *b, size_t vectors)
{
    const lks__wides all = x - (lks__wides){0};
    for (size_t j = 0; j < vectors; j++)
        acc[j] = lks__fused(all, b[j], acc[j]);
}

/* tile[p][j] = op(B)[p][j], followed by zeros. */
static void copy_tile(lks__wide (*tile)[COLS], char tb, const float *b, size_t ldb, size_t depth,
                      size_t cols)
{
    for (size_t p = 0; p < depth; p++)
        for (size_t j = 0; j < COLS; j++)
            tile[p][j] = j >= cols ? 0 : tb == 'T' ? b[j * ldb + p] : b[p * ldb + j];
}

/* A row of C from its block of `sum`. With beta == 0, C isn't read: it may hold anything. */
static void add_block(float *c, const lks__wide *sum, size_t cols, float alpha, float beta)
{
    for (size_t j = 0; j < cols; j++)
        if (beta == 0.0f)
            c[j] = alpha * (float)sum[j];
        else
            c[j] = beta * c[j] + alpha * (float)sum[j];
}

void lks__gemm_plain(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    lks__wides tile[DEPTH][VECTORS];
    const size_t row_step = ta == 'T' ? 1 : lda, step = ta == 'T' ? lda : 1;
    for (size_t p0 = 0; p0 == 0 || p0 < k; p0 += DEPTH)
        for (size_t j = 0; j < n; j += COLS) {
            const size_t depth = k - p0 < DEPTH ? k - p0 : DEPTH;
            const size_t cols = n - j < COLS ? n - j : COLS;
            const size_t vectors = (cols + LKS__WIDE_LANES - 1) / LKS__WIDE_LANES;
            copy_tile((lks__wide(*)[COLS])tile, tb, tb == 'T' ? b + j * ldb + p0 : b + p0 * ldb + j,
                      ldb, depth, cols);
            for (size_t i = 0; i < m; i++) {
                lks__wides sum[VECTORS] = {0};
                const float *x = a + i * row_step + p0 * step;
                for (size_t p = 0; p < depth; p++)
                    if (vectors == VECTORS) /* a number that the compiler knows */
                        multiply_add(sum, (lks__wide)x[p * step], tile[p], VECTORS);
                    else
                        multiply_add(sum, (lks__wide)x[p * step], tile[p], vectors);
                add_block(c + i * ldc + j, (const lks__wide *)sum, cols, alpha,
                          p0 == 0 ? beta : 1.0f);
            }
        }
}
