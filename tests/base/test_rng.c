/* The generators against PyTorch's numbers (figures/torch_rng.json) and Philox's published test
 * vectors. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "base/system/sys.h"

/* Run `check` for each seed of the figure, with a freshly seeded generator. */
static void for_seeds(void (*check)(lks__mt *g, const json_t *figures))
{
    const json_t *seeds = lks_test_member(lks_test_figure("torch_rng.json"), "seeds");
    const char *seed;
    json_t *figures;
    int n = 0;
    json_object_foreach((json_t *)(uintptr_t)seeds, seed, figures)
    {
        lks__mt g;
        lks__mt_seed(&g, strtoull(seed, NULL, 10));
        check(&g, figures);
        n++;
    }
    assert_int_equal(n, 3);
}

static void assert_floats(const json_t *want, const float *got, size_t n, double tolerance)
{
    assert_int_equal(json_array_size(want), n);
    for (size_t i = 0; i < n; i++)
        assert_near(got[i], json_number_value(json_array_get(want, i)), tolerance);
}

static void assert_randint(lks__mt *g, const json_t *want, uint64_t range)
{
    assert_true(json_array_size(want) > 0);
    for (size_t i = 0; i < json_array_size(want); i++)
        assert_int_equal(lks__mt_randint(g, range), json_integer_value(json_array_get(want, i)));
}

static void check_rand(lks__mt *g, const json_t *f)
{
    float x[5];
    lks__mt_uniform(g, x, 5, 0, 1);
    assert_floats(lks_test_member(f, "rand5"), x, 5, 0);
}

TEST(test_rand)
{
    for_seeds(check_rand);
}

static void check_linear(lks__mt *g, const json_t *f)
{
    float w[40], b[5];
    const float bound = (float)(1.0 / sqrt(8.0)); /* 1 / sqrt(fan_in) for weight and bias */
    lks__mt_uniform(g, w, 40, -bound, bound);
    lks__mt_uniform(g, b, 5, -bound, bound);
    assert_floats(lks_test_member(f, "linear_8_5.weight"), w, 40, 0);
    assert_floats(lks_test_member(f, "linear_8_5.bias"), b, 5, 0);
}

TEST(test_uniform)
{
    for_seeds(check_linear);
}

static void check_normal_small(lks__mt *g, const json_t *f)
{
    float x[7], y[7], u[3];
    lks__mt_normal(g, x, 7, 0, 1);
    assert_floats(lks_test_member(f, "normal7"), x, 7, 0);
    lks__mt_normal(g, y, 7, 0, 1); /* starts with the kept value */
    lks__mt_uniform(g, u, 3, 0, 1);
    assert_floats(lks_test_member(f, "normal7_normal7_rand3.0"), x, 7, 0);
    assert_floats(lks_test_member(f, "normal7_normal7_rand3.1"), y, 7, 0);
    assert_floats(lks_test_member(f, "normal7_normal7_rand3.2"), u, 3, 0);
}

/* A value that was kept belongs to the old seed. */
TEST(test_seeded_again)
{
    lks__mt g = {0}, fresh = {0};
    float x[7], y[7];
    lks__mt_seed(&g, 1);
    lks__mt_normal(&g, x, 7, 0, 1); /* 7: the eighth is kept */
    lks__mt_seed(&g, 2);
    lks__mt_seed(&fresh, 2);
    lks__mt_normal(&g, x, 7, 0, 1);
    lks__mt_normal(&fresh, y, 7, 0, 1);
    assert_memory_equal(x, y, sizeof x);
}

TEST(test_normal_below_16)
{
    for_seeds(check_normal_small);
}

static void check_normal_sizes(lks__mt *g, const json_t *f)
{
    static const struct {
        const char *name;
        size_t n;
    } sizes[] = {{"normal16", 16}, {"normal20", 20}, {"normal33", 33}};
    const lks__mt start = *g;
    for (int i = 0; i < 3; i++) {
        float x[33];
        lks__mt skipped = start;
        *g = start;
        lks__mt_normal(g, x, sizes[i].n, 0, 1);
        assert_floats(lks_test_member(f, sizes[i].name), x, sizes[i].n, 1e-6);
        lks__mt_skip(&skipped, lks__mt_normal_draws(sizes[i].n));
        assert_int_equal(lks__mt_u32(&skipped), lks__mt_u32(g));
    }
}

TEST(test_normal_from_16)
{
    for_seeds(check_normal_sizes);
}

static void check_normal_1000(lks__mt *g, const json_t *f)
{
    float x[1000];
    double sum = 0, sumsq = 0;
    lks__mt_normal(g, x, 1000, 0, 0.02f);
    for (int i = 0; i < 1000; i++) {
        sum += x[i];
        sumsq += (double)x[i] * x[i];
    }
    assert_floats(lks_test_member(f, "normal1000.first4"), x, 4, 2e-8);
    assert_floats(lks_test_member(f, "normal1000.last4"), x + 996, 4, 2e-8);
    assert_near(sum, lks_test_number(f, "normal1000.sum"), 1e-6);
    assert_near(sumsq, lks_test_number(f, "normal1000.sumsq"), 1e-7);
}

TEST(test_normal_1000)
{
    for_seeds(check_normal_1000);
}

/* The ends of the range, where log and radius are largest, and 0: all finite, and equal to the C
 * library's. One draw of 2^20 contains nearly all of them. */
