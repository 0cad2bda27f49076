#include "base/number/rng.h"

#include <math.h>
#include <string.h>

#include "base/number/math.h"
#include "base/system/sys.h"

/* ---- MT19937: Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998 ----------- */

enum { MT_N = 624, MT_M = 397 };

void lks__mt_seed(lks__mt *g, uint64_t seed)
{
    uint32_t x = (uint32_t)seed;
    for (uint32_t i = 0; i < MT_N; i++) {
        g->state[i] = x;
        x = 1812433253u * (x ^ (x >> 30)) + i + 1;
    }
    g->pos = MT_N;
    g->has_normal = false;
    g->normal = 0;
}

static inline uint32_t twist(uint32_t hi, uint32_t lo, uint32_t far)
{
    uint32_t y = (hi & 0x80000000u) | (lo & 0x7fffffffu);
    return far ^ (y >> 1) ^ (0x9908b0dfu & (0u - (lo & 1u)));
}

/* Three loops instead of one with a remainder, so that the compiler can use vectors. */
static void refill(lks__mt *g)
{
    uint32_t *s = g->state;
    int i = 0;
    for (; i < MT_N - MT_M; i++)
        s[i] = twist(s[i], s[i + 1], s[i + MT_M]);
    for (; i < MT_N - 1; i++)
        s[i] = twist(s[i], s[i + 1], s[i + MT_M - MT_N]);
    s[MT_N - 1] = twist(s[MT_N - 1], s[0], s[MT_M - 1]);
    g->pos = 0;
}

