/* tests/kernels/reference/ref_dot_rows.c - products of a few rows, for passes over one token at a
 * time. */
#include "kernels/reference/reference.h"

/* The next n <= PART elements, rounded if `bf16`. */
enum { PART = 64 };

static const lks__real *part_of(const lks__real *x, size_t n, bool bf16, lks__real rounded[PART])
{
    if (!bf16)
        return x;
    lks__round_bf16_ref(rounded, x, n);
    return rounded;
}

static lks__real dot(const lks__real *x, const lks__real *w, size_t n, bool bf16)
{
    lks__real xr[PART], wr[PART];
    double sum = 0;
    for (size_t i = 0; i < n; i += PART) {
        const size_t m = n - i < PART ? n - i : PART;
        const lks__real *a = part_of(x + i, m, bf16, xr), *b = part_of(w + i, m, bf16, wr);
        for (size_t j = 0; j < m; j++)
            sum += (double)a[j] * b[j];
    }
    return (lks__real)sum;
}

void lks__dot_rows_ref(lks__real *y, size_t ldy, const lks__real *x, size_t ldx, const lks__real *w,
                       size_t ldw, size_t rows, size_t out, size_t in, bool bf16)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < out; o++)
            y[r * ldy + o] = dot(x + r * ldx, w + o * ldw, in, bf16);
}

void lks__weighted_sum_ref(lks__real *y, const lks__real *a, const lks__real *x, size_t ldx,
                           size_t rows, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        lks__real sum = 0;
        for (size_t i = 0; i < rows; i++)
            sum += a[i] * x[i * ldx + j];
        y[j] = sum;
    }
}
