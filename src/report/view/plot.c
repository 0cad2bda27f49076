#include "report/view/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/module.h"
#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "report/view/png_module.h"

enum { WIDTH = 760, HEIGHT = 320, LEFT = 56, RIGHT = 24, TOP = 16, BOTTOM = 44, MOST_MARKS = 24 };

/* Readable on light and on dark backgrounds. */
static const unsigned colours[] = {0xe8973a, 0x2f7fd6, 0x3f9b57, 0xb05cc4, 0xc94f4f, 0x2aa198};
static const unsigned grey = 0x7a828b;

/* --- points ----------------------------------------------------------------------------------- */

struct curve {
    double *train, *val; /* x, y, x, y, … */
    size_t n_train, n_val;
};

struct bounds {
    double x_high, y_low, y_high; /* x begins at 0; with log_scale, y is log10 of the loss */
};

static double x_of(const lks__plot *p, uint64_t iter, double tokens, double seconds)
{
    return p->axis == LKS__PLOT_STEPS    ? (double)iter
           : p->axis == LKS__PLOT_TOKENS ? tokens
                                         : seconds;
}

static void add(const lks__plot *p, double *xy, size_t *n, double x, double y)
{
    y = p->log_scale ? log10(y) : y;
    if (!isfinite(x) || !isfinite(y))
        return;
    xy[2 * *n] = x;
    xy[2 * *n + 1] = y;
    ++*n;
}

static lks_status read_curve(const lks__plot *p, const lks__series *s, struct curve *c)
{
    *c = (struct curve){.train = calloc(2 * s->n_points + 1, sizeof(double)),
                        .val = calloc(2 * s->n_evals + 1, sizeof(double))};
    if (c->train == NULL || c->val == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a picture");
    for (size_t i = 0; i < s->n_points; i++) {
        const lks__point *q = &s->points[i];
        add(p, c->train, &c->n_train, x_of(p, q->iter, q->tokens, q->seconds), q->loss);
    }
    for (size_t i = 0; i < s->n_evals; i++) {
        const lks__eval_point *e = &s->evals[i];
        if (!e->final)
            add(p, c->val, &c->n_val, x_of(p, e->iter, e->tokens, e->seconds), e->val_loss);
    }
    return LKS_OK;
}

static void free_curves(struct curve *curves, size_t n)
{
    for (size_t i = 0; curves != NULL && i < n; i++) {
        free(curves[i].train);
        free(curves[i].val);
    }
    free(curves);
}

static void widen(struct bounds *b, const double *xy, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        b->x_high = fmax(b->x_high, xy[2 * i]);
        b->y_low = fmin(b->y_low, xy[2 * i + 1]);
        b->y_high = fmax(b->y_high, xy[2 * i + 1]);
    }
}

static lks_status read_curves(const lks__plot *p, struct curve **curves_p, struct bounds *b)
{
    size_t points = 0;
    lks_status st = LKS_OK;
    struct curve *curves = calloc(p->n, sizeof *curves);
    *b = (struct bounds){.y_low = INFINITY, .y_high = -INFINITY};
    if (curves == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a picture");
    for (size_t i = 0; i < p->n && st == LKS_OK; i++) {
        st = read_curve(p, &p->runs[i], &curves[i]);
        widen(b, curves[i].train, curves[i].n_train);
        widen(b, curves[i].val, curves[i].n_val);
        points += curves[i].n_train;
    }
    if (st == LKS_OK && (points < 2 || !(b->x_high > 0.0)))
        st = lks__fail(LKS_ERR_CONFIG, "there is nothing to draw yet: a run of at least two "
                                       "iterations with a loss is needed");
    if (st != LKS_OK) {
        free_curves(curves, p->n);
        return st;
    }
    if (!(b->y_high > b->y_low)) {
        b->y_low -= 0.5;
        b->y_high += 0.5;
    }
    *curves_p = curves;
    return LKS_OK;
}

/* A round distance between marks, so that `span` has about `n` of them. */
static double step_of(double span, int n)
{
    static const double rounds[] = {1.0, 2.0, 5.0};
    double base = pow(10.0, floor(log10(span / n)));
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++)
        if (base * rounds[i] * n >= span * 0.999)
            return base * rounds[i];
    return base * 10.0;
}

