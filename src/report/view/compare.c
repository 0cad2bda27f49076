#include "report/view/compare.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "base/text/utf8.h"

enum { ROWS = 10 };

/* --- each run --------------------------------------------------------------------------------- */

static double mean_of(const lks__series *s, size_t offset)
{
    double sum = 0.0;
    size_t n = 0;
    for (size_t i = 0; i < s->n_points; i++) {
        double x;
        memcpy(&x, (const char *)&s->points[i] + offset, sizeof x);
        if (isfinite(x)) {
            sum += x;
            n++;
        }
    }
    return n > 0 ? sum / (double)n : (double)NAN;
}

/* Tokens per second over all steps that a rollback hasn't discarded. */
static double speed(const lks__series *s)
{
    double tokens = 0.0, seconds = 0.0;
    for (size_t i = 0; i < s->n_points; i++) {
        const lks__point *p = &s->points[i];
        if (p->ms > 0.0 && isfinite(p->tok_per_s)) {
            tokens += p->tok_per_s * p->ms * 1e-3;
            seconds += p->ms * 1e-3;
        }
    }
    return seconds > 0.0 ? tokens / seconds : (double)NAN;
}

static json_t *copied(const json_t *o, const char *key)
{
    json_t *value = json_object_get(o, key);
    return value != NULL ? json_incref(value) : json_null();
}

/* Batches per evaluation; null if evaluations use all validation tokens. */
static json_t *eval_batches(const lks__series *s)
{
    char family[256];
    const bool all = strcmp(lks__series_setting(s, "family", family), "golf") == 0;
    return all || s->config == NULL ? json_null() : copied(s->config, "eval_iters");
}

/* Where resumes have changed the batch: null if none has. */
static json_t *segments(const lks__series *s)
{
    json_t *all = json_array();
    for (const lks__run_mark *m = NULL; (m = lks__series_segment(s, m)) != NULL;)
        json_array_append_new(
            all, json_pack("{s:I, s:s}", "iter", (json_int_t)m->iter, "changed", m->text));
    if (json_array_size(all) > 0)
        return all;
    json_decref(all);
    return json_null();
}

static uint64_t steps_of(const lks__series *s)
{
    return s->n_points > 0 ? s->points[s->n_points - 1].iter + 1 : 0;
}

static json_t *describe(const lks__series *s)
{
    const lks__eval_point *best = lks__series_best(s), *last = lks__series_last_eval(s);
    const lks__point *end = s->n_points > 0 ? &s->points[s->n_points - 1] : NULL;
    char folder[sizeof s->dir];
    memcpy(folder, s->dir, sizeof folder);
    lks__utf8_make(folder);
    return json_pack(
        "{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:i, s:o, s:i, s:i, s:i, s:s, s:b}",
        "run", s->name, "folder", folder, "steps", (json_int_t)steps_of(s), "tokens",
        lks__json_real(end != NULL ? end->tokens : 0.0), "seconds", lks__json_real(s->elapsed),
        "last_loss", lks__json_real(lks__series_last_loss(s)), "best_val_loss",
        lks__json_real(best != NULL ? best->val_loss : (double)NAN), "best_iter",
        best != NULL ? json_integer((json_int_t)best->iter) : json_null(), "last_val_loss",
        lks__json_real(last != NULL ? last->val_loss : (double)NAN), "last_val_bpb",
        lks__json_real(last != NULL ? last->val_bpb : (double)NAN), "tok_per_s",
        lks__json_real(speed(s)), "mfu", lks__json_real(mean_of(s, offsetof(lks__point, mfu))),
        "wait_ms", lks__json_real(mean_of(s, offsetof(lks__point, wait_ms))), "memory_bytes",
        copied(s->end, "memory_bytes"), "world_size", copied(s->host, "world_size"), "threads",
        copied(s->host, "threads"), "cpu", copied(s->host, "cpu"), "commit",
        copied(s->host, "commit"), "eval_iters", eval_batches(s), "resumes",
        s->starts > 0 ? (int)s->starts - 1 : 0, "segments", segments(s), "skips", (int)s->skips,
        "rollbacks", (int)s->rollbacks, "checkpoints", (int)s->checkpoints, "params_hash",
        s->params_hash, "ended", s->end != NULL);
}

