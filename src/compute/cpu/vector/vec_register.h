/* compute/cpu/vector/vec_register.h - one vector register of the level: 8 floats with AVX2, 16 with
 * AVX-512. With AVX-512 it has all operations of vec.h, whose kernels have 16 lanes at every level.
 * With AVX2 it has those of kernels whose results don't depend on the number of lanes: products,
 * dropout and peak. */
#pragma once

#include <float.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/cpu/vector/version.h"

#define ONE_OPERAND(name, op)                                                                      \
    static inline vf v_##name(vf x)                                                                \
    {                                                                                              \
        return V(op)(x);                                                                           \
    }
#define TWO_OPERANDS(name, op)                                                                     \
    static inline vf v_##name(vf x, vf y)                                                          \
    {                                                                                              \
        return V(op)(x, y);                                                                        \
    }
#define THREE_OPERANDS(name, op)                                                                   \
    static inline vf v_##name(vf x, vf y, vf z)                                                    \
    {                                                                                              \
        return V(op)(x, y, z);                                                                     \
    }

#if defined(__AVX512F__)

#define V(op) _mm512_##op
enum { LANES = 16, VECTORS = 32 };
typedef __m512 vf;
typedef __m512i vi; /* 16 x 32 or 8 x 64 bits */
typedef __m512d vd; /* 8 lanes */
typedef __mmask16 vmask;

static inline vmask v_mask(size_t n)
{
    return n >= LANES ? (vmask)0xffff : (vmask)((1u << n) - 1);
}

static inline vf v_load_mask(const float *p, vmask m)
{
    return _mm512_maskz_loadu_ps(m, p);
}

static inline void v_store_mask(float *p, vmask m, vf v)
{
    _mm512_mask_storeu_ps(p, m, v);
}

/* v where the mask is set, other elsewhere */
static inline vf v_select(vmask m, vf v, vf other)
{
    return _mm512_mask_blend_ps(m, other, v);
}

