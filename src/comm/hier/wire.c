/* bfloat16 on the wire: half the bytes between hosts. Sums are computed in float32; the sent data,
 * and every host's result, are rounded to bfloat16. */
#include "base/number/bf16.h"
#include "comm/hier/hier.h"

void lks__wire_narrow(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = lks__bf16_from_float(x[i]);
}

void lks__wire_widen(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = lks__bf16_to_float(x[i]);
}
