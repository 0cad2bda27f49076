#include "report/diff/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/number/units.h"
#include "base/text/utf8.h"
#include "report/diff/facts.h"
#include "report/record/leaves.h"

/* Lines between two steps. */
enum between { EVAL, FINAL, CHECKPOINT, N_BETWEEN };

static const char *const between_kinds[N_BETWEEN] = {"eval", "final", "checkpoint"};

struct side {
    lks__history *history;
    json_t *between[N_BETWEEN]; /* since the step before; NULL: no such line */
    json_t *step;               /* NULL: the record ends */
    uint64_t steps;
};

static const char *kind_of(const json_t *line)
{
    return json_string_value(json_object_get(line, "kind"));
}

static json_int_t iter_of(const json_t *line)
{
    return json_integer_value(json_object_get(line, "iter"));
}

static void forget(struct side *s)
{
    for (int i = 0; i < N_BETWEEN; i++) {
        json_decref(s->between[i]);
        s->between[i] = NULL;
    }
    json_decref(s->step);
    s->step = NULL;
}

static bool is_step(const char *kind)
{
    return strcmp(kind, "train") == 0 || strcmp(kind, "skip") == 0 || strcmp(kind, "rollback") == 0;
}

/* Resumes cut the file, so only a rollback lets a run repeat a step. `next`: the least iteration
 * that the step can have. */
static lks_status check_order(const struct side *s, uint64_t next)
{
    char what[64];
    const uint64_t iter = (uint64_t)iter_of(s->step);
    if (iter >= next || strcmp(kind_of(s->step), "rollback") == 0)
        return LKS_OK;
    snprintf(what, sizeof what,
             iter + 1 == next ? "repeats step %" PRIu64
                              : "is of step %" PRIu64 " after step %" PRIu64,
             iter, next - 1);
    return lks__lines_bad(&s->history->lines, what);
}

/* Read up to the next step. */
static lks_status advance(struct side *s)
{
    const json_t *line;
    const uint64_t next = s->history->claims.next;
    forget(s);
    while (s->step == NULL) {
        LKS__TRY(lks__history_next(s->history, &line));
        if (line == NULL)
            return LKS_OK;
        if (is_step(kind_of(line)))
            s->step = json_incref((json_t *)line);
        for (int i = 0; i < N_BETWEEN; i++) {
            if (strcmp(kind_of(line), between_kinds[i]) != 0)
                continue;
            json_decref(s->between[i]);
            s->between[i] = json_incref((json_t *)line);
        }
    }
    s->steps++;
    return check_order(s, next);
}

/* --- two lines -------------------------------------------------------------------------------- */

/* True for members that tell time and place, or the line itself. */
static bool is_ignored(const char *key)
{
    static const char *const ignored[] = {"kind", "iter", "sample", "asked", "path", NULL};
    return lks__is_one_of(key, ignored) || lks__is_one_of(key, lks__lines_times);
}

/* Append a member of both lines, unless `figures` is NULL; false if it differs. */
static bool add_figure(json_t *figures, const char *key, json_t *x, json_t *y)
{
    const bool same = x != NULL && y != NULL && json_equal(x, y);
    if (figures != NULL)
        json_array_append_new(figures, json_pack("{s:s, s:O?, s:O?, s:b}", "name", key, "a", x, "b",
                                                 y, "same", same));
    return same;
}

/* True if both lines are equal. `common`: only members that both lines have count. `figures`: NULL,
 * or an array that gets the members. */
static bool compare_members(json_t *a, json_t *b, bool common, json_t *figures)
{
    const char *key;
    json_t *value;
    bool same = true;
    if (strcmp(kind_of(a), kind_of(b)) != 0)
        same &= add_figure(figures, "kind", json_object_get(a, "kind"), json_object_get(b, "kind"));
    if (iter_of(a) != iter_of(b))
        same &= add_figure(figures, "iter", json_object_get(a, "iter"), json_object_get(b, "iter"));
    json_object_foreach(a, key, value)
    {
        json_t *other = json_object_get(b, key);
        if (!is_ignored(key) && (!common || other != NULL))
            same &= add_figure(figures, key, value, other);
    }
    json_object_foreach(b, key, value)
    {
        if (!common && !is_ignored(key) && json_object_get(a, key) == NULL)
            same &= add_figure(figures, key, NULL, value);
    }
    return same;
}

/* NULL if both lines are equal, as nearly all lines of two runs are: only others need memory. */
static json_t *compare_lines(json_t *a, json_t *b, bool common)
{
    if (a == b || compare_members(a, b, common, NULL))
        return NULL;
    json_t *figures = json_array();
    compare_members(a, b, common, figures);
    return json_pack("{s:I, s:s, s:o}", "iter", iter_of(a), "kind", kind_of(a), "figures", figures);
}

/* --- two records ------------------------------------------------------------------------------ */

struct walk {
    struct side a, b;
    json_t *first, *evaluation;
    json_t *params_hash; /* of the last equal checkpoint */
    uint64_t steps, from, checkpoints;
};

/* A run that continued elsewhere begins at a later iteration: skip the other's earlier steps. */
static lks_status align(struct walk *w)
{
    LKS__TRY(advance(&w->a));
    LKS__TRY(advance(&w->b));
    while (w->a.step != NULL && w->b.step != NULL && iter_of(w->a.step) != iter_of(w->b.step))
        LKS__TRY(advance(iter_of(w->a.step) < iter_of(w->b.step) ? &w->a : &w->b));
    if (w->a.step == NULL || w->b.step == NULL)
        return lks__fail(LKS_ERR_CONFIG,
                         "the runs can't be compared: their records have no step in common");
    w->from = (uint64_t)iter_of(w->a.step);
    return LKS_OK;
}