static int marks_of(double low, double high, double step, double out[MOST_MARKS])
{
    int n = 0;
    for (double k = ceil(low / step - 1e-9); k * step <= high + step * 1e-9 && n < MOST_MARKS; k++)
        out[n++] = k == 0.0 ? 0.0 : k * step;
    return n;
}

static const char *axis_name(const lks__plot *p)
{
    return p->axis == LKS__PLOT_STEPS    ? "iteration"
           : p->axis == LKS__PLOT_TOKENS ? "tokens"
                                         : "seconds of training";
}

/* Iterations and tokens keep all their digits. */
static void number_on_x(const lks__plot *p, double x, char out[32])
{
    snprintf(out, 32, p->axis == LKS__PLOT_TIME ? "%.6g" : "%.12g", x);
}

/* --- a picture -------------------------------------------------------------------------------- */

struct drawing {
    const lks__plot *plot;
    struct bounds b;
    lks__canvas *to;
};

static double at_x(const struct drawing *d, double x)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * x / d->b.x_high;
}

static double at_y(const struct drawing *d, double y)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (d->b.y_high - y) / (d->b.y_high - d->b.y_low);
}

static void draw_axes(struct drawing *d)
{
    double marks[MOST_MARKS];
    char text[32];
    int n = marks_of(d->b.y_low, d->b.y_high, step_of(d->b.y_high - d->b.y_low, 6), marks);
    for (int i = 0; i < n; i++) {
        double y = at_y(d, marks[i]), ends[4] = {LEFT, y, WIDTH - RIGHT, y};
        d->to->line(d->to->ctx, ends, 2, grey, 1.0, 0.3);
        snprintf(text, sizeof text, d->plot->log_scale ? "%.3g" : "%g",
                 d->plot->log_scale ? pow(10.0, marks[i]) : marks[i]);
        d->to->text(d->to->ctx, LEFT - 8, y + 4, 1, grey, text);
    }
    n = marks_of(0.0, d->b.x_high, step_of(d->b.x_high, 6), marks);
    for (int i = 0; i < n; i++) {
        number_on_x(d->plot, marks[i], text);
        d->to->text(d->to->ctx, at_x(d, marks[i]), HEIGHT - BOTTOM + 18, 0, grey, text);
    }
    d->to->text(d->to->ctx, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8, 0, grey, axis_name(d->plot));
}

/* If there are more points than columns, draw the lowest and the highest per half point of width.
 * Replaces `xy` by the points of the picture. */
static void draw_curve(struct drawing *d, double *xy, size_t n, unsigned colour, double width)
{
    const bool thin = n > 4 * WIDTH;
    size_t out = 0;
    for (size_t i = 0, next; i < n; i = next) {
        size_t low = i, high = i;
        double column = floor(2.0 * at_x(d, xy[2 * i]));
        for (next = i + 1; thin && next < n && floor(2.0 * at_x(d, xy[2 * next])) == column;
             next++) {
            low = xy[2 * next + 1] < xy[2 * low + 1] ? next : low;
            high = xy[2 * next + 1] > xy[2 * high + 1] ? next : high;
        }
        const size_t pair[2] = {low < high ? low : high, low < high ? high : low};
        for (int k = 0; k < (low == high ? 1 : 2); k++, out++) {
            xy[2 * out] = at_x(d, xy[2 * pair[k]]);
            xy[2 * out + 1] = at_y(d, xy[2 * pair[k] + 1]);
        }
    }
    d->to->line(d->to->ctx, xy, out, colour, width, 1.0);
}

/* Bytes of the first `most` characters of a text. */
static int bytes_of(const char *text, int most)
{
    int n = 0;
    for (; text[n] != '\0'; n++)
        if (((unsigned char)text[n] & 0xc0) != 0x80 && most-- == 0)
            break;
    return n;
}

