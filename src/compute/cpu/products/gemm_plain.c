/* compute/cpu/products/gemm_plain.c - the product that reference/ref_gemm.c defines, in plain C.
 *
 * op(B) is copied in tiles of at most DEPTH x COLS doubles. */
#include "compute/cpu/kernels.h"

enum { DEPTH = LKS__GEMM_DEPTH, COLS = 32 };

/* Vectors of the compiler. */
enum { LANES = 2 };
typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double)), may_alias));
typedef int64_t words __attribute__((vector_size(LANES * sizeof(int64_t))));

/* acc[j] = x * b[j] + acc[j], as floats, rounded once, on processors without such an instruction.
 * The product of two floats is exact in double. If its sum with acc isn't, the neighbour of the sum
 * with an odd last bit replaces it on the side of the true value. A double has more than twice the
 * bits of a float, so the conversion then rounds as if it saw the true value. */
static void multiply_add(doubles acc[COLS / LANES], double x, const doubles b[COLS / LANES])
{
    for (size_t j = 0; j < COLS / LANES; j++) {
        const doubles product = x * b[j], sum = product + acc[j], added = sum - product;
        const doubles error = (product - (sum - added)) + (acc[j] - added);
        const words away = ((error > 0.0) ^ (sum > 0.0)) | 1; /* 1: larger, -1: smaller */
        const words inexact = (error > 0.0) | (error < 0.0);  /* false for a NaN */
        const words odd = (words)sum + (away & inexact & -(~(words)sum & 1));
        const floats rounded = __builtin_convertvector((doubles)odd, floats);
        acc[j] = __builtin_convertvector(rounded, doubles);
    }
}

/* tile[p][j] = op(B)[p][j], followed by zeros. */
static void copy_tile(double (*tile)[COLS], char tb, const float *b, size_t ldb, size_t depth,
                      size_t cols)
{
    for (size_t p = 0; p < depth; p++)
        for (size_t j = 0; j < COLS; j++)
            tile[p][j] = j >= cols ? 0.0 : tb == 'T' ? b[j * ldb + p] : b[p * ldb + j];
}

/* A row of C from its block of `sum`. With beta == 0, C isn't read: it may hold anything. */
static void add_block(float *c, const double *sum, size_t cols, float alpha, float beta)
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
    doubles tile[DEPTH][COLS / LANES];
    const size_t row_step = ta == 'T' ? 1 : lda, step = ta == 'T' ? lda : 1;
    for (size_t p0 = 0; p0 == 0 || p0 < k; p0 += DEPTH)
        for (size_t j = 0; j < n; j += COLS) {
            const size_t depth = k - p0 < DEPTH ? k - p0 : DEPTH;
            const size_t cols = n - j < COLS ? n - j : COLS;
            copy_tile((double(*)[COLS])tile, tb, tb == 'T' ? b + j * ldb + p0 : b + p0 * ldb + j,
                      ldb, depth, cols);
            for (size_t i = 0; i < m; i++) {
                doubles sum[COLS / LANES] = {0};
                for (size_t p = 0; p < depth; p++)
                    multiply_add(sum, (double)a[i * row_step + (p0 + p) * step], tile[p]);
                add_block(c + i * ldc + j, (const double *)sum, cols, alpha, p0 == 0 ? beta : 1.0f);
            }
        }
}
