/* Dropout masks of the gpt2 family: their rate and scale over ten million draws, and that no two
 * places, layers, steps, virtual ranks, micro-steps or seeds share a mask. Expected values are
 * statistical, but the numbers are fixed, so a test that passes once always does. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "compute/cpu/kernels.h"
#include "model/gpt2/gpt2.h"

static lks__kernels kernels;

enum { LAYERS = 3, DRAWS = 10000000, MASK = 65536 };

/* Allowed distance in standard deviations: chance exceeds it once in 1.7 million draws. */
static const double FAR = 5.0;

static lks__dropout mask_of(float p, uint64_t seed, uint32_t step, uint32_t vm, int layer,
                            int place)
{
    struct lks__gpt2 model = {.f.c = {.n_layer = LAYERS, .dropout = p}};
    lks__backward bw = {.seed = seed, .step = step, .vm = vm};
    lks__pass pass = {.m = &model, .bw = &bw};
    return lks__gpt2_dropout(&pass, layer, place);
}

static float *ones(size_t n)
{
    float *x = lks_test_malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = 1.0f;
    return x;
}

/* How many of n are kept, by place in a word of four and by whether the previous one is kept. */
struct counts {
    double kept, by_lane[4], pairs;
};

static struct counts count(const float *y, size_t n, float scale)
{
    struct counts c = {0};
    for (size_t i = 0; i < n; i++) {
        assert_true(y[i] == 0.0f || y[i] == scale);
        c.kept += y[i] != 0.0f;
        c.by_lane[i % 4] += y[i] != 0.0f;
        c.pairs += i > 0 && y[i] != 0.0f && y[i - 1] != 0.0f;
    }
    return c;
}

static void expect(double got, double n, double probability, const char *what, double p)
{
    double off = got - n * probability, deviation = sqrt(n * probability * (1.0 - probability));
    if (fabs(off) > FAR * deviation)
        fail_msg("dropout %g, %s: %.0f of %.0f, not %.0f: %.1f standard deviations", p, what, got,
                 n, n * probability, off / deviation);
}

static void check_rate(float p)
{
    float *x = ones(DRAWS);
    const double keep = 1.0 - (double)p;
    lks__dropout d = mask_of(p, 1337, 12, 5u << 16 | 3, 1, LKS__DROP_MLP);
    assert_near((double)d.scale, 1.0 / keep, 1e-7 / keep);
    kernels.dropout(x, x, DRAWS, 0, &d);
    struct counts c = count(x, DRAWS, d.scale);
    expect(c.kept, DRAWS, keep, "kept", (double)p);
    for (int lane = 0; lane < 4; lane++)
        expect(c.by_lane[lane], DRAWS / 4, keep, "kept in a lane", (double)p);
    expect(c.pairs, DRAWS - 1, keep * keep, "neighbours kept", (double)p);
    /* so the mean stays what it was: 1 */
    assert_near(c.kept * (double)d.scale / DRAWS, 1.0,
                FAR * sqrt((double)p / keep / (double)DRAWS) + 1e-7);
    free(x);
}

TEST(test_rate_and_scale)
{
    check_rate(0.1f);
    check_rate(0.2f);
    check_rate(0.5f);
    check_rate(0.9f);
}

/* Two masks agree as often as chance predicts. */
TEST(test_masks_differ)
{
    enum { MAX = 64 };
    static float masks[MAX][MASK];
    lks__dropout d[MAX];
    const float p = 0.3f;
    const double keep = 1.0 - (double)p, agree = keep * keep + (double)p * (double)p;
    int n = 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int place = LKS__DROP_ATTENTION; place <= LKS__DROP_MLP; place++)
            d[n++] = mask_of(p, 7, 0, 0, layer, place);
    d[n++] = mask_of(p, 7, 0, 0, LAYERS, LKS__DROP_EMBEDDING);
    for (uint32_t step = 1; step < 6; step++)
        d[n++] = mask_of(p, 7, step, 0, 0, LKS__DROP_ATTENTION);
    for (uint32_t vm = 1; vm < 6; vm++) { /* micro-steps, then virtual ranks */
        d[n++] = mask_of(p, 7, 0, vm, 0, LKS__DROP_ATTENTION);
        d[n++] = mask_of(p, 7, 0, vm << 16, 0, LKS__DROP_ATTENTION);
    }
    d[n++] = mask_of(p, 8, 0, 0, 0, LKS__DROP_ATTENTION);
    d[n++] = mask_of(p, 7 + (UINT64_C(1) << 32), 0, 0, 0, LKS__DROP_ATTENTION);
    assert_true(n <= MAX);
    for (int i = 0; i < n; i++) {
        for (size_t e = 0; e < MASK; e++)
            masks[i][e] = 1.0f;
        kernels.dropout(masks[i], masks[i], MASK, 0, &d[i]);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            double same = 0.0;
            for (size_t e = 0; e < MASK; e++)
                same += masks[i][e] == masks[j][e];
            expect(same, MASK, agree, lks_test_text("masks %d and %d agree", j, i), (double)p);
        }
}

/* The same key gives the same mask, wherever a call begins; no mask in an evaluation or at rate
 * 0. */
TEST(test_keyed)
{
    lks__dropout d = mask_of(0.3f, 7, 1, 2, 1, LKS__DROP_PROJECTION);
    float *whole = ones(MASK), *parts = ones(MASK);
    kernels.dropout(whole, whole, MASK, 0, &d);
    for (size_t at = 0, n = 1; at < MASK; at += n, n = n * 5 % 97 + 1) {
        if (n > MASK - at)
            n = MASK - at;
        kernels.dropout(parts + at, parts + at, n, at, &d);
    }
    assert_memory_equal(whole, parts, MASK * sizeof *whole);
    lks_test_free(whole, parts);
    assert_int_equal(mask_of(0.0f, 7, 1, 2, 1, LKS__DROP_MLP).threshold, 0);
    struct lks__gpt2 model = {.f.c = {.n_layer = LAYERS, .dropout = 0.3f}};
    lks__pass evaluation = {.m = &model};
    assert_int_equal(lks__gpt2_dropout(&evaluation, 1, LKS__DROP_MLP).threshold, 0);
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(NULL, NULL);
}
