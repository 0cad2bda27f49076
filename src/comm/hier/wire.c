/* bfloat16 on the wire: half the bytes between hosts. What is summed is float32; what is sent, and
 * what every host ends with, has bfloat16's digits. */
#include <string.h>

#include "comm/hier/hier.h"

void lks__wire_narrow(uint16_t *out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000)
            bits |= 0x00400000; /* a NaN stays one */
        else
            bits += 0x7fff + (bits >> 16 & 1);
        out[i] = (uint16_t)(bits >> 16);
    }
}

void lks__wire_widen(float *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}
