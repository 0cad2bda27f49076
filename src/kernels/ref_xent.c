/* kernels/ref_xent.c - softmax and cross-entropy of one row of n logits.
 *
 *   loss = log sum_j exp(x_j - m) - (x_target - m),  m = max_j x_j
 *   dx_j = (exp(x_j - m) / sum - [j == target]) * scale
 *
 * as in torch.nn.functional.cross_entropy. NaN or +inf among the logits gives a NaN loss. */
#include <math.h>

#include "kernels/kernels.h"

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
