/* tests/kernels/reference/ref_round_bf16.c - round floats to values of bfloat16. */
#include "base/number/bf16.h"
#include "kernels/reference/reference.h"

void lks__round_bf16_ref(lks__real *y, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = lks__bf16_to_float(lks__bf16_from_float((float)x[i]));
}
