/* tests/kernels/reference/ref_gemm.c - C[m,n] = alpha * op(A) op(B) + beta * C, row-major, of
 * operands unchanged or rounded to bfloat16.
 *
 * This defines the order of a product's sums, and so its bits at every level. Terms are added in
 * blocks of LKS__GEMM_DEPTH. Within a block an element has one accumulator, which takes the terms
 * in order of k by multiply-adds that round once, starting from 0. All other operations round one
 * by one. With beta == 0, C isn't read: it may hold anything, even NaN. */
#include <math.h>
#include <stdbool.h>

#include "base/number/bf16.h"
#include "kernels/reference/reference.h"

static lks__real rounded(lks__real x, bool bf16)
{
    return bf16 ? lks__bf16_to_float(lks__bf16_from_float((float)x)) : x;
}

static lks__real multiply_add(lks__real x, lks__real y, lks__real z)
{
    return sizeof z == sizeof(float) ? (lks__real)fmaf((float)x, (float)y, (float)z)
                                     : (lks__real)fma((double)x, (double)y, (double)z);
}

static void multiply(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                     const lks__real *a, size_t lda, const lks__real *b, size_t ldb, lks__real beta,
                     lks__real *c, size_t ldc, bool bf16)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t p0 = 0; p0 == 0 || p0 < k; p0 += LKS__GEMM_DEPTH) {
                lks__real sum = 0, *to = c + i * ldc + j;
                for (size_t p = p0; p < k && p < p0 + LKS__GEMM_DEPTH; p++)
                    sum = multiply_add(rounded(ta == 'T' ? a[p * lda + i] : a[i * lda + p], bf16),
                                       rounded(tb == 'T' ? b[j * ldb + p] : b[p * ldb + j], bf16),
                                       sum);
                if (p0 == 0 && beta == 0)
                    *to = alpha * sum;
                else
                    *to = (p0 == 0 ? beta * *to : *to) + alpha * sum;
            }
}

void lks__gemm_ref(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                   const lks__real *a, size_t lda, const lks__real *b, size_t ldb, lks__real beta,
                   lks__real *c, size_t ldc)
{
    multiply(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, false);
}

void lks__gemm_bf16_ref(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                        const lks__real *a, size_t lda, const lks__real *b, size_t ldb,
                        lks__real beta, lks__real *c, size_t ldc, void *work)
{
    multiply(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, true);
}
