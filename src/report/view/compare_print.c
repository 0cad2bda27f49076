/* report/view/compare_print.c - prints a comparison as text, Markdown or CSV. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/status.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "report/view/compare.h"

enum { CELL = 128, NAMED = 2 * CELL + 4, PAGE = 120 };

enum kind { PLAIN, COUNT, SECONDS, MILLISECONDS, SHARE, BYTES };

/* A row of a table: a name, and a value per run. */
struct line {
    char name[CELL];
    const char *key;      /* the values are members of the runs */
    const json_t *values; /* or elements of an array, if this isn't NULL */
    enum kind kind;
};

struct printer {
    FILE *out;
    lks__compare_form form;
    int columns; /* of text that fit a line */
    const json_t *runs;
    size_t n;           /* runs */
    size_t *order;      /* of the runs, if each has a row */
    struct line *lines; /* of one table; the first one has the runs' names */
    size_t n_lines;
    bool by_run; /* a row per run: lines are printed as columns */
    int *widths; /* of the columns */
};

static void number_cell(enum kind kind, double x, char out[CELL])
{
    if (kind == BYTES)
        snprintf(out, CELL, "%s", lks__units_bytes(x));
    else if (kind == SHARE)
        snprintf(out, CELL, "%.1f%%", 100.0 * x);
    else if (kind == COUNT)
        snprintf(out, CELL, "%.0f", x);
    else
        snprintf(out, CELL, x >= 10.0 ? "%.1f %s" : "%.3g %s", x, kind == SECONDS ? "s" : "ms");
}

/* Format a value for people: numbers as small as a loss have four decimals. */
static const char *cell_of(enum kind kind, const json_t *value, char out[CELL])
{
    double x = json_number_value(value);
    if (kind != PLAIN && json_is_number(value))
        number_cell(kind, x, out);
    else if (json_is_string(value))
        lks__escape(out, CELL, json_string_value(value), strlen(json_string_value(value)));
    else if (json_is_integer(value))
        snprintf(out, CELL, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, CELL, fabs(x) >= 1e4 ? "%.0f" : fabs(x) >= 100.0 ? "%.1f" : "%.4f", x);
    else if (json_is_boolean(value))
        snprintf(out, CELL, "%s", json_is_true(value) ? "yes" : "no");
    else
        snprintf(out, CELL, "-");
    return out;
}

static const char *cell(const json_t *value, char out[CELL])
{
    return cell_of(PLAIN, value, out);
}

static const json_t *value_of(const struct printer *p, const struct line *line, size_t run)
{
    return line->values != NULL ? json_array_get(line->values, run)
                                : json_object_get(json_array_get(p->runs, run), line->key);
}

static struct line *add_line(struct printer *p, const char *name)
{
    struct line *line = &p->lines[p->n_lines++];
    *line = (struct line){.kind = PLAIN};
    snprintf(line->name, sizeof line->name, "%s", name);
    return line;
}

static void begin(struct printer *p, const char *corner)
{
    p->n_lines = 0;
    add_line(p, corner)->key = "run";
}

static size_t table_rows(const struct printer *p)
{
    return p->by_run ? p->n + 1 : p->n_lines;
}

static size_t table_columns(const struct printer *p)
{
    return p->by_run ? p->n_lines : p->n + 1;
}

static const char *text_at(const struct printer *p, size_t row, size_t column, char out[CELL])
{
    const struct line *line = &p->lines[p->by_run ? column : row];
    const size_t run = p->by_run ? row : column;
    return run == 0 ? line->name
                    : cell_of(line->kind,
                              value_of(p, line, p->by_run ? p->order[run - 1] : run - 1), out);
}

/* Measure the columns. Returns the width of all. */
static int measure(struct printer *p)
{
    char text[CELL];
    int all = 0;
    for (size_t c = 0; c < table_columns(p); c++) {
        p->widths[c] = 0;
        for (size_t r = 0; r < table_rows(p); r++) {
            const int width = lks__utf8_length(text_at(p, r, c, text));
            p->widths[c] = width > p->widths[c] ? width : p->widths[c];
        }
        all += 2 + p->widths[c];
    }
    return all;
}

