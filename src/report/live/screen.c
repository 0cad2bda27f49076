#include "report/live/screen.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "base/number/units.h"
#include "base/system/module.h"
#include "base/system/sys.h"
#include "base/text/memstream.h"
#include "base/text/utf8.h"
#include "report/live/tty_module.h"

enum { PAUSE_MS = 500, MOST_COLUMNS = 1000, FACT = 160, LABEL = 9, MOST_BARS = 8 };

/* --- text ------------------------------------------------------------------------------------- */

struct page {
    FILE *out;
    int rows, columns; /* left; of a line */
    int at;            /* columns used in this line */
    bool cut;          /* no lines were left for the bars */
};

static void end_line(struct page *p)
{
    if (p->rows > 0 && --p->rows >= 0)
        fputc('\n', p->out);
    p->at = 0;
}

/* The columns of the character at `text`, and its bytes. 0: the terminal can't show this byte. */
static int columns_of(const char *text, size_t *bytes_p)
{
    uint32_t cp;
    const size_t n = lks__utf8_decode(text, strnlen(text, 4), &cp);
    const int columns = n > 1 ? wcwidth((wchar_t)cp) : (int)n;
    *bytes_p = columns > 0 ? n : 1;
    return columns > 0 ? columns : 0;
}

/* Cut `text` to `most` columns. Returns its columns. */
static int fit(char *text, int most)
{
    int sum = 0, columns;
    size_t n;
    for (; *text != '\0'; text += n, sum += columns) {
        columns = columns_of(text, &n);
        if (sum + columns > most) {
            *text = '\0';
            break;
        }
    }
    return sum;
}

