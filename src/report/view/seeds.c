#include "report/view/seeds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "report/diff/facts.h"

struct group {
    const lks__series *first;
    double values[1024];
    size_t n;
    double mean, spread;
};

/* True if each setting of `a` but the seed, and `other`, has the same value in `b`. */
static bool has_all(const lks__series *a, const lks__series *b, const char *other)
{
    const char *key;
    json_t *value;
    json_object_foreach(a->config, key, value)
    {
        if (strcmp(key, "seed") != 0 && strcmp(key, "version") != 0 && strcmp(key, other) != 0 &&
            !lks__series_same(a, b, key))
            return false;
    }
    return true;
}

static bool same_but(const lks__series *a, const lks__series *b, const char *other)
{
    return has_all(a, b, other) && has_all(b, a, other);
}

static double result_of(const lks__compared *c, const lks__series *s)
{
    const lks__eval_point *last = lks__series_last_eval(s);
    switch (c->how->metric) {
    case LKS__COMPARE_VAL_BPB:
        return last != NULL ? last->val_bpb : (double)NAN;
    case LKS__COMPARE_ARTIFACT_LOSS:
        return lks__json_number(s->artifact, "val_loss");
    case LKS__COMPARE_ARTIFACT_BPB:
        return lks__json_number(s->artifact, "val_bpb");
    case LKS__COMPARE_VAL_LOSS:
        break;
    }
    return c->evals ? last->val_loss : lks__series_last_loss(s);
}

/* True if another run with a result has the same settings and seed, and more steps, or as many and
 * is earlier: then this one isn't another sample. */
static bool is_repeated(const lks__compared *c, size_t i)
{
    const lks__series *run = &c->runs[i];
    for (size_t k = 0; k < c->n; k++) {
        const lks__series *other = &c->runs[k];
        if (lks__series_steps(other) >= lks__series_steps(run) + (k >= i) &&
            isfinite(result_of(c, other)) && lks__series_same(other, run, "seed") &&
            same_but(other, run, "seed"))
            return true;
    }
    return false;
}

static void finish_group(struct group *g)
{
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < g->n; i++)
        sum += g->values[i];
    g->mean = sum / (double)g->n;
    for (size_t i = 0; i < g->n; i++)
        squares += (g->values[i] - g->mean) * (g->values[i] - g->mean);
    g->spread = g->n > 1 ? sqrt(squares / (double)(g->n - 1)) : (double)NAN;
}

/* Returns the number of groups. */
static size_t make_groups(const lks__compared *c, struct group *groups)
{
    size_t n_groups = 0;
    for (size_t i = 0; i < c->n; i++) {
        const double result = result_of(c, &c->runs[i]);
        size_t g = 0;
        if (!isfinite(result) || is_repeated(c, i))
            continue;
        while (g < n_groups && !same_but(groups[g].first, &c->runs[i], "seed"))
            g++;
        if (g == n_groups)
            groups[n_groups++] = (struct group){.first = &c->runs[i]};
        if (groups[g].n < sizeof groups[g].values / sizeof groups[g].values[0])
            groups[g].values[groups[g].n++] = result;
    }
    for (size_t g = 0; g < n_groups; g++)
        finish_group(&groups[g]);
    return n_groups;
}

/* The square of a mean's standard error. A single run has no spread, and counts as a fixed number:
 * the test is then Student's, with one sample. */
static double error_of(const struct group *g)
{
    return g->n > 1 ? g->spread * g->spread / (double)g->n : 0.0;
}

/* The settings in which the group differs from other runs: "n_layer=3, dropout=0.1". */
static json_t *shared(const lks__compared *c, const json_t *report, const struct group *g)
{
    char text[1024] = "";
    lks__each(row, json_object_get(report, "settings")) {
        const char *name = lks__json_str(row, "setting");
        const json_t *value = json_array_get(json_object_get(row, "values"), g->first - c->runs);
        if (strcmp(name, "seed") != 0 && strcmp(name, "version") != 0 &&
            !lks__facts_follow(g->first->config, name))
            lks__append(text, sizeof text, ", ", "%s=%s", name, json_string_value(value));
    }
    return lks__json_utf8(text);
}

static double degrees_of(const struct group *g, double error)
{
    return g->n > 1 ? error * error / (double)(g->n - 1) : 0.0;
}

