/* tests/kernels/reference/ref_rmsnorm.c - RMSNorm without weight, and the operations on a query or
 * key head.
 *
 * torch.nn.functional.rms_norm(x, (n,)), whose default eps is float32's machine epsilon:
 *   r = 1 / sqrt(sum_j x_j^2 / n + eps)        xhat = x r
 * Backward:
 *   dx += r (dy - xhat mean_j(dy xhat))
 *
 * A head of hs elements is normalized, rotated (Su et al., RoFormer; by halves instead of pairs,
 * and clockwise, as in parameter-golf) and multiplied by its gain:
 *   y_j = gain (xhat_j cos_j + xhat_{j+h} sin_j)        h = hs / 2, j < h
 *   y_{j+h} = gain (xhat_{j+h} cos_j - xhat_j sin_j)
 * Backward, with u the gradient rotated back (without the gain):
 *   m = sum_j u_j xhat_j        dgain += m        dx_j = gain r (u_j - xhat_j m / hs) */
#include <float.h>
#include <math.h>

#include "kernels/reference/reference.h"

static double rms_reciprocal(const lks__real *x, size_t n)
{
    double squares = 0;
    for (size_t j = 0; j < n; j++)
        squares += (double)x[j] * x[j];
    return 1 / sqrt(squares / n + FLT_EPSILON);
}

void lks__rmsnorm_fwd_ref(lks__real *y, lks__real *rms, const lks__real *x, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, x += n, y += n) {
        double r = rms_reciprocal(x, n);
        for (size_t j = 0; j < n; j++)
            y[j] = x[j] * r;
        if (rms)
            rms[i] = r;
    }
}

void lks__rmsnorm_bwd_ref(lks__real *dx, const lks__real *dy, const lks__real *x,
                          const lks__real *rms, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, dx += n, dy += n, x += n) {
        double r = rms[i], mean = 0;
        for (size_t j = 0; j < n; j++)
            mean += (double)dy[j] * x[j] * r / n;
        for (size_t j = 0; j < n; j++)
            dx[j] += r * (dy[j] - x[j] * r * mean);
    }
}

void lks__rope_fwd_ref(lks__real *y, lks__real *rms, const lks__real *x, const lks__real *cosine,
                       const lks__real *sine, const lks__real *gain, size_t heads, size_t hs)
{
    const size_t half = hs / 2;
    for (size_t i = 0; i < heads; i++, x += hs, y += hs) {
        double r = rms_reciprocal(x, hs), g = gain ? gain[i] : 1;
        for (size_t j = 0; j < half; j++) {
            double a = x[j] * r, b = x[j + half] * r;
            y[j] = g * (a * cosine[j] + b * sine[j]);
            y[j + half] = g * (b * cosine[j] - a * sine[j]);
        }
        rms[i] = r;
    }
}

void lks__rope_bwd_ref(lks__real *dx, lks__real *dgain, const lks__real *dy, const lks__real *x,
                       const lks__real *rms, const lks__real *cosine, const lks__real *sine,
                       const lks__real *gain, size_t heads, size_t hs)
{
    const size_t half = hs / 2;
    for (size_t i = 0; i < heads; i++, dx += hs, dy += hs, x += hs) {
        double r = rms[i], g = gain ? gain[i] : 1, m = 0;
        for (size_t j = 0; j < half; j++) {
            double p = dy[j], q = dy[j + half];
            double u = p * cosine[j] - q * sine[j], v = p * sine[j] + q * cosine[j];
            m += (u * x[j] + v * x[j + half]) * r;
        }
        for (size_t j = 0; j < half; j++) {
            double p = dy[j], q = dy[j + half]; /* dx may be dy */
            double u = p * cosine[j] - q * sine[j], v = p * sine[j] + q * cosine[j];
            dx[j] = g * r * (u - x[j] * r * m / hs);
            dx[j + half] = g * r * (v - x[j + half] * r * m / hs);
        }
        if (dgain)
            dgain[i] += m;
    }
}