/* Print text on this line if it fits, otherwise on the next one. Cut it to one line. */
static void put(struct page *p, const char *fmt, ...)
{
    char text[FACT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const int n = fit(text, p->columns);
    int gap = p->at > 0 ? 2 : 0;
    if (p->at > 0 && p->at + gap + n > p->columns) {
        end_line(p);
        gap = 0;
    }
    if (p->rows <= 0)
        return;
    fprintf(p->out, "%*s%s", gap, "", text);
    p->at += gap + n;
}

/* The losses of all steps in a few columns, each the mean of a part of them. */
struct bars {
    double means[MOST_COLUMNS]; /* NAN: no loss in this part */
    double low, high;
    int n;
};

static void find_bars(const lks__series *s, int columns, struct bars *b)
{
    b->n = columns < MOST_COLUMNS ? columns : MOST_COLUMNS;
    b->n = (size_t)b->n > s->n_points ? (int)s->n_points : b->n;
    b->low = INFINITY;
    b->high = -INFINITY;
    for (int i = 0; i < b->n; i++) {
        size_t from = s->n_points * (size_t)i / (size_t)b->n,
               to = s->n_points * (size_t)(i + 1) / (size_t)b->n;
        double sum = 0.0;
        size_t count = 0;
        for (size_t k = from; k < to; k++)
            if (isfinite(s->points[k].loss)) {
                sum += s->points[k].loss;
                count++;
            }
        b->means[i] = count > 0 ? sum / (double)count : (double)NAN;
        b->low = fmin(b->low, b->means[i]);
        b->high = fmax(b->high, b->means[i]);
    }
}

/* Print line `line` (0 is the lowest) of bars that are `height` lines high. */
static void put_bar_line(struct page *p, const struct bars *b, int line, int height, bool utf8)
{
    static const char plain[] = "_.,-=+*#";
    for (int i = 0; i < b->n && p->rows > 0; i++) {
        const double share = b->high > b->low ? (b->means[i] - b->low) / (b->high - b->low) : 0.0;
        const int eighths =
            isfinite(b->means[i]) ? 1 + (int)lrint((8 * height - 1) * share) - 8 * line : 0;
        if (eighths <= 0)
            fputc(' ', p->out);
        else if (utf8)
            fprintf(p->out, "\xe2\x96%c", 0x80 + (eighths < 8 ? eighths : 8));
        else
            fputc(plain[(eighths < 8 ? eighths : 8) - 1], p->out);
    }
    p->at += b->n;
}

/* Print the losses as bars, with the highest and the lowest loss at their side, and the first and
 * the last iteration below. Bars of one line have no room for a scale. */
static void put_bars(struct page *p, const lks__series *s, int height, bool utf8)
{
    struct bars b;
    char high[32], low[32], first[32], last[32];
    const bool scale = height > 1 && p->columns >= LABEL + 22 && s->n_points > 0;
    find_bars(s, scale ? p->columns - LABEL - 2 : p->columns, &b);
    snprintf(high, sizeof high, "%.4g", b.high);
    snprintf(low, sizeof low, "%.4g", b.low);
    p->cut |= p->rows <= 0;
    for (int line = (scale ? height : 1) - 1; line >= 0 && p->rows > 0; line--) {
        if (scale)
            p->at = fprintf(p->out, "%*.*s |", LABEL, LABEL,
                            !isfinite(b.high)    ? ""
                            : line == height - 1 ? high
                            : line == 0          ? low
                                                 : "");
        put_bar_line(p, &b, line, scale ? height : 1, utf8);
        end_line(p);
    }
    if (!scale || p->rows <= 0)
        return;
    snprintf(first, sizeof first, "%llu", (unsigned long long)s->points[0].iter);
    snprintf(last, sizeof last, "%llu", (unsigned long long)s->points[s->n_points - 1].iter);
    const int gap = b.n - (int)strlen(first);
    p->at = fprintf(p->out, "%*s%s%*s", LABEL + 2, "", first, gap > (int)strlen(last) ? gap : 0,
                    gap > (int)strlen(last) ? last : "");
    end_line(p);
}

/* Print each rank's share of waiting, and its memory, from the newest row about ranks. */
static void put_ranks(struct page *p, const lks__series *s)
{
    const size_t n = json_array_size(s->ranks);
    const json_t *row = n > 0 ? json_array_get(s->ranks, n - 1) : NULL;
    const json_t *compute = json_array_get(row, 3), *waits = json_array_get(row, 4),
                 *memory = json_array_get(row, 5);
    if (json_array_size(memory) < 2)
        return;
    for (size_t i = 0; i < json_array_size(memory); i++) {
        const double wait = json_number_value(json_array_get(waits, i));
        const json_t *computed = json_array_get(compute, i);
        const double step = wait + json_number_value(computed);
        char share[32] = "";
        if (computed != NULL && step > 0.0)
            snprintf(share, sizeof share, " wait %.1f%%", 100.0 * wait / step);
        put(p, "rank %zu:%s %s", i, share,
            lks__units_bytes(json_number_value(json_array_get(memory, i))));
    }
    end_line(p);
}

/* Replace characters that the terminal can't show; each byte of them by one '?'. */
static void make_visible(char *text, bool utf8)
{
    size_t n;
    for (; *text != '\0'; text += n) {
        const int columns = columns_of(text, &n);
        if (columns == 0 || (!utf8 && n > 1)) {
            *text = '?';
            n = 1;
        }
    }
}

/* Print a run in at most `rows` lines, or in a few more if they are too few for bars. */
static void put_run(struct page *p, const lks__series *s, int rows, bool utf8)
{
    const lks__point *last = s->n_points > 0 ? &s->points[s->n_points - 1] : NULL;
    const lks__eval_point *eval = lks__series_last_eval(s), *best = lks__series_best(s);
    const json_t *ranks = json_object_get(s->host, "world_size");
    const json_t *memory = json_object_get(s->end, "memory_bytes");
    const int before = p->rows;
    char *name = lks__shown(s->name, 80);
    make_visible(name, utf8);
    put(p, "%s", name);
    put(p, "%s", lks__series_state(s));
    if (last == NULL)
        put(p, "no step yet");
    if (last != NULL) {
        put(p, "iter %llu", (unsigned long long)last->iter);
        put(p, "loss %.4f", last->loss);
    }
    if (eval != NULL)
        put(p, "val %.4f", eval->val_loss);
    if (best != NULL)
        put(p, "best %.4f at iteration %llu", best->val_loss, (unsigned long long)best->iter);
    if (last != NULL && isfinite(last->tok_per_s))
        put(p, "%.0f tok/s", last->tok_per_s);
    if (last != NULL && isfinite(last->mfu))
        put(p, "mfu %.1f%%", 100.0 * last->mfu);
    if (last != NULL && last->ms > 0.0 && isfinite(last->wait_ms))
        put(p, "wait %.1f%%", 100.0 * last->wait_ms / last->ms);
    if (json_is_integer(ranks))
        put(p, "%d rank%s", (int)json_integer_value(ranks),
            json_integer_value(ranks) == 1 ? "" : "s");
    if (json_is_integer(memory))
        put(p, "%s", lks__units_bytes((double)json_integer_value(memory)));
    if (s->starts > 1)
        put(p, "%u resume%s", s->starts - 1, s->starts == 2 ? "" : "s");
    if (s->skips + s->rollbacks > 0)
        put(p, "%u not finite", s->skips + s->rollbacks);
    if (s->rechecks > 0)
        put(p, "%u wrong gradient%s", s->rechecks, s->rechecks == 1 ? "" : "s");
    end_line(p);
    put_ranks(p, s);
    const int left = rows - (before - p->rows) - 2; /* without the iterations and an empty line */
    put_bars(p, s, left < MOST_BARS ? left : MOST_BARS, utf8);
}

/* Runs from `first` on, which free() frees; NULL if out of memory. *end_p: the first run that
 * doesn't fit. */
static char *draw_runs(const lks__runs *runs, size_t first, int rows, int columns, bool utf8,
                       size_t *end_p)
{
    char *text = NULL;
    size_t bytes, i = first;
    struct page p = {.out = open_memstream(&text, &bytes), .rows = rows, .columns = columns};
    *end_p = runs->n;
    if (p.out == NULL)
        return NULL;
    for (; i < runs->n && !p.cut; i++) {
        if (i > first)
            end_line(&p);
        put_run(&p, &runs->all[i], rows / (int)runs->n, utf8);
    }
    *end_p = p.cut && i > first + 1 ? i - 1 : i; /* at least one */
    return lks__memstream_end(p.out, &text);
}

size_t lks__screen(FILE *out, const lks__runs *runs, size_t first, int rows, int columns, bool utf8)
{
    struct page last = {.out = out, .rows = 1, .columns = columns};
    size_t end;
    char *text = draw_runs(runs, first, rows, columns, utf8, &end);
    const bool fits = first == 0 && end == runs->n;
    if (!fits) {
        free(text);
        text = draw_runs(runs, first, rows - 1, columns, utf8, &end);
    }
    fputs(text != NULL ? text : "", out);
    free(text);
    if (runs->n == 0)
        put(&last, "no run yet");
    else if (!fits)
        put(&last, "runs %zu to %zu of %zu", first + 1, end, runs->n);
    return end;
}

/* --- a terminal ------------------------------------------------------------------------------- */

static lks_status draw(const lks__tty_module *tty, const lks__runs *runs, size_t first, bool utf8,
                       size_t *end_p)
{
    int rows, columns;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    LKS__MEMORY(out, "for the screen");
    tty->size(&rows, &columns);
    *end_p = lks__screen(out, runs, first, rows, columns, utf8);
    if (lks__memstream_end(out, &text) != NULL)
        tty->draw(text);
    free(text);
    return LKS_OK;
}

lks_status lks__screen_show(lks__runs *runs, bool utf8, bool (*asked)(void))
{
    char why[256], advice[LKS__MODULE_ADVICE];
    size_t first = 0, end = 0;
    double find_at = 0.0;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return lks__fail(LKS_ERR_CONFIG,
                         "--tty needs a terminal; `lockstep plot` works without one");
    const lks__tty_module *tty =
        lks__module_load(LKS__TTY_MODULE_FILE, LKS__TTY_MODULE_VERSION, why, sizeof why);
    if (tty == NULL)
        return lks__fail(LKS_ERR_SUPPORT,
                         "this build of lockstep has no --tty (%s): use `lockstep plot`, or %s",
                         why, lks__module_advice(LKS__TTY_MODULE_FILE, "libncurses-dev", advice));
    if (tty->open() != 0)
        return lks__fail(
            LKS_ERR_CONFIG,
            "the terminal's type (TERM) is unknown, or it can't move the cursor: set it, "
            "or use `lockstep plot`");
    lks_status st = LKS_OK;
    for (int key = -1; st == LKS_OK && key != 'q' && !asked(); key = tty->key(PAUSE_MS)) {
        if (lks__sys_now() > find_at) {
            runs->find(runs);
            find_at = lks__sys_now() + 1.0;
        }
        first += key == LKS__TTY_DOWN && end < runs->n;
        first -= key == LKS__TTY_UP && first > 0;
        for (size_t i = 0; i < runs->n && st == LKS_OK; i++)
            st = lks__series_read(&runs->all[i]);
        LKS__THEN(st, draw(tty, runs, first, utf8, &end));
    }
    tty->close();
    return st;
}
