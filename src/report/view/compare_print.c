/* report/view/compare_print.c - prints a comparison as text, Markdown or CSV. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/status.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "report/view/compare.h"

enum { CELL = 128 };

enum kind { PLAIN, COUNT, SECONDS, MILLISECONDS, SHARE, BYTES };

struct printer {
    FILE *out;
    lks__compare_form form;
    int columns; /* of text */
    const json_t *runs;
    size_t n; /* runs */
    const char *table;
    bool measured, print;  /* the widths are known; this pass prints */
    size_t from, to;       /* the runs that it prints */
    enum kind kind;        /* of the row's values */
    int *widths;           /* of the first column and each run's */
    const json_t **values; /* one row's, one per run */
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

static void title(struct printer *p, const char *table, const char *text)
{
    p->table = table;
    p->measured = p->print = false;
    p->to = 0;
    memset(p->widths, 0, (p->n + 1) * sizeof *p->widths);
    if (p->form != LKS__COMPARE_CSV)
        fprintf(p->out, p->form == LKS__COMPARE_MARKDOWN ? "\n### %s\n\n" : "\n%s\n", text);
}

/* A table is gone through once to measure its columns, then once for each group of runs that fits a
 * line. False after the last. */
static bool next_pass(struct printer *p)
{
    p->print = p->measured;
    p->measured = true;
    if (!p->print)
        return true;
    p->from = p->to;
    if (p->from > 0 && p->from < p->n)
        fputc('\n', p->out);
    for (int line = 2 + p->widths[0]; p->to < p->n; p->to++) {
        line += 2 + p->widths[p->to + 1];
        if (p->form == LKS__COMPARE_TEXT && line > p->columns && p->to > p->from)
            break;
    }
    return p->from < p->n;
}

static void csv_text(FILE *out, const char *text)
{
    const bool quotes = text[strcspn(text, "\",\r\n")] != '\0';
    if (quotes)
        fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    if (quotes)
        fputc('"', out);
}

static void csv_row(struct printer *p, const char *row)
{
    char text[CELL];
    for (size_t i = 0; i < p->n; i++) {
        const json_t *run = json_object_get(json_array_get(p->runs, i), "run");
        csv_text(p->out, p->table);
        fputc(',', p->out);
        csv_text(p->out, row);
        fputc(',', p->out);
        csv_text(p->out, json_string_value(run));
        fputc(',', p->out);
        if (json_is_real(p->values[i]))
            fprintf(p->out, "%.17g", json_real_value(p->values[i]));
        else if (!json_is_null(p->values[i]))
            csv_text(p->out, cell(p->values[i], text));
        fputc('\n', p->out);
    }
}

static void print_cell(struct printer *p, size_t column, const char *text)
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

/* Widen the columns for a row, or print it. */
static void row(struct printer *p, const char *name)
{
    char text[CELL];
    if (p->form == LKS__COMPARE_CSV) {
        if (p->print)
            csv_row(p, name);
        return;
    }
    for (size_t i = 0; i <= p->n; i++) {
        const char *shown = i == 0 ? name : cell_of(p->kind, p->values[i - 1], text);
        if (p->print && (i == 0 || (i > p->from && i <= p->to)))
            print_cell(p, i, shown);
        else if (lks__utf8_length(shown) > p->widths[i])
            p->widths[i] = lks__utf8_length(shown);
    }
    if (p->print)
        fputc('\n', p->out);
}

static void head(struct printer *p, const char *name)
{
    if (p->form == LKS__COMPARE_CSV)
        return;
    for (size_t i = 0; i < p->n; i++)
        p->values[i] = json_object_get(json_array_get(p->runs, i), "run");
    row(p, name);
    if (p->print && p->form == LKS__COMPARE_MARKDOWN) {
        fputs("|---|", p->out);
        for (size_t i = 0; i < p->n; i++)
            fputs("--:|", p->out);
        fputc('\n', p->out);
    }
}

static const struct {
    const char *key, *name;
    enum kind kind;
} facts[] = {
    {"steps", "steps", COUNT},
    {"tokens", "tokens", COUNT},
    {"seconds", "time of all steps", SECONDS},
    {"last_loss", "last training loss", PLAIN},
    {"best_val_loss", "best validation loss", PLAIN},
    {"best_iter", "iteration of the best loss", COUNT},
    {"last_val_loss", "last validation loss", PLAIN},
    {"last_val_bpb", "last bits per byte", PLAIN},
    {"eval_iters", "batches per evaluation", COUNT},
    {"tok_per_s", "tokens/s", COUNT},
    {"mfu", "share of the peak (MFU)", SHARE},
    {"wait_ms", "waiting per step", MILLISECONDS},
    {"memory_bytes", "memory of all ranks", BYTES},
    {"world_size", "ranks", COUNT},
    {"threads", "threads per rank", COUNT},
    {"cpu", "processor", PLAIN},
    {"commit", "commit of lockstep", PLAIN},
    {"resumes", "resumes", COUNT},
    {"skips", "skipped steps", COUNT},
    {"rollbacks", "rollbacks", COUNT},
    {"checkpoints", "checkpoints", COUNT},
    {"params_hash", "hash of the weights", PLAIN},
    {"ended", "ended", PLAIN},
};