static void csv_text(FILE *out, const char *text)
{
    const bool quotes = text[strcspn(text, "\",\r\n")] != '\0';
    if (quotes)
        fputc('"', out);
    for (size_t n, left = strlen(text); left > 0; text += n, left -= n) {
        uint32_t cp;
        n = lks__utf8_decode(text, left, &cp);
        if (*text == '"')
            fputc('"', out);
        if (lks__is_control(cp) && cp != '\n') /* it could control a terminal */
            fprintf(out, "\\x%02x", cp);
        else
            fwrite(text, 1, n, out);
    }
    if (quotes)
        fputc('"', out);
}

static void csv_row(FILE *out, const char *table, const char *row, const char *run,
                    const json_t *value)
{
    char text[CELL];
    csv_text(out, table);
    fputc(',', out);
    csv_text(out, row);
    fputc(',', out);
    csv_text(out, run);
    fputc(',', out);
    if (json_is_real(value)) {
        lks__json_shortest(json_real_value(value), text, sizeof text);
        fputs(text, out);
    } else if (json_is_string(value))
        csv_text(out, json_string_value(value));
    else if (!json_is_null(value))
        csv_text(out, cell(value, text));
    fputc('\n', out);
}

static void csv_line(const struct printer *p, const char *table, const struct line *line)
{
    for (size_t i = 0; i < p->n; i++)
        csv_row(p->out, table, line->key != NULL ? line->key : line->name,
                lks__json_str(json_array_get(p->runs, i), "run"), value_of(p, line, i));
}

/* Print the figures over seeds; those of a test are of "B against A". */
static void csv_seeds(FILE *out, const json_t *report)
{
    static const char *const tables[] = {"seeds", "left_out", "tests"};
    char run[2 * sizeof((lks__series *)0)->name + 16];
    const char *key;
    json_t *value;
    for (int t = 0; t < 3; t++)
        lks__each(row, json_object_get(report, tables[t])) {
            if (t == 2)
                snprintf(run, sizeof run, "%s against %s", lks__json_str(row, "b"),
                         lks__json_str(row, "a"));
            else
                snprintf(run, sizeof run, "%s", lks__json_str(row, t == 0 ? "like" : "run"));
            json_object_foreach(row, key, value) csv_row(out, tables[t], key, run, value);
        }
}

static void print_cell(const struct printer *p, size_t column, const char *text)
{
    const char *c = text;
    if (p->form == LKS__COMPARE_TEXT) {
        int pad = p->widths[column] - lks__utf8_length(text);
        if (column == 0)
            fprintf(p->out, "  %s%*s", text, pad, "");
        else
            fprintf(p->out, "  %*s%s", pad, "", text);
        return;
    }
    fputs(column == 0 ? "| " : " ", p->out);
    for (; *c != '\0'; c++) { /* escape markup */
        if (strchr("|\\`*_<>[]", *c) != NULL)
            fputc('\\', p->out);
        fputc(*c, p->out);
    }
    fputs(" |", p->out);
}

static void print_row(const struct printer *p, size_t row, size_t from, size_t to)
{
    char text[CELL];
    print_cell(p, 0, text_at(p, row, 0, text));
    for (size_t c = from; c < to; c++)
        print_cell(p, c, text_at(p, row, c, text));
    fputc('\n', p->out);
    if (row > 0 || p->form != LKS__COMPARE_MARKDOWN)
        return;
    fputs("|---|", p->out);
    for (size_t c = from; c < to; c++)
        fputs("--:|", p->out);
    fputc('\n', p->out);
}

static void title(const struct printer *p, const char *text)
{
    fprintf(p->out, p->form == LKS__COMPARE_MARKDOWN ? "\n### %s\n\n" : "\n%s\n", text);
}

