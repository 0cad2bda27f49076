/* kernels/ref_round_bf16.c - floats that bfloat16 has: the upper half of their bits. */
#include <string.h>

#include "kernels/kernels.h"

void lks__round_bf16_ref(lks__real *y, const lks__real *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000)
            bits |= 0x00400000; /* quiet: what is left of a NaN's bits must not be none */
        else
            bits += 0x7fff + (bits >> 16 & 1);
        bits &= 0xffff0000;
        memcpy(&f, &bits, sizeof f);
        y[i] = f;
    }
}
