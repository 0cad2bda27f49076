#include "report/plot/curves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Differences of two losses are finite. */
#define MOST_LOSS 1e300
/* Its quotients are finite. */
#define LEAST_WIDTH 1e-300

/* --- points ----------------------------------------------------------------------------------- */

static double x_of(const lks__plot *p, uint64_t iter, double tokens, double seconds)
{
    return p->axis == LKS__PLOT_STEPS    ? (double)iter
           : p->axis == LKS__PLOT_TOKENS ? tokens
                                         : seconds;
}

double lks__curves_x(const lks__plot *p, const lks__series *s, uint64_t iter)
{
    const lks__point *before = NULL;
    for (size_t i = 0; i < s->n_points && s->points[i].iter < iter; i++)
        before = &s->points[i];
    return x_of(p, iter, before != NULL ? before->tokens : 0.0,
                before != NULL ? before->seconds : 0.0);
}

static void add(const lks__plot *p, lks__plot_point *all, size_t *n, lks__plot_point point)
{
    point.y = p->log_scale ? log10(point.y) : point.y;
    if (isfinite(point.x) && point.x >= 0.0 && fabs(point.y) <= MOST_LOSS)
        all[(*n)++] = point;
}

static lks_status read_curve(const lks__plot *p, const lks__series *s, lks__curve *c)
{
    *c = (lks__curve){.train = calloc(s->n_points + 1, sizeof *c->train),
                      .val = calloc(s->n_evals + 1, sizeof *c->val)};
    if (c->train == NULL || c->val == NULL)
        return lks__no_memory("for a picture");
    for (size_t i = 0; i < s->n_points; i++) {
        const lks__point *q = &s->points[i];
        add(p, c->train, &c->n_train,
            (lks__plot_point){.x = x_of(p, q->iter, q->tokens, q->seconds), .y = q->loss});
    }
    for (size_t i = 0; i < s->n_evals; i++) {
        const lks__eval_point *e = &s->evals[i];
        add(p, c->val, &c->n_val,
            (lks__plot_point){
                .x = x_of(p, e->iter, e->tokens, e->seconds), .y = e->val_loss, .final = e->final});
    }
    return LKS_OK;
}

void lks__curves_free(lks__curve *curves, size_t n)
{
    for (size_t i = 0; curves != NULL && i < n; i++) {
        free(curves[i].train);
        free(curves[i].val);
    }
    free(curves);
}

/* Count the points that an earlier run also has. Returns true if it has all of them. */
static bool count_repeated(lks__plot_point *mine, size_t n, const lks__plot_point *theirs,
                           size_t n_theirs)
{
    size_t k = 0, found = 0;
    for (size_t i = 0; i < n; i++) {
        while (k < n_theirs && theirs[k].x < mine[i].x)
            k++;
        if (k < n_theirs && theirs[k].x == mine[i].x && theirs[k].y == mine[i].y) {
            mine[i].repeated++;
            found++;
        }
    }
    return found == n;
}

static void compare(const lks__plot *p, lks__curve *curves, size_t i)
{
    lks__curve *mine = &curves[i];
    for (size_t k = 0; k < i; k++) {
        const lks__curve *theirs = &curves[k];
        bool same = count_repeated(mine->train, mine->n_train, theirs->train, theirs->n_train);
        same &= count_repeated(mine->val, mine->n_val, theirs->val, theirs->n_val);
        if (same && mine->same == NULL && mine->n_train > 0)
            mine->same = &p->runs[k];
    }
}

static void widen(lks__bounds *b, const lks__plot_point *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        b->x_low = fmin(b->x_low, all[i].x);
        b->x_high = fmax(b->x_high, all[i].x);
        b->y_low = fmin(b->y_low, all[i].y);
        b->y_high = fmax(b->y_high, all[i].y);
    }
}

/* Most runs begin near 0, and their axis too. */
static void round_bounds(lks__bounds *b)
{
    if (b->x_low < 0.5 * b->x_high)
        b->x_low = 0.0;
    if (!(b->y_high > b->y_low)) {
        b->y_low -= 0.5;
        b->y_high += 0.5;
    }
}

lks_status lks__curves_read(const lks__plot *p, lks__curve **curves_p, lks__bounds *b)
{
    size_t points = 0;
    lks_status st = LKS_OK;
    lks__curve *curves = calloc(p->n, sizeof *curves);
    *b = (lks__bounds){INFINITY, -INFINITY, INFINITY, -INFINITY};
    LKS__MEMORY(curves, "for a picture");
    for (size_t i = 0; i < p->n && st == LKS_OK; i++) {
        st = read_curve(p, &p->runs[i], &curves[i]);
        widen(b, curves[i].train, curves[i].n_train);
        widen(b, curves[i].val, curves[i].n_val);
        points += curves[i].n_train;
        compare(p, curves, i);
    }
    if (st == LKS_OK && (points < 2 || !(b->x_high - b->x_low > LEAST_WIDTH)))
        st = lks__fail(LKS_ERR_CONFIG, "there is nothing to draw yet: a run of at least two "
                                       "iterations with a loss is needed");
    if (st != LKS_OK) {
        lks__curves_free(curves, p->n);
        return st;
    }
    round_bounds(b);
    *curves_p = curves;
    return LKS_OK;
}