/* Format a run's line of the legend; returns its number of characters. */
static int legend_of(const lks__series *run, const struct curve *curve, char text[320])
{
    snprintf(text, 320, "%.*s: training%s", bytes_of(run->name, 40), run->name,
             curve->n_val > 0 ? ", validation" : "");
    return lks__utf8_length(text);
}

static void draw_legend(struct drawing *d, const struct curve *curves)
{
    static const double CHARACTER = 6.8; /* width of a character on average, or more */
    char text[320];
    double x = WIDTH - RIGHT - 250, y = TOP + 18;
    for (size_t i = 0; i < d->plot->n; i++)
        x = fmin(x, WIDTH - 68 - CHARACTER * legend_of(&d->plot->runs[i], &curves[i], text));
    for (size_t i = 0; i < d->plot->n; i++, y += 24) {
        unsigned colour = colours[i % (sizeof colours / sizeof colours[0])];
        double width = 1.5 + 5.0 * (double)(d->plot->n - 1 - i), line[4] = {x, y, x + 36, y};
        width = fmin(width, 12.0);
        d->to->line(d->to->ctx, line, 2, colour, width, 1.0);
        if (curves[i].n_val > 0)
            d->to->dot(d->to->ctx, x + 54, y, width / 2 + 2.5, colour);
        legend_of(&d->plot->runs[i], &curves[i], text);
        d->to->text(d->to->ctx, x + 68, y + 4, -1, grey, text);
    }
}

static lks_status draw(const lks__plot *p, lks__canvas *to)
{
    struct drawing d = {.plot = p, .to = to};
    struct curve *curves;
    LKS__TRY(read_curves(p, &curves, &d.b));
    if (!p->log_scale) { /* the axis ends with marks */
        double step = step_of(d.b.y_high - d.b.y_low, 6);
        d.b.y_low = floor(d.b.y_low / step) * step;
        d.b.y_high = ceil(d.b.y_high / step) * step;
    }
    draw_axes(&d);
    for (size_t i = 0; i < p->n; i++) {
        unsigned colour = colours[i % (sizeof colours / sizeof colours[0])];
        double width = fmin(1.5 + 5.0 * (double)(p->n - 1 - i), 12.0);
        draw_curve(&d, curves[i].train, curves[i].n_train, colour, width);
        for (size_t k = 0; k < curves[i].n_val; k++)
            to->dot(to->ctx, at_x(&d, curves[i].val[2 * k]), at_y(&d, curves[i].val[2 * k + 1]),
                    width / 2 + 2.5, colour);
    }
    draw_legend(&d, curves);
    free_curves(curves, p->n);
    return LKS_OK;
}

/* --- SVG -------------------------------------------------------------------------------------- */

static void svg_line(void *ctx, const double *xy, size_t n, unsigned colour, double width,
                     double opacity)
{
    FILE *out = ctx;
    fprintf(out, "<polyline fill=\"none\" stroke=\"#%06x\" stroke-width=\"%g\"", colour, width);
    if (opacity < 1.0)
        fprintf(out, " stroke-opacity=\"%g\"", opacity);
    fputs(" stroke-linejoin=\"round\" points=\"", out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%.1f,%.1f", i > 0 ? " " : "", xy[2 * i], xy[2 * i + 1]);
    fputs("\"/>\n", out);
}

static void svg_dot(void *ctx, double x, double y, double radius, unsigned colour)
{
    fprintf(ctx, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.2f\" fill=\"#%06x\"/>\n", x, y, radius,
            colour);
}

static void svg_words(FILE *out, const char *words)
{
    for (; *words != '\0'; words++) {
        const unsigned char c = (unsigned char)*words;
        if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'')
            fprintf(out, "&#%u;", c);
        else
            fputc(c < 0x20 || c == 0x7f ? ' ' : c, out);
    }
}

static void svg_text(void *ctx, double x, double y, int anchor, unsigned colour, const char *words)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(ctx, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchors[anchor + 1]);
    svg_words(ctx, words);
    fputs("</text>\n", ctx);
}

