/* base/number/math.c - the functions reduce their argument to a short interval around 0 and
 * add a Taylor series there, whose coefficients are reciprocals of whole numbers. The terms that
 * are left out are below 2^-58 of the result. Where a rounding would show in the result, a number
 * is a pair of doubles: Dekker, A floating-point technique for extending the available precision
 * (1971). */
#include "base/number/math.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* high + low, |low| at most half a unit in the last place of high */
typedef struct pair {
    double high, low;
} pair;

static pair sum(double a, double b) /* exact */
{
    const double s = a + b, of_b = s - a;
    return (pair){s, (a - (s - of_b)) + (b - of_b)};
}

static pair sum_ordered(double a, double b) /* the same for |a| >= |b| or a == 0 */
{
    const double s = a + b;
    return (pair){s, b - (s - a)};
}

static pair product(double a, double b) /* exact if nothing overflows or underflows */
{
    const double split = 0x1p27 + 1;
    const double ta = split * a, tb = split * b;
    const double ah = ta - (ta - a), bh = tb - (tb - b), al = a - ah, bl = b - bh, p = a * b;
    return (pair){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

static pair multiply(pair a, pair b)
{
    const pair p = product(a.high, b.high);
    return sum_ordered(p.high, p.low + (a.high * b.low + a.low * b.high));
}

static pair add(pair a, pair b)
{
    const pair s = sum(a.high, b.high);
    return sum(s.high, s.low + (a.low + b.low)); /* s may have cancelled */
}

/* c[0] + c[1] x + … + c[n - 1] x^(n - 1) */
static double series(const double *c, int n, double x)
{
    double y = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        y = y * x + c[i];
    return y;
}
#define SERIES(c, x) series(c, sizeof(c) / sizeof *(c), x)

/* The nearest whole number, for |x| < 2^51. */
static double nearest(double x)
{
    const double shift = 0x1.8p52;
    return (x + shift) - shift;
}

static double power_of_two(int n) /* -1022 <= n <= 1023 */
{
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ln 2 = LN2_HIGH + LN2_LOW, whose first part times n is exact for |n| < 2^21. */
static const double LN2_HIGH = 0x1.62e42ffp-1, LN2_LOW = -0x1.718432a1b0e26p-35;

/* exp(x.high + x.low) = 2^n exp(r), |r| <= ln 2 / 2 */
static double exp_of_pair(pair x)
{
    static const double c[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                               1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                               1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    if (x.high > 710.0)
        return INFINITY;
    if (x.high < -746.0)
        return 0.0;
    const double n = nearest(x.high * 1.4426950408889634);
    const pair r = sum(x.high - n * LN2_HIGH, x.low - n * LN2_LOW);
    const pair one = sum_ordered(1.0, r.high);
    const double small = (r.low + r.low * r.high) + r.high * r.high * SERIES(c, r.high);
    const double y = one.high + (one.low + small);
    const int half = (int)n / 2; /* 2^n itself may be out of range */
    return y * power_of_two(half) * power_of_two((int)n - half);
}

double lks__math_exp(double x)
{
    return isnan(x) ? x : exp_of_pair((pair){x, 0.0});
}

/* x = 2^n m with m from sqrt(1/2) to sqrt(2); x > 0 and finite. Returns m - 1, which is exact. */
static double fraction_less_1(double x, double *n_p)
{
    int n;
    double m = frexp(x, &n);
    if (m < 0.70710678118654752) {
        m *= 2.0;
        n--;
    }
    *n_p = n;
    return m - 1.0;
}

/* The logarithm of 0, of a negative number, of infinity and NaN; else 0. */
static double log_of_special(double x)
{
    if (x == 0.0)
        return -INFINITY;
    return x > 0.0 && x < INFINITY ? 0.0 : x < 0.0 ? (double)NAN : x;
}

/* With f = m - 1 and s = f / (2 + f), log m = 2 atanh s = f - (f^2 / 2 - s (f^2 / 2 + R)), where
 * R = 2 s^2 / 3 + 2 s^4 / 5 + …: only f, which is exact, is of the result's size. */
double lks__math_log(double x)
{
    static const double c[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                               2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
    if (!(x > 0.0 && x < INFINITY))
        return log_of_special(x);
    double n;
    const double f = fraction_less_1(x, &n), s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    const pair large = n == 0.0 ? (pair){f, 0.0} : sum_ordered(n * LN2_HIGH, f);
    const double small = s * (half + z * SERIES(c, z)) + n * LN2_LOW;
    return large.high + (large.low - (half - small));
}

/* log x with an error below 2^-63 of it; x > 0 and finite. */
static pair log_pair(double x)
{
    static const double c[] = {1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13, 1.0 / 15,
                               1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25, 1.0 / 27};
    const pair third = {0x1.5555555555555p-2, 0x1.5555555555555p-56};
    double n;
    const double f = fraction_less_1(x, &n);
    const pair below = sum_ordered(2.0, f);
    const double q = f / below.high;
    const pair back = product(q, below.high);
    const pair s = sum_ordered(q, (((f - back.high) - back.low) - q * below.low) / below.high);
    const pair z = multiply(s, s);
    const pair tail = sum_ordered(third.high, z.high * SERIES(c, z.high));
    const pair u = multiply(z, (pair){tail.high, tail.low + third.low});
    const pair m = add(s, multiply(s, u));
    const pair low = product(n, LN2_LOW);
    return add(add((pair){n * LN2_HIGH, 0.0}, low), (pair){2.0 * m.high, 2.0 * m.low});
}

static bool is_whole(double x)
{
    return nearbyint(x) == x;
}

static bool is_odd(double x)
{
    return is_whole(x) && !is_whole(x / 2.0);
}

/* |x|^y for x that isn't 0, infinite or NaN */
static double power(double x, double y)
{
    const pair l = log_pair(fabs(x));
    const double rough = y * l.high;
    if (rough == 0.0)
        return 1.0;
    if (!(fabs(rough) < 800.0))
        return rough > 0.0 ? INFINITY : 0.0;
    const pair p = product(y, l.high);
    return exp_of_pair(sum_ordered(p.high, p.low + y * l.low));
}

double lks__math_pow(double x, double y)
{
    if (x == 1.0 || y == 0.0)
        return 1.0;
    if (isnan(x) || isnan(y))
        return x + y;
    if (isinf(y))
        return x == -1.0 ? 1.0 : (fabs(x) > 1.0) == (y > 0.0) ? INFINITY : 0.0;
    const bool negative = signbit(x) && is_odd(y);
    double result;
    if (x == 0.0 || isinf(x))
        result = (x == 0.0) == (y > 0.0) ? 0.0 : INFINITY;
    else if (x < 0.0 && !is_whole(y))
        return (double)NAN;
    else
        result = power(x, y);
    return negative ? -result : result;
}

/* x = n pi / 2 + r, |r| at most a little over pi / 4. Returns n modulo 4. The first four parts of
 * pi / 2 have 23 bits, so their products with n are exact. */
static int reduce(double x, pair *r_p)
{
    static const double part[] = {0x1.921fb4p+0, 0x1.4442dp-24, 0x1.846988p-48, 0x1.8cc514p-72,
                                  0x1.80dc1cd129025p-95};
    const double n = nearest(x * 0.63661977236758134);
    pair r = sum(x - n * part[0], -n * part[1]);
    for (int i = 2; i < 5; i++)
        r = add(r, (pair){-n * part[i], 0.0});
    *r_p = r;
    return (int)((int64_t)n & 3);
}

static double sin_near_0(pair r)
{
    static const double c[] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    const double z = r.high * r.high;
    return r.high + (r.low * (1.0 - 0.5 * z) + r.high * z * SERIES(c, z));
}

static double cos_near_0(pair r)
{
    static const double c[] = {
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
    const double z = r.high * r.high;
    const pair large = sum_ordered(1.0, -0.5 * z);
    return large.high + (large.low + (z * z * SERIES(c, z) - r.high * r.low));
}

static double sin_of_quarter(double x, int quarter)
{
    pair r;
    if (!(fabs(x) <= 0x1p30))
        return (double)NAN;
    const int n = (reduce(x, &r) + quarter) & 3;
    const double y = n % 2 == 0 ? sin_near_0(r) : cos_near_0(r);
    return n < 2 ? y : -y;
}

double lks__math_sin(double x)
{
    return x == 0.0 ? x : sin_of_quarter(x, 0);
}

double lks__math_cos(double x)
{
    return sin_of_quarter(x, 1);
}
