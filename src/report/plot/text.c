/* report/plot/text.c - the losses of runs, drawn with characters. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "report/plot/curves.h"

enum { ROWS = 16, MOST_COLUMNS = 400, LABEL_EVERY = 5, LABEL = 6 };

struct grid {
    int columns; /* of the drawing, without labels */
    int label;   /* columns of the longest label, at least LABEL */
    bool braille;
    unsigned char cells[ROWS][MOST_COLUMNS]; /* braille: dots; else the character */
    lks__bounds b;
};

/* Bits of a braille character, U+2800 + bits. */
static const unsigned char dots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

static void set(struct grid *g, double x, double y, char letter)
{
    const int fine_x = g->braille ? 2 : 1, fine_y = g->braille ? 4 : 1;
    double right = (x - g->b.x_low) / (g->b.x_high - g->b.x_low);
    double down = (g->b.y_high - y) / (g->b.y_high - g->b.y_low);
    int i = (int)lrint(right * (g->columns * fine_x - 1)),
        k = (int)lrint(down * (ROWS * fine_y - 1));
    if (g->braille)
        g->cells[k / 4][i / 2] |= dots[k % 4][i % 2];
    else
        g->cells[k][i] = (unsigned char)letter;
}

/* Connect the points, so that a short run isn't a row of dots. */
static void set_curve(struct grid *g, const lks__plot_point *all, size_t n, char letter)
{
    const double most = 2.0 * g->columns / (g->b.x_high - g->b.x_low);
    for (size_t i = 0; i < n; i++) {
        const lks__plot_point *a = all + i, *b = i + 1 < n ? a + 1 : a;
        int between = (int)((b->x - a->x) * most);
        for (int k = 0; k <= between; k++) {
            double share = between > 0 ? (double)k / between : 0.0;
            set(g, a->x + share * (b->x - a->x), a->y + share * (b->y - a->y), letter);
        }
    }
}

/* Iterations and tokens keep all their digits. */
static void number_on_x(const lks__plot *p, double x, char out[32])
{
    snprintf(out, 32, p->axis == LKS__PLOT_TIME ? "%.6g" : "%.12g", x);
}

static void label_of(const struct grid *g, const lks__plot *p, int row, char out[32])
{
    const double y = g->b.y_high - (g->b.y_high - g->b.y_low) * row / (ROWS - 1);
    snprintf(out, 32, "%.4g", p->log_scale ? pow(10.0, y) : y);
}

static void print_grid(const struct grid *g, const lks__plot *p, FILE *out)
{
    char text[32], low[32], high[32];
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
    number_on_x(p, g->b.x_low, low);
    number_on_x(p, g->b.x_high, high);
    const int n = (int)strlen(high), width = g->columns - (int)strlen(low);
    fprintf(out, "%*s%s%*s\n", g->label + 2, "", low, width > n ? width : n + 1, high);
    fprintf(out, "%*s%s\n", g->label + 2, "",
            p->axis == LKS__PLOT_STEPS    ? "iteration"
            : p->axis == LKS__PLOT_TOKENS ? "tokens"
                                          : "seconds of training");
}

static void print_legend(const lks__plot *p, const lks__curve *curves, const char *letters,
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
        for (const lks__run_mark *m = NULL; (m = lks__series_segment(s, m)) != NULL;)
            fprintf(out, "  from iteration %" PRIu64 ": %s\n", m->iter,
                    lks__shown(m->text, 4 * LKS__MARK_TEXT));
    }
    if (!braille && curves[0].n_val > 0)
        fputs("o validation loss\n", out);
}

lks_status lks__plot_text(const lks__plot *p, FILE *out, int columns, bool braille)
{
    static const char letters[] = "abcdefghijklmnpqrstuvwxyzABCDEFGHIJKLMNPQRSTUVWXYZ";
    struct grid g = {.label = LABEL, .braille = braille && p->n == 1};
    char text[32];
    lks__curve *curves;
    LKS__TRY(lks__curves_read(p, &curves, &g.b));
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
            set(&g, curves[i].val[k].x, curves[i].val[k].y, 'o');
    print_grid(&g, p, out);
    print_legend(p, curves, letters, g.braille, columns, out);
    lks__curves_free(curves, p->n);
    return LKS_OK;
}