/* The chance of such a t, or one further away, if the means are equal; one-sided, of such a t or a
 * lower one. */
static double chance_of(const lks__compare_how *how, double t, double df)
{
    const double both = lks__t_test_p(t, df);
    return !how->one_sided ? both : t < 0.0 ? both / 2.0 : 1.0 - both / 2.0;
}

/* Welch's t test: the groups' variances need not be equal. */
static json_t *test_of(const lks__compared *c, const json_t *report, const struct group *a,
                       const struct group *b)
{
    const lks__compare_how *how = c->how;
    const double va = error_of(a), vb = error_of(b), difference = b->mean - a->mean;
    const double over = how->one_sided ? difference + how->margin : difference;
    double t, df, p;
    if (va + vb > 0.0) {
        t = over / sqrt(va + vb);
        df = (va + vb) * (va + vb) / (degrees_of(a, va) + degrees_of(b, vb));
        p = chance_of(how, t, df);
    } else {
        t = (double)NAN;
        df = (double)(a->n + b->n - 2);
        p = over < 0.0 || (over > 0.0 && !how->one_sided) ? 0.0 : 1.0;
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:f, s:o, s:f, s:f, s:b}", "a", a->first->name, "b",
                     b->first->name, "settings_a", shared(c, report, a), "settings_b",
                     shared(c, report, b), "difference", difference, "t", lks__json_real(t), "df",
                     df, "p", p, "more_than_chance", p < how->alpha);
}

/* One-sided, a single run can be the earlier group: a record, of which one number is known. */
static bool testable(const struct group *a, const struct group *b, const lks__compare_how *how)
{
    return b->n > 1 && (a->n > 1 || how->one_sided);
}

/* Add the runs that only `max_iters`, which resumes can change, keeps out of a group. */
static json_t *left_out(const struct group *groups, size_t n)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n && groups[i].n == 1; k++)
            if (groups[k].n > 1 && same_but(groups[i].first, groups[k].first, "max_iters"))
                json_array_append_new(
                    rows, json_pack("{s:s, s:s, s:O?}", "run", groups[i].first->name, "like",
                                    groups[k].first->name, "max_iters",
                                    json_object_get(groups[i].first->config, "max_iters")));
    return rows;
}

lks_status lks__seeds_add(const lks__compared *c, json_t *report)
{
    const lks__compare_how *how = c->how;
    json_t *rows = json_array(), *tests = json_array();
    struct group *groups = calloc(c->n, sizeof *groups);
    size_t n_groups = groups != NULL ? make_groups(c, groups) : 0;
    for (size_t g = 0; g < n_groups; g++)
        if (groups[g].n > 1)
            json_array_append_new(rows, json_pack("{s:s, s:o, s:i, s:f, s:f}", "like",
                                                  groups[g].first->name, "settings",
                                                  shared(c, report, &groups[g]), "seeds",
                                                  (int)groups[g].n, "mean", groups[g].mean,
                                                  "spread", groups[g].spread));
    for (size_t g = 0; g < n_groups; g++)
        for (size_t k = g + 1; k < n_groups; k++)
            if (testable(&groups[g], &groups[k], how))
                json_array_append_new(tests, test_of(c, report, &groups[g], &groups[k]));
    json_object_set_new(report, "seeds", rows);
    json_object_set_new(report, "left_out", left_out(groups, n_groups));
    const bool made = groups != NULL;
    free(groups);
    json_object_set_new(report, "tests", tests);
    if (how->one_sided)
        json_object_set_new(report, "margin", json_real(how->margin));
    json_object_set_new(report, "alpha", json_real(how->alpha));
    return made ? LKS_OK : lks__no_memory("to compare runs");
}

lks_status lks__seeds_check(const lks__compared *c)
{
    const lks__compare_metric metric = c->how->metric;
    for (size_t i = 0; i < c->n; i++)
        if (metric == LKS__COMPARE_VAL_LOSS || isfinite(result_of(c, &c->runs[i])))
            return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        metric == LKS__COMPARE_VAL_BPB
            ? "--metric=val_bpb: no run has recorded bits per byte, as golf runs do with "
              "a tokenizer; `lockstep eval RUN` prints them if it knows the run's tokenizer"
            : "--metric: no run has an artifact of golf, which a golf run writes at "
              "its end");
}
