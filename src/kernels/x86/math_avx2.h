/* kernels/x86/math_avx2.h - what the AVX2 kernels share: ends of rows, sums, exp, normal CDF.
 *
 * Coefficients were fitted for this file with mpmath at 40 digits: weighted least squares on
 * Chebyshev points, weights after Lawson until the error levels out; the errors stated are those
 * of the fit, to which a few float roundings add. */
#ifndef LKS_KERNELS_X86_MATH_AVX2_H
#define LKS_KERNELS_X86_MATH_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* Lanes 0..n-1 of 8 (n <= 8). Masked loads and stores touch only their lanes' memory. */
static inline __m256i lks__mask_avx2(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

static inline float lks__hsum_avx2(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* Greatest lane; lanes are no NaN. */
static inline float lks__hmax_avx2(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* exp(r) - 1 = r + r^2 q(r) for |r| <= ln 2 / 2, error 3e-9 of exp(r). */
static inline __m256 lks__expm1_reduced_avx2(__m256 r)
{
    __m256 q = _mm256_set1_ps(1.381446461784397e-3f);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(8.368780659979577e-3f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(4.1668394263654845e-2f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0.16666520105137278f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0.4999999341222987f));
    return _mm256_fmadd_ps(q, _mm256_mul_ps(r, r), r);
}

/* exp(x) for x <= 88, error 3e-9 relative; below about -87.7 exactly 0; NaN stays NaN.
 *
 * x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 + 127 rounds n to
 * an integer and leaves n + 127, the exponent's code, in the low bits. At the lower clamp n is
 * -127, whose code makes the factor 0. */
static inline __m256 lks__exp_avx2(__m256 x)
{
    const __m256 shift = _mm256_set1_ps(12582912.0f + 127.0f);
    x = _mm256_max_ps(_mm256_set1_ps(-88.0f), x); /* of a NaN and a number, the second operand */
    __m256 code = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504089f), shift);
    __m256 n = _mm256_sub_ps(code, shift);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145751953125f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860682030941723e-6f), r);

    __m256 e = lks__expm1_reduced_avx2(r);
    __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(code), 23));
    return _mm256_mul_ps(_mm256_add_ps(e, _mm256_set1_ps(1.0f)), factor);
}

/* tanh(x), a few roundings relative, also near 0: -m / (2 + m) with m = exp(-2 |x|) - 1, which the
 * reduction of lks__exp_avx2 gives without cancellation. NaN stays NaN. */
static inline __m256 lks__tanh_avx2(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    const __m256 shift = _mm256_set1_ps(12582912.0f + 127.0f);
    __m256 v = _mm256_mul_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(-2.0f));
    v = _mm256_max_ps(_mm256_set1_ps(-40.0f), v); /* exp(-40) is nothing beside 1 */
    __m256 code = _mm256_fmadd_ps(v, _mm256_set1_ps(1.44269504089f), shift);
    __m256 n = _mm256_sub_ps(code, shift);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145751953125f), v);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860682030941723e-6f), r);

    __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(code), 23));
    __m256 e = lks__expm1_reduced_avx2(r);
    __m256 m = _mm256_fmadd_ps(factor, e, _mm256_sub_ps(factor, one));
    __m256 t = _mm256_div_ps(m, _mm256_add_ps(_mm256_set1_ps(2.0f), m)); /* <= 0 */
    return _mm256_or_ps(_mm256_andnot_ps(sign, t), _mm256_and_ps(sign, x));
}

/* Phi(x) = (1 + erf(x / sqrt 2)) / 2, error 1.5e-8 of the smaller of Phi and 1 - Phi; and
 * *e_p = exp(-x^2 / 2), which the density needs. NaN stays NaN.
 *
 * Phi(-z) = exp(-z^2 / 2) P(z) / Q(z), z >= 0: the quotient is Mills' ratio over sqrt(2 pi), fitted
 * on [0, 6] with P(0) / Q(0) = 1/2. Further out, where Phi(-z) < 1e-9, it only has to be sane. */
static inline __m256 lks__phi_avx2(__m256 x, __m256 *e_p)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    /* from 14 on exp(-z^2 / 2) is 0; an infinite z would make the quotient NaN */
    __m256 z = _mm256_min_ps(_mm256_set1_ps(14.0f), _mm256_andnot_ps(sign, x));
    __m256 e = lks__exp_avx2(_mm256_mul_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(-0.5f)));

    __m256 p = _mm256_set1_ps(1.32605619691e-6f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0.0110497784128f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0.0918967311144f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0.308121911479f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(0.5f));
    __m256 q = _mm256_set1_ps(0.0277995769063f);
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(0.228931925018f));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(0.812112291894f));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(1.41412776153f));
    q = _mm256_fmadd_ps(q, z, one);
    __m256 tail = _mm256_div_ps(_mm256_mul_ps(e, p), q);
    *e_p = e;
    return _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x); /* by x's sign */
}

#endif
