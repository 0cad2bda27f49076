/* tests/kernels/reference/ref_xent.c - softmax and cross-entropy of one row of n logits.
 *
 *   loss = log sum_j exp(x_j - m) - (x_target - m),  m = max_j x_j
 *   dx_j = (exp(x_j - m) / sum - [j == target]) * scale
 *
 * as in torch.nn.functional.cross_entropy. NaN or +inf among the logits gives a NaN loss.
 *
 * Capped logits l_j = cap tanh(x_j / cap) (Gemma 2's soft-cap) have dl_j / dx_j = 1 - (l_j /
 * cap)^2; an infinite x_j is capped like any other. */
#include <math.h>

#include "kernels/reference/reference.h"

double lks__xent_row_ref(lks__real *dx, const lks__real *x, size_t n, size_t target,
                         lks__real scale)
{
    double m = x[0], sum = 0;
    for (size_t j = 1; j < n; j++)
        if (x[j] > m)
            m = x[j];
    for (size_t j = 0; j < n; j++)
        sum += exp(x[j] - m);

    double loss = log(sum) - (x[target] - m);
    if (dx)
        for (size_t j = 0; j < n; j++)
            dx[j] = (exp(x[j] - m) / sum - (j == target)) * scale;
    return loss;
}

void lks__softcap_ref(lks__real *y, const lks__real *x, size_t n, lks__real cap)
{
    for (size_t j = 0; j < n; j++)
        y[j] = cap * tanh((double)x[j] / cap);
}

/* Caps again in every pass, because the reference has no buffer for a row. */
double lks__xent_cap_row_ref(lks__real *dx, const lks__real *x, size_t n, size_t target,
                             lks__real scale, lks__real cap)
{
    double m = cap * tanh((double)x[0] / cap), sum = 0;
    for (size_t j = 1; j < n; j++)
        m = fmax(m, cap * tanh((double)x[j] / cap));
    for (size_t j = 0; j < n; j++)
        sum += exp(cap * tanh((double)x[j] / cap) - m);

    double loss = log(sum) - (cap * tanh((double)x[target] / cap) - m);
    if (dx)
        for (size_t j = 0; j < n; j++) {
            double t = tanh((double)x[j] / cap);
            dx[j] = (exp(cap * t - m) / sum - (j == target)) * scale * (1 - t * t);
        }
    return loss;
}
