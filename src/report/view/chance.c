/* report/view/chance.c - Student's t distribution, for Welch's t test in seeds.c. */
#include <math.h>

#include "report/view/seeds.h"

enum { MOST_TERMS = 10000 };

static double not_zero(double x)
{
    return fabs(x) < 1e-300 ? 1e-300 : x;
}

/* The continued fraction of the incomplete beta function (DLMF 8.17.22), evaluated by Lentz's
 * method. */
static double fraction(double a, double b, double x)
{
    double c = 1.0, d = 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0)), h = d;
    for (int m = 1; m < MOST_TERMS; m++) {
        double even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        double odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / not_zero(1.0 + even * d);
        c = not_zero(1.0 + even / c);
        h *= d * c;
        d = 1.0 / not_zero(1.0 + odd * d);
        c = not_zero(1.0 + odd / c);
        h *= d * c;
        if (fabs(d * c - 1.0) < 1e-15)
            break;
    }
    return h;
}

/* The regularized incomplete beta function I_x(a, b). */
static double beta_share(double a, double b, double x)
{
    double front;
    if (x <= 0.0 || x >= 1.0)
        return x <= 0.0 ? 0.0 : 1.0;
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1.0) / (a + b + 2.0))
        return front * fraction(a, b, x) / a;
    return 1.0 - front * fraction(b, a, 1.0 - x) / b;
}

double lks__t_test_p(double t, double df)
{
    return isinf(t) ? 0.0 : beta_share(df / 2.0, 0.5, df / (df + t * t));
}