/* --- settings that differ --------------------------------------------------------------------- */

/* True if both runs have the same value, or none. */
static bool same_value(const lks__series *a, const lks__series *b, const char *key)
{
    const json_t *x = json_object_get(a->config, key), *y = json_object_get(b->config, key);
    const bool x_none = x == NULL || json_is_null(x), y_none = y == NULL || json_is_null(y);
    return x_none || y_none ? x_none == y_none : lks__json_same(x, y);
}

static bool differs(const lks__series *runs, size_t n, const char *key)
{
    for (size_t i = 1; i < n; i++)
        if (!same_value(&runs[0], &runs[i], key))
            return true;
    return false;
}

/* True if one of the first `n` runs has the setting. */
static bool any_has(const lks__series *runs, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (json_object_get(runs[i].config, key) != NULL)
            return true;
    return false;
}

json_t *lks__compare_settings(const lks__series *runs, size_t n)
{
    json_t *rows = json_array(), *value;
    const char *key;
    char text[256];
    for (size_t i = 0; i < n; i++)
        json_object_foreach(runs[i].config, key, value)
        {
            if (strcmp(key, "kind") == 0 || any_has(runs, i, key) || !differs(runs, n, key))
                continue;
            json_t *values = json_array();
            for (size_t k = 0; k < n; k++)
                json_array_append_new(values,
                                      json_string(lks__series_setting(&runs[k], key, text)));
            json_array_append_new(rows, json_pack("{s:s, s:o}", "setting", key, "values", values));
        }
    return rows;
}

/* --- curves ----------------------------------------------------------------------------------- */

/* Point `i` of the curve: iteration or seconds, and the loss. False after the last point. */
static bool point_of(const lks__series *s, bool evals, bool by_time, size_t i, double *x,
                     double *loss)
{
    if (i >= (evals ? s->n_evals : s->n_points))
        return false;
    if (evals) {
        *x = by_time ? s->evals[i].seconds : (double)s->evals[i].iter;
        *loss = s->evals[i].val_loss;
    } else {
        *x = by_time ? s->points[i].seconds : (double)s->points[i].iter;
        *loss = s->points[i].loss;
    }
    return true;
}

/* The newest iteration up to `x` that a run has evaluated (or logged); -1: none. */
static double newest_until(const lks__series *runs, size_t n, bool evals, double x)
{
    double newest = -1.0, iter, loss;
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; point_of(&runs[r], evals, false, i, &iter, &loss); i++)
            if (iter <= x)
                newest = fmax(newest, iter);
    return newest;
}

/* The loss of the evaluation (or step) at iteration `x`, or of the newest one after `x` seconds.
 * NAN if there is none, and after the run's end. */
static double value_at(const lks__series *s, bool evals, double x, bool by_time)
{
    double value = (double)NAN, at = 0.0, loss;
    for (size_t i = 0; point_of(s, evals, by_time, i, &at, &loss); i++)
        if (at == x || (by_time && at < x))
            value = loss;
    return x <= at ? value : (double)NAN;
}

static double end_of(const lks__series *s, bool evals, bool by_time)
{
    double x = 0.0, loss;
    const size_t n = evals ? s->n_evals : s->n_points;
    if (n > 0)
        point_of(s, evals, by_time, n - 1, &x, &loss);
    return x;
}

static void add_row(json_t *rows, const lks__series *runs, size_t n, bool evals, double x,
                    bool by_time)
{
    json_t *values = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(values, lks__json_real(value_at(&runs[i], evals, x, by_time)));
    json_array_append_new(
        rows, json_pack("{s:f, s:o}", by_time ? "seconds" : "iter", x, "values", values));
}

/* The first iteration after `x` that a run has evaluated (or logged); INFINITY: none. */
static double first_after(const lks__series *runs, size_t n, bool evals, double x)
{
    double first = (double)INFINITY, iter, loss;
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; point_of(&runs[r], evals, false, i, &iter, &loss); i++)
            if (iter > x)
                first = fmin(first, iter);
    return first;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Choose ten iterations at equal distances, the best evaluation of each run, and the last two.
 * Sorted, perhaps with repetitions. Returns their number, at most ROWS + n + 1. */
