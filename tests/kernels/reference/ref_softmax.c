/* tests/kernels/reference/ref_softmax.c - blocks of causal attention's online softmax (Milakov,
 * Gimelshein 2018).
 *
 * Row i of S[rows, cols] sees columns j <= i + diag. For those (formulas in kernels.h):
 *   m' = max(m, max_j S_ij)      factor = exp(m - m')      S_ij <- exp(S_ij - m')
 *   sum <- sum * factor + sum_j S_ij
 * A row that has seen no column keeps m = -inf, and its factor is 1. A NaN score is ignored by the
 * maximum, but makes the row's sum NaN. */
#include <math.h>

#include "kernels/reference/reference.h"

/* Number of columns, of `cols`, that row i sees. */
static size_t seen(size_t i, size_t cols, ptrdiff_t diag)
{
    ptrdiff_t n = (ptrdiff_t)i + diag + 1;
    return n < 0 ? 0 : (size_t)n < cols ? (size_t)n : cols;
}

void lks__softmax_block_ref(lks__real *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag,
                            lks__real *max, lks__real *sum, lks__real *factor)
{
    for (size_t i = 0; i < rows; i++, s += lds) {
        size_t n = seen(i, cols, diag);
        lks__real m = max[i];
        for (size_t j = 0; j < n; j++)
            if (s[j] > m)
                m = s[j];

        double total = 0;
        for (size_t j = 0; j < n; j++) {
            s[j] = exp(s[j] - m);
            total += s[j];
        }
        for (size_t j = n; j < cols; j++)
            s[j] = 0;

        factor[i] = m == max[i] ? 1 : exp(max[i] - m);
        sum[i] = sum[i] * factor[i] + total;
        max[i] = m;
    }
}

void lks__softmax_again_ref(lks__real *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag,
                            const lks__real *lse)
{
    for (size_t i = 0; i < rows; i++, s += lds) {
        size_t n = seen(i, cols, diag);
        for (size_t j = 0; j < n; j++)
            s[j] = exp(s[j] - lse[i]);
        for (size_t j = n; j < cols; j++)
            s[j] = 0;
    }
}
