/* tests/kernels/reference/ref_gelu.c - GELU, exact and in the tanh form (Hendrycks, Gimpel 2016).
 *
 *   erf:   y = x * Phi(x),  Phi(x) = (1 + erf(x / sqrt 2)) / 2     torch.nn.GELU()
 *          y' = Phi(x) + x * phi(x),  phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
 *   tanh:  y = x * (1 + t) / 2,  t = tanh(u),  u = sqrt(2 / pi) * (x + 0.044715 x^3)
 *          y' = (1 + t) / 2 + x * (1 - t^2) / 2 * u'              approximate='tanh', GPT-2 */
#include <math.h>

#include "kernels/reference/reference.h"

static const double sqrt_half = 0.70710678118654752440;
static const double inv_sqrt_2pi = 0.39894228040143267794;
static const double sqrt_2_over_pi = 0.79788456080286535588;
static const double cubic = 0.044715;

void lks__gelu_erf_fwd_ref(lks__real *y, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * 0.5 * (1 + erf(x[i] * sqrt_half));
}

void lks__gelu_erf_bwd_ref(lks__real *dx, const lks__real *dy, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = x[i];
        double cdf = 0.5 * (1 + erf(v * sqrt_half));
        double pdf = exp(-0.5 * v * v) * inv_sqrt_2pi;
        dx[i] = dy[i] * (cdf + v * pdf);
    }
}

void lks__gelu_tanh_fwd_ref(lks__real *y, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = x[i];
        y[i] = 0.5 * v * (1 + tanh(sqrt_2_over_pi * (v + cubic * v * v * v)));
    }
}

void lks__gelu_tanh_bwd_ref(lks__real *dx, const lks__real *dy, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = x[i];
        double t = tanh(sqrt_2_over_pi * (v + cubic * v * v * v));
        double du = sqrt_2_over_pi * (1 + 3 * cubic * v * v);
        dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * du);
    }
}
