/* compute/cpu/vector/vec_neon.h - vec.h's operations on four registers of ARM64's NEON. */
#pragma once

#include <arm_neon.h>
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "compute/cpu/vector/version.h"

/* VECTORS: how many the registers hold. */
enum { LANES = 16, VECTORS = 8 };
typedef struct vf {
    float32x4_t a, b, c, d; /* lanes 0 to 3, 4 to 7, 8 to 11, 12 to 15 */
} vf;
typedef struct vd {
    float64x2_t a, b, c, d;
} vd; /* 8 lanes */
typedef struct vmask {
    uint32x4_t a, b, c, d; /* all bits of a lane or none */
} vmask;

#define VEC_INLINE static inline __attribute__((always_inline))

/* v_NAME(x, y, z) = op(x, y, z), by registers. */
#define ONE_OPERAND(name, op)                                                                      \
    VEC_INLINE vf v_##name(vf x)                                                                   \
    {                                                                                              \
        return (vf){op(x.a), op(x.b), op(x.c), op(x.d)};                                           \
    }
#define TWO_OPERANDS(name, op)                                                                     \
    VEC_INLINE vf v_##name(vf x, vf y)                                                             \
    {                                                                                              \
        return (vf){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};                       \
    }
#define THREE_OPERANDS(name, op)                                                                   \
    VEC_INLINE vf v_##name(vf x, vf y, vf z)                                                       \
    {                                                                                              \
        return (vf){op(x.a, y.a, z.a), op(x.b, y.b, z.b), op(x.c, y.c, z.c), op(x.d, y.d, z.d)};   \
    }

/* ARM's own minimum and maximum give NaN if one operand is NaN, and vec.h's the second operand. */
#define MIN(x, y)     vbslq_f32(vcltq_f32(x, y), x, y)
#define MAX(x, y)     vbslq_f32(vcgtq_f32(x, y), x, y)
#define BITS(x)       vreinterpretq_u32_f32(x)
#define FLOATS(x)     vreinterpretq_f32_u32(x)
#define AND(x, y)     FLOATS(vandq_u32(BITS(x), BITS(y)))
#define ANDNOT(x, y)  FLOATS(vbicq_u32(BITS(y), BITS(x)))
#define OR(x, y)      FLOATS(vorrq_u32(BITS(x), BITS(y)))
#define FMA(x, y, z)  vfmaq_f32(z, x, y)
#define FMS(x, y, z)  vfmaq_f32(vnegq_f32(z), x, y)
#define FNMA(x, y, z) vfmsq_f32(z, x, y)
#define SUBNORMAL(x)  vcltq_f32(vabsq_f32(x), vdupq_n_f32(FLT_MIN))
#define FLUSH(x)      FLOATS(vbicq_u32(BITS(x), SUBNORMAL(x)))
#define POWER(code)   FLOATS(vshlq_n_u32(BITS(code), 23))

ONE_OPERAND(sqrt, vsqrtq_f32)
TWO_OPERANDS(add, vaddq_f32)
TWO_OPERANDS(sub, vsubq_f32)
TWO_OPERANDS(mul, vmulq_f32)
TWO_OPERANDS(div, vdivq_f32)
TWO_OPERANDS(min, MIN)
TWO_OPERANDS(max, MAX)
TWO_OPERANDS(and, AND)
TWO_OPERANDS(andnot, ANDNOT) /* y without the bits of x */
TWO_OPERANDS(or, OR)
THREE_OPERANDS(fma, FMA)          /* x y + z */
THREE_OPERANDS(fms, FMS)          /* x y - z */
THREE_OPERANDS(fnma, FNMA)        /* z - x y */
ONE_OPERAND(flush, FLUSH)         /* 0 in place of subnormal lanes; NaN stays */
ONE_OPERAND(power_of_code, POWER) /* the floats whose exponents' codes are the low bits of a code */

