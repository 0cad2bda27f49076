/* base/number/math.h - exp, log, pow, sin and cos that give the same bits on every machine.
 *
 * Those of C libraries differ between versions, and with and without fused multiply-adds. These use
 * only additions, multiplications, divisions and comparisons of doubles, in one order. The error is
 * below 1 unit in the last place (seen: 0.83), and special values are those of C's functions.
 * tests/base/test_math.c compares them with the C library's and records their bits. */
#pragma once

double lks__math_exp(double x);
double lks__math_log(double x);
double lks__math_pow(double x, double y);

/* |x| <= 2^30; NaN for greater ones. */
double lks__math_sin(double x);
double lks__math_cos(double x);
