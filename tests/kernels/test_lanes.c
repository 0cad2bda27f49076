/* tests/kernels/test_lanes.c - the row kernels have the same bits at every level: plain's are
 * compared with those of each level of this machine, for odd sizes, subnormal numbers, infinities
 * and NaN. Only the bits of a NaN may differ. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compute/cpu/kernels.h"
#include "kernels/guard.h"

enum { MAX_N = 1040, ROWS = 5, ALL = ROWS * MAX_N, OUTS = 4 };

/* What kernels read and write; the same at the start of each call. */
struct work {
    float in[5][ALL], out[OUTS][ALL];
    double sums[16];
};
static struct work start, want, got;

typedef void call_fn(const lks__kernels *k, struct work *w, size_t n);

#define IN(i)  w->in[i]
#define OUT(i) w->out[i]

static const lks__dropout mask = {{{1, 2}}, 3, 4, 5, 1u << 30, 4.0f / 3};
static const lks__adamw adamw = {0.99f, 0.1f, 0.95f, 0.05f, 1e-3f, 2, 1e-8f, 0.75f};

static void positive(float *x)
{
    for (size_t i = 0; i < ALL; i++)
        x[i] = fabsf(x[i]);
}

/* A kernel's name and a call for rows or vectors of n elements. */
#define CALLS(X)                                                                                   \
    X(layernorm_fwd, k->layernorm_fwd(OUT(0), OUT(1), OUT(2), IN(0), IN(1), IN(2), ROWS, n))       \
    X(layernorm_bwd,                                                                               \
      k->layernorm_bwd(OUT(0), OUT(1), OUT(2), IN(0), IN(1), IN(2), IN(3), IN(4), ROWS, n))        \
    X(gelu_erf_fwd, k->gelu_erf_fwd(OUT(0), IN(0), n))                                             \
    X(gelu_erf_bwd, k->gelu_erf_bwd(OUT(0), IN(1), IN(0), n))                                      \
    X(gelu_tanh_fwd, k->gelu_tanh_fwd(OUT(0), IN(0), n))                                           \
    X(gelu_tanh_bwd, k->gelu_tanh_bwd(OUT(0), IN(1), IN(0), n))                                    \
    X(rmsnorm_fwd, k->rmsnorm_fwd(OUT(0), OUT(1), IN(0), ROWS, n))                                 \
    X(rmsnorm_bwd, k->rmsnorm_bwd(OUT(0), IN(0), IN(1), IN(2), ROWS, n))                           \
    X(rope_fwd, k->rope_fwd(OUT(0), OUT(1), IN(0), IN(1), IN(2), IN(3), ROWS, n & ~(size_t)1))     \
    X(rope_bwd, k->rope_bwd(OUT(0), OUT(1), IN(0), IN(1), IN(2), IN(3), IN(4), IN(3) + 9, ROWS,    \
                            n & ~(size_t)1))                                                       \
    X(relu2_fwd, k->relu2_fwd(OUT(0), IN(0), n))                                                   \
    X(relu2_bwd, k->relu2_bwd(OUT(0), IN(0), IN(1), n))                                            \
    X(softmax_block,                                                                               \
      k->softmax_block(OUT(0), MAX_N, ROWS, n, (ptrdiff_t)n - 3, OUT(1), OUT(2), OUT(3)))          \
    X(softmax_again, k->softmax_again(OUT(0), MAX_N, ROWS, n, (ptrdiff_t)n / 2, IN(0)))            \
    X(xent_row, w->sums[0] = k->xent_row(OUT(0), IN(0), n, n / 2, 0.25f);                          \
      w->sums[1] = k->xent_row(NULL, IN(1), n, n - 1, 0.25f))                                      \
    X(softcap, k->softcap(OUT(0), IN(0), n, 2.5f))                                                 \
    X(xent_cap_row, w->sums[0] = k->xent_cap_row(OUT(0), IN(0), n, n / 2, 0.25f, 2.5f);            \
      w->sums[1] = k->xent_cap_row(NULL, IN(1), n, n - 1, 0.25f, 2.5f))                            \
    X(dropout, k->dropout(OUT(0), IN(0), n, 7, &mask))                                             \
    X(add, k->add(OUT(0), IN(0), n))                                                               \
    X(mul, k->mul(OUT(0), IN(0), IN(1), n))                                                        \
    X(mul_add, k->mul_add(OUT(0), IN(0), IN(1), n))                                                \
    X(scale, k->scale(OUT(0), 0.7f, n))                                                            \
    X(add_bias, k->add_bias(OUT(0), MAX_N, IN(0), ROWS, n))                                        \
    X(colsum, k->colsum(OUT(0), IN(0), MAX_N, ROWS, n))                                            \
    X(round_bf16, k->round_bf16(OUT(0), IN(0), n))                                                 \
    X(dot, w->sums[0] = (double)k->dot(IN(0), IN(1), n))                                           \
    X(dot_rows, k->dot_rows(OUT(0), 9, IN(0), MAX_N, IN(1), n / 2, ROWS, 9, n / 2, n % 2 == 0);    \
      k->dot_rows(OUT(1), 9, IN(0), n, IN(1), n / 3, 1, 9, n, n % 2 != 0))                         \
    X(weighted_sum, k->weighted_sum(OUT(0), IN(0), IN(1), MAX_N, ROWS, n))                         \
    X(sumsq, w->sums[0] = k->sumsq(IN(0), n))                                                      \
    X(sum_scaled, k->sum_scaled(OUT(0), IN(0), IN(1), 0.7f, w->sums, n);                           \
      k->sum_scaled(OUT(1), IN(0), NULL, 0.7f, NULL, n))                                           \
    X(adamw, positive(OUT(2)); k->adamw(OUT(0), OUT(1), OUT(2), IN(0), n, &adamw))

