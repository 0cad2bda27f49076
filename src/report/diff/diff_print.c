/* report/diff/diff_print.c - prints the first difference for people. */
#include <inttypes.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "base/text/shell.h"
#include "report/diff/diff.h"
#include "report/diff/facts.h"
#include "report/diff/trails.h"

enum { SHOWN = 4 * 256, LABEL = 18 };

/* A value from a file, safe on a terminal. */
static const char *show(const json_t *value, char out[SHOWN])
{
    char text[256];
    lks__json_text(value, text);
    return lks__escape(out, SHOWN, text, strlen(text));
}

static const char *show_member(const json_t *o, const char *key, char out[SHOWN])
{
    return show(json_object_get(o, key), out);
}

static json_int_t count(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* In words, if the row isn't of a setting. */
static const char *show_name(const json_t *row, char out[SHOWN])
{
    static const char *const words[][2] = {
        {"data_digest", "data, digest"},
        {"data_hash", "data, hash of whole files"},
        {"init_hash", "initial weights, hash"},
        {"fingerprint", "results of the kernels, fingerprint"},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(json_string_value(json_object_get(row, "name")), words[i][0]) == 0)
            return words[i][1];
    return show_member(row, "name", out);
}

static void print_pair(FILE *out, const json_t *row)
{
    char name[SHOWN], a[SHOWN], b[SHOWN];
    fprintf(out, "%s %s | %s", show_name(row, name), show_member(row, "a", a),
            show_member(row, "b", b));
}

/* Print in which run, and where, a resume changed a setting. */
static void print_since(FILE *out, const json_t *row)
{
    static const char *const keys[] = {"since_a", "since_b"};
    for (int i = 0; i < 2; i++)
        if (json_object_get(row, keys[i]) != NULL)
            fprintf(out, ", changed where %c was resumed (iteration %" JSON_INTEGER_FORMAT ")",
                    "AB"[i], count(row, keys[i]));
}

static void print_rows(FILE *out, const char *label, const json_t *rows)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        fprintf(out, "%-*s", LABEL, i == 0 ? label : "");
        print_pair(out, row);
        print_since(out, row);
        fputc('\n', out);
    }
}

/* --- data ------------------------------------------------------------------------------------- */

/* "train.bin, byte 1000: 57", or where the data end before that token. */
static void print_token(FILE *out, const json_t *split, size_t side)
{
    char file[SHOWN];
    const json_t *path = json_array_get(json_object_get(split, "files"), side);
    if (json_is_null(path))
        fprintf(out, "the data end after %" JSON_INTEGER_FORMAT " tokens",
                json_integer_value(json_array_get(json_object_get(split, "tokens"), side)));
    else
        fprintf(out, "%" JSON_INTEGER_FORMAT " (%s, byte %" JSON_INTEGER_FORMAT ")",
                json_integer_value(json_array_get(json_object_get(split, "ids"), side)),
                show(path, file),
                json_integer_value(json_array_get(json_object_get(split, "offsets"), side)));
}

/* The first step of each run that read a token that differs. */
static void print_reads(FILE *out, const json_t *split)
{
    char why[SHOWN], id[2][SHOWN];
    const json_t *read = json_object_get(split, "read");
    const json_t *reasons = json_object_get(split, "unread_why");
    const bool both = json_equal(json_array_get(read, 0), json_array_get(read, 1)) &&
                      json_equal(json_array_get(reasons, 0), json_array_get(reasons, 1));
    for (size_t i = 0; i < (both ? 1 : json_array_size(read)); i++) {
        const json_t *step = json_array_get(read, i), *reason = json_array_get(reasons, i);
        const json_t *ids = json_object_get(step, "ids");
        fprintf(out, "%-*s%s ", LABEL, "", both ? "A and B" : i == 0 ? "A" : "B");
        if (json_is_object(step))
            fprintf(out,
                    "read such a token first in step %" JSON_INTEGER_FORMAT
                    ", virtual rank %" JSON_INTEGER_FORMAT ", micro-batch %" JSON_INTEGER_FORMAT
                    ": token %" JSON_INTEGER_FORMAT " is %s | %s\n",
                    count(step, "step"), count(step, "virtual_rank"), count(step, "micro_batch"),
                    count(step, "token"), show(json_array_get(ids, 0), id[0]),
                    show(json_array_get(ids, 1), id[1]));
        else if (!json_is_null(reason))
            fprintf(out, "may have read such a token: %s\n", show(reason, why));
        else
            fputs("read no such token\n", out);
    }
}

