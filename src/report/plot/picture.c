#include "report/plot/picture.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "report/diff/facts.h"
#include "report/plot/curves.h"
#include "report/view/compare.h"

enum { LEFT = 56, RIGHT = 20, BOTTOM = 46, GRAPH = 300, LINE = 20, NAME = 40, DETAILS = 512 };

static const double WIDTH = LKS__PICTURE_WIDTH;
static const double LINE_WIDTH = 1.6; /* of every curve */
static const double FAINT = 0.4;      /* training, if validation is drawn over it */
static const double DOT = 3.5;        /* radius of an evaluation */
static const double BETWEEN_DOTS = 10.0;
static const double CHARACTER = 7.3; /* width of a character on average, or more */
static const double DASH = 12.0;

/* Readable on light and on dark backgrounds, and different for colour-blind eyes. */
static const unsigned colours[] = {0x2f7fd6, 0xe8873a, 0x2f9e5b, 0xb05cc4,
                                   0xd1495b, 0x1fa3a8, 0x9a7b2d, 0x7a6ff0};

static unsigned colour_of(size_t run)
{
    return colours[run % (sizeof colours / sizeof colours[0])];
}

struct drawing {
    const lks__plot *plot;
    const lks__curve *curves;
    lks__bounds b;
    lks__canvas *to;
    double top;      /* of the graph */
    unsigned period; /* curves that coincide at one point, at most */
    bool evaluated;  /* all runs have a line of validation losses */
    double *xy;      /* room for the points of a line */
};

static double at_x(const struct drawing *d, double x)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (x - d->b.x_low) / (d->b.x_high - d->b.x_low);
}

static double at_y(const struct drawing *d, double y)
{
    return d->top + GRAPH * (d->b.y_high - y) / (d->b.y_high - d->b.y_low);
}

/* --- axes ------------------------------------------------------------------------------------- */

static void draw_axes(struct drawing *d)
{
    const lks__pen rule = {.colour = LKS__INK_RULE, .width = 1.0};
    const lks__pen axis = {.colour = LKS__INK_TEXT, .width = 1.0};
    const double bottom = d->top + GRAPH;
    lks__marks m;
    lks__marks_y(d->plot, &d->b, &m);
    for (int i = 0; i < m.n; i++) {
        const double y = at_y(d, m.at[i]), ends[] = {LEFT, y, WIDTH - RIGHT, y};
        d->to->line(d->to->ctx, ends, 2, &rule);
        d->to->text(d->to->ctx, LEFT - 8, y + 4.5, 1, LKS__INK_TEXT, LKS__SIZE_TEXT, m.text[i]);
    }
    const double ends[] = {LEFT, bottom, WIDTH - RIGHT, bottom};
    d->to->line(d->to->ctx, ends, 2, &axis);
    lks__marks_x(d->plot, &d->b, &m);
    for (int i = 0; i < m.n; i++) {
        const double x = at_x(d, m.at[i]), tick[] = {x, bottom, x, bottom + 4};
        d->to->line(d->to->ctx, tick, 2, &axis);
        d->to->text(d->to->ctx, x, bottom + 18, 0, LKS__INK_TEXT, LKS__SIZE_TEXT, m.text[i]);
    }
    d->to->text(d->to->ctx, (LEFT + WIDTH - RIGHT) / 2.0, bottom + 37, 0, LKS__INK_TEXT,
                LKS__SIZE_TEXT, m.name);
}

/* --- curves ----------------------------------------------------------------------------------- */

/* Write the positions of `n` points to d->xy. If there are many, keep the lowest and the highest of
 * each half point of width. Returns the number of positions. */
static size_t place(struct drawing *d, const lks__plot_point *p, size_t n, bool thin)
{
    size_t out = 0;
    for (size_t i = 0, next; i < n; i = next) {
        size_t low = i, high = i;
        const double column = floor(2.0 * at_x(d, p[i].x));
        for (next = i + 1; thin && next < n && floor(2.0 * at_x(d, p[next].x)) == column; next++) {
            low = p[next].y < p[low].y ? next : low;
            high = p[next].y > p[high].y ? next : high;
        }
        const size_t pair[2] = {low < high ? low : high, low < high ? high : low};
        for (int k = 0; k < (low == high ? 1 : 2); k++, out++) {
            d->xy[2 * out] = at_x(d, p[pair[k]].x);
            d->xy[2 * out + 1] = at_y(d, p[pair[k]].y);
        }
    }
    return out;
}

