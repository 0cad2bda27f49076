/* The fingerprint of a level's kernels: the same each time, and another if any result is. */
#include "kernels/level.h"

#include <inttypes.h>
#include <string.h>

#include "support.h"

TEST(test_fingerprint)
{
    uint64_t one = lks__kernels_fingerprint(&lvl, false);
    assert_true(one == lks__kernels_fingerprint(&lvl, false));
    /* a kernel that rounds differently changes the fingerprint */
    lks__kernels other = lvl;
    other.gelu_erf_fwd = lvl.gelu_tanh_fwd;
    assert_true(one != lks__kernels_fingerprint(&other, false));
    other = lvl;
    other.adamw = ref.adamw;
    assert_true(one != lks__kernels_fingerprint(&other, false));
    /* products are the reference's, bit for bit, with oneDNN and without it */
    other = lvl;
    other.gemm = ref.gemm;
    assert_true(one == lks__kernels_fingerprint(&other, false));
    /* all levels have the same, with and without oneDNN; else the wrong kernels are named */
    if (one != LKS__FINGERPRINT)
        fail_msg("the fingerprint is %016" PRIx64
                 ", not LKS__FINGERPRINT (docs/inside/extending.md)",
                 one);
    assert_ok(lks__kernels_verify(&lvl));
    lks__kernels_open_own(lvl.level, &other);
    assert_ok(lks__kernels_verify(&other));
    other.gelu_erf_fwd = lvl.gelu_tanh_fwd;
    other.adamw = ref.adamw;
    assert_fails(LKS_ERR_SUPPORT, lks__kernels_verify(&other), "defines: gelu_erf_fwd adamw (");
    other = lvl;
    other.gemm_bf16 = ref.gemm_bf16;
    assert_true(one == lks__kernels_fingerprint(&other, false)); /* float32 doesn't use it */
    one = lks__kernels_fingerprint(&lvl, true);
    assert_true(one == lks__kernels_fingerprint(&lvl, true));
    assert_true((one == lks__kernels_fingerprint(&other, true)) ==
                (lvl.level < LKS__CPU_AVX512_BF16));
    assert_true(one != lks__kernels_fingerprint(&lvl, false));
}

/* Kernels of which one result is wrong, wrong_at: the fingerprint must cover each. */
static size_t wrong_at, n_results, n_products;
static bool order[3], odd_size; /* of products that were made */

static void spoil(float *const results[], size_t n)
{
    n_results = n;
    *results[wrong_at] += 1;
}

#define WRONG(name, parameters, arguments, ...)                                                    \
    static void wrong_##name parameters                                                            \
    {                                                                                              \
        float *const results[] = {__VA_ARGS__};                                                    \
        lvl.name arguments;                                                                        \
        spoil(results, sizeof results / sizeof results[0]);                                        \
    }

WRONG(layernorm_fwd,
      (float *y, float *mean, float *rstd, const float *x, const float *gain, const float *bias,
       size_t rows, size_t n),
      (y, mean, rstd, x, gain, bias, rows, n), y, &y[rows * n - 1], mean, rstd)
WRONG(layernorm_bwd,
      (float *dx, float *dgain, float *dbias, const float *dy, const float *x, const float *gain,
       const float *mean, const float *rstd, size_t rows, size_t n),
      (dx, dgain, dbias, dy, x, gain, mean, rstd, rows, n), dx, &dx[rows * n - 1], dgain, dbias)
WRONG(gelu_erf_fwd, (float *y, const float *x, size_t n), (y, x, n), y, &y[n - 1])
WRONG(gelu_tanh_fwd, (float *y, const float *x, size_t n), (y, x, n), y, &y[n - 1])
WRONG(relu2_fwd, (float *y, const float *x, size_t n), (y, x, n), y, &y[n - 1])
WRONG(add, (float *y, const float *x, size_t n), (y, x, n), y, &y[n - 1])
WRONG(gelu_erf_bwd, (float *dx, const float *dy, const float *x, size_t n), (dx, dy, x, n), dx,
      &dx[n - 1])
WRONG(gelu_tanh_bwd, (float *dx, const float *dy, const float *x, size_t n), (dx, dy, x, n), dx,
      &dx[n - 1])
WRONG(relu2_bwd, (float *dx, const float *dy, const float *x, size_t n), (dx, dy, x, n), dx,
      &dx[n - 1])
WRONG(mul_add, (float *y, const float *a, const float *b, size_t n), (y, a, b, n), y, &y[n - 1])
/* Of these the next kernel overwrites the first elements. */
WRONG(mul, (float *y, const float *a, const float *b, size_t n), (y, a, b, n), &y[n - 1])
WRONG(softcap, (float *y, const float *x, size_t n, float cap), (y, x, n, cap), &y[n - 1])
WRONG(rmsnorm_bwd,
      (float *dx, const float *dy, const float *x, const float *rms, size_t rows, size_t n),
      (dx, dy, x, rms, rows, n), &dx[rows * n - 1])
WRONG(rmsnorm_fwd, (float *y, float *rms, const float *x, size_t rows, size_t n),
      (y, rms, x, rows, n), y, &y[rows * n - 1], rms)
WRONG(rope_fwd,
      (float *y, float *rms, const float *x, const float *cosine, const float *sine,
       const float *gain, size_t heads, size_t hs),
      (y, rms, x, cosine, sine, gain, heads, hs), y, &y[heads * hs - 1], rms)
