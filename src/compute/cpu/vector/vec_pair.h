/* compute/cpu/vector/vec_pair.h - vec.h's operations on a pair of AVX2's registers. */
#pragma once

#include <float.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/cpu/vector/version.h"

/* VECTORS: how many the registers hold. */
enum { LANES = 16, VECTORS = 8 };
typedef struct vf {
    __m256 a, b; /* lanes 0 to 7, 8 to 15 */
} vf;
typedef struct vd {
    __m256d a, b;
} vd; /* 8 lanes */
typedef struct vmask {
    __m256i a, b;
} vmask;

#define ONE_OPERAND(name, op)                                                                      \
    static inline vf v_##name(vf x)                                                                \
    {                                                                                              \
        return (vf){_mm256_##op(x.a), _mm256_##op(x.b)};                                           \
    }
#define TWO_OPERANDS(name, op)                                                                     \
    static inline vf v_##name(vf x, vf y)                                                          \
    {                                                                                              \
        return (vf){_mm256_##op(x.a, y.a), _mm256_##op(x.b, y.b)};                                 \
    }
#define THREE_OPERANDS(name, op)                                                                   \
    static inline vf v_##name(vf x, vf y, vf z)                                                    \
    {                                                                                              \
        return (vf){_mm256_##op(x.a, y.a, z.a), _mm256_##op(x.b, y.b, z.b)};                       \
    }

ONE_OPERAND(sqrt, sqrt_ps)
TWO_OPERANDS(add, add_ps)
TWO_OPERANDS(sub, sub_ps)
TWO_OPERANDS(mul, mul_ps)
TWO_OPERANDS(div, div_ps)
TWO_OPERANDS(min, min_ps)
TWO_OPERANDS(max, max_ps)
TWO_OPERANDS(and, and_ps)
TWO_OPERANDS(andnot, andnot_ps) /* y without the bits of x */
TWO_OPERANDS(or, or_ps)
THREE_OPERANDS(fma, fmadd_ps)   /* x y + z */
THREE_OPERANDS(fms, fmsub_ps)   /* x y - z */
THREE_OPERANDS(fnma, fnmadd_ps) /* z - x y */

#undef ONE_OPERAND
#undef TWO_OPERANDS
#undef THREE_OPERANDS

static inline vf v_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void v_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

static inline vf v_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline vf v_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline vmask v_mask(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i above = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
    const __m256i end = _mm256_set1_epi32(n < LANES ? (int)n : LANES);
    return (vmask){_mm256_cmpgt_epi32(end, lane), _mm256_cmpgt_epi32(end, above)};
}

static inline vf v_load_mask(const float *p, vmask m)
{
    return (vf){_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
}

static inline void v_store_mask(float *p, vmask m, vf v)
{
    _mm256_maskstore_ps(p, m.a, v.a);
    _mm256_maskstore_ps(p + 8, m.b, v.b);
}

/* v where the mask is set, other elsewhere */
static inline vf v_select(vmask m, vf v, vf other)
{
    return (vf){_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(m.a)),
                _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(m.b))};
}

static inline vf v_keep(vmask m, vf v) /* 0 outside the mask */
{
    const __m256 a = _mm256_castsi256_ps(m.a), b = _mm256_castsi256_ps(m.b);
    return (vf){_mm256_and_ps(v.a, a), _mm256_and_ps(v.b, b)};
}

static inline vmask v_equal(vf x, vf y)
{
    return (vmask){_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ)),
                   _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ))};
}

static inline vmask v_is_negative(vf v) /* by its sign bit, the only one that v_select uses */
{
    return (vmask){_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)};
}

static inline __m256 flush_half(__m256 x)
{
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_and_ps(x, _mm256_cmp_ps(size, _mm256_set1_ps(FLT_MIN), _CMP_NLT_UQ));
}

static inline vf v_flush(vf v) /* 0 in place of subnormal lanes; NaN stays */
{
    return (vf){flush_half(v.a), flush_half(v.b)};
}

/* The floats whose exponents' codes are the low bits of `code`. */
static inline vf v_power_of_code(vf code)
{
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(code.a), 23)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(code.b), 23))};
}

static inline __m256 round_bf16_half(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    __m256 y = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet),
                                _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_and_ps(y, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)));
}

/* Round to the nearest bfloat16 value: the steps of tests/kernels/reference/ref_round_bf16.c. */
static inline vf v_round_bf16(vf x)
{
    return (vf){round_bf16_half(x.a), round_bf16_half(x.b)};
}

static inline float v_hsum(vf v)
{
    __m256 f = _mm256_add_ps(v.a, v.b);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Greatest lane; no lane may be NaN. */
static inline float v_hmax(vf v)
{
    __m256 f = _mm256_max_ps(v.a, v.b);
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vd vd_zero(void)
{
    return (vd){_mm256_setzero_pd(), _mm256_setzero_pd()};
}

static inline vd vd_load(const double *p)
{
    return (vd){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)};
}

static inline void vd_store(double *p, vd v)
{
    _mm256_storeu_pd(p, v.a);
    _mm256_storeu_pd(p + 4, v.b);
}

static inline vd vd_add(vd x, vd y)
{
    return (vd){_mm256_add_pd(x.a, y.a), _mm256_add_pd(x.b, y.b)};
}

static inline vd vd_add_square(vd x, vd z) /* z + x^2 */
{
    return (vd){_mm256_fmadd_pd(x.a, x.a, z.a), _mm256_fmadd_pd(x.b, x.b, z.b)};
}

static inline vd v_widen(vf v, int i) /* half i */
{
    const __m256 half = i == 0 ? v.a : v.b;
    return (vd){_mm256_cvtps_pd(_mm256_castps256_ps128(half)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(half, 1))};
}

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) */
static inline double vd_hsum(vd v)
{
    __m256d f = _mm256_add_pd(v.a, v.b);
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(f), _mm256_extractf128_pd(f, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
