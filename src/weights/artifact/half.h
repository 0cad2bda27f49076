/* weights/artifact/half.h - IEEE 754 half precision, as bits. Rounds to nearest even, for normal
 * and subnormal numbers, whatever the processor's flush-to-zero mode is. */
#ifndef LKS_WEIGHTS_ARTIFACT_HALF_H
#define LKS_WEIGHTS_ARTIFACT_HALF_H

#include <stdint.h>
#include <string.h>

#define LKS__HALF_INF 0x7c00u

/* Drop the lowest `shift` bits (1 to 31) of `m`, rounding to nearest even. */
static inline uint32_t lks__round_shift(uint32_t m, unsigned shift)
{
    uint32_t half = 1u << (shift - 1), rest = m & ((half << 1) - 1), kept = m >> shift;
    return kept + (rest > half || (rest == half && (kept & 1)));
}

/* Numbers that are too large become infinity; a NaN becomes a quiet NaN with the top of its
 * payload. */
static inline uint16_t lks__half_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, exponent = bits >> 23 & 0xff, m = bits & 0x7fffff;
    if (exponent == 0xff)
        return (uint16_t)(sign | LKS__HALF_INF | (m ? 0x200 | m >> 13 : 0));
    if (exponent >=
        113) { /* from 2^-14 on; a carry increases the exponent, in the end to infinity */
        uint32_t h = lks__round_shift((exponent - 112) << 23 | m, 13);
        return (uint16_t)(sign | (h < LKS__HALF_INF ? h : LKS__HALF_INF));
    }
    if (exponent < 102) /* under 2^-25, half of the smallest number */
        return (uint16_t)sign;
    return (uint16_t)(sign | lks__round_shift(m | 0x800000, 126 - exponent));
}

static inline float lks__half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, m = half & 0x3ff;
    uint32_t bits;
    float x;
    if (exponent == 0x1f) {
        bits = 0x7f800000u | m << 13 | (m ? 0x400000u : 0);
    } else if (exponent > 0) {
        bits = (exponent + 112) << 23 | m << 13;
    } else if (m == 0) {
        bits = 0;
    } else { /* a subnormal half: m * 2^-24, a normal float */
        unsigned up = (unsigned)__builtin_clz(m) - 21; /* shifts its highest bit to 2^10 */
        bits = (113 - up) << 23 | (m << up & 0x3ff) << 13;
    }
    bits |= sign;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