static void print_runs(struct printer *p)
{
    title(p, "runs", "Runs");
    while (next_pass(p)) {
        head(p, "");
        for (size_t f = 0; f < sizeof facts / sizeof facts[0]; f++) {
            bool any = false;
            for (size_t i = 0; i < p->n; i++) {
                p->values[i] = json_object_get(json_array_get(p->runs, i), facts[f].key);
                any = any || !json_is_null(p->values[i]);
            }
            p->kind = facts[f].kind;
            if (any)
                row(p, p->form == LKS__COMPARE_CSV ? facts[f].key : facts[f].name);
            p->kind = PLAIN;
        }
    }
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

/* Print a table: each row has "values", one per run, and its name under `key`. */
static void print_values(struct printer *p, const json_t *rows, const char *table, const char *text,
                         const char *key)
{
    if (json_array_size(rows) == 0)
        return;
    title(p, table, text);
    while (next_pass(p)) {
        head(p, key);
        lks__each(r, rows) {
            const json_t *name = json_object_get(r, key);
            char shown[CELL];
            for (size_t i = 0; i < p->n; i++)
                p->values[i] = json_array_get(json_object_get(r, "values"), i);
            if (strcmp(key, "iter") == 0)
                snprintf(shown, sizeof shown, "%.0f", json_number_value(name));
            else
                cell(name, shown);
            row(p, shown);
        }
    }
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

static void print_seeds(struct printer *p, const json_t *report)
{
    const json_t *margin = json_object_get(report, "margin");
    char a[CELL], b[CELL], side[64] = "";
    if (margin != NULL)
        snprintf(side, sizeof side, ", one-sided, lower by more than %g,",
                 json_number_value(margin));
    if (p->form == LKS__COMPARE_CSV || json_array_size(json_object_get(report, "seeds")) == 0)
        return;
    title(p, "seeds", "Over seeds");
    if (p->form == LKS__COMPARE_TEXT)
        fputc('\n', p->out);
    lks__each(r, json_object_get(report, "seeds"))
        fprintf(p->out, "- runs like %s, %d seeds: mean %.4f, spread (standard deviation) %.4f\n",
                cell(json_object_get(r, "like"), a), (int)lks__json_int(r, "seeds"),
                json_number_value(json_object_get(r, "mean")),
                json_number_value(json_object_get(r, "spread")));
    lks__each(r, json_object_get(report, "tests")) {
        const bool more = json_is_true(json_object_get(r, "more_than_chance"));
        fprintf(p->out,
                "- %s against %s: difference %+.4f, Welch's t test%s p = %.3g: %s (p %s %g)\n",
                cell(json_object_get(r, "b"), b), cell(json_object_get(r, "a"), a),
                json_number_value(json_object_get(r, "difference")), side,
                json_number_value(json_object_get(r, "p")),
                more ? "more than chance" : "chance can explain it",
                more ? "<" : ">=", json_number_value(json_object_get(report, "alpha")));
    }
}

lks_status lks__compare_print(FILE *out, const json_t *report, lks__compare_form form, int columns)
{
    const json_t *runs = json_object_get(report, "runs");
    const char *compared = lks__json_str(report, "compared");
    const bool val = strcmp(compared, "val_loss") == 0;
    struct printer p = {
        .out = out, .form = form, .columns = columns, .runs = runs, .n = json_array_size(runs)};
    p.widths = calloc(p.n + 1, sizeof *p.widths);
    p.values = calloc(p.n + 1, sizeof *p.values);
    if (p.widths == NULL || p.values == NULL) {
        free(p.widths);
        free(p.values);
        return lks__no_memory("for a table of %zu runs", p.n);
    }
    if (form == LKS__COMPARE_CSV)
        fputs("table,row,run,value\n", out);
    print_runs(&p);
    if (form != LKS__COMPARE_CSV)
        print_segments(&p);
    if (p.n > 1)
        print_values(&p, json_object_get(report, "settings"), "settings", "Settings that differ",
                     "setting");
    print_values(&p, json_object_get(report, "by_step"), "by_step",
                 val ? "Validation loss at equal steps" : "Training loss at equal steps", "iter");
    print_values(&p, json_object_get(report, "by_time"), "by_time",
                 val ? "Validation loss at equal times" : "Training loss at equal times",
                 "seconds");
    if (val && form != LKS__COMPARE_CSV)
        print_chance(&p);
    if (p.n > 1 && form != LKS__COMPARE_CSV)
        print_tokens(&p, json_object_get(report, "settings"));
    print_seeds(&p, report);
    free(p.widths);
    free(p.values);
    return LKS_OK;
}