#define X(name, ...)                                                                               \
    static void call_##name(const lks__kernels *k, struct work *w, size_t n)                       \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
CALLS(X)
#undef X

static const struct {
    const char *name;
    call_fn *call;
} calls[] = {
#define X(name, ...) {#name, call_##name},
    CALLS(X)
#undef X
};
enum { N_CALLS = sizeof calls / sizeof calls[0] };
#define X(name, type) +1
_Static_assert(N_CALLS == LKS__ROW_KERNEL_MAP(X), "every row kernel is called");
#undef X

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void compare(const lks__kernels *plain, const lks__kernels *k, const char *values)
{
    static const size_t sizes[] = {2,  3,  5,  7,  8,   9,   15,  16,  17,  31,   32,  33,
                                   63, 64, 65, 95, 127, 128, 129, 257, 387, 1024, 1039};
    for (size_t c = 0; c < N_CALLS; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const size_t n = sizes[s];
            want = got = start;
            calls[c].call(plain, &want, n);
            calls[c].call(k, &got, n);
            const float *w = want.out[0], *g = got.out[0];
            for (size_t i = 0; i < (size_t)OUTS * ALL; i++)
                if (!same((double)w[i], (double)g[i]))
                    fail_msg("%s of %zu %s: float %zu is %a at level %s, %a at plain",
                             calls[c].name, n, values, i, (double)g[i],
                             lks__cpu_level_name(k->level), (double)w[i]);
            for (size_t i = 0; i < 16; i++)
                if (!same(want.sums[i], got.sums[i]))
                    fail_msg("%s of %zu %s: double %zu is %a at level %s, %a at plain",
                             calls[c].name, n, values, i, got.sums[i],
                             lks__cpu_level_name(k->level), want.sums[i]);
        }
}

/* Random floats, of which every 7th is one of `special`. */
static void draw(const float *special, size_t n)
{
    for (unsigned i = 0; i < 5; i++)
        fill_random(start.in[i], ALL, 4, i + 1);
    for (unsigned i = 0; i < OUTS; i++)
        fill_random(start.out[i], ALL, 4, i + 11);
    float *all = start.in[0];
    for (size_t i = 0; n > 0 && i < sizeof start.in / sizeof *all; i += 7)
        all[i] = special[i / 7 % n];
}

TEST(test_levels)
{
    static const float small[] = {1e-45f, -1e-39f, 1.1e-38f, 0.0f,  -0.0f,
                                  1e-20f, -3e-23f, 2e-30f,   -1e-7f};
    static const float large[] = {INFINITY, 1e38f, -90.0f, 88.5f, -INFINITY, -3e38f, 700.0f, NAN};
    lks__cpu_level best;
    lks__kernels plain, k;
    assert_ok(lks__cpu_level_get(&best));
    lks__kernels_open_own(LKS__CPU_PLAIN, &plain);
    lks__float_mode_set();
    for (lks__cpu_level level = LKS__CPU_AVX2; level <= LKS__CPU_AVX512 && level <= best; level++) {
        lks__kernels_open_own(level, &k);
        draw(NULL, 0);
        compare(&plain, &k, "numbers");
        draw(small, sizeof small / sizeof *small);
        compare(&plain, &k, "small numbers");
        draw(large, sizeof large / sizeof *large);
        compare(&plain, &k, "large numbers");
    }
}

int main(void)
{
    lks__cpu_level best;
    if (lks__cpu_level_get(&best) == LKS_OK && best < LKS__CPU_AVX2)
        lks_test_exit_lacks("avx2", "this processor");
    return lks_test_run_all(NULL, NULL);
}