static void print_data(FILE *out, const json_t *data)
{
    char text[SHOWN];
    const json_t *splits = json_object_get(data, "splits"), *split;
    const char *why = json_string_value(json_object_get(data, "unknown"));
    size_t i;
    if (why != NULL)
        fprintf(out, "%-*snot compared: %s\n", LABEL, "data",
                show(json_object_get(data, "unknown"), text));
    json_array_foreach(splits, i, split)
    {
        const json_int_t n = count(split, "different");
        const json_t *lengths = json_object_get(split, "tokens");
        fprintf(out, "%-*s%s token %" JSON_INTEGER_FORMAT " is ", LABEL, "data",
                show_member(split, "split", text), count(split, "token"));
        print_token(out, split, 0);
        fputs(" | ", out);
        print_token(out, split, 1);
        if (n == 1)
            fputs("; 1 token differs\n", out);
        else
            fprintf(out, ", the first of %" JSON_INTEGER_FORMAT " tokens that differ\n", n);
        print_reads(out, split);
        if (!json_equal(json_array_get(lengths, 0), json_array_get(lengths, 1)))
            fprintf(out, "%-*sthe lengths differ, so samplers can draw other positions\n", LABEL,
                    "");
    }
}

/* --- the first difference --------------------------------------------------------------------- */

static void print_figures(FILE *out, const json_t *line)
{
    char name[SHOWN], a[SHOWN], b[SHOWN];
    const json_t *figures = json_object_get(line, "figures"), *figure;
    size_t i;
    for (int same = 0; same < 2; same++)
        json_array_foreach(figures, i, figure)
        {
            if (json_is_true(json_object_get(figure, "same")) != (same == 1))
                continue;
            show_member(figure, "name", name);
            show_member(figure, "a", a);
            fprintf(out, "  %-14s%s%s%s\n", name, a, same ? "" : " | ",
                    same ? "  equal in all digits" : show_member(figure, "b", b));
        }
}

static void print_element(FILE *out, const json_t *diff)
{
    char a[SHOWN], b[SHOWN], index[SHOWN];
    const json_t *values = json_object_get(diff, "values"), *bits = json_object_get(diff, "bits");
    for (int i = 0; i < 2; i++) {
        const bool finite = !json_is_null(json_array_get(values, (size_t)i));
        show(json_array_get(finite ? values : bits, (size_t)i), i == 0 ? a : b);
    }
    fprintf(out, "element %" JSON_INTEGER_FORMAT " (index %s): %s | %s\n", count(diff, "element"),
            show_member(diff, "index", index), a, b);
    fprintf(out, "%-*s%" JSON_INTEGER_FORMAT " of its %" JSON_INTEGER_FORMAT " elements differ",
            LABEL, "", count(diff, "different_elements"), count(diff, "elements"));
    if (json_object_get(diff, "tensors") != NULL)
        fprintf(out, "; %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " tensors differ",
                count(diff, "different"), count(diff, "tensors"));
    fputc('\n', out);
}

static void print_weights(FILE *out, const json_t *weights)
{
    char part[SHOWN], tensor[SHOWN], form[2][SHOWN];
    size_t i;
    const json_t *diff;
    json_array_foreach(weights, i, diff)
    {
        const json_t *forms = json_object_get(diff, "forms");
        const char *only = json_string_value(json_object_get(diff, "only_in"));
        fprintf(out, "%-*sfirst %s, ", LABEL, show_member(diff, "part", part),
                show_member(diff, "tensor", tensor));
        if (only != NULL)
            fprintf(out, "which only %c has\n", only[0] == 'a' ? 'A' : 'B');
        else if (forms != NULL)
            fprintf(out, "which is %s | %s\n", show(json_array_get(forms, 0), form[0]),
                    show(json_array_get(forms, 1), form[1]));
        else
            print_element(out, diff);
    }
}

