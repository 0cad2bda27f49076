/* base/number/bf16.h - bfloat16 as bits: the upper half of a float's, rounded to nearest even. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint16_t lks__bf16_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        bits |= 0x00400000; /* keep a NaN a NaN: the bits that remain could all be 0 */
    else
        bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

static inline float lks__bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