/* Both lines of a kind, if they are about the same iteration. */
static bool both(const struct walk *w, enum between kind)
{
    const json_t *x = w->a.between[kind], *y = w->b.between[kind];
    return x != NULL && y != NULL && iter_of(x) == iter_of(y);
}

static void compare_between(struct walk *w)
{
    for (int kind = EVAL; kind <= FINAL; kind++)
        if (w->evaluation == NULL && both(w, kind))
            w->evaluation = compare_lines(w->a.between[kind], w->b.between[kind], true);
    if (!both(w, CHECKPOINT))
        return;
    w->first = compare_lines(w->a.between[CHECKPOINT], w->b.between[CHECKPOINT], false);
    if (w->first != NULL)
        return;
    w->checkpoints++;
    json_decref(w->params_hash);
    w->params_hash = json_incref(json_object_get(w->a.between[CHECKPOINT], "params_hash"));
}

static lks_status compare(struct walk *w)
{
    LKS__TRY(align(w));
    for (;;) {
        compare_between(w);
        if (w->first != NULL || w->a.step == NULL || w->b.step == NULL)
            return LKS_OK;
        w->first = compare_lines(w->a.step, w->b.step, false);
        if (w->first != NULL)
            return LKS_OK;
        w->steps++;
        LKS__TRY(advance(&w->a));
        LKS__TRY(advance(&w->b));
    }
}

/* Count the steps that only the longer run has. After a difference, read one more step: one of the
 * lines that differ may be repeated. */
static lks_status read_rest(struct walk *w)
{
    const uint64_t steps[2] = {w->a.steps, w->b.steps};
    if (w->first != NULL) {
        LKS__TRY(advance(&w->a));
        LKS__TRY(advance(&w->b));
        w->a.steps = steps[0];
        w->b.steps = steps[1];
        return LKS_OK;
    }
    while (w->a.step != NULL)
        LKS__TRY(advance(&w->a));
    while (w->b.step != NULL)
        LKS__TRY(advance(&w->b));
    return LKS_OK;
}

lks_status lks__records_diff(lks__history *a, lks__history *b, json_t *report)
{
    struct walk w = {.a.history = a, .b.history = b};
    lks_status st = compare(&w);
    LKS__THEN(st, read_rest(&w));
    json_t *found =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:o?, s:o?, s:o?}", "steps", (json_int_t)w.steps,
                  "from", (json_int_t)w.from, "steps_a", (json_int_t)w.a.steps, "steps_b",
                  (json_int_t)w.b.steps, "checkpoints", (json_int_t)w.checkpoints, "params_hash",
                  w.params_hash, "first", w.first, "evaluation", w.evaluation);
    forget(&w.a);
    forget(&w.b);
    if (st == LKS_OK && (found == NULL || json_object_update(report, found) != 0))
        st = lks__no_memory("to compare runs");
    json_decref(found);
    return st;
}

/* --- hashes of gradients ---------------------------------------------------------------------- */

struct hashes {
    lks__leaves a, b;
    bool any; /* both have a record of the same iteration */
    uint64_t steps, compared;
    struct lks__leaf_record last; /* compared */
    json_t *first;
};

/* Read the next iteration that both have. */
static lks_status next_both(struct hashes *h)
{
    bool a, b;
    LKS__TRY(lks__leaves_next(&h->a, &a));
    LKS__TRY(lks__leaves_next(&h->b, &b));
    while (a && b && h->a.last.iter != h->b.last.iter)
        LKS__TRY(h->a.last.iter < h->b.last.iter ? lks__leaves_next(&h->a, &a)
                                                 : lks__leaves_next(&h->b, &b));
    h->any = a && b && h->a.last.V == h->b.last.V && h->a.last.A == h->b.last.A;
    return LKS_OK;
}

static void compare_hashes(struct hashes *h)
{
    const uint64_t *a = h->a.record + 1, *b = h->b.record + 1;
    int first = -1, different = 0;
    h->last = h->a.last;
    h->compared++;
    for (int v = (int)h->last.V - 1; v >= 0; v--)
        if (a[v] != b[v]) {
            first = v;
            different++;
        }
    if (first < 0) {
        h->steps++;
        return;
    }
    h->first =
        json_pack("{s:I, s:i, s:i, s:s, s:s}", "iter", (json_int_t)h->last.iter, "virtual_rank",
                  first, "different", different, "a", lks__hex(a[first]), "b", lks__hex(b[first]));
}

static lks_status walk_hashes(struct hashes *h, uint64_t end)
{
    LKS__TRY(next_both(h));
    while (h->any && h->first == NULL && h->a.last.iter <= end) {
        compare_hashes(h);
        LKS__TRY(next_both(h));
    }
    return LKS_OK;
}

lks_status lks__hashes_diff(const char *a, const char *b, json_t *report)
{
    struct hashes h = {.any = false};
    const json_t *iter = json_object_get(json_object_get(report, "first"), "iter");
    const uint64_t end = iter != NULL ? (uint64_t)json_integer_value(iter) : UINT64_MAX;
    lks_status st = lks__leaves_open(a, &h.a);
    LKS__THEN(st, lks__leaves_open(b, &h.b));
    LKS__THEN(st, walk_hashes(&h, end));
    lks__leaves_close(&h.a);
    lks__leaves_close(&h.b);
    if (st != LKS_OK) {
        json_decref(h.first);
        return st;
    }
    json_t *found =
        h.compared == 0
            ? json_null()
            : json_pack("{s:I, s:I, s:I, s:o?}", "steps", (json_int_t)h.steps, "virtual_ranks",
                        (json_int_t)h.last.V, "last", (json_int_t)h.last.iter, "first", h.first);
    if (json_object_set_new(report, "gradients", found) != 0)
        return lks__no_memory("to compare runs");
    return LKS_OK;
}