/* Print the first virtual rank whose gradient differs, or that all are equal in the step that
 * differs. */
static void print_gradients(FILE *out, const json_t *report)
{
    char a[SHOWN], b[SHOWN];
    const json_t *gradients = json_object_get(report, "gradients");
    const json_t *first = json_object_get(gradients, "first");
    const json_t *step = json_object_get(json_object_get(report, "first"), "iter");
    const json_int_t V = count(gradients, "virtual_ranks");
    if (json_is_object(first))
        fprintf(
            out,
            "%-*sstep %" JSON_INTEGER_FORMAT ": %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
            " virtual ranks differ, first %" JSON_INTEGER_FORMAT ": %s | %s\n",
            LABEL, "gradients", count(first, "iter"), count(first, "different"), V,
            count(first, "virtual_rank"), show_member(first, "a", a), show_member(first, "b", b));
    else if (step != NULL && json_equal(step, json_object_get(gradients, "last")))
        fprintf(out,
                "%-*sequal in step %" JSON_INTEGER_FORMAT " for all %" JSON_INTEGER_FORMAT
                " virtual ranks\n",
                LABEL, "gradients", count(gradients, "last"), V);
}

static void print_evaluation(FILE *out, const json_t *report, const char *text)
{
    const json_t *evaluation = json_object_get(report, "evaluation");
    if (!json_is_object(evaluation))
        return;
    fprintf(out, "%s first at iteration %" JSON_INTEGER_FORMAT ":\n", text,
            count(evaluation, "iter"));
    print_figures(out, evaluation);
}

static void print_first(FILE *out, const json_t *report)
{
    char name[SHOWN];
    const json_t *first = json_object_get(report, "first");
    const char *kind = json_string_value(json_object_get(first, "kind"));
    if (kind != NULL && strcmp(kind, "checkpoint") == 0)
        fprintf(out,
                "The steps before checkpoint %" JSON_INTEGER_FORMAT
                " are equal; its weights aren't:\n",
                count(first, "iter"));
    else if (kind != NULL)
        fprintf(out, "The records differ first at step %" JSON_INTEGER_FORMAT ":\n",
                count(first, "iter"));
    print_figures(out, first);
    print_gradients(out, report);
    if (json_object_get(report, "checkpoint") != NULL)
        fprintf(out, "The files of %s differ:\n", show_member(report, "checkpoint", name));
    print_weights(out, json_object_get(report, "weights"));
    print_evaluation(out, report, "Evaluations differ");
}

/* --- the place in a step ---------------------------------------------------------------------- */

enum { ENTRY = 3 * SHOWN };

/* "virtual rank 0, micro-batch 1, forward: output of transformer.wte" */
static const char *describe(const json_t *entry, char text[ENTRY])
{
    char name[SHOWN], what[SHOWN];
    const char *key = json_string_value(json_object_get(entry, "what"));
    int n = 0;
    if (key == NULL)
        return "the end";
    if (json_object_get(entry, "virtual_rank") != NULL)
        n += snprintf(text + n, ENTRY - (size_t)n, "virtual rank %" JSON_INTEGER_FORMAT ", ",
                      count(entry, "virtual_rank"));
    if (json_object_get(entry, "micro_batch") != NULL)
        n += snprintf(text + n, ENTRY - (size_t)n, "micro-batch %" JSON_INTEGER_FORMAT ", ",
                      count(entry, "micro_batch"));
    n += snprintf(text + n, ENTRY - (size_t)n, "%s: %s", lks__trail_phase(key),
                  show_member(entry, "what", what));
    if (json_object_get(entry, "name") != NULL)
        snprintf(text + n, ENTRY - (size_t)n, " of %s", show_member(entry, "name", name));
    return text;
}

/* Print a member of both entries, if they have it. */
static void print_both(FILE *out, const char *name, const json_t *a, const json_t *b)
{
    char x[SHOWN], y[SHOWN];
    if (a != NULL || b != NULL)
        fprintf(out, "%-*s%s %s | %s\n", LABEL, "", name, show(a, x), show(b, y));
}