WRONG(rope_bwd,
      (float *dx, float *dgain, const float *dy, const float *x, const float *rms,
       const float *cosine, const float *sine, const float *gain, size_t heads, size_t hs),
      (dx, dgain, dy, x, rms, cosine, sine, gain, heads, hs), dx, &dx[heads * hs - 1], dgain)
WRONG(softmax_block,
      (float *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag, float *max, float *sum,
       float *factor),
      (s, lds, rows, cols, diag, max, sum, factor), s, &s[(rows - 1) * lds + cols - 1], max, sum,
      factor)
WRONG(softmax_again,
      (float *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag, const float *lse),
      (s, lds, rows, cols, diag, lse), s, &s[(rows - 1) * lds + cols - 1])
WRONG(dropout, (float *y, const float *x, size_t n, uint64_t first, const lks__dropout *d),
      (y, x, n, first, d), y, &y[n - 1])
WRONG(scale, (float *y, float a, size_t n), (y, a, n), y, &y[n - 1])
WRONG(add_bias, (float *y, size_t ld, const float *bias, size_t rows, size_t n),
      (y, ld, bias, rows, n), y, &y[(rows - 1) * ld + n - 1])
WRONG(colsum, (float *out, const float *x, size_t ld, size_t rows, size_t n), (out, x, ld, rows, n),
      out, &out[n - 1])
WRONG(adamw, (float *p, float *m, float *v, const float *g, size_t n, const lks__adamw *a),
      (p, m, v, g, n, a), p, &p[n - 1], m, v)

/* Those that return a number, or have another one beside floats. */
static float wrong_dot(const float *a, const float *b, size_t n)
{
    return lvl.dot(a, b, n) + 1;
}

static double wrong_sumsq(const float *x, size_t n)
{
    return lvl.sumsq(x, n) + 1;
}

static void wrong_sum_scaled(float *y, const float *a, const float *b, float scale, double lanes[8],
                             size_t n)
{
    n_results = 2;
    lvl.sum_scaled(y, a, b, scale, lanes, n);
    if (wrong_at == 0)
        y[n - 1] += 1;
    else
        lanes[7] += 1;
}

static double wrong_xent_row(float *dx, const float *x, size_t n, size_t target, float scale)
{
    n_results = 2;
    const double loss = lvl.xent_row(dx, x, n, target, scale);
    dx[n - 1] += (float)wrong_at;
    return wrong_at == 0 ? loss + 1 : loss;
}

static double wrong_xent_cap_row(float *dx, const float *x, size_t n, size_t target, float scale,
                                 float cap)
{
    n_results = 2;
    const double loss = lvl.xent_cap_row(dx, x, n, target, scale, cap);
    dx[n - 1] += (float)wrong_at;
    return wrong_at == 0 ? loss + 1 : loss;
}

/* The level's kernels, but float32 products of the best level, which take a part of the time. */
static lks__kernels base;

/* One product of several is wrong. */
static void spoil_product(char ta, char tb, size_t m, size_t n, size_t k, float *c, size_t ldc)
{
    if (n_products++ == wrong_at)
        c[(m - 1) * ldc + n - 1] += 1;
    n_results = n_products;
    order[ta == 'T' ? 2 : tb == 'T'] = true;
    odd_size |= m % 2 == 1 && n % 2 == 1 && k % 2 == 1;
}

static void wrong_gemm(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                       size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    base.gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    spoil_product(ta, tb, m, n, k, c, ldc);
}

static void wrong_gemm_bf16(char ta, char tb, size_t m, size_t n, size_t k, float alpha,
                            const float *a, size_t lda, const float *b, size_t ldb, float beta,
                            float *c, size_t ldc, void *work)
{
    lvl.gemm_bf16(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, work);
    spoil_product(ta, tb, m, n, k, c, ldc);
}

#define CHECK_COVERED(name, bf16)                                                                  \
    do {                                                                                           \
        lks__kernels other = base;                                                                 \
        other.name = wrong_##name;                                                                 \
        wrong_at = 0;                                                                              \
        do {                                                                                       \
            n_products = 0;                                                                        \
            if (lks__kernels_fingerprint(&other, bf16) == right[bf16])                             \
                fail_msg("result %zu of " #name " is not in the fingerprint", wrong_at);           \
        } while (++wrong_at < n_results);                                                          \
    } while (0)

/* All that training uses. Not dot_rows and weighted_sum, which only sampling uses, and not
 * round_bf16, which products call themselves. */
TEST(test_fingerprint_covers)
{
    lks__kernels best;
    lks__cpu_level level;
    base = lvl;
    assert_ok(lks__cpu_level_get(&level));
    lks__kernels_open_own(level, &best);
    base.gemm = best.gemm;
    const uint64_t right[2] = {lks__kernels_fingerprint(&base, false),
                               lks__kernels_fingerprint(&base, true)};
    CHECK_COVERED(gemm, false);
    assert_true(order[0] && order[1] && order[2] && odd_size);
    memset(order, 0, sizeof order);
    CHECK_COVERED(gemm_bf16, true);
    assert_true(order[0] && order[1] && order[2]);
#define X(name, type) CHECK_COVERED(name, false);
    LKS__TRAINING_KERNEL_MAP(X)
#undef X
}