static lks_status write_svg(const lks__plot *p, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a picture");
    lks__canvas to = {.ctx = out, .line = svg_line, .dot = svg_dot, .text = svg_text};
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#%06x\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, grey);
    lks_status st = draw(p, &to);
    fputs("</svg>\n", out);
    if (fclose(out) != 0 && st == LKS_OK)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for a picture");
    if (st == LKS_OK)
        st = lks__sys_write_file(path, text, bytes);
    free(text);
    return st;
}

/* --- PNG -------------------------------------------------------------------------------------- */

static lks_status png_module(const lks__png_module **module_p)
{
    char why[256], advice[LKS__MODULE_ADVICE];
    *module_p = lks__module_load(LKS__PNG_MODULE_FILE, LKS__PNG_MODULE_VERSION, why, sizeof why);
    if (*module_p == NULL)
        return lks__fail(
            LKS_ERR_SUPPORT,
            "this build of lockstep can't write PNG (%s): give a name that ends in .svg, or %s",
            why, lks__module_advice(LKS__PNG_MODULE_FILE, "libcairo2-dev", advice));
    return LKS_OK;
}

lks_status lks__plot_png_available(void)
{
    const lks__png_module *module;
    return png_module(&module);
}

static lks_status write_png(const lks__plot *p, const char *path)
{
    const lks__png_module *module = NULL;
    lks__canvas to;
    size_t bytes;
    LKS__TRY(png_module(&module));
    const char *why = module->open(WIDTH, HEIGHT, &to);
    if (why != NULL)
        return lks__fail(LKS_ERR_NOMEM, "can't draw the picture: %s", why);
    lks_status st = draw(p, &to);
    unsigned char *file = module->finish(&to, &bytes);
    if (st == LKS_OK && file == NULL)
        st = lks__fail(LKS_ERR_NOMEM, "no memory for a picture");
    if (st == LKS_OK)
        st = lks__sys_write_file(path, file, bytes);
    free(file);
    return st;
}

lks_status lks__plot_file(const lks__plot *p, const char *path)
{
    char shown[512];
    const char *dot = strrchr(path, '.');
    if (dot != NULL && dot > path && strcmp(dot, ".svg") == 0)
        return write_svg(p, path);
    if (dot != NULL && dot > path && strcmp(dot, ".png") == 0)
        return write_png(p, path);
    return lks__fail(LKS_ERR_CONFIG, "--out=%s: the name must end in .svg or .png",
                     lks__escape(shown, sizeof shown, path, strlen(path)));
}

/* --- characters ------------------------------------------------------------------------------- */

enum { ROWS = 16, MOST_COLUMNS = 400, LABEL_EVERY = 5, LABEL = 6 };

struct grid {
    int columns; /* of the drawing, without labels */
    int label;   /* columns of the longest label, at least LABEL */
    bool braille;
    unsigned char cells[ROWS][MOST_COLUMNS]; /* braille: dots; else the character */
    struct bounds b;
};

/* Bits of a braille character, U+2800 + bits. */
static const unsigned char dots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

static void set(struct grid *g, double x, double y, char letter)
{
    const int fine_x = g->braille ? 2 : 1, fine_y = g->braille ? 4 : 1;
    double right = x / g->b.x_high;
    double down = (g->b.y_high - y) / (g->b.y_high - g->b.y_low);
    int i = (int)lrint(right * (g->columns * fine_x - 1)),
        k = (int)lrint(down * (ROWS * fine_y - 1));
    if (g->braille)
        g->cells[k / 4][i / 2] |= dots[k % 4][i % 2];
    else
        g->cells[k][i] = (unsigned char)letter;
}

/* Connect the points, so that a short run isn't a row of dots. */
static void set_curve(struct grid *g, const double *xy, size_t n, char letter)
{
    const int most = 2 * g->columns;
    for (size_t i = 0; i < n; i++) {
        const double *a = xy + 2 * i, *b = i + 1 < n ? a + 2 : a;
        int between = (int)((b[0] - a[0]) / g->b.x_high * most);
        for (int k = 0; k <= between; k++) {
            double share = between > 0 ? (double)k / between : 0.0;
            set(g, a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1]), letter);
        }
    }
}

