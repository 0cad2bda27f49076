/* tests/kernels/reference/ref_relu2.c - the squared ReLU (So et al., Primer): y = max(x, 0)^2, y' =
 * 2 max(x, 0). NaN stays NaN, as in torch.relu(x).square(). */
#include "kernels/reference/reference.h"

static lks__real relu(lks__real x)
{
    return x <= 0 ? 0 : x;
}

void lks__relu2_fwd_ref(lks__real *y, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = relu(x[i]) * relu(x[i]);
}

void lks__relu2_bwd_ref(lks__real *dx, const lks__real *dy, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = dy[i] * (2 * relu(x[i]));
}