/* --- marks ------------------------------------------------------------------------------------ */

/* A round distance between marks, so that `span` has about six of them. */
static double step_of(double span)
{
    static const double rounds[] = {1.0, 2.0, 5.0}, n = 6.0;
    double base = pow(10.0, floor(log10(span / n)));
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++)
        if (base * rounds[i] * n >= span * 0.999)
            return base * rounds[i];
    return base * 10.0;
}

/* Four digits, without the sign and the zeros of C's exponents: 2e8. */
static void write_short(double value, const char *suffix, char text[LKS__PLOT_MARK])
{
    int exponent;
    snprintf(text, LKS__PLOT_MARK, "%.4g", value);
    char *e = strchr(text, 'e');
    if (e != NULL && sscanf(e + 1, "%d", &exponent) == 1)
        snprintf(e + 1, LKS__PLOT_MARK - (size_t)(e + 1 - text), "%d", exponent);
    lks__append(text, LKS__PLOT_MARK, "", "%s", suffix);
}

/* Add the multiples of `step` from low to high, as multiples of `unit`. */
static void add_marks(lks__marks *m, double low, double high, double step, double unit,
                      const char *suffix)
{
    const int digits = (int)ceil(-log10(step / unit) - 1e-9);
    for (double k = ceil(low / step - 1e-9);
         k * step <= high + step * 1e-9 && m->n < LKS__PLOT_MARKS; k++) {
        const double value = k == 0.0 ? 0.0 : k * step;
        m->at[m->n] = value;
        if (digits > 6 || fabs(value / unit) >= 1e5)
            write_short(value / unit, suffix, m->text[m->n++]);
        else
            snprintf(m->text[m->n++], LKS__PLOT_MARK, "%.*f%s", digits > 0 ? digits : 0,
                     value / unit, value == 0.0 ? "" : suffix);
    }
}

static void time_marks(const lks__bounds *b, lks__marks *m)
{
    const double unit = b->x_high > 7200.0 ? 3600.0 : b->x_high > 120.0 ? 60.0 : 1.0;
    snprintf(m->name, LKS__PLOT_MARK, "%s of training",
             unit == 1.0    ? "seconds"
             : unit == 60.0 ? "minutes"
                            : "hours");
    add_marks(m, b->x_low, b->x_high, unit * step_of((b->x_high - b->x_low) / unit), unit, "");
}

void lks__marks_x(const lks__plot *p, const lks__bounds *b, lks__marks *m)
{
    static const char suffixes[][2] = {"", "k", "M", "B", "T"};
    double unit = 1.0;
    int i = 0;
    m->n = 0;
    if (p->axis == LKS__PLOT_TIME) {
        time_marks(b, m);
        return;
    }
    for (; i < 4 && b->x_high >= (i == 0 ? 10000.0 : 1000.0 * unit); i++)
        unit *= 1000.0;
    snprintf(m->name, LKS__PLOT_MARK, "%s", p->axis == LKS__PLOT_STEPS ? "iteration" : "tokens");
    add_marks(m, b->x_low, b->x_high, fmax(step_of(b->x_high - b->x_low), 1.0), unit, suffixes[i]);
}

/* 1, 2 and 5 times each power of ten; if there are many, the powers only. */
static void add_decades(lks__marks *m, const lks__bounds *b)
{
    const int many = b->y_high - b->y_low > 4.0;
    for (double k = floor(b->y_low); k <= b->y_high;
         k += fmax(1.0, ceil((b->y_high - b->y_low) / 16)))
        for (int i = 0; i < (many ? 1 : 3) && m->n < LKS__PLOT_MARKS; i++) {
            const double value = pow(10.0, k) * (i == 0 ? 1.0 : i == 1 ? 2.0 : 5.0);
            if (log10(value) < b->y_low || log10(value) > b->y_high)
                continue;
            m->at[m->n] = log10(value);
            write_short(value, "", m->text[m->n++]);
        }
}

void lks__marks_y(const lks__plot *p, const lks__bounds *b, lks__marks *m)
{
    m->n = 0;
    snprintf(m->name, LKS__PLOT_MARK, "%s", p->log_scale ? "loss, log scale" : "loss");
    if (p->log_scale && b->y_high - b->y_low > 1.0) {
        add_decades(m, b);
        return;
    }
    const double low = p->log_scale ? pow(10.0, b->y_low) : b->y_low;
    const double high = p->log_scale ? pow(10.0, b->y_high) : b->y_high;
    add_marks(m, low, high, step_of(high - low), 1.0, "");
    for (int i = 0; p->log_scale && i < m->n; i++)
        m->at[i] = log10(m->at[i]);
}