static void print_entries(FILE *out, const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "first"), *y = json_object_get(b, "first");
    print_both(out, "value", json_object_get(a, "value"), json_object_get(b, "value"));
    print_both(out, "hash", json_object_get(a, "hash"), json_object_get(b, "hash"));
    for (size_t i = 0; i < json_array_size(x) && i < json_array_size(y); i++)
        print_both(out, i == 0 ? "begins with" : "           ", json_array_get(x, i),
                   json_array_get(y, i));
}

/* `o` has "step", "entries" and "place", as in trails.h. In a place, "element" to "elements" or
 * "forms", as in tensors.h, name the first element. */
static void print_place(FILE *out, const json_t *o)
{
    char text[2][ENTRY];
    const json_t *place = json_object_get(o, "place");
    const json_t *a = json_object_get(place, "a"), *b = json_object_get(place, "b");
    if (!json_is_object(place))
        return;
    const char *x = describe(a, text[0]), *y = describe(b, text[1]);
    fprintf(out, "%-*sstep %" JSON_INTEGER_FORMAT ", %s", LABEL, "place", count(o, "step"), x);
    if (strcmp(x, y) != 0)
        fprintf(out, " | %s", y);
    if (count(o, "entries") > 0)
        fprintf(out, "; all %" JSON_INTEGER_FORMAT " results before it are equal",
                count(o, "entries"));
    fputc('\n', out);
    if (json_object_get(place, "element") == NULL) {
        print_entries(out, a, b);
        return;
    }
    fprintf(out, "%-*s", LABEL, "");
    print_element(out, place);
}

/* --- the cause -------------------------------------------------------------------------------- */

static const char *word_of(const json_t *report, const char *side, char out[SHOWN])
{
    return lks__shell_word(out, SHOWN, json_string_value(json_object_get(report, side)));
}

/* Print how to find out which of two records this machine computes. */
static void print_audits(FILE *out, const json_t *report)
{
    char a[SHOWN], b[SHOWN];
    const json_t *gradient = json_object_get(json_object_get(report, "gradients"), "first");
    const json_t *first = json_is_object(gradient) ? gradient : json_object_get(report, "first");
    if (strcmp(json_string_value(json_object_get(report, "kind")), "run") == 0 &&
        json_is_object(first))
        fprintf(out,
                "%-*s`lockstep audit %s --step=%" JSON_INTEGER_FORMAT
                "`, and the same for %s, compute that step again\n",
                LABEL, "", word_of(report, "a", a), count(first, "iter"), word_of(report, "b", b));
}

static void print_execution(FILE *out, const json_t *execution)
{
    char why[SHOWN];
    if (json_is_true(json_object_get(execution, "begun")))
        fprintf(out, "%-*snot possible here: %s\n", LABEL, "",
                show_member(execution, "why_not", why));
    else if (json_object_get(execution, "why_not") != NULL)
        fprintf(out, "%-*sstep %" JSON_INTEGER_FORMAT " isn't executed again: %s\n", LABEL,
                "execution", count(execution, "step"), show_member(execution, "why_not", why));
    else if (json_is_null(json_object_get(execution, "place")))
        fprintf(out, "%-*sall %" JSON_INTEGER_FORMAT " results of the step are equal\n", LABEL,
                "place", count(execution, "entries"));
    else
        print_place(out, execution);
}

/* Print each record that the execution refutes. */
static void print_false(FILE *out, const json_t *report)
{
    char path[SHOWN], claim[SHOWN];
    const json_t *execution = json_object_get(report, "execution"), *row;
    size_t i;
    json_array_foreach(json_object_get(execution, "false"), i, row)
    {
        const char *side = json_string_value(json_object_get(row, "run"));
        fprintf(out, "%-*s%s's record doesn't follow from its settings: %s\n", LABEL, "cause",
                side[0] == 'a' ? "A" : "B", show_member(row, "claim", claim));
        fprintf(out,
                "%-*sit was computed wrongly then, or its record was changed; `lockstep audit %s "
                "--step=%" JSON_INTEGER_FORMAT "` repeats this\n",
                LABEL, "", word_of(report, side, path), count(execution, "step"));
    }
}