/* Print the lines. In text, columns that don't fit follow below the others. */
static void print_table(struct printer *p, const char *table, const char *text)
{
    for (size_t i = 1; p->form == LKS__COMPARE_CSV && i < p->n_lines; i++)
        csv_line(p, table, &p->lines[i]);
    if (p->form == LKS__COMPARE_CSV)
        return;
    title(p, text);
    measure(p);
    for (size_t from = 1, to = 1; from < table_columns(p); from = to) {
        for (int used = 2 + p->widths[0]; to < table_columns(p); to++) {
            used += 2 + p->widths[to];
            if (p->form == LKS__COMPARE_TEXT && used > p->columns && to > from)
                break;
        }
        if (from > 1)
            fputc('\n', p->out);
        for (size_t r = 0; r < table_rows(p); r++)
            print_row(p, r, from, to);
    }
}

static const struct {
    const char *key, *name;
    const char *column; /* if each run has a row; NULL: left out */
    enum kind kind;
} facts[] = {
    {"best_val_loss", "best validation loss", "best val", PLAIN},
    {"best_iter", "iteration of best loss", "at", COUNT},
    {"last_val_loss", "last validation loss", "last val", PLAIN},
    {"last_val_bpb", "last bits per byte", "bpb", PLAIN},
    {"last_loss", "last training loss", "train", PLAIN},
    {"steps", "steps", "steps", COUNT},
    {"tokens", "tokens", NULL, COUNT},
    {"seconds", "time of all steps", "time", SECONDS},
    {"eval_iters", "batches per evaluation", NULL, COUNT},
    {"tok_per_s", "tokens/s", "tokens/s", COUNT},
    {"mfu", "share of the peak (MFU)", NULL, SHARE},
    {"wait_ms", "waiting per step", NULL, MILLISECONDS},
    {"memory_bytes", "memory of all ranks", NULL, BYTES},
    {"world_size", "ranks", NULL, COUNT},
    {"threads", "threads per rank", NULL, COUNT},
    {"cpu", "processor", NULL, PLAIN},
    {"commit", "commit of lockstep", NULL, PLAIN},
    {"resumes", "resumes", NULL, COUNT},
    {"skips", "skipped steps", NULL, COUNT},
    {"rollbacks", "rollbacks", NULL, COUNT},
    {"checkpoints", "checkpoints", NULL, COUNT},
    {"params_hash", "hash of the weights", NULL, PLAIN},
    {"ended", "ended", NULL, PLAIN},
};

enum { N_FACTS = sizeof facts / sizeof facts[0], N_RESULTS = 5 };

static void add_facts(struct printer *p, size_t from, size_t to)
{
    for (size_t f = from; f < to; f++) {
        bool any = false;
        for (size_t i = 0; i < p->n; i++)
            any = any || !json_is_null(json_object_get(json_array_get(p->runs, i), facts[f].key));
        if (!any || (p->by_run && facts[f].column == NULL))
            continue;
        struct line *line = add_line(p, p->by_run ? facts[f].column : facts[f].name);
        line->key = facts[f].key;
        line->kind = facts[f].kind;
        if (p->by_run && from > 0 && measure(p) > p->columns)
            p->n_lines--; /* less important than the columns before it */
    }
}

/* Add lines: each row has "values", one per run, and its name under `key`. */
static void add_values(struct printer *p, const json_t *rows, const char *key)
{
    char text[CELL];
    lks__each(r, rows) {
        const json_t *name = json_object_get(r, key);
        if (p->by_run && strstr(lks__json_str(r, key), "parameters") != NULL)
            continue; /* they follow from other settings */
        if (strcmp(key, "iter") == 0)
            snprintf(text, sizeof text, "%.0f", json_number_value(name));
        else
            cell(name, text);
        add_line(p, text)->values = json_object_get(r, "values");
    }
}

/* Sort the rows of runs: the lowest loss first, and runs without one last. */
static void sort_runs(struct printer *p, const char *key)
{
    for (size_t i = 0, k; i < p->n; i++) {
        const json_t *loss = json_object_get(json_array_get(p->runs, i), key), *before;
        for (k = i; k > 0; k--) {
            before = json_object_get(json_array_get(p->runs, p->order[k - 1]), key);
            if (json_is_null(loss) ||
                (!json_is_null(before) && json_number_value(before) <= json_number_value(loss)))
                break;
            p->order[k] = p->order[k - 1];
        }
        p->order[k] = i;
    }
}