static inline vmask v_equal(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

static inline vmask v_is_nan(vf v)
{
    return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
}

static inline vmask v_is_negative(vf v) /* by its sign bit */
{
    return _mm512_movepi32_mask(_mm512_castps_si512(v));
}

static inline vmask vi_at_least(vi a, vi b) /* 32 bits, unsigned */
{
    return _mm512_cmpge_epu32_mask(a, b);
}

static inline vi v_bits(vf v)
{
    return _mm512_castps_si512(v);
}

static inline vf v_of_bits(vi v)
{
    return _mm512_castsi512_ps(v);
}

static inline vi vi_set1_64(uint64_t x)
{
    return _mm512_set1_epi64((long long)x);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

/* 0, 1, 2, ... of 64 bits */
static inline vi vi_count64(void)
{
    return _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
}

/* 32-bit lanes: even ones of one vector, odd ones of the other. */
static inline vi vi_odd32(vi even, vi odd)
{
    return _mm512_mask_blend_epi32(0xAAAA, even, odd);
}

/* out[0], out[1] = even_0 odd_0 even_1 odd_1 ..., in groups of 128 bits */
static inline void vi_interleave128(vi out[2], vi even, vi odd)
{
    const vi low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const vi high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    out[0] = _mm512_permutex2var_epi64(even, low, odd);
    out[1] = _mm512_permutex2var_epi64(even, high, odd);
}

static inline __m256 v_half(vf v, int i)
{
    return i == 0 ? _mm512_castps512_ps256(v) : _mm512_extractf32x8_ps(v, 1);
}

static inline vd v_widen(vf v, int i) /* half i */
{
    return _mm512_cvtps_pd(v_half(v, i));
}

static inline __m256 v_fold_sum(vf v)
{
    return _mm256_add_ps(v_half(v, 0), v_half(v, 1));
}

/* Greatest lane; no lane may be NaN. */
static inline float v_hmax(vf v)
{
    __m256 f = _mm256_max_ps(v_half(v, 0), v_half(v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vf v_flush(vf v) /* 0 in place of subnormal lanes; NaN stays */
{
    return _mm512_maskz_mov_ps(
        _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(FLT_MIN), _CMP_NLT_UQ), v);
}

/* The floats whose exponents' codes are the low bits of `code`. */
static inline vf v_power_of_code(vf code)
{
    return v_of_bits(_mm512_slli_epi32(v_bits(code), 23));
}

static inline vd vd_zero(void)
{
    return _mm512_setzero_pd();
}

static inline vd vd_load(const double *p)
{
    return _mm512_loadu_pd(p);
}

static inline void vd_store(double *p, vd v)
{
    _mm512_storeu_pd(p, v);
}

static inline vd vd_add(vd x, vd y)
{
    return _mm512_add_pd(x, y);
}

static inline vd vd_add_square(vd x, vd z) /* z + x^2 */
{
    return _mm512_fmadd_pd(x, x, z);
}

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) */
static inline double vd_hsum(vd v)
{
    __m256d f = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(f), _mm256_extractf128_pd(f, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

ONE_OPERAND(sqrt, sqrt_ps)
TWO_OPERANDS(sub, sub_ps)
TWO_OPERANDS(div, div_ps)
TWO_OPERANDS(min, min_ps)
TWO_OPERANDS(max, max_ps)
TWO_OPERANDS(and, and_ps)
TWO_OPERANDS(andnot, andnot_ps) /* y without the bits of x */
TWO_OPERANDS(or, or_ps)
THREE_OPERANDS(fms, fmsub_ps)   /* x y - z */
THREE_OPERANDS(fnma, fnmadd_ps) /* z - x y */

/* Round to the nearest bfloat16 value: the steps of tests/kernels/reference/ref_round_bf16.c. */
static inline vf v_round_bf16(vf x)
{
    const vi bits = v_bits(x);
    vi odd = vi_and(V(srli_epi32)(bits, 16), V(set1_epi32)(1));
    vi up = V(add_epi32)(bits, V(add_epi32)(odd, V(set1_epi32)(0x7fff)));
    vi quiet = vi_or(bits, V(set1_epi32)(0x00400000));
    vf y = v_select(v_is_nan(x), v_of_bits(quiet), v_of_bits(up));
    return v_of_bits(vi_and(v_bits(y), V(set1_epi32)(-0x10000)));
}

#else

#define V(op) _mm256_##op
enum { LANES = 8 };
typedef __m256 vf;
typedef __m256i vi; /* 8 x 32 or 4 x 64 bits */
typedef __m256i vmask;

static inline vmask v_mask(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < LANES ? (int)n : LANES), lane);
}

static inline vf v_load_mask(const float *p, vmask m)
{
    return _mm256_maskload_ps(p, m);
}

static inline void v_store_mask(float *p, vmask m, vf v)
{
    _mm256_maskstore_ps(p, m, v);
}

/* v where the mask is set, other elsewhere */
static inline vf v_select(vmask m, vf v, vf other)
{
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(m));
}

static inline vmask vi_at_least(vi a, vi b) /* 32 bits, unsigned */
{
    return _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a);
}

static inline vi vi_set1_64(uint64_t x)
{
    return _mm256_set1_epi64x((long long)x);
}

static inline vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

/* 0, 1, 2, ... of 64 bits */
static inline vi vi_count64(void)
{
    return _mm256_setr_epi64x(0, 1, 2, 3);
}

/* 32-bit lanes: even ones of one vector, odd ones of the other. */
static inline vi vi_odd32(vi even, vi odd)
{
    return _mm256_blend_epi32(even, odd, 0xAA);
}

/* out[0], out[1] = even_0 odd_0 even_1 odd_1 ..., in groups of 128 bits */
static inline void vi_interleave128(vi out[2], vi even, vi odd)
{
    out[0] = _mm256_permute2x128_si256(even, odd, 0x20);
    out[1] = _mm256_permute2x128_si256(even, odd, 0x31);
}

static inline __m256 v_fold_sum(vf v)
{
    return v;
}

#endif

/* The same for both widths. */

static inline vf v_load(const float *p)
{
    return V(loadu_ps)(p);
}

static inline void v_store(float *p, vf v)
{
    V(storeu_ps)(p, v);
}

static inline vf v_set1(float x)
{
    return V(set1_ps)(x);
}

static inline vf v_zero(void)
{
    return V(setzero_ps)();
}

TWO_OPERANDS(add, add_ps)
TWO_OPERANDS(mul, mul_ps)
THREE_OPERANDS(fma, fmadd_ps) /* x y + z */

#undef ONE_OPERAND
#undef TWO_OPERANDS
#undef THREE_OPERANDS

static inline vf v_keep(vmask m, vf v) /* 0 outside the mask */
{
    return v_select(m, v, v_zero());
}

static inline float v_hsum(vf v)
{
    __m256 f = v_fold_sum(v);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