/* Print the command that makes the runs equal. */
static void print_remedy(FILE *out, const json_t *remedy)
{
    char text[SHOWN];
    const char *run = json_string_value(json_object_get(remedy, "run"));
    const json_t *word;
    size_t i;
    if (run == NULL)
        return;
    const bool is_a = run[0] == 'a';
    if (json_is_null(json_object_get(remedy, "resumed")))
        fprintf(out, "%-*sthis command trains %c again, as the same run as %c:\n", LABEL, "remedy",
                "BA"[is_a], "AB"[is_a]);
    else
        fprintf(out,
                "%-*sthis command continues %c from checkpoint %" JSON_INTEGER_FORMAT
                " as the same run as %c, and keeps %c's later steps in a folder earlier-N:\n",
                LABEL, "remedy", "BA"[is_a], count(remedy, "resumed"), "AB"[is_a], "BA"[is_a]);
    fprintf(out, "%-*s%s", LABEL, "", lks__shell_program(text, sizeof text));
    json_array_foreach(json_object_get(remedy, "command"), i, word)
        fprintf(out, " %s", lks__shell_word(text, sizeof text, json_string_value(word)));
    fputc('\n', out);
}

/* "train token 812 is 17 | 12, read first in step 3" */
static void print_data_cause(FILE *out, const json_t *report)
{
    char name[SHOWN], a[SHOWN], b[SHOWN];
    const json_t *splits = json_object_get(json_object_get(report, "data"), "splits");
    const json_t *split = json_array_get(splits, 0);
    const json_t *read = json_array_get(json_object_get(split, "read"), 0);
    const json_t *lengths = json_object_get(split, "tokens");
    const json_t *pair = json_object_get(json_is_object(read) ? read : split, "ids");
    const bool cut = !json_is_object(read) &&
                     !json_equal(json_array_get(lengths, 0), json_array_get(lengths, 1));
    fprintf(out, "%-*sthe data differ", LABEL, "cause");
    if (split != NULL) {
        pair = cut ? lengths : pair;
        fprintf(out, ": %s ", show_member(split, "split", name));
        if (!cut)
            fprintf(out, "token %" JSON_INTEGER_FORMAT " is ",
                    count(json_is_object(read) ? read : split, "token"));
        fprintf(out, "%s%s | %s%s", cut ? "has " : "", show(json_array_get(pair, 0), a),
                show(json_array_get(pair, 1), b), cut ? " tokens" : "");
    }
    if (json_is_object(read))
        fprintf(out, ", read first in step %" JSON_INTEGER_FORMAT, count(read, "step"));
    fputc('\n', out);
}

static bool is_setting(const json_t *row)
{
    return json_is_true(json_object_get(row, "setting")) &&
           !json_is_null(json_object_get(row, "a"));
}

/* "--dropout=0 --seed=1337": A's values. */
static void print_settings(FILE *out, const json_t *rows)
{
    char text[256], word[SHOWN], shown[SHOWN];
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (!is_setting(row))
            continue;
        snprintf(word, sizeof word, "--%s=%s", json_string_value(json_object_get(row, "name")),
                 lks__json_text(json_object_get(row, "a"), text));
        fprintf(out, " %s", lks__shell_word(shown, sizeof shown, word));
    }
    fputc('\n', out);
}

/* Print what to do next after two trails: their runs aren't at hand. */
static void print_next(FILE *out, const json_t *report, const json_t *rows)
{
    const json_t *entry = json_object_get(json_object_get(report, "place"), "a"), *row;
    const char *what = json_string_value(json_object_get(entry, "what"));
    const char *phase = what != NULL ? lks__trail_phase(what) : "";
    bool any = false;
    size_t i;
    json_array_foreach(rows, i, row) any |= is_setting(row);
    fprintf(out, "%-*s", LABEL, "remedy");
    if (any) {
        fputs("train B again with A's settings:", out);
        print_settings(out, rows);
    } else if (strcmp(phase, "before the step") == 0) {
        fputs(count(report, "step") > 0
                  ? "the runs differ before this step: write trails of an earlier one\n"
                  : "train both from the same initial weights\n",
              out);
    } else if (strcmp(phase, "data") == 0) {
        fputs("train both on the same token files\n", out);
    } else if (json_array_size(rows) > 0) {
        fputs("run the same program on both, with kernels of one level (LOCKSTEP_CPU)\n", out);
    } else {
        fputs("write both trails again, and one on a third machine: a machine that differs from "
              "the others computes wrongly\n",
              out);
    }
}

