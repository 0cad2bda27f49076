/* compute/cpu/products/gemm_bf16.c - products of operands rounded to bfloat16, for processors that
 * have no instruction for them. Blocks are rounded and copied, as floats, to memory that stays in
 * the second-level cache; the float GEMM multiplies the copies. The copies also avoid rows a power
 * of two apart. */
#include "base/number/checked.h"
#include "compute/cpu/products/gemm_dnnl.h"
#include "compute/cpu/products/kinds.h"
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/version.h"

enum { MC = 128, NC = 256, KC = LKS__GEMM_DEPTH, GAP = 16 };

typedef struct rounded_work {
    float a[(MC + GAP) * (KC + GAP)], b[(NC + GAP) * (KC + GAP)]; /* room for either orientation */
} rounded_work;

_Static_assert(sizeof(rounded_work) <= LKS__GEMM_WORK_BYTES, "the blocks fit");

/* y[rows, cols] (leading dimension cols + GAP) = x, rounded. */
static void copy(float *y, const float *x, size_t ld, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++)
        VERSION(round_bf16)(y + r * (cols + GAP), x + r * ld, cols);
}

void VERSION(gemm_bf16)(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                        size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc,
                        void *work)
{
    rounded_work *w = work;
    lks__gemm_fn *gemm = lks__gemm_dnnl_is_open() ? lks__kinds_gemm : VERSION(gemm);
    if (k == 0)
        gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    for (size_t j = 0; j < n; j += NC) {
        const size_t nc = lks__min(NC, n - j);
        for (size_t p = 0; p < k; p += KC) {
            const size_t kc = lks__min(KC, k - p);
            if (tb == 'T')
                copy(w->b, b + j * ldb + p, ldb, nc, kc);
            else
                copy(w->b, b + p * ldb + j, ldb, kc, nc);
            for (size_t i = 0; i < m; i += MC) {
                const size_t mc = lks__min(MC, m - i);
                if (ta == 'T')
                    copy(w->a, a + p * lda + i, lda, kc, mc);
                else
                    copy(w->a, a + i * lda + p, lda, mc, kc);
                gemm(ta, tb, mc, nc, kc, alpha, w->a, (ta == 'T' ? mc : kc) + GAP, w->b,
                     (tb == 'T' ? kc : nc) + GAP, p == 0 ? beta : 1, c + i * ldc + j, ldc);
            }
        }
    }
}