/* The number of earlier runs that have both ends of the line's part from p[0] to p[1]. */
static unsigned repeated(const lks__plot_point *p)
{
    return p[0].repeated < p[1].repeated ? p[0].repeated : p[1].repeated;
}

/* Draw a line in stretches: dashed where earlier runs have the same points. Every run of those that
 * coincide has its own part of the period. */
static void draw_line(struct drawing *d, const lks__plot_point *p, size_t n, unsigned colour)
{
    for (size_t i = 0, end; i + 1 < n; i = end) {
        const unsigned below = repeated(p + i);
        end = i + 1;
        while (end + 1 < n && repeated(p + end) == below)
            end++;
        lks__pen pen = {.colour = colour, .width = LINE_WIDTH};
        if (below > 0) {
            pen.dash = DASH;
            pen.gap = DASH * (d->period - 1);
            pen.offset = DASH * below;
        }
        d->to->line(d->to->ctx, d->xy, place(d, p + i, end + 1 - i, n > 4 * WIDTH), &pen);
    }
}

/* Where runs coincide their dots take turns. */
static void draw_dots(struct drawing *d, const lks__curve *c, unsigned colour)
{
    double last = -INFINITY;
    unsigned k = 0;
    for (size_t i = 0; i < c->n_val; i++) {
        const lks__plot_point *p = &c->val[i];
        const double x = at_x(d, p->x), y = at_y(d, p->y);
        if (x - last < BETWEEN_DOTS && !p->final)
            continue;
        last = x;
        if (p->repeated == 0 || k % d->period == p->repeated)
            d->to->dot(d->to->ctx, x, y, DOT, p->final ? LKS__INK_BACK : colour,
                       p->final ? colour : LKS__INK_BACK);
        k++;
    }
}

/* Draw a line at the iterations from which runs continued with another batch. */
static void draw_segments(struct drawing *d)
{
    for (size_t i = 0; i < d->plot->n; i++)
        for (const lks__run_mark *m = NULL;
             (m = lks__series_segment(&d->plot->runs[i], m)) != NULL;) {
            const double at = lks__curves_x(d->plot, &d->plot->runs[i], m->iter);
            const double x = at_x(d, at), ends[] = {x, d->top, x, d->top + GRAPH};
            const lks__pen pen = {.colour = colour_of(i), .width = 1.0, .dash = 3.0, .gap = 3.0};
            if (!(at >= d->b.x_low && at <= d->b.x_high)) /* NAN: a line lacks its tokens */
                continue;
            d->to->line(d->to->ctx, ends, 2, &pen);
            if (d->plot->n == 1)
                d->to->text(d->to->ctx, x + 6, d->top + 14, -1, LKS__INK_TEXT, LKS__SIZE_TEXT,
                            m->text);
        }
}

static void draw_curves(struct drawing *d)
{
    if (d->evaluated)
        d->to->begin_layer(d->to->ctx, FAINT);
    for (size_t i = 0; i < d->plot->n; i++)
        draw_line(d, d->curves[i].train, d->curves[i].n_train, colour_of(i));
    if (d->evaluated)
        d->to->end_layer(d->to->ctx, FAINT);
    for (size_t i = 0; i < d->plot->n; i++)
        draw_line(d, d->curves[i].val, d->curves[i].n_val, colour_of(i));
    for (size_t i = 0; i < d->plot->n; i++)
        draw_dots(d, &d->curves[i], colour_of(i));
}

/* --- legend ----------------------------------------------------------------------------------- */

/* Cut a text to `most` characters; the last one is then "…". */
static void cut(char *text, int most)
{
    size_t n = 0, last = 0;
    int characters = 0;
    for (; text[n] != '\0' && characters <= most; n++)
        if (((unsigned char)text[n] & 0xc0) != 0x80 && ++characters == most)
            last = n;
    if (characters > most)
        strcpy(text + last, "\xe2\x80\xa6");
}

