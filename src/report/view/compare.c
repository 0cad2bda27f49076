#include "report/view/compare.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "report/diff/facts.h"

enum { ROWS = 10 };

struct comparison {
    const lks__series *runs;
    size_t n;
    bool evals; /* validation losses are compared: all runs have them. Else training losses */
    const lks__compare_how *how;
    json_t *report;
    lks_status st;
};

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

static json_t *loss_of(const lks__eval_point *eval)
{
    return lks__json_real(eval != NULL ? eval->val_loss : (double)NAN);
}

static json_t *describe(const lks__series *s)
{
    const lks__eval_point *best = lks__series_best(s), *last = lks__series_last_eval(s);
    const lks__point *end = s->n_points > 0 ? &s->points[s->n_points - 1] : NULL;
    static const char *const host_facts[] = {"world_size", "threads", "cpu", "commit"};
    json_t *o = json_pack("{s:s, s:o, s:I}", "run", s->name, "folder", lks__json_utf8(s->dir),
                          "steps", (json_int_t)steps_of(s));
    json_object_set_new(o, "tokens", lks__json_real(end != NULL ? end->tokens : 0.0));
    json_object_set_new(o, "seconds", lks__json_real(s->elapsed));
    json_object_set_new(o, "last_loss", lks__json_real(lks__series_last_loss(s)));
    json_object_set_new(o, "best_val_loss", loss_of(best));
    json_object_set_new(o, "best_iter",
                        best != NULL ? json_integer((json_int_t)best->iter) : json_null());
    json_object_set_new(o, "last_val_loss", loss_of(last));
    json_object_set_new(o, "last_val_bpb",
                        lks__json_real(last != NULL ? last->val_bpb : (double)NAN));
    json_object_set_new(o, "tok_per_s", lks__json_real(speed(s)));
    json_object_set_new(o, "mfu", lks__json_real(mean_of(s, offsetof(lks__point, mfu))));
    json_object_set_new(o, "wait_ms", lks__json_real(mean_of(s, offsetof(lks__point, wait_ms))));
    json_object_set_new(o, "memory_bytes", copied(s->end, "memory_bytes"));
    for (size_t i = 0; i < sizeof host_facts / sizeof host_facts[0]; i++)
        json_object_set_new(o, host_facts[i], copied(s->host, host_facts[i]));
    json_object_set_new(o, "eval_iters", eval_batches(s));
    json_object_set_new(o, "resumes", json_integer(s->starts > 0 ? (int)s->starts - 1 : 0));
    json_object_set_new(o, "segments", segments(s));
    json_object_set_new(o, "skips", json_integer(s->skips));
    json_object_set_new(o, "rollbacks", json_integer(s->rollbacks));
    json_object_set_new(o, "checkpoints", json_integer(s->checkpoints));
    json_object_set_new(o, "params_hash", json_string(s->params_hash));
    json_object_set_new(o, "ended", json_boolean(s->end != NULL));
    return o;
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

struct listing {
    const lks__series *runs;
    size_t n;
    json_t *rows;
};

static void list_settings(void *arg)
{
    struct listing *l = arg;
    const lks__series *runs = l->runs;
    const size_t n = l->n;
    json_t *rows = l->rows = json_array(), *value;
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
}

json_t *lks__compare_settings(const lks__series *runs, size_t n)
{
    struct listing l = {runs, n, NULL};
    return lks__json_in_memory(list_settings, &l) ? l.rows : NULL;
}

/* --- curves ----------------------------------------------------------------------------------- */

/* A point of the curve of losses that is compared. */
struct loss {
    double iter, seconds, value;
};

static size_t n_losses(const struct comparison *c, size_t run)
{
    return c->evals ? c->runs[run].n_evals : c->runs[run].n_points;
}

static struct loss loss_at(const struct comparison *c, size_t run, size_t i)
{
    if (c->evals) {
        const lks__eval_point *e = &c->runs[run].evals[i];
        return (struct loss){(double)e->iter, e->seconds, e->val_loss};
    }
    const lks__point *p = &c->runs[run].points[i];
    return (struct loss){(double)p->iter, p->seconds, p->loss};
}

/* The iteration nearest to `x` that a run has evaluated (or logged): the first one after it, or the
 * newest one up to it. INFINITY or -1: none. */
static double nearest(const struct comparison *c, double x, bool after)
{
    double found = after ? (double)INFINITY : -1.0;
    for (size_t r = 0; r < c->n; r++)
        for (size_t i = 0; i < n_losses(c, r); i++) {
            const double iter = loss_at(c, r, i).iter;
            if ((iter > x) == after)
                found = after ? fmin(found, iter) : fmax(found, iter);
        }
    return found;
}

/* A run's loss at iteration `x`; NAN if there is none. */
static double at_step(const struct comparison *c, size_t run, double x)
{
    double value = (double)NAN;
    for (size_t i = 0; i < n_losses(c, run); i++)
        if (loss_at(c, run, i).iter == x)
            value = loss_at(c, run, i).value;
    return value;
}

/* A run's newest loss after `x` seconds; NAN before its first loss and after its end. */
static double at_time(const struct comparison *c, size_t run, double x)
{
    double value = (double)NAN, end = 0.0;
    for (size_t i = 0; i < n_losses(c, run); i++) {
        end = loss_at(c, run, i).seconds;
        if (end <= x)
            value = loss_at(c, run, i).value;
    }
    return x <= end ? value : (double)NAN;
}

static void add_row(json_t *rows, const struct comparison *c, const char *axis, double x,
                    double (*value_at)(const struct comparison *c, size_t run, double x))
{
    json_t *values = json_array();
    for (size_t i = 0; i < c->n; i++)
        json_array_append_new(values, lks__json_real(value_at(c, i, x)));
    json_array_append_new(rows, json_pack("{s:f, s:o}", axis, x, "values", values));
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Choose ten iterations up to `end` at equal distances, the best evaluation of each run, and the
 * last two. Sorted, perhaps with repetitions. Returns their number, at most ROWS + n + 1. */
static size_t choose(const struct comparison *c, double end, double *chosen)
{
    size_t k = 0;
    for (int i = 1; i <= ROWS; i++) /* the last one is the end, without rounding */
        chosen[k++] = nearest(c, i == ROWS ? end : floor(end * i / ROWS), false);
    for (size_t i = 0; c->evals && i < c->n; i++) {
        const lks__eval_point *best = lks__series_best(&c->runs[i]);
        if (best != NULL)
            chosen[k++] = (double)best->iter;
    }
    if (c->evals)
        chosen[k++] = nearest(c, end - 1.0, false);
    qsort(chosen, k, sizeof *chosen, by_size);
    return k;
}

/* A row for each iteration or, if there are many, for chosen ones. */
static lks_status add_steps(json_t *rows, const struct comparison *c, double end)
{
    size_t k = 0;
    double before = -1.0, *x = calloc(ROWS + c->n + 1, sizeof *x);
    LKS__MEMORY(x, "to compare runs");
    double next = nearest(c, -1.0, true);
    for (; k < ROWS && isfinite(next); next = nearest(c, next, true))
        x[k++] = next;
    if (isfinite(next))
        k = choose(c, end, x);
    for (size_t i = 0; i < k; i++) {
        if (x[i] > before)
            add_row(rows, c, "iter", x[i], at_step);
        before = x[i];
    }
    free(x);
    return LKS_OK;
}

static lks_status add_curves(json_t *report, const struct comparison *c)
{
    json_t *steps = json_array(), *times = json_array();
    double seconds = 0.0, iter = 0.0; /* of the last loss of any run */
    for (size_t i = 0; i < c->n; i++) {
        const size_t n = n_losses(c, i);
        seconds = n > 0 ? fmax(seconds, loss_at(c, i, n - 1).seconds) : seconds;
        iter = n > 0 ? fmax(iter, loss_at(c, i, n - 1).iter) : iter;
    }
    for (int k = seconds > 0.0 ? 1 : ROWS; k <= ROWS; k++) /* without rounding at the end */
        add_row(times, c, "seconds", k == ROWS ? seconds : seconds * k / ROWS, at_time);
    const lks_status st = add_steps(steps, c, iter);
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

/* True if each setting of `a` but the seed, and `other`, has the same value in `b`. */
static bool has_all(const lks__series *a, const lks__series *b, const char *other)
{
    const char *key;
    json_t *value;
    json_object_foreach(a->config, key, value)
    {
        if (strcmp(key, "seed") != 0 && strcmp(key, "version") != 0 && strcmp(key, other) != 0 &&
            !same_value(a, b, key))
            return false;
    }
    return true;
}

static bool same_but(const lks__series *a, const lks__series *b, const char *other)
{
    return has_all(a, b, other) && has_all(b, a, other);
}

static bool same_but_seed(const lks__series *a, const lks__series *b)
{
    return same_but(a, b, "seed");
}

static double result_of(const struct comparison *c, const lks__series *s)
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
static bool is_repeated(const struct comparison *c, size_t i)
{
    const lks__series *run = &c->runs[i];
    for (size_t k = 0; k < c->n; k++) {
        const lks__series *other = &c->runs[k];
        if (steps_of(other) >= steps_of(run) + (k >= i) && isfinite(result_of(c, other)) &&
            same_value(other, run, "seed") && same_but_seed(other, run))
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
static size_t make_groups(const struct comparison *c, struct group *groups)
{
    size_t n_groups = 0;
    for (size_t i = 0; i < c->n; i++) {
        const double result = result_of(c, &c->runs[i]);
        size_t g = 0;
        if (!isfinite(result) || is_repeated(c, i))
            continue;
        while (g < n_groups && !same_but_seed(groups[g].first, &c->runs[i]))
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
static json_t *shared(const struct comparison *c, const struct group *g)
{
    char text[1024] = "";
    lks__each(row, json_object_get(c->report, "settings")) {
        const char *name = lks__json_str(row, "setting");
        const json_t *value = json_array_get(json_object_get(row, "values"), g->first - c->runs);
        const size_t n = strlen(text);
        if (strcmp(name, "seed") != 0 && strcmp(name, "version") != 0 &&
            !lks__facts_follow(g->first->config, name))
            snprintf(text + n, sizeof text - n, "%s%s=%s", n > 0 ? ", " : "", name,
                     json_string_value(value));
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
static json_t *test_of(const struct comparison *c, const struct group *a, const struct group *b)
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
                     b->first->name, "settings_a", shared(c, a), "settings_b", shared(c, b),
                     "difference", difference, "t", lks__json_real(t), "df", df, "p", p,
                     "more_than_chance", p < how->alpha);
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
                json_array_append_new(rows,
                                      json_pack("{s:s, s:s, s:o}", "run", groups[i].first->name,
                                                "like", groups[k].first->name, "max_iters",
                                                copied(groups[i].first->config, "max_iters")));
    return rows;
}

static lks_status add_seeds(json_t *report, const struct comparison *c)
{
    const lks__compare_how *how = c->how;
    json_t *rows = json_array(), *tests = json_array();
    struct group *groups = calloc(c->n, sizeof *groups);
    size_t n_groups = groups != NULL ? make_groups(c, groups) : 0;
    for (size_t g = 0; g < n_groups; g++)
        if (groups[g].n > 1)
            json_array_append_new(
                rows, json_pack("{s:s, s:o, s:i, s:f, s:f}", "like", groups[g].first->name,
                                "settings", shared(c, &groups[g]), "seeds", (int)groups[g].n,
                                "mean", groups[g].mean, "spread", groups[g].spread));
    for (size_t g = 0; g < n_groups; g++)
        for (size_t k = g + 1; k < n_groups; k++)
            if (testable(&groups[g], &groups[k], how))
                json_array_append_new(tests, test_of(c, &groups[g], &groups[k]));
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

/* Fail if no run has the chosen metric, because it was probably misspelt or the runs aren't done.
 */
static lks_status check_metric(const struct comparison *c)
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

static void compare(void *arg)
{
    struct comparison *c = arg;
    json_t *report = c->report = json_object(), *all = json_array();
    for (size_t i = 0; i < c->n; i++)
        json_array_append_new(all, describe(&c->runs[i]));
    json_object_set_new(report, "compared", json_string(c->evals ? "val_loss" : "loss"));
    json_object_set_new(report, "runs", all);
    json_object_set_new(report, "settings", lks__compare_settings(c->runs, c->n));
    c->st = add_curves(report, c);
    LKS__THEN(c->st, add_seeds(report, c));
}

lks_status lks__compare(const lks__series *runs, size_t n, const lks__compare_how *how,
                        json_t **report_p)
{
    struct comparison c = {.runs = runs, .n = n, .evals = true, .how = how};
    for (size_t i = 0; i < n; i++)
        c.evals = c.evals && runs[i].n_evals > 0;
    LKS__TRY(check_metric(&c));
    if (!lks__json_in_memory(compare, &c))
        return lks__no_memory("to compare runs");
    if (c.st == LKS_OK)
        *report_p = c.report;
    else
        json_decref(c.report);
    return c.st;
}
