/* tests/kernels/reference/ref_elementwise.c - sums, products and row/column operations; formulas in
 * kernels.h. */
#include "kernels/reference/reference.h"

void lks__add_ref(lks__real *y, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

void lks__mul_ref(lks__real *y, const lks__real *a, const lks__real *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

void lks__mul_add_ref(lks__real *y, const lks__real *a, const lks__real *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a[i] * b[i];
}

void lks__scale_ref(lks__real *y, lks__real a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] *= a;
}

void lks__add_bias_ref(lks__real *y, size_t ld, const lks__real *bias, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < n; j++)
            y[i * ld + j] += bias[j];
}

void lks__colsum_ref(lks__real *out, const lks__real *x, size_t ld, size_t rows, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        lks__real sum = 0;
        for (size_t i = 0; i < rows; i++)
            sum += x[i * ld + j];
        out[j] += sum;
    }
}

lks__real lks__dot_ref(const lks__real *a, const lks__real *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

double lks__sumsq_ref(const lks__real *x, size_t n)
{
    double lane[8] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % 8] += (double)x[i] * x[i];
    return lks__sumsq_of_lanes(lane);
}

void lks__sum_scaled_ref(lks__real *y, const lks__real *a, const lks__real *b, lks__real scale,
                         double lanes[8], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = (b == NULL ? a[i] : a[i] + b[i]) * scale;
        if (lanes != NULL)
            lanes[i % 8] += (double)y[i] * y[i];
    }
}
