/* tests/kernels/reference/ref_layernorm.c - LayerNorm over rows of n, as
 * torch.nn.functional.layer_norm.
 *
 *   mean = sum_j x_j / n
 *   var  = sum_j (x_j - mean)^2 / n (biased)
 *   rstd = 1 / sqrt(var + eps)
 *   xhat = (x - mean) * rstd
 *   y    = xhat * gain + bias
 *
 * Backward, with d = dy * gain:
 *   dx    += rstd * (d - mean_j(d) - xhat * mean_j(d * xhat))
 *   dgain += sum over rows of dy * xhat
 *   dbias += sum over rows of dy */
#include <math.h>

#include "kernels/reference/reference.h"

static const double eps = 1e-5;

void lks__layernorm_fwd_ref(lks__real *y, lks__real *mean, lks__real *rstd, const lks__real *x,
                            const lks__real *gain, const lks__real *bias, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n) {
        double sum = 0, squares = 0;
        for (size_t j = 0; j < n; j++)
            sum += x[j];
        double m = sum / n;
        for (size_t j = 0; j < n; j++)
            squares += (x[j] - m) * (x[j] - m);
        double r = 1 / sqrt(squares / n + eps);

        for (size_t j = 0; j < n; j++)
            y[j] = (x[j] - m) * r * gain[j] + (bias ? bias[j] : 0);
        if (mean)
            mean[i] = m;
        if (rstd)
            rstd[i] = r;
    }
}

void lks__layernorm_bwd_ref(lks__real *dx, lks__real *dgain, lks__real *dbias, const lks__real *dy,
                            const lks__real *x, const lks__real *gain, const lks__real *mean,
                            const lks__real *rstd, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, dx += n, dy += n, x += n) {
        double m = mean[i], r = rstd[i];
        double mean_d = 0, mean_d_xhat = 0;
        for (size_t j = 0; j < n; j++) {
            double d = (double)dy[j] * gain[j];
            mean_d += d / n;
            mean_d_xhat += d * (x[j] - m) * r / n;
        }
        for (size_t j = 0; j < n; j++) {
            double xhat = (x[j] - m) * r;
            dx[j] += r * ((double)dy[j] * gain[j] - mean_d - xhat * mean_d_xhat);
            dgain[j] += dy[j] * xhat;
            if (dbias)
                dbias[j] += dy[j];
        }
    }
}