static void label_of(const struct grid *g, const lks__plot *p, int row, char out[32])
{
    const double y = g->b.y_high - (g->b.y_high - g->b.y_low) * row / (ROWS - 1);
    snprintf(out, 32, "%.4g", p->log_scale ? pow(10.0, y) : y);
}

static void print_grid(const struct grid *g, const lks__plot *p, FILE *out)
{
    char text[32], high[32];
    for (int k = 0; k < ROWS; k++) {
        label_of(g, p, k, text);
        int end = g->columns;
        while (end > 0 && g->cells[k][end - 1] == 0)
            end--;
        fprintf(out, "%*s |", g->label, k % LABEL_EVERY == 0 ? text : "");
        for (int i = 0; i < end; i++) {
            char utf8[5] = {(char)0xe2, (char)(0xa0 | g->cells[k][i] >> 6),
                            (char)(0x80 | (g->cells[k][i] & 0x3f)), '\0'};
            if (g->cells[k][i] == 0)
                fputc(' ', out);
            else if (g->braille)
                fputs(utf8, out);
            else
                fputc(g->cells[k][i], out);
        }
        fputc('\n', out);
    }
    number_on_x(p, g->b.x_high, high);
    const int n = (int)strlen(high), width = g->columns - 1;
    fprintf(out, "%*s0%*s\n", g->label + 2, "", width > n ? width : n + 1, high);
    fprintf(out, "%*s%s\n", g->label + 2, "", axis_name(p));
}

static void print_legend(const lks__plot *p, const struct curve *curves, const char *letters,
                         bool braille, int columns, FILE *out)
{
    char shown[300], loss[64], low[64];
    for (size_t i = 0; i < p->n; i++) {
        const lks__series *s = &p->runs[i];
        const lks__eval_point *best = lks__series_best(s);
        lks__escape(shown, sizeof shown, s->name, strlen(s->name));
        if (p->n > 1)
            fprintf(out, "%c ", letters[i % strlen(letters)]);
        int n = snprintf(loss, sizeof loss, ": loss %.4f", lks__series_last_loss(s));
        n += (int)strlen(shown) + (p->n > 1 ? 2 : 0);
        fprintf(out, "%s%s", shown, loss);
        if (best != NULL) {
            n += snprintf(low, sizeof low, "best validation loss %.4f", best->val_loss);
            fprintf(out, "%s%s", n + 2 <= columns ? ", " : "\n  ", low);
        }
        fputc('\n', out);
    }
    if (!braille && curves[0].n_val > 0)
        fputs("o validation loss\n", out);
}

lks_status lks__plot_text(const lks__plot *p, FILE *out, int columns, bool braille)
{
    static const char letters[] = "abcdefghijklmnpqrstuvwxyz";
    struct grid g = {.label = LABEL, .braille = braille && p->n == 1};
    char text[32];
    struct curve *curves;
    LKS__TRY(read_curves(p, &curves, &g.b));
    for (int k = 0; k < ROWS; k += LABEL_EVERY) {
        label_of(&g, p, k, text);
        g.label = (int)strlen(text) > g.label ? (int)strlen(text) : g.label;
    }
    g.columns = columns - g.label - 2;
    g.columns = g.columns < 8 ? 8 : g.columns > MOST_COLUMNS ? MOST_COLUMNS : g.columns;
    for (size_t i = 0; i < p->n; i++)
        set_curve(&g, curves[i].train, curves[i].n_train,
                  p->n == 1 ? '*' : letters[i % strlen(letters)]);
    for (size_t i = 0; i < p->n && !g.braille; i++)
        for (size_t k = 0; k < curves[i].n_val; k++)
            set(&g, curves[i].val[2 * k], curves[i].val[2 * k + 1], 'o');
    print_grid(&g, p, out);
    print_legend(p, curves, letters, g.braille, columns, out);
    free_curves(curves, p->n);
    return LKS_OK;
}
