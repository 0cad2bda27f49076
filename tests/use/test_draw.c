/* Draws (use/draw.h): the sets of top_k and top_p beside naive ones, the likeliest token, ids that
 * may not be drawn, logits that aren't numbers. How often tokens are drawn: tests/model. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "weights/use/draw.h"

enum { MOST = 211, DRAWS = 3000 };

static char work[MOST * 32];

static int32_t draw(const lks__draw_options *o, uint64_t token, const float *logits, size_t n)
{
    float copy[MOST];
    int32_t id = -1;
    assert_true(lks__draw_work_bytes(n) <= sizeof work);
    memcpy(copy, logits, n * sizeof *copy);
    assert_ok(lks__draw(o, token, 1, copy, n, work, &id));
    assert_in_range(id, 0, n - 1);
    return id;
}

static double share(const lks__draw_options *o, const float *logits, size_t i)
{
    return exp((double)logits[i] / o->temperature);
}

/* Does `a` come before `b` in the order of likelihood? */
static bool before(const float *logits, size_t a, size_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Is id `i` in the set? Straight from the definitions, in quadratic time. */
static bool in_set(const lks__draw_options *o, const float *logits, size_t n, size_t i)
{
    bool top_k[MOST];
    double all = 0.0, before_i = 0.0;
    for (size_t a = 0; a < n; a++) {
        uint32_t larger = 0;
        for (size_t b = 0; b < n; b++)
            larger += (o->has == NULL || o->has[b]) && logits[b] > logits[a];
        top_k[a] = (o->has == NULL || o->has[a]) && (o->top_k == 0 || larger < o->top_k);
        all += top_k[a] ? share(o, logits, a) : 0.0;
    }
    for (size_t a = 0; a < n; a++)
        before_i += top_k[a] && before(logits, a, i) ? share(o, logits, a) : 0.0;
    return top_k[i] && (o->top_p == 1.0 || before_i < o->top_p * all);
}

/* Everything that is drawn is in the set; with few tokens, all of the set is drawn. */
static void check_set(const lks__draw_options *o, const float *logits, size_t n)
{
    bool drawn[MOST] = {false}, set[MOST];
    size_t members = 0;
    for (size_t i = 0; i < n; i++)
        members += set[i] = in_set(o, logits, n, i);
    assert_true(members >= 1);
    for (uint64_t t = 0; t < DRAWS; t++)
        drawn[draw(o, t, logits, n)] = true;
    for (size_t i = 0; i < n; i++) {
        if (drawn[i] && !set[i])
            fail_msg("top_k %u, top_p %g: %zu is drawn, and isn't in the set", o->top_k, o->top_p,
                     i);
        if (set[i] && !drawn[i] && n < 12)
            fail_msg("top_k %u, top_p %g: %zu is in the set, and isn't drawn", o->top_k, o->top_p,
                     i);
    }
}

TEST(test_sets)
{
    static const size_t sizes[] = {1, 2, 5, 11, 64, MOST};
    static const double top_p[] = {1e-9, 0.3, 0.5, 0.77, 0.99, 1.0};
    static const uint32_t top_k[] = {0, 1, 2, 7, 40, 1000};
    lks__mt g;
    lks__mt_seed(&g, 3);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t c = 0; c < 36; c++) {
            const size_t n = sizes[s];
            float logits[MOST];
            bool has[MOST];
            lks__mt_normal(&g, logits, MOST, 0.0f, 1.0f);
            for (size_t i = 0; i < n; i++) {
                if (c % 2 == 0 && n < 12)
                    logits[i] = roundf(logits[i]); /* ties */
                has[i] = i % 4 != 1;
            }
            const lks__draw_options o = {.seed = c,
                                         .temperature = c % 3 == 0 ? 0.7 : 1.0,
                                         .top_k = top_k[c % 6],
                                         .top_p = top_p[c / 6],
                                         .has = c % 4 == 3 ? has : NULL};
            check_set(&o, logits, n);
        }
}

/* The smallest set whose probability reaches top_p, with exact halves. */
TEST(test_borders)
{
    const float logits[] = {0.0f, (float)log(2.0), 0.0f, -INFINITY}; /* 1/4, 1/2, 1/4, 0 */
    lks__draw_options o = {.temperature = 1.0, .top_p = 0.49};
    for (uint64_t t = 0; t < DRAWS; t++)
        assert_int_equal(draw(&o, t, logits, 4), 1);
    o.top_p = 0.6; /* of two equal ones the first */
    bool drawn[4] = {false};
    for (uint64_t t = 0; t < DRAWS; t++)
        drawn[draw(&o, t, logits, 4)] = true;
    assert_true(drawn[0] && drawn[1] && !drawn[2] && !drawn[3]);
}

TEST(test_greedy)
{
    float logits[MOST];
    bool has[MOST];
    lks__mt g;
    lks__mt_seed(&g, 8);
    for (int round = 0; round < 50; round++) {
        lks__mt_normal(&g, logits, MOST, 0.0f, 1.0f);
        size_t best = 0, best_had = SIZE_MAX;
        for (size_t i = 0; i < MOST; i++) {
            logits[i] = roundf(logits[i] * 4.0f); /* ties: the first is taken */
            has[i] = i % 3 != 0;
            best = logits[i] > logits[best] ? i : best;
            if (has[i] && (best_had == SIZE_MAX || logits[i] > logits[best_had]))
                best_had = i;
        }
        lks__draw_options o = {.seed = (uint64_t)round, .temperature = 0.0};
        assert_int_equal(draw(&o, 0, logits, MOST), best);
        o.has = has;
        assert_int_equal(draw(&o, 0, logits, MOST), best_had);
    }
}

TEST(test_no_numbers)
{
    static const float bad[][3] = {
        {NAN, 0, 0}, {0, 0, NAN}, {INFINITY, 0, 0}, {-INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float logits[3];
        int32_t id;
        const lks__draw_options o = {.temperature = 1.0, .top_k = 2, .top_p = 0.9};
        memcpy(logits, bad[i], sizeof logits);
        assert_fails(LKS_ERR_FORMAT, lks__draw(&o, 0, 0, logits, 3, work, &id),
                     "logits that are not finite numbers");
    }
    const bool none[3] = {false};
    float logits[3] = {1, 2, 3};
    int32_t id;
    const lks__draw_options o = {.temperature = 0.0, .has = none};
    assert_fails(LKS_ERR_FORMAT, lks__draw(&o, 0, 0, logits, 3, work, &id), "not finite");
}
