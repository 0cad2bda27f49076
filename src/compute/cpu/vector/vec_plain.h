/* compute/cpu/vector/vec_plain.h - vec.h's operations in C, on arrays of 16 floats. Compilers turn
 * the loops into vectors of the baseline's width. */
#pragma once

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/number/bf16.h"
#include "compute/cpu/vector/fused.h"
#include "compute/cpu/vector/version.h"

/* VECTORS: how many the registers hold. */
enum { LANES = 16, VECTORS = 8 };
typedef struct vf {
    float lane[LANES];
} vf;
typedef struct vd {
    double lane[LANES / 2];
} vd;
typedef struct vmask {
    uint32_t lane[LANES]; /* all bits or none */
} vmask;

#define VEC_INLINE static inline __attribute__((always_inline))

/* v_NAME(x, y) = value, by lanes; x and y are floats in `value`. */
#define ONE_OPERAND(name, value)                                                                   \
    VEC_INLINE vf v_##name(vf vx)                                                                  \
    {                                                                                              \
        for (int i = 0; i < LANES; i++) {                                                          \
            const float x = vx.lane[i];                                                            \
            vx.lane[i] = value;                                                                    \
        }                                                                                          \
        return vx;                                                                                 \
    }
#define TWO_OPERANDS(name, value)                                                                  \
    VEC_INLINE vf v_##name(vf vx, vf vy)                                                           \
    {                                                                                              \
        for (int i = 0; i < LANES; i++) {                                                          \
            const float x = vx.lane[i], y = vy.lane[i];                                            \
            vx.lane[i] = value;                                                                    \
        }                                                                                          \
        return vx;                                                                                 \
    }

VEC_INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

VEC_INLINE float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ONE_OPERAND(sqrt, sqrtf(x))
ONE_OPERAND(negative, -x)
TWO_OPERANDS(add, x + y)
TWO_OPERANDS(sub, x - y)
TWO_OPERANDS(mul, (x * y))
TWO_OPERANDS(div, x / y)
TWO_OPERANDS(min, x < y ? x : y)
TWO_OPERANDS(max, x > y ? x : y)
TWO_OPERANDS(and, of_bits(bits_of(x) & bits_of(y)))
TWO_OPERANDS(andnot, of_bits(~bits_of(x) & bits_of(y))) /* y without the bits of x */
TWO_OPERANDS(or, of_bits(bits_of(x) | bits_of(y)))

/* 0 in place of subnormal lanes; NaN stays. */
ONE_OPERAND(flush, fabsf(x) < FLT_MIN ? 0.0f : x)
/* The floats whose exponents' codes are the low bits of a code. */
ONE_OPERAND(power_of_code, of_bits(bits_of(x) << 23))
/* Round to the nearest bfloat16 value. */
ONE_OPERAND(round_bf16, lks__bf16_to_float(lks__bf16_from_float(x)))

#undef ONE_OPERAND
#undef TWO_OPERANDS

VEC_INLINE lks__wides widened(const float *p)
{
    lks__narrows x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, lks__wides);
}

VEC_INLINE vf v_fma(vf x, vf y, vf z)
{
    for (int i = 0; i < LANES; i += LKS__WIDE_LANES) {
        const lks__wides sum =
            lks__fused(widened(x.lane + i), widened(y.lane + i), widened(z.lane + i));
        const lks__narrows rounded = __builtin_convertvector(sum, lks__narrows);
        memcpy(z.lane + i, &rounded, sizeof rounded);
    }
    return z;
}

VEC_INLINE vf v_fms(vf x, vf y, vf z)
{
    return v_fma(x, y, v_negative(z));
}

VEC_INLINE vf v_fnma(vf x, vf y, vf z)
{
    return v_fma(v_negative(x), y, z);
}

VEC_INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE vf v_set1(float x)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v.lane[i] = x;
    return v;
}

VEC_INLINE vf v_zero(void)
{
    return v_set1(0.0f);
}

VEC_INLINE vmask v_mask(size_t n)
{
    vmask m;
    for (int i = 0; i < LANES; i++)
        m.lane[i] = (size_t)i < n ? UINT32_MAX : 0;
    return m;
}

VEC_INLINE vf v_load_mask(const float *p, vmask m)
{
    vf v = v_zero();
    for (int i = 0; i < LANES; i++)
        if (m.lane[i] != 0)
            v.lane[i] = p[i];
    return v;
}

VEC_INLINE void v_store_mask(float *p, vmask m, vf v)
{
    for (int i = 0; i < LANES; i++)
        if (m.lane[i] != 0)
            p[i] = v.lane[i];
}

/* v where the mask is set, other elsewhere */
VEC_INLINE vf v_select(vmask m, vf v, vf other)
{
    for (int i = 0; i < LANES; i++)
        v.lane[i] =
            of_bits((bits_of(v.lane[i]) & m.lane[i]) | (bits_of(other.lane[i]) & ~m.lane[i]));
    return v;
}

VEC_INLINE vf v_keep(vmask m, vf v) /* 0 outside the mask */
{
    return v_select(m, v, v_zero());
}

VEC_INLINE vmask v_equal(vf x, vf y)
{
    vmask m;
    for (int i = 0; i < LANES; i++)
        m.lane[i] = x.lane[i] == y.lane[i] ? UINT32_MAX : 0;
    return m;
}

VEC_INLINE vmask v_is_negative(vf v) /* by its sign bit */
{
    vmask m;
    for (int i = 0; i < LANES; i++)
        m.lane[i] = bits_of(v.lane[i]) >> 31 != 0 ? UINT32_MAX : 0;
    return m;
}

VEC_INLINE float v_hsum(vf v)
{
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            v.lane[i] += v.lane[i + n];
    return v.lane[0];
}

/* Greatest lane; no lane may be NaN. */
VEC_INLINE float v_hmax(vf v)
{
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            v.lane[i] = v.lane[i] > v.lane[i + n] ? v.lane[i] : v.lane[i + n];
    return v.lane[0];
}

VEC_INLINE vd vd_zero(void)
{
    return (vd){{0.0}};
}

VEC_INLINE vd vd_load(const double *p)
{
    vd v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void vd_store(double *p, vd v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE vd vd_add(vd x, vd y)
{
    for (int i = 0; i < LANES / 2; i++)
        x.lane[i] += y.lane[i];
    return x;
}

VEC_INLINE vd v_widen(vf v, int i) /* half i */
{
    vd wide;
    for (int j = 0; j < LANES / 2; j++)
        wide.lane[j] = (double)v.lane[LANES / 2 * i + j];
    return wide;
}

/* z + x^2 of floats that were widened, whose squares are exact: so this rounds as a fused
 * multiply-add does. */
VEC_INLINE vd vd_add_square(vd x, vd z)
{
    for (int i = 0; i < LANES / 2; i++)
        z.lane[i] += x.lane[i] * x.lane[i];
    return z;
}

VEC_INLINE double vd_hsum(vd v)
{
    for (int n = LANES / 4; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            v.lane[i] += v.lane[i + n];
    return v.lane[0];
}
