/* compute/cpu/vector/vec_math.h - exp, tanh and the normal CDF of a vector.
 *
 * Coefficients were fitted for this file with mpmath at 40 digits: weighted least squares on
 * Chebyshev points, with Lawson's weights until the error is level. The stated errors are those of
 * the fit; a few float roundings come on top. */
#pragma once

#include "compute/cpu/vector/vec.h"

/* exp(r) - 1 = r + r^2 q(r) for |r| <= ln 2 / 2, error 3e-9 of exp(r). */
static inline vf v_expm1_reduced(vf r)
{
    vf q = v_set1(1.381446461784397e-3f);
    q = v_fma(q, r, v_set1(8.368780659979577e-3f));
    q = v_fma(q, r, v_set1(4.1668394263654845e-2f));
    q = v_fma(q, r, v_set1(0.16666520105137278f));
    q = v_fma(q, r, v_set1(0.4999999341222987f));
    return v_fma(q, v_mul(r, r), r);
}

/* exp(x) for x <= 88, relative error 3e-9; below about -87.7 exactly 0; NaN stays NaN.
 *
 * x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 + 127 rounds n to an integer and leaves n +
 * 127, the exponent's code, in the low bits. At the lower clamp n is -127, whose code makes the
 * factor 0. */
static inline vf v_exp(vf x)
{
    const vf shift = v_set1(12582912.0f + 127.0f);
    x = v_max(v_set1(-88.0f), x); /* if one is NaN, v_max gives the second */
    vf code = v_fma(x, v_set1(1.44269504089f), shift);
    vf n = v_sub(code, shift);
    vf r = v_fnma(n, v_set1(0.693145751953125f), x);
    r = v_fnma(n, v_set1(1.42860682030941723e-6f), r);

    vf e = v_expm1_reduced(r);
    vf factor = v_power_of_code(code);
    return v_mul(v_add(e, v_set1(1.0f)), factor);
}

/* tanh(x), relative error a few roundings, also near 0: -m / (2 + m) with m = exp(-2 |x|) - 1,
 * which the reduction of v_exp computes without cancellation. NaN stays NaN. */
static inline vf v_tanh(vf x)
{
    const vf sign = v_set1(-0.0f), one = v_set1(1.0f);
    const vf shift = v_set1(12582912.0f + 127.0f);
    vf v = v_mul(v_andnot(sign, x), v_set1(-2.0f));
    v = v_max(v_set1(-40.0f), v); /* exp(-40) is negligible compared with 1 */
    vf code = v_fma(v, v_set1(1.44269504089f), shift);
    vf n = v_sub(code, shift);
    vf r = v_fnma(n, v_set1(0.693145751953125f), v);
    r = v_fnma(n, v_set1(1.42860682030941723e-6f), r);

    vf factor = v_power_of_code(code);
    vf e = v_expm1_reduced(r);
    vf m = v_fma(factor, e, v_sub(factor, one));
    vf t = v_div(m, v_add(v_set1(2.0f), m)); /* <= 0 */
    return v_or(v_andnot(sign, t), v_and(sign, x));
}

/* Phi(x) = (1 + erf(x / sqrt 2)) / 2, error 1.5e-8 of the smaller of Phi and 1 - Phi; and *e_p =
 * exp(-x^2 / 2), which the density needs. NaN stays NaN.
 *
 * Phi(-z) = exp(-z^2 / 2) P(z) / Q(z), z >= 0: the quotient is Mills' ratio over sqrt(2 pi),
 * fitted on [0, 6] with P(0) / Q(0) = 1/2. For larger z, with Phi(-z) < 1e-9, it only has to be
 * plausible. */
static inline vf v_phi(vf x, vf *e_p)
{
    const vf sign = v_set1(-0.0f), one = v_set1(1.0f);
    /* from 14 on exp(-z^2 / 2) is 0; an infinite z would make the quotient NaN */
    vf z = v_min(v_set1(14.0f), v_andnot(sign, x));
    vf e = v_exp(v_mul(v_mul(x, x), v_set1(-0.5f)));

    vf p = v_set1(1.32605619691e-6f);
    p = v_fma(p, z, v_set1(0.0110497784128f));
    p = v_fma(p, z, v_set1(0.0918967311144f));
    p = v_fma(p, z, v_set1(0.308121911479f));
    p = v_fma(p, z, v_set1(0.5f));
    vf q = v_set1(0.0277995769063f);
    q = v_fma(q, z, v_set1(0.228931925018f));
    q = v_fma(q, z, v_set1(0.812112291894f));
    q = v_fma(q, z, v_set1(1.41412776153f));
    q = v_fma(q, z, one);
    vf tail = v_div(v_mul(e, p), q);
    *e_p = e;
    return v_select(v_is_negative(x), tail, v_sub(one, tail));
}