static void print_explanation(FILE *out, const json_t *report, const json_t *rows)
{
    const size_t n = json_array_size(rows);
    const char *name = json_string_value(json_object_get(json_array_get(rows, 0), "name"));
    if (n == 0) {
        fprintf(out, "%-*sno setting, data, commit or device in the records differs\n", LABEL,
                "cause");
        print_audits(out, report);
    } else if (n == 1 && lks__facts_data(name)) {
        print_data_cause(out, report);
    } else if (n == 1) {
        print_rows(out, "cause", rows);
    } else {
        fprintf(out, "%-*sone or more of these %zu:\n", LABEL, "cause", n);
        print_rows(out, "", rows);
    }
    print_remedy(out, json_object_get(report, "remedy"));
    if (strcmp(json_string_value(json_object_get(report, "kind")), "trail") == 0)
        print_next(out, report, rows);
}

void lks__diff_print_cause(FILE *out, const json_t *report)
{
    const json_t *execution = json_object_get(report, "execution");
    if (lks__diff_same(report))
        return;
    json_t *rows = lks__diff_causes(report);
    if (execution != NULL)
        print_execution(out, execution);
    if (json_array_size(json_object_get(execution, "false")) > 0)
        print_false(out, report);
    else
        print_explanation(out, report, rows);
    json_decref(rows);
}

/* `what` is equal: "run", or if evaluations differ "steps". */
static void print_same(FILE *out, const json_t *report, const char *what)
{
    char hash[SHOWN];
    const json_int_t steps = count(report, "steps"), checkpoints = count(report, "checkpoints");
    const json_int_t extra[2] = {count(report, "steps_a") - steps,
                                 count(report, "steps_b") - steps};
    if (json_object_get(report, "entries") != NULL) {
        fprintf(out,
                "The same step: all %" JSON_INTEGER_FORMAT " results of step %" JSON_INTEGER_FORMAT
                " are equal.\n",
                count(report, "entries"), count(report, "step"));
        return;
    }
    if (json_object_get(report, "steps") == NULL) {
        fputs("The same tensors.\n", out);
        return;
    }
    const bool whole = extra[0] == 0 && extra[1] == 0;
    fprintf(out, "The same %s%s: %" JSON_INTEGER_FORMAT " step%s", what, whole ? "" : " so far",
            steps, steps == 1 ? "" : "s");
    if (checkpoints > 0)
        fprintf(out, ", %" JSON_INTEGER_FORMAT " checkpoint%s, weights %s", checkpoints,
                checkpoints == 1 ? "" : "s", show_member(report, "params_hash", hash));
    fputs(".\n", out);
    for (int i = 0; i < 2; i++)
        if (extra[i] > 0)
            fprintf(out, "%c has %" JSON_INTEGER_FORMAT " more step%s.\n", "AB"[i], extra[i],
                    extra[i] == 1 ? "" : "s");
}

void lks__diff_print(FILE *out, const json_t *report)
{
    char a[SHOWN], b[SHOWN];
    const bool same = lks__diff_same(report), steps = same || lks__diff_same_steps(report);
    fprintf(out, "%-*s%s | %s\n", LABEL, "A | B", show_member(report, "a", a),
            show_member(report, "b", b));
    print_rows(out, "changes no bit", json_object_get(report, "changes_no_bit"));
    print_rows(out, "evaluations only", json_object_get(report, "changes_evaluations"));
    print_rows(out, steps ? "no effect so far" : "can change bits",
               json_object_get(report, "can_change_bits"));
    print_data(out, json_object_get(report, "data"));
    if (steps)
        print_same(out, report, same ? "run" : "steps");
    else
        print_first(out, report);
    if (steps && !same)
        print_evaluation(out, report, "Only evaluations differ,");
    print_place(out, report);
}