/* A column per run, or if those don't fit a line, a row per run: results, settings that differ, and
 * other facts that fit. */
static void print_runs(struct printer *p, const json_t *settings, bool val)
{
    begin(p, "");
    add_facts(p, 0, N_FACTS);
    p->by_run = p->form != LKS__COMPARE_CSV && p->n > 1 && measure(p) > p->columns;
    if (p->by_run) {
        sort_runs(p, val ? "best_val_loss" : "last_loss");
        begin(p, "");
        add_facts(p, 0, N_RESULTS);
        add_values(p, settings, "setting");
        add_facts(p, N_RESULTS, N_FACTS);
    }
    print_table(p, "runs", p->by_run ? "Runs, the lowest loss first" : "Runs");
}

/* Name the iterations from which runs continued with another batch. */
static void print_segments(struct printer *p)
{
    char name[CELL], text[CELL];
    bool any = false;
    lks__each(run, p->runs)
        lks__each(segment, json_object_get(run, "segments")) {
            fprintf(p->out, "%s%s%s from iteration %" JSON_INTEGER_FORMAT ": %s\n", any ? "" : "\n",
                    p->form == LKS__COMPARE_MARKDOWN ? "- " : "",
                    cell(json_object_get(run, "run"), name), lks__json_int(segment, "iter"),
                    cell(json_object_get(segment, "changed"), text));
            any = true;
        }
}

/* Print a table with a column per run: a line per row of `rows`, whose name is under `key`. If each
 * run has a row in the first table, leave out a table that is too wide. */
static void print_values(struct printer *p, const json_t *rows, const char *table, const char *key,
                         const char *text)
{
    const bool by_run = p->by_run;
    p->by_run = false;
    begin(p, key);
    add_values(p, rows, key);
    if (p->n_lines > 1 && (!by_run || measure(p) <= p->columns))
        print_table(p, table, text);
    p->by_run = by_run;
}

/* Explain sampled evaluations: losses that are close may differ by chance only. */
static void print_chance(struct printer *p)
{
    lks__each(run, p->runs) {
        if (!json_is_integer(json_object_get(run, "eval_iters")))
            continue;
        fputs("\nEach evaluation samples other batches (--eval_iters), so a loss can rise or fall "
              "by chance.\n`lockstep eval RUN` computes the loss over the whole validation text.\n",
              p->out);
        return;
    }
}

/* Explain losses of runs with vocabularies of different sizes. */
static void print_tokens(struct printer *p, const json_t *settings)
{
    lks__each(r, settings)
        if (strcmp(lks__json_str(r, "setting"), "vocab_size") == 0)
            fputs("\nThe runs' vocabularies differ, and a loss is per token: compare bits per "
                  "byte, which `lockstep\neval RUN` prints.\n",
                  p->out);
}

/* A group's name: its first run, and the settings in which it differs from other runs. */
static const char *group_name(const json_t *o, const char *run, const char *settings,
                              char out[NAMED])
{
    char name[CELL], text[CELL];
    const bool any = lks__json_str(o, settings)[0] != '\0';
    snprintf(out, NAMED, any ? "%s (%s)" : "%s", cell(json_object_get(o, run), name),
             cell(json_object_get(o, settings), text));
    return out;
}

static void print_left_out(const struct printer *p, const json_t *rows)
{
    char run[CELL], like[CELL], value[CELL];
    lks__each(r, rows)
        fprintf(p->out, "- %s is left out of the runs like %s: its max_iters is %s\n",
                cell(json_object_get(r, "run"), run), cell(json_object_get(r, "like"), like),
                cell(json_object_get(r, "max_iters"), value));
}