static inline uint32_t temper(uint32_t y)
{
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint32_t lks__mt_u32(lks__mt *g)
{
    if (g->pos >= MT_N)
        refill(g);
    return temper(g->state[g->pos++]);
}

/* Two draws, high half first, as in torch. */
static uint64_t mt_u64(lks__mt *g)
{
    uint64_t high = lks__mt_u32(g);
    return high << 32 | lks__mt_u32(g);
}

void lks__mt_skip(lks__mt *g, uint64_t n_u32)
{
    uint64_t left = MT_N - g->pos;
    while (n_u32 > left) {
        n_u32 -= left;
        refill(g);
        left = MT_N;
    }
    g->pos += (uint32_t)n_u32;
}

/* ---- tensor.uniform_, tensor.normal_ ------------------------------------------------------- */

/* n draws in [0, 1), 24 bits each: exact in float. */
static void fill_unit(lks__mt *g, float *out, size_t n)
{
    while (n > 0) {
        if (g->pos >= MT_N)
            refill(g);
        size_t run = MT_N - g->pos;
        if (run > n)
            run = n;
        const uint32_t *s = g->state + g->pos;
        for (size_t i = 0; i < run; i++)
            out[i] = (float)(int32_t)(temper(s[i]) & 0xffffffu) * 0x1p-24f;
        g->pos += (uint32_t)run;
        out += run;
        n -= run;
    }
}

void lks__mt_uniform(lks__mt *g, float *out, size_t n, float lo, float hi)
{
    fill_unit(g, out, n);
    /* PyTorch computes in double and rounds once, but first rounds the width to float. */
    const float width = hi - lo;
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((double)out[i] * (double)width + (double)lo);
}

/* Our own log, sin and cos give the same bits with any C library and on any processor (glibc has
 * variants with FMA). All compute in double, far more precisely than the float result needs. */

/* ln(u) for u in [2^-24, 1]. u = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s), s =
 * (m-1)/(m+1), |s| < 0.172: the next term of the series is below 2 s^13/13 = 2e-11. */
static inline double log_unit(float u)
{
    int32_t bits, m_bits;
    memcpy(&bits, &u, sizeof bits);
    int32_t e = (bits - 0x3f3504f3) >> 23;
    m_bits = bits - e * (1 << 23);
    float m;
    memcpy(&m, &m_bits, sizeof m);
    double s = ((double)m - 1.0) / ((double)m + 1.0), z = s * s;
    double p = 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    p = p * z + 1.0;
    return 2.0 * s * p + (double)e * 0.69314718055994530942;
}

/* cos and sin of theta in [0, 2 pi]. theta = k pi/2 + r, |r| <= pi/4: Taylor series, whose next
 * terms are below r^12/12! = 1e-10. */
static inline void cos_sin(float theta, float *cos_p, float *sin_p)
{
    int32_t k = (int32_t)(theta * 0.63661977f + 0.5f); /* theta >= 0: truncation is floor */
    double r = (double)theta - (double)k * 1.57079632679489661923, z = r * r;
    double s = 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = (s * z + 1.0) * r;
    double c = -1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 0.5;
    c = c * z + 1.0;
    /* Quadrants: (c, s), (-s, c), (-c, -s), (s, -c). */
    float cf = (float)c, sf = (float)s;
    float a = k & 1 ? sf : cf, b = k & 1 ? cf : sf;
    *cos_p = (k + 1) & 2 ? -a : a;
    *sin_p = k & 2 ? -b : b;
}

/* Box-Muller in place on 16 uniform numbers: the first 8 give radii, the last 8 angles; the results
 * are 8 cosines and 8 sines. Angle and product are rounded to float as in PyTorch. */
static void normal_16(float *x, float mean, float std)
{
    for (int i = 0; i < 8; i++) {
        float c, s;
        float radius = (float)sqrt(-2.0 * log_unit(1.0f - x[i]));
        cos_sin(6.28318530717958647692f * x[i + 8], &c, &s);
        x[i] = radius * c * std + mean;
        x[i + 8] = radius * s * std + mean;
    }
}

/* For fewer than 16 elements: doubles of 53 bits, computed in pairs; the second of a pair is kept
 * for the next call. */
static double normal_one(lks__mt *g)
{
    if (g->has_normal) {
        g->has_normal = false;
        return g->normal;
    }
    const uint64_t mask = (UINT64_C(1) << 53) - 1;
    double u1 = (double)(mt_u64(g) & mask) * 0x1p-53;
    double u2 = (double)(mt_u64(g) & mask) * 0x1p-53;
    double radius = sqrt(-2.0 * lks__math_log(1.0 - u2)), theta = 2.0 * 3.14159265358979323846 * u1;
    g->normal = radius * lks__math_sin(theta);
    g->has_normal = true;
    return radius * lks__math_cos(theta);
}

void lks__mt_normal(lks__mt *g, float *out, size_t n, float mean, float std)
{
    if (n < 16) {
        for (size_t i = 0; i < n; i++)
            out[i] = (float)(normal_one(g) * (double)std + (double)mean);
        return;
    }
    fill_unit(g, out, n);
    for (size_t i = 0; i + 16 <= n; i += 16)
        normal_16(out + i, mean, std);
    if (n % 16 != 0) { /* PyTorch draws the last 16 again and overwrites earlier values */
        fill_unit(g, out + n - 16, 16);
        normal_16(out + n - 16, mean, std);
    }
}

uint64_t lks__mt_normal_draws(size_t n)
{
    return (uint64_t)n + (n % 16 != 0 ? 16 : 0);
}

/* ---- torch.randint, torch.randperm --------------------------------------------------------- */

uint64_t lks__mt_randint(lks__mt *g, uint64_t range)
{
    return range >= UINT64_C(1) << 28 ? mt_u64(g) % range : lks__mt_u32(g) % (uint32_t)range;
}

/* Billions of samples take minutes: other ranks must see that this one is alive. */
static void report(size_t i)
{
    if (i % (1 << 20) == 0)
        lks__sys_progress();
}

void lks__mt_randperm(lks__mt *g, uint32_t *out, size_t n)
{
    if (n >= UINT32_MAX / 20) {
        /* For such sizes PyTorch uses 64-bit draws and shuffles in the other direction: value i
         * moves to a random index among the first i + 1, and the value there moves to the end. */
        for (size_t i = 0; i < n; i++) {
            size_t j = (size_t)(mt_u64(g) % (i + 1));
            report(i);
            out[i] = (uint32_t)i; /* j may equal i */
            out[i] = out[j];
            out[j] = (uint32_t)i;
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
    for (size_t i = 0; i + 1 < n; i++) {
        size_t j = i + lks__mt_u32(g) % (uint32_t)(n - i);
        report(i);
        uint32_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}

/* ---- Philox4x32-10 ------------------------------------------------------------------------- */

void lks__philox4x32(lks__philox_key key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u; /* the paper's Weyl key schedule: golden ratio, sqrt(3) - 1 */
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
