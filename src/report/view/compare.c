#include "report/view/compare.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "report/view/seeds.h"

enum { ROWS = 10 };

struct comparison {
    lks__compared of;
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
                          "steps", (json_int_t)lks__series_steps(s));
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

static bool differs(const lks__series *runs, size_t n, const char *key)
{
    for (size_t i = 1; i < n; i++)
        if (!lks__series_same(&runs[0], &runs[i], key))
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

static size_t n_losses(const lks__compared *c, size_t run)
{
    return c->evals ? c->runs[run].n_evals : c->runs[run].n_points;
}

static struct loss loss_at(const lks__compared *c, size_t run, size_t i)
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
static double nearest(const lks__compared *c, double x, bool after)
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
static double at_step(const lks__compared *c, size_t run, double x)
{
    double value = (double)NAN;
    for (size_t i = 0; i < n_losses(c, run); i++)
        if (loss_at(c, run, i).iter == x)
            value = loss_at(c, run, i).value;
    return value;
}

/* A run's newest loss after `x` seconds; NAN before its first loss and after its end. */
static double at_time(const lks__compared *c, size_t run, double x)
{
    double value = (double)NAN, end = 0.0;
    for (size_t i = 0; i < n_losses(c, run); i++) {
        end = loss_at(c, run, i).seconds;
        if (end <= x)
            value = loss_at(c, run, i).value;
    }
    return x <= end ? value : (double)NAN;
}

static void add_row(json_t *rows, const lks__compared *c, const char *axis, double x,
                    double (*value_at)(const lks__compared *c, size_t run, double x))
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
static size_t choose(const lks__compared *c, double end, double *chosen)
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
static lks_status add_steps(json_t *rows, const lks__compared *c, double end)
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

static lks_status add_curves(json_t *report, const lks__compared *c)
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

static void compare(void *arg)
{
    struct comparison *c = arg;
    json_t *report = c->report = json_object(), *all = json_array();
    for (size_t i = 0; i < c->of.n; i++)
        json_array_append_new(all, describe(&c->of.runs[i]));
    json_object_set_new(report, "compared", json_string(c->of.evals ? "val_loss" : "loss"));
    json_object_set_new(report, "runs", all);
    json_object_set_new(report, "settings", lks__compare_settings(c->of.runs, c->of.n));
    c->st = add_curves(report, &c->of);
    LKS__THEN(c->st, lks__seeds_add(&c->of, report));
}

lks_status lks__compare(const lks__series *runs, size_t n, const lks__compare_how *how,
                        json_t **report_p)
{
    struct comparison c = {.of = {.runs = runs, .n = n, .evals = true, .how = how}};
    for (size_t i = 0; i < n; i++)
        c.of.evals = c.of.evals && runs[i].n_evals > 0;
    LKS__TRY(lks__seeds_check(&c.of));
    if (!lks__json_in_memory(compare, &c))
        return lks__no_memory("to compare runs");
    if (c.st == LKS_OK)
        *report_p = c.report;
    else
        json_decref(c.report);
    return c.st;
}