static size_t choose(const lks__series *runs, size_t n, bool evals, double end, double *chosen)
{
    size_t k = 0;
    for (int i = 1; i <= ROWS; i++) /* the last one is the end, without rounding */
        chosen[k++] = newest_until(runs, n, evals, i == ROWS ? end : floor(end * i / ROWS));
    for (size_t i = 0; evals && i < n; i++) {
        const lks__eval_point *best = lks__series_best(&runs[i]);
        if (best != NULL)
            chosen[k++] = (double)best->iter;
    }
    if (evals)
        chosen[k++] = newest_until(runs, n, evals, end - 1.0);
    qsort(chosen, k, sizeof *chosen, by_size);
    return k;
}

static lks_status add_steps(json_t *rows, const lks__series *runs, size_t n, bool evals, double end)
{
    double all[ROWS], before = -1.0, *chosen = NULL;
    size_t k = 0;
    for (double x = -1.0; k <= ROWS && isfinite(x = first_after(runs, n, evals, x)); k++)
        if (k < ROWS)
            all[k] = x;
    if (k > ROWS) {
        chosen = calloc(ROWS + n + 1, sizeof *chosen);
        LKS__MEMORY(chosen, "to compare runs");
        k = choose(runs, n, evals, end, chosen);
    }
    for (size_t i = 0; i < k; i++) {
        const double x = chosen != NULL ? chosen[i] : all[i];
        if (x > before)
            add_row(rows, runs, n, evals, x, false);
        before = x;
    }
    free(chosen);
    return LKS_OK;
}

static lks_status add_curves(json_t *report, const lks__series *runs, size_t n, bool evals)
{
    json_t *steps = json_array(), *times = json_array();
    double end = 0.0, last = 0.0;
    for (size_t i = 0; i < n; i++) {
        end = fmax(end, end_of(&runs[i], evals, true));
        last = fmax(last, end_of(&runs[i], evals, false));
    }
    for (int k = end > 0.0 ? 1 : ROWS; k <= ROWS; k++) /* without rounding at the end */
        add_row(times, runs, n, evals, k == ROWS ? end : end * k / ROWS, true);
    const lks_status st = add_steps(steps, runs, n, evals, last);
    json_object_set_new(report, "by_step", steps);
    json_object_set_new(report, "by_time", times);
    return st;
}

/* --- over seeds ------------------------------------------------------------------------------- */

struct group {
    const lks__series *first;
    double values[1024];
    size_t n;
    double mean, spread;
};

/* True if each setting of `a` but the seed has the same value in `b`. */
static bool has_all(const lks__series *a, const lks__series *b)
{
    const char *key;
    json_t *value;
    json_object_foreach(a->config, key, value)
    {
        if (strcmp(key, "seed") != 0 && strcmp(key, "version") != 0 && !same_value(a, b, key))
            return false;
    }
    return true;
}

static bool same_but_seed(const lks__series *a, const lks__series *b)
{
    return has_all(a, b) && has_all(b, a);
}

/* With `evals` all runs have evaluations. Otherwise training losses are compared. */
static double result_of(const lks__series *s, lks__compare_metric metric, bool evals)
{
    const lks__eval_point *last = lks__series_last_eval(s);
    switch (metric) {
    case LKS__COMPARE_VAL_BPB:
        return last != NULL ? last->val_bpb : (double)NAN;
    case LKS__COMPARE_ARTIFACT_LOSS:
        return s->artifact_loss;
    case LKS__COMPARE_ARTIFACT_BPB:
        return s->artifact_bpb;
    case LKS__COMPARE_VAL_LOSS:
        break;
    }
    return evals ? last->val_loss : lks__series_last_loss(s);
}

/* True if another run with a result has the same settings and seed, and more steps, or as many and
 * is earlier: then this one isn't another sample. */