static void print_seeds(struct printer *p, const json_t *report)
{
    const json_t *margin = json_object_get(report, "margin"), *best = NULL;
    char a[NAMED], b[NAMED], side[64] = "";
    if (margin != NULL)
        snprintf(side, sizeof side, ", one-sided, lower by more than %g,",
                 json_number_value(margin));
    if (json_array_size(json_object_get(report, "seeds")) == 0)
        return;
    title(p, "Over seeds");
    if (p->form == LKS__COMPARE_TEXT)
        fputc('\n', p->out);
    lks__each(r, json_object_get(report, "seeds")) {
        const double mean = json_number_value(json_object_get(r, "mean"));
        fprintf(p->out, "- runs like %s, %d seeds: mean %.4f, spread (standard deviation) %.4f\n",
                group_name(r, "like", "settings", a), (int)lks__json_int(r, "seeds"), mean,
                json_number_value(json_object_get(r, "spread")));
        if (best == NULL || mean < json_number_value(json_object_get(best, "mean")))
            best = r;
    }
    print_left_out(p, json_object_get(report, "left_out"));
    const char *like = lks__json_str(best, "like");
    lks__each(r, json_object_get(report, "tests")) {
        if (p->by_run && margin == NULL && strcmp(like, lks__json_str(r, "a")) != 0 &&
            strcmp(like, lks__json_str(r, "b")) != 0)
            continue; /* of many groups, compare each with the best one */
        const bool more = json_is_true(json_object_get(r, "more_than_chance"));
        fprintf(p->out,
                "- %s against %s: difference %+.4f, Welch's t test%s p = %.3g: %s (p %s %g)\n",
                group_name(r, "b", "settings_b", b), group_name(r, "a", "settings_a", a),
                json_number_value(json_object_get(r, "difference")), side,
                json_number_value(json_object_get(r, "p")),
                more ? "more than chance" : "chance can explain it",
                more ? "<" : ">=", json_number_value(json_object_get(report, "alpha")));
    }
}

static void print_report(struct printer *p, const json_t *report)
{
    const json_t *settings = json_object_get(report, "settings");
    const bool val = strcmp(lks__json_str(report, "compared"), "val_loss") == 0;
    const bool csv = p->form == LKS__COMPARE_CSV;
    if (csv)
        fputs("table,row,run,value\n", p->out);
    print_runs(p, settings, val);
    if (!csv)
        print_segments(p);
    if (p->n > 1 && !p->by_run)
        print_values(p, settings, "settings", "setting", "Settings that differ");
    print_values(p, json_object_get(report, "by_step"), "by_step", "iter",
                 val ? "Validation loss at equal steps" : "Training loss at equal steps");
    print_values(p, json_object_get(report, "by_time"), "by_time", "seconds",
                 val ? "Validation loss at equal times" : "Training loss at equal times");
    if (p->by_run)
        fputs("\n`lockstep plot` draws the losses, and --csv lists all facts of each run.\n",
              p->out);
    if (val && !csv)
        print_chance(p);
    if (p->n > 1 && !csv)
        print_tokens(p, settings);
    if (csv)
        csv_seeds(p->out, report);
    else
        print_seeds(p, report);
}

lks_status lks__compare_print(FILE *out, const json_t *report, lks__compare_form form, int columns)
{
    const json_t *runs = json_object_get(report, "runs");
    const json_t *settings = json_object_get(report, "settings");
    const json_t *steps = json_object_get(report, "by_step");
    const json_t *times = json_object_get(report, "by_time");
    struct printer p = {.out = out,
                        .form = form,
                        .columns = form == LKS__COMPARE_TEXT ? columns : PAGE,
                        .runs = runs,
                        .n = json_array_size(runs)};
    const size_t most = 1 + p.n + N_FACTS + json_array_size(settings) + json_array_size(steps) +
                        json_array_size(times);
    p.order = calloc(most, sizeof *p.order);
    p.lines = calloc(most, sizeof *p.lines);
    p.widths = calloc(most, sizeof *p.widths);
    lks_status st = LKS_OK;
    if (p.order != NULL && p.lines != NULL && p.widths != NULL)
        print_report(&p, report);
    else
        st = lks__no_memory("for a table of %zu runs", p.n);
    free(p.order);
    free(p.lines);
    free(p.widths);
    return st;
}
