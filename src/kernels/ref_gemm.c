/* kernels/ref_gemm.c - C[m,n] = alpha * op(A) op(B) + beta * C, row-major.
 *
 * The definition of the operation and, at level ref, the GEMM that trains: op(B) is copied in tiles
 * of at most KB x NB, so that the inner loop runs over neighbours whatever the transposes are.
 * Terms of one element are added in order of k within a tile, tiles in order of k. */
#include <string.h>

#include "kernels/kernels.h"

enum { KB = 64, NB = 64 };

/* tile[p][j] = op(B)[p0 + p][j0 + j] */
static void copy_tile(lks__real tile[KB][NB], char tb, const lks__real *b, size_t ldb, size_t p0,
                      size_t kb, size_t j0, size_t nb)
{
    for (size_t p = 0; p < kb; p++)
        for (size_t j = 0; j < nb; j++)
            tile[p][j] = tb == 'T' ? b[(j0 + j) * ldb + p0 + p] : b[(p0 + p) * ldb + j0 + j];
}

/* beta == 0 doesn't read C: it may hold anything, NaN included. */
static void scale_c(size_t m, size_t n, lks__real beta, lks__real *c, size_t ldc)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
}

void lks__gemm_ref(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                   const lks__real *a, size_t lda, const lks__real *b, size_t ldb, lks__real beta,
                   lks__real *c, size_t ldc)
{
    lks__real tile[KB][NB];

    scale_c(m, n, beta, c, ldc);
    for (size_t j0 = 0; j0 < n; j0 += NB) {
        size_t nb = n - j0 < NB ? n - j0 : NB;
        for (size_t p0 = 0; p0 < k; p0 += KB) {
            size_t kb = k - p0 < KB ? k - p0 : KB;
            copy_tile(tile, tb, b, ldb, p0, kb, j0, nb);
            for (size_t i = 0; i < m; i++) {
                lks__real acc[NB] = {0};
                for (size_t p = 0; p < kb; p++) {
                    lks__real x = ta == 'T' ? a[(p0 + p) * lda + i] : a[i * lda + p0 + p];
                    for (size_t j = 0; j < nb; j++)
                        acc[j] += x * tile[p][j];
                }
                for (size_t j = 0; j < nb; j++)
                    c[i * ldc + j0 + j] += alpha * acc[j];
            }
        }
    }
}
