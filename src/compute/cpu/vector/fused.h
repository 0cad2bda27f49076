/* compute/cpu/vector/fused.h - fused multiply-adds of floats in C, rounded once.
 *
 * Processors with the instruction use it. On others the operands are widened to double. The product
 * of two floats is exact in double. If its sum with z isn't, rounding that sum to float would round
 * twice, and the first rounding can hide on which side of the middle between two floats the true
 * value lies. So the sum is rounded to odd instead: toward 0, with the last bit set if it is
 * inexact. A double has over two bits more than a float, so an odd double is never such a middle,
 * and the conversion rounds as if it saw the true value, also to subnormal floats. The exponents of
 * floats are too small for any of these operations to overflow or lose bits in double.
 */
#pragma once

#include <stdint.h>

/* Vectors of the compiler: an operand, as it is widened once for many uses, and its floats. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
typedef float lks__wide;
#else
typedef double lks__wide;
#endif
enum { LKS__WIDE_LANES = 16 / sizeof(lks__wide) };
typedef lks__wide lks__wides __attribute__((vector_size(16), may_alias));
typedef float lks__narrows __attribute__((vector_size(LKS__WIDE_LANES * sizeof(float))));

/* x * y + z; the result is widened again. */
static inline __attribute__((always_inline)) lks__wides lks__fused(lks__wides x, lks__wides y,
                                                                   lks__wides z)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    for (int i = 0; i < LKS__WIDE_LANES; i++)
        z[i] = __builtin_fmaf(x[i], y[i], z[i]);
    return z;
#else
    typedef int64_t words __attribute__((vector_size(16)));
    const lks__wides product = x * y, sum = product + z, added = sum - product;
    const lks__wides error = (product - (sum - added)) + (z - added);
    const lks__wides side = error * sum; /* < 0: the true value is nearer to 0 than sum */
    const words nearer = side < 0.0, inexact = nearer | (side > 0.0); /* all bits; 0 for a NaN */
    const words odd = ((words)sum + nearer) | (inexact & 1);
    return __builtin_convertvector(__builtin_convertvector((lks__wides)odd, lks__narrows),
                                   lks__wides);
#endif
}