/* True if `text` contains the words. */
static bool contains(const char *text, const char *words)
{
    const size_t n = strlen(words);
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[n]))
            return true;
    return false;
}

/* Add "NAME VALUE" to `out`, unless the run's own name already says it. */
static void append(char out[DETAILS], const char *run, const char *name, const char *value)
{
    char shown[256], detail[512];
    snprintf(shown, sizeof shown, "%s", value);
    cut(shown, 24);
    snprintf(detail, sizeof detail, "%s %s", name, shown);
    if (!contains(run, detail))
        lks__append(out, DETAILS, ", ", "%s", detail);
}

static bool ranks_differ(const lks__plot *p)
{
    const json_t *first = json_object_get(p->runs[0].host, "world_size");
    bool differ = false;
    for (size_t i = 1; i < p->n; i++)
        differ |= !json_equal(first, json_object_get(p->runs[i].host, "world_size"));
    return differ;
}

/* Write how run `i` differs: its settings, its ranks, and the run with the same losses. */
static void details_of(const struct drawing *d, const json_t *settings, size_t i, char out[DETAILS])
{
    const lks__series *run = &d->plot->runs[i];
    const json_t *ranks = json_object_get(run->host, "world_size");
    char number[32];
    out[0] = '\0';
    lks__each(row, settings) {
        const char *name = lks__json_str(row, "setting");
        if (strcmp(name, "version") != 0 && !lks__facts_follow(run->config, name))
            append(out, run->name, name,
                   json_string_value(json_array_get(json_object_get(row, "values"), i)));
    }
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(ranks));
    if (json_is_integer(ranks) && ranks_differ(d->plot))
        append(out, run->name, number, json_integer_value(ranks) == 1 ? "rank" : "ranks");
    if (d->curves[i].same != NULL)
        append(out, run->name, "same losses as", d->curves[i].same->name);
    lks__utf8_make(out);
}

static void draw_sample(struct drawing *d, double x, double y, unsigned colour, double opacity)
{
    const double ends[] = {x, y, x + 28, y};
    const lks__pen pen = {.colour = colour, .width = LINE_WIDTH};
    if (opacity < 1.0)
        d->to->begin_layer(d->to->ctx, opacity);
    d->to->line(d->to->ctx, ends, 2, &pen);
    if (opacity < 1.0)
        d->to->end_layer(d->to->ctx, opacity);
}

/* Explain the kinds of lines and dots, at the height `y`. */
static void draw_key(struct drawing *d, double y)
{
    const unsigned colour = d->plot->n == 1 ? colour_of(0) : LKS__INK_TEXT;
    double x = LEFT;
    bool final = false;
    for (size_t i = 0; i < d->plot->n; i++)
        for (size_t k = 0; k < d->curves[i].n_val; k++)
            final |= d->curves[i].val[k].final;
    draw_sample(d, x, y, colour, d->evaluated ? FAINT : 1.0);
    d->to->text(d->to->ctx, x + 36, y + 4.5, -1, LKS__INK_TEXT, LKS__SIZE_TEXT, "training");
    x += 36 + 8 * CHARACTER + 16;
    draw_sample(d, x, y, colour, 1.0);
    d->to->dot(d->to->ctx, x + 14, y, DOT, colour, LKS__INK_BACK);
    d->to->text(d->to->ctx, x + 36, y + 4.5, -1, LKS__INK_TEXT, LKS__SIZE_TEXT, "validation");
    x += 36 + 10 * CHARACTER + 16;
    if (!final)
        return;
    d->to->dot(d->to->ctx, x + 4, y, DOT, LKS__INK_BACK, colour);
    d->to->text(d->to->ctx, x + 16, y + 4.5, -1, LKS__INK_TEXT, LKS__SIZE_TEXT,
                "validation of the final checkpoint");
}

