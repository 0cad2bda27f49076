/* compute/cpu/products/gemm_plain.c - C[m,n] = alpha * op(A) op(B) + beta * C, row-major, of
 * operands unchanged or rounded to bfloat16.
 *
 * compute/cpu/reference/ref_gemm.c defines it. op(B) is copied in tiles of at most KB x
 * NB, so that the inner loop reads consecutive elements with any transposes. Terms of one element
 * are added in order of k within a tile, tiles in order of k. */
#include <stdbool.h>

#include "compute/cpu/kernels.h"

enum { KB = 64, NB = 64 };

/* As at level avx2, whose bits are compared with this level's. */
const lks__tiles lks__gemm_tiles_plain = {.rows = 128,
                                          .tall_rows = 128,
                                          .cols = 512,
                                          .slow_columns = true,
                                          .panel = 64,
                                          .queries = 32,
                                          .far_queries = 64};
const lks__tiles lks__gemm_bf16_tiles_plain = {.rows = 128,
                                               .tall_rows = 256,
                                               .tall_from = 1024,
                                               .cols = 256,
                                               .panel = 128,
                                               .queries = 32,
                                               .far_queries = 64};

/* tile[p][j] = op(B)[p0 + p][j0 + j]. Zeros follow, so that the inner loop always has NB columns,
 * which compilers turn into vectors. */
static void copy_tile(float tile[KB][NB], char tb, const float *b, size_t ldb, size_t p0, size_t kb,
                      size_t j0, size_t nb, bool bf16)
{
    for (size_t p = 0; p < kb; p++) {
        for (size_t j = 0; j < nb; j++)
            tile[p][j] = tb == 'T' ? b[(j0 + j) * ldb + p0 + p] : b[(p0 + p) * ldb + j0 + j];
        for (size_t j = nb; j < NB; j++)
            tile[p][j] = 0;
        if (bf16)
            lks__round_bf16_plain(tile[p], tile[p], nb);
    }
}

/* row[p] = op(A)[i][p0 + p] */
static void copy_row(float row[KB], char ta, const float *a, size_t lda, size_t i, size_t p0,
                     size_t kb, bool bf16)
{
    for (size_t p = 0; p < kb; p++)
        row[p] = ta == 'T' ? a[(p0 + p) * lda + i] : a[i * lda + p0 + p];
    if (bf16)
        lks__round_bf16_plain(row, row, kb);
}

/* With beta == 0, C isn't read: it may hold anything, even NaN. */
static void scale_c(size_t m, size_t n, float beta, float *c, size_t ldc)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
}

static void multiply(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc,
                     bool bf16)
{
    float tile[KB][NB], row[KB];

    scale_c(m, n, beta, c, ldc);
    for (size_t j0 = 0; j0 < n; j0 += NB) {
        size_t nb = n - j0 < NB ? n - j0 : NB;
        for (size_t p0 = 0; p0 < k; p0 += KB) {
            size_t kb = k - p0 < KB ? k - p0 : KB;
            copy_tile(tile, tb, b, ldb, p0, kb, j0, nb, bf16);
            for (size_t i = 0; i < m; i++) {
                float acc[NB] = {0};
                copy_row(row, ta, a, lda, i, p0, kb, bf16);
                for (size_t p = 0; p < kb; p++)
                    for (size_t j = 0; j < NB; j++)
                        acc[j] += row[p] * tile[p][j];
                for (size_t j = 0; j < nb; j++)
                    c[i * ldc + j0 + j] += alpha * acc[j];
            }
        }
    }
}

void lks__gemm_plain(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    multiply(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, false);
}

void lks__gemm_bf16_plain(char ta, char tb, size_t m, size_t n, size_t k, float alpha,
                          const float *a, size_t lda, const float *b, size_t ldb, float beta,
                          float *c, size_t ldc, void *work)
{
    multiply(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, true);
}
