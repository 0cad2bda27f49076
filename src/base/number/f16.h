/* base/number/f16.h - IEEE float16 as bits, rounded to nearest even. Needs a floating-point mode
 * that rounds so (cpu.h), and works with subnormal numbers flushed or kept. */
#pragma once

#include <stdint.h>
#include <string.h>

#define LKS__F16_INF 0x7c00u

static inline uint16_t lks__f16_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) /* a quiet NaN with the upper bits of the payload */
        return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    if (bits >= 0x477ff000) /* rounds to 65536, or more */
        return (uint16_t)(sign | LKS__F16_INF);
    if (bits < 0x38800000) { /* subnormal: floats from 0.5 to 1 have its spacing, 2^-24 */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits - 0x38000000) >> 13));
}

static inline float lks__f16_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31;
    const uint32_t fraction = half & 0x3ff;
    uint32_t bits = (exponent + 112) << 23 | fraction << 13;
    if (exponent == 31) { /* a NaN becomes a quiet one */
        bits = 0x7f800000 | fraction << 13 | (fraction != 0 ? 0x400000 : 0);
    } else if (exponent == 0) {
        const float magnitude = (float)fraction * 0x1p-24f;
        memcpy(&bits, &magnitude, sizeof bits);
    }
    bits |= sign;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