TEST(test_normal_tails)
{
    enum { N = 1 << 20 };
    float *x = lks_test_malloc(N * sizeof *x), *u = lks_test_malloc(N * sizeof *u);
    lks__mt g;
    lks__mt_seed(&g, 7);
    lks__mt_normal(&g, x, N, 0, 1);
    lks__mt_seed(&g, 7);
    lks__mt_uniform(&g, u, N, 0, 1);
    double worst = 0;
    for (int i = 0; i < N; i += 16)
        for (int j = 0; j < 8; j++) {
            double r = sqrt(-2 * log(1.0 - (double)u[i + j]));
            double t = (double)(6.28318530717958647692f * u[i + j + 8]);
            worst = fmax(worst, fabs(x[i + j] - r * cos(t)));
            worst = fmax(worst, fabs(x[i + j + 8] - r * sin(t)));
        }
    lks_test_free(x, u);
    assert_near(worst, 0, 6e-7); /* radius < 5.8: two roundings to float */
}

static void check_randint(lks__mt *g, const json_t *f)
{
    static const struct {
        const char *name;
        uint64_t range;
    } draws[] = {
        {"randint_1000", 1000},
        {"randint_2p27_plus3", (1u << 27) + 3},
        {"randint_2p28", 1u << 28}, /* from here on 64-bit draws */
        {"randint_2p28_plus1", (1u << 28) + 1},
        {"randint_2p31", 1u << 31},
        {"randint_2p33", UINT64_C(1) << 33},
    };
    const lks__mt start = *g;
    for (size_t i = 0; i < sizeof draws / sizeof draws[0]; i++) {
        *g = start;
        assert_randint(g, lks_test_member(f, draws[i].name), draws[i].range);
    }
}

TEST(test_randint)
{
    for_seeds(check_randint);
}

static void check_randperm(lks__mt *g, const json_t *f)
{
    static uint32_t p[100000];
    const lks__mt start = *g;
    const json_t *want = lks_test_member(f, "randperm_20");
    lks__mt_randperm(g, p, 20);
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(p[i], json_integer_value(json_array_get(want, i)));

    *g = start;
    want = lks_test_member(f, "randperm_100000_first5");
    lks__mt_randperm(g, p, 100000);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(p[i], json_integer_value(json_array_get(want, i)));
    assert_randint(g, lks_test_member(f, "randint_1000000_after_randperm100000"), 1000000);
}

TEST(test_randperm)
{
    for_seeds(check_randperm);
}

TEST(test_randperm_small)
{
    lks__mt g;
    uint32_t one = 9;
    lks__mt_seed(&g, 1);
    const lks__mt start = g;
    lks__mt_randperm(&g, NULL, 0);
    lks__mt_randperm(&g, &one, 1);
    assert_int_equal(one, 0);
    assert_int_equal(g.pos, start.pos); /* no number was drawn */
    assert_memory_equal(g.state, start.state, sizeof g.state);
}

static void count_beat(void *ctx)
{
    ++*(int *)ctx;
}

/* Other ranks end a rank that is silent for too long. */
TEST(test_randperm_reports_progress)
{
    enum { N = 3 << 20 };
    uint32_t *p = malloc(N * sizeof *p);
    int beats = 0;
    lks__mt g;
    assert_non_null(p);
    lks__mt_seed(&g, 1);
    lks__sys_on_progress((lks__beat){count_beat, &beats});
    lks__mt_randperm(&g, p, N);
    lks__sys_on_progress((lks__beat){NULL, NULL});
    assert_int_equal(beats, 3);
    free(p);
}

TEST(test_seed_is_cut)
{
    lks__mt a, b;
    lks__mt_seed(&a, 42);
    lks__mt_seed(&b, 42 + (UINT64_C(5) << 32));
    assert_int_equal(lks__mt_u32(&a), lks__mt_u32(&b));
}

/* Skipping n draws equals drawing n numbers: without a refill, over one and several, and from the
 * middle. */
TEST(test_skip)
{
    static const uint64_t ns[] = {0, 1, 10, 623, 624, 625, 1247, 1248, 5000};
    for (size_t i = 0; i < sizeof ns / sizeof ns[0]; i++)
        for (int before = 0; before < 700; before += 333) {
            lks__mt a, b;
            lks__mt_seed(&a, 3);
            for (int k = 0; k < before; k++)
                lks__mt_u32(&a);
            b = a;
            lks__mt_skip(&a, ns[i]);
            for (uint64_t k = 0; k < ns[i]; k++)
                lks__mt_u32(&b);
            for (int k = 0; k < 3; k++)
                assert_int_equal(lks__mt_u32(&a), lks__mt_u32(&b));
        }
}

/* Uniforms are the same, drawn in pieces or at once. */
TEST(test_pieces)
{
    float whole[2000], pieces[2000];
    lks__mt g;
    lks__mt_seed(&g, 5);
    lks__mt_uniform(&g, whole, 2000, -2, 3);
    lks__mt_seed(&g, 5);
    for (size_t i = 0, n = 1; i < 2000; i += n, n = n * 2 + 1) {
        n = n > 2000 - i ? 2000 - i : n;
        lks__mt_uniform(&g, pieces + i, n, -2, 3);
    }
    assert_memory_equal(whole, pieces, sizeof whole);
}

/* kat_vectors of Random123 (Salmon et al.): philox4x32-10 on zeros, ones and digits of pi. */
TEST(test_philox)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        uint64_t seed = (uint64_t)known[i].key[1] << 32 | known[i].key[0];
        lks__philox4x32(lks__philox_key_of(seed), known[i].counter, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}