static lks_status draw_runs(struct drawing *d, double y)
{
    json_t *settings = lks__compare_settings(d->plot->runs, d->plot->n);
    int longest = 0;
    char text[DETAILS];
    LKS__MEMORY(settings, "for a picture");
    for (size_t i = 0; i < d->plot->n; i++) {
        const int n = lks__utf8_length(d->plot->runs[i].name);
        longest = n > longest ? n : longest;
    }
    longest = longest < NAME ? longest : NAME;
    const double x = LEFT + 36 + CHARACTER * longest + 16;
    for (size_t i = 0; i < d->plot->n; i++, y += LINE) {
        snprintf(text, sizeof text, "%s", d->plot->runs[i].name);
        cut(text, NAME);
        draw_sample(d, LEFT, y, colour_of(i), 1.0);
        d->to->text(d->to->ctx, LEFT + 36, y + 4.5, -1, LKS__INK_TITLE, LKS__SIZE_TEXT, text);
        details_of(d, settings, i, text);
        cut(text, (int)((WIDTH - RIGHT - x) / CHARACTER));
        if (text[0] != '\0')
            d->to->text(d->to->ctx, x, y + 4.5, -1, LKS__INK_TEXT, LKS__SIZE_TEXT, text);
    }
    json_decref(settings);
    return LKS_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* True if a run has a validation loss; the legend then has a key. */
static bool is_evaluated(const lks__plot *p)
{
    bool evaluated = false;
    for (size_t i = 0; i < p->n; i++)
        evaluated |= p->runs[i].n_evals > 0;
    return evaluated;
}

const char *lks__picture_title(const lks__plot *p, char out[LKS__PICTURE_TITLE])
{
    char name[256];
    snprintf(name, sizeof name, "%s", p->runs[0].name);
    cut(name, NAME);
    if (p->n > 1)
        snprintf(name, sizeof name, "%zu runs", p->n);
    snprintf(out, LKS__PICTURE_TITLE, "%s of %.*s%s",
             is_evaluated(p) ? "Training and validation loss" : "Training loss", 80, name,
             p->log_scale ? " (log scale)" : "");
    lks__utf8_make(out);
    return out;
}

/* Height above the graph: the title, the key and the runs. */
static int height_of_legend(const lks__plot *p)
{
    return 48 + LINE * ((is_evaluated(p) ? 1 : 0) + (p->n > 1 ? (int)p->n : 0));
}

int lks__picture_height(const lks__plot *p)
{
    return height_of_legend(p) + GRAPH + BOTTOM;
}

static void measure(struct drawing *d, size_t *points_p)
{
    d->evaluated = true;
    d->period = 1;
    *points_p = 1;
    for (size_t i = 0; i < d->plot->n; i++) {
        const lks__curve *c = &d->curves[i];
        d->evaluated &= c->n_val > 1;
        *points_p = c->n_train > *points_p ? c->n_train : *points_p;
        *points_p = c->n_val > *points_p ? c->n_val : *points_p;
        for (size_t k = 0; k < c->n_train; k++)
            d->period = c->train[k].repeated >= d->period ? c->train[k].repeated + 1 : d->period;
        for (size_t k = 0; k < c->n_val; k++)
            d->period = c->val[k].repeated >= d->period ? c->val[k].repeated + 1 : d->period;
    }
    const double room = 0.03 * (d->b.y_high - d->b.y_low); /* no curve touches the frame */
    d->b.y_low -= room;
    d->b.y_high += room;
}

lks_status lks__picture_draw(const lks__plot *p, lks__canvas *to)
{
    const double legend = height_of_legend(p);
    struct drawing d = {.plot = p, .to = to, .top = legend};
    lks__curve *curves;
    char title[LKS__PICTURE_TITLE];
    size_t points;
    LKS__TRY(lks__curves_read(p, &curves, &d.b));
    d.curves = curves;
    measure(&d, &points);
    d.xy = calloc(points, 2 * sizeof *d.xy);
    if (d.xy == NULL) {
        lks__curves_free(curves, p->n);
        return lks__no_memory("for a picture");
    }
    to->text(to->ctx, LEFT, 26, -1, LKS__INK_TITLE, LKS__SIZE_TITLE, lks__picture_title(p, title));
    draw_axes(&d);
    draw_segments(&d);
    draw_curves(&d);
    lks_status st = LKS_OK;
    if (p->n > 1)
        st = draw_runs(&d, legend - 2 - LINE * (double)p->n);
    if (is_evaluated(p))
        draw_key(&d, 46);
    free(d.xy);
    lks__curves_free(curves, p->n);
    return st;
}