VEC_INLINE float32x4_t round_bf16_quarter(float32x4_t x)
{
    const uint32x4_t bits = BITS(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    const uint32x4_t y = vbslq_u32(vceqq_f32(x, x), up, quiet);
    return FLOATS(vandq_u32(y, vdupq_n_u32(0xffff0000)));
}

/* Round to the nearest bfloat16 value: the steps of tests/kernels/reference/ref_round_bf16.c. */
ONE_OPERAND(round_bf16, round_bf16_quarter)

#undef ONE_OPERAND
#undef TWO_OPERANDS
#undef THREE_OPERANDS

VEC_INLINE vf v_load(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

VEC_INLINE void v_store(float *p, vf v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}

VEC_INLINE vf v_set1(float x)
{
    const float32x4_t all = vdupq_n_f32(x);
    return (vf){all, all, all, all};
}

VEC_INLINE vf v_zero(void)
{
    return v_set1(0.0f);
}

VEC_INLINE vmask v_mask(size_t n)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const uint32x4_t first = vld1q_u32(lane), end = vdupq_n_u32(n < LANES ? (uint32_t)n : LANES);
    return (vmask){vcltq_u32(first, end), vcltq_u32(vaddq_u32(first, vdupq_n_u32(4)), end),
                   vcltq_u32(vaddq_u32(first, vdupq_n_u32(8)), end),
                   vcltq_u32(vaddq_u32(first, vdupq_n_u32(12)), end)};
}

/* The number of leading lanes of a mask, each of which is -1. */
VEC_INLINE size_t lanes_of(vmask m)
{
    return -vaddvq_u32(vaddq_u32(vaddq_u32(m.a, m.b), vaddq_u32(m.c, m.d)));
}

VEC_INLINE vf v_load_mask(const float *p, vmask m)
{
    float lane[LANES] = {0};
    memcpy(lane, p, lanes_of(m) * sizeof *lane);
    return v_load(lane);
}

VEC_INLINE void v_store_mask(float *p, vmask m, vf v)
{
    float lane[LANES];
    v_store(lane, v);
    memcpy(p, lane, lanes_of(m) * sizeof *lane);
}

/* v where the mask is set, other elsewhere */
VEC_INLINE vf v_select(vmask m, vf v, vf other)
{
    return (vf){vbslq_f32(m.a, v.a, other.a), vbslq_f32(m.b, v.b, other.b),
                vbslq_f32(m.c, v.c, other.c), vbslq_f32(m.d, v.d, other.d)};
}

VEC_INLINE vf v_keep(vmask m, vf v) /* 0 outside the mask */
{
    return v_select(m, v, v_zero());
}

VEC_INLINE vmask v_equal(vf x, vf y)
{
    return (vmask){vceqq_f32(x.a, y.a), vceqq_f32(x.b, y.b), vceqq_f32(x.c, y.c),
                   vceqq_f32(x.d, y.d)};
}

VEC_INLINE vmask v_is_negative(vf v) /* by its sign bit */
{
    const uint32x4_t sign = vdupq_n_u32(0x80000000);
    return (vmask){vtstq_u32(BITS(v.a), sign), vtstq_u32(BITS(v.b), sign),
                   vtstq_u32(BITS(v.c), sign), vtstq_u32(BITS(v.d), sign)};
}

VEC_INLINE float v_hsum(vf v)
{
    const float32x4_t four = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Greatest lane; no lane may be NaN. */
VEC_INLINE float v_hmax(vf v)
{
    const float32x4_t low = MAX(v.a, v.c), high = MAX(v.b, v.d), four = MAX(low, high);
    const float32x4_t two = MAX(four, vextq_f32(four, four, 2));
    const float x = vgetq_lane_f32(two, 0), y = vgetq_lane_f32(two, 1);
    return x > y ? x : y;
}

#undef MIN
#undef MAX
#undef BITS
#undef FLOATS
#undef AND
#undef ANDNOT
#undef OR
#undef FMA
#undef FMS
#undef FNMA
#undef SUBNORMAL
#undef FLUSH
#undef POWER

VEC_INLINE vd vd_load(const double *p)
{
    return (vd){vld1q_f64(p), vld1q_f64(p + 2), vld1q_f64(p + 4), vld1q_f64(p + 6)};
}

VEC_INLINE void vd_store(double *p, vd v)
{
    vst1q_f64(p, v.a);
    vst1q_f64(p + 2, v.b);
    vst1q_f64(p + 4, v.c);
    vst1q_f64(p + 6, v.d);
}

VEC_INLINE vd vd_zero(void)
{
    const float64x2_t zero = vdupq_n_f64(0.0);
    return (vd){zero, zero, zero, zero};
}

VEC_INLINE vd vd_add(vd x, vd y)
{
    return (vd){vaddq_f64(x.a, y.a), vaddq_f64(x.b, y.b), vaddq_f64(x.c, y.c), vaddq_f64(x.d, y.d)};
}

VEC_INLINE vd vd_add_square(vd x, vd z) /* z + x^2 */
{
    return (vd){vfmaq_f64(z.a, x.a, x.a), vfmaq_f64(z.b, x.b, x.b), vfmaq_f64(z.c, x.c, x.c),
                vfmaq_f64(z.d, x.d, x.d)};
}

VEC_INLINE vd v_widen(vf v, int i) /* half i */
{
    const float32x4_t low = i == 0 ? v.a : v.c, high = i == 0 ? v.b : v.d;
    return (vd){vcvt_f64_f32(vget_low_f32(low)), vcvt_high_f64_f32(low),
                vcvt_f64_f32(vget_low_f32(high)), vcvt_high_f64_f32(high)};
}

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) */
VEC_INLINE double vd_hsum(vd v)
{
    const float64x2_t two = vaddq_f64(vaddq_f64(v.a, v.c), vaddq_f64(v.b, v.d));
    return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
}
