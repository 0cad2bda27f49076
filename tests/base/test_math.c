/* exp, log, pow, sin and cos: at most 1 unit in the last place from the C library's, whose error is
 * below 1, too; C's special values; and recorded bits, the same on every machine. */
#include "support.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/math.h"

typedef double function(double x, double y);

static double exp_of(double x, double y)
{
    return lks__math_exp(x);
}

static double log_of(double x, double y)
{
    return lks__math_log(x);
}

static double sin_of(double x, double y)
{
    return lks__math_sin(x);
}

static double cos_of(double x, double y)
{
    return lks__math_cos(x);
}

static double c_exp(double x, double y)
{
    return exp(x);
}

static double c_log(double x, double y)
{
    return log(x);
}

static double c_sin(double x, double y)
{
    return sin(x);
}

static double c_cos(double x, double y)
{
    return cos(x);
}

static uint64_t random_state, hash;

static double uniform(void) /* in [0, 1), Knuth's MMIX generator */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

static double centered(double width)
{
    return (uniform() - 0.5) * width;
}

static double of_any_size(int least, int most) /* (-1/2, 1/2) times a power of two */
{
    const int power = least + (int)(uniform() * (most - least + 1));
    return ldexp(uniform() - 0.5, power);
}

/* Equal, or neighbours: so their bits are whole numbers that differ by 1 at most. */
static bool is_close(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    int64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x - y <= 1 && y - x <= 1;
}

static void check(const char *name, function *ours, function *c, double x, double y)
{
    const double got = ours(x, y), want = c(x, y);
    hash = XXH3_64bits_withSeed(&got, isnan(got) ? 0 : sizeof got, hash);
    if (!is_close(got, want) || (!isfinite(want) && isfinite(got)))
        fail_msg("%s of %a and %a is %a, should be %a", name, x, y, got, want);
}

TEST(test_random)
{
    random_state = 1;
    hash = 0;
    for (int i = 0; i < 200000; i++) {
        check("exp", exp_of, c_exp, centered(1500), 0);
        check("exp", exp_of, c_exp, of_any_size(-60, 1), 0);
        check("log", log_of, c_log, fabs(of_any_size(-1060, 1023)), 0);
        check("log", log_of, c_log, 1 + of_any_size(-50, 0), 0);
        double y = of_any_size(-5, 14); /* compilers draw arguments in different orders */
        check("pow", lks__math_pow, pow, fabs(of_any_size(-1060, 1023)), y);
        y = of_any_size(-5, 60);
        check("pow", lks__math_pow, pow, 1 + of_any_size(-50, 0), y);
        y = floor(uniform() * 30000);
        check("pow", lks__math_pow, pow, uniform(), y);
        y = floor(centered(100));
        check("pow", lks__math_pow, pow, centered(50), y);
        const double angle = of_any_size(-60, 31), turn = floor(centered(1e6)) * (M_PI / 2);
        check("sin", sin_of, c_sin, angle, 0);
        check("cos", cos_of, c_cos, angle, 0);
        check("sin", sin_of, c_sin, turn + of_any_size(-60, 0), 0);
        check("cos", cos_of, c_cos, turn, 0);
    }
    assert_int_equal(hash, UINT64_C(0x84fe4b575c3f96e7));
}

TEST(test_special)
{
    static const double x[] = {0.0,       -0.0, 1,     -1,     2,       -2,     3,    -3,
                               0.5,       -0.5, NAN,   1e300,  -1e300,  1e-300, 1e19, INFINITY,
                               -INFINITY, 1e18, -1e19, 5e-324, -5e-324, 710,    -746, 0x1p52 + 1};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        check("exp", exp_of, c_exp, x[i], 0);
        check("log", log_of, c_log, x[i], 0);
        for (size_t j = 0; j < sizeof x / sizeof *x; j++)
            check("pow", lks__math_pow, pow, x[i], x[j]);
    }
    for (int n = -3; n <= 22; n++) /* what a person computes by hand */
        assert_true(lks__math_pow(10, n) == pow(10, n));
    assert_true(lks__math_exp(0) == 1 && lks__math_log(1) == 0 && lks__math_cos(0) == 1);
    assert_true(lks__math_sin(0) == 0 && signbit(lks__math_sin(-0.0)));
    assert_true(isnan(lks__math_sin(INFINITY)) && isnan(lks__math_cos(NAN)) &&
                isnan(lks__math_sin(0x1.1p30)));
}