static bool repeated(const lks__series *runs, size_t n, size_t i, lks__compare_metric metric,
                     bool evals)
{
    const uint64_t steps = steps_of(&runs[i]);
    for (size_t k = 0; k < n; k++)
        if (steps_of(&runs[k]) >= steps + (k >= i) &&
            isfinite(result_of(&runs[k], metric, evals)) &&
            same_value(&runs[k], &runs[i], "seed") && same_but_seed(&runs[k], &runs[i]))
            return true;
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

static size_t make_groups(const lks__series *runs, size_t n, lks__compare_metric metric, bool evals,
                          struct group *groups)
{
    size_t n_groups = 0;
    for (size_t i = 0; i < n; i++) {
        const double result = result_of(&runs[i], metric, evals);
        size_t g = 0;
        if (!isfinite(result) || repeated(runs, n, i, metric, evals))
            continue;
        while (g < n_groups && !same_but_seed(groups[g].first, &runs[i]))
            g++;
        if (g == n_groups)
            groups[n_groups++] = (struct group){.first = &runs[i]};
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
static json_t *test_of(const struct group *a, const struct group *b, const lks__compare_how *how)
{
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
    return json_pack("{s:s, s:s, s:f, s:o, s:f, s:f, s:b}", "a", a->first->name, "b",
                     b->first->name, "difference", difference, "t", lks__json_real(t), "df", df,
                     "p", p, "more_than_chance", p < how->alpha);
}

/* One-sided, a single run can be the earlier group: a record, of which one number is known. */
static bool testable(const struct group *a, const struct group *b, const lks__compare_how *how)
{
    return b->n > 1 && (a->n > 1 || how->one_sided);
}

static lks_status add_seeds(json_t *report, const lks__series *runs, size_t n, bool evals,
                            const lks__compare_how *how)
{
    json_t *rows = json_array(), *tests = json_array();
    struct group *groups = calloc(n, sizeof *groups);
    size_t n_groups = groups != NULL ? make_groups(runs, n, how->metric, evals, groups) : 0;
    for (size_t g = 0; g < n_groups; g++)
        if (groups[g].n > 1)
            json_array_append_new(rows,
                                  json_pack("{s:s, s:i, s:f, s:f}", "like", groups[g].first->name,
                                            "seeds", (int)groups[g].n, "mean", groups[g].mean,
                                            "spread", groups[g].spread));
    for (size_t g = 0; g < n_groups; g++)
        for (size_t k = g + 1; k < n_groups; k++)
            if (testable(&groups[g], &groups[k], how))
                json_array_append_new(tests, test_of(&groups[g], &groups[k], how));
    const bool made = groups != NULL;
    free(groups);
    json_object_set_new(report, "seeds", rows);
    json_object_set_new(report, "tests", tests);
    if (how->one_sided)
        json_object_set_new(report, "margin", json_real(how->margin));
    json_object_set_new(report, "alpha", json_real(how->alpha));
    return made ? LKS_OK : lks__no_memory("to compare runs");
}

/* Fail if no run has the chosen metric, because it was probably misspelt or the runs aren't done.
 */
static lks_status check_metric(const lks__series *runs, size_t n, lks__compare_metric metric)
{
    for (size_t i = 0; i < n; i++)
        if (metric == LKS__COMPARE_VAL_LOSS || isfinite(result_of(&runs[i], metric, false)))
            return LKS_OK;
    return lks__fail(
        LKS_ERR_CONFIG,
        metric == LKS__COMPARE_VAL_BPB
            ? "--metric=val_bpb: no run has recorded bits per byte, as golf runs do with "
              "a tokenizer; `lockstep eval RUN` prints them if it knows the run's tokenizer"
            : "--metric: no run has an artifact of golf, which a golf run writes at "
              "its end");
}

lks_status lks__compare(const lks__series *runs, size_t n, const lks__compare_how *how,
                        json_t **report_p)
{
    LKS__TRY(check_metric(runs, n, how->metric));
    json_t *report = json_object(), *all = json_array();
    bool evals = true;
    for (size_t i = 0; i < n; i++) {
        evals = evals && runs[i].n_evals > 0;
        json_array_append_new(all, describe(&runs[i]));
    }
    json_object_set_new(report, "compared", json_string(evals ? "val_loss" : "loss"));
    json_object_set_new(report, "runs", all);
    json_object_set_new(report, "settings", lks__compare_settings(runs, n));
    lks_status st = add_curves(report, runs, n, evals);
    LKS__THEN(st, add_seeds(report, runs, n, evals, how));
    if (st == LKS_OK && json_object_size(report) != (how->one_sided ? 9 : 8))
        st = lks__no_memory("to compare runs");
    if (st == LKS_OK)
        *report_p = report;
    else
        json_decref(report);
    return st;
}
