/* report/diff/diff_print.c - prints the first difference for people. */
#include <string.h>

#include "base/text/jsontext.h"
#include "report/diff/diff.h"
#include "report/diff/show.h"
#include "report/diff/trails.h"

/* The row's name in words; NULL if it is of a setting. */
static const char *name_in_words(const json_t *row)
{
    static const char *const words[][2] = {
        {"data_digest", "data, digest"},
        {"data_hash", "data, hash of whole files"},
        {"init_hash", "initial weights, hash"},
        {"fingerprint", "results of the kernels, fingerprint"},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(lks__json_str(row, "name"), words[i][0]) == 0)
            return words[i][1];
    return NULL;
}

static void print_pair(FILE *out, const json_t *row)
{
    const char *words = name_in_words(row);
    fprintf(out, "%s %s | %s", words != NULL ? words : lks__show_member(row, "name"),
            lks__show_member(row, "a"), lks__show_member(row, "b"));
}

/* Print in which run, and where, a resume changed a setting. */
static void print_since(FILE *out, const json_t *row)
{
    static const char *const keys[] = {"since_a", "since_b"};
    for (int i = 0; i < 2; i++)
        if (json_object_get(row, keys[i]) != NULL)
            fprintf(out, ", changed where %c was resumed (iteration %" JSON_INTEGER_FORMAT ")",
                    "AB"[i], lks__json_int(row, keys[i]));
}

void lks__diff_print_rows(FILE *out, const char *label, const json_t *rows)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        fprintf(out, "%-*s", LKS__LABEL, i == 0 ? label : "");
        print_pair(out, row);
        print_since(out, row);
        fputc('\n', out);
    }
}

/* --- data ------------------------------------------------------------------------------------- */

/* "train.bin, byte 1000: 57", or where the data end before that token. */
static void print_token(FILE *out, const json_t *split, size_t side)
{
    const json_t *path = json_array_get(json_object_get(split, "files"), side);
    if (json_is_null(path))
        fprintf(out, "the data end after %" JSON_INTEGER_FORMAT " tokens",
                json_integer_value(json_array_get(json_object_get(split, "tokens"), side)));
    else
        fprintf(out, "%" JSON_INTEGER_FORMAT " (%s, byte %" JSON_INTEGER_FORMAT ")",
                json_integer_value(json_array_get(json_object_get(split, "ids"), side)),
                lks__show_value(path),
                json_integer_value(json_array_get(json_object_get(split, "offsets"), side)));
}

/* The first step of each run that read a token that differs. */
static void print_reads(FILE *out, const json_t *split)
{
    const json_t *read = json_object_get(split, "read");
    const json_t *reasons = json_object_get(split, "unread_why");
    const bool both = json_equal(json_array_get(read, 0), json_array_get(read, 1)) &&
                      json_equal(json_array_get(reasons, 0), json_array_get(reasons, 1));
    for (size_t i = 0; i < (both ? 1 : json_array_size(read)); i++) {
        const json_t *step = json_array_get(read, i), *reason = json_array_get(reasons, i);
        const json_t *ids = json_object_get(step, "ids");
        fprintf(out, "%-*s%s ", LKS__LABEL, "", both ? "A and B" : i == 0 ? "A" : "B");
        if (json_is_object(step))
            fprintf(out,
                    "read such a token first in step %" JSON_INTEGER_FORMAT
                    ", virtual rank %" JSON_INTEGER_FORMAT ", micro-batch %" JSON_INTEGER_FORMAT
                    ": token %" JSON_INTEGER_FORMAT " is %s | %s\n",
                    lks__json_int(step, "step"), lks__json_int(step, "virtual_rank"),
                    lks__json_int(step, "micro_batch"), lks__json_int(step, "token"),
                    lks__show_value(json_array_get(ids, 0)),
                    lks__show_value(json_array_get(ids, 1)));
        else if (!json_is_null(reason))
            fprintf(out, "may have read such a token: %s\n", lks__show_value(reason));
        else
            fputs("read no such token\n", out);
    }
}

static void print_data(FILE *out, const json_t *data)
{
    const json_t *splits = json_object_get(data, "splits");
    if (json_is_string(json_object_get(data, "unknown")))
        fprintf(out, "%-*snot compared: %s\n", LKS__LABEL, "data",
                lks__show_reason(data, "unknown"));
    lks__each(split, splits) {
        const json_int_t n = lks__json_int(split, "different");
        const json_t *lengths = json_object_get(split, "tokens");
        fprintf(out, "%-*s%s token %" JSON_INTEGER_FORMAT " is ", LKS__LABEL, "data",
                lks__show_member(split, "split"), lks__json_int(split, "token"));
        print_token(out, split, 0);
        fputs(" | ", out);
        print_token(out, split, 1);
        if (n == 1)
            fputs("; 1 token differs\n", out);
        else
            fprintf(out, ", the first of %" JSON_INTEGER_FORMAT " tokens that differ\n", n);
        print_reads(out, split);
        if (!json_equal(json_array_get(lengths, 0), json_array_get(lengths, 1)))
            fprintf(out, "%-*sthe lengths differ, so samplers can draw other positions\n",
                    LKS__LABEL, "");
    }
}

/* --- the first difference --------------------------------------------------------------------- */

static void print_figures(FILE *out, const json_t *line)
{
    const json_t *figures = json_object_get(line, "figures");
    for (int same = 0; same < 2; same++)
        lks__each(figure, figures) {
            if (json_is_true(json_object_get(figure, "same")) != (same == 1))
                continue;
            fprintf(out, "  %-14s%s%s%s\n", lks__show_member(figure, "name"),
                    lks__show_member(figure, "a"), same ? "" : " | ",
                    same ? "  equal in all digits" : lks__show_member(figure, "b"));
        }
}

static void print_element(FILE *out, const json_t *diff)
{
    const json_t *values = json_object_get(diff, "values"), *bits = json_object_get(diff, "bits");
    const json_t *shown[2];
    for (size_t i = 0; i < 2; i++)
        shown[i] = json_array_get(json_is_null(json_array_get(values, i)) ? bits : values, i);
    fprintf(out, "element %" JSON_INTEGER_FORMAT " (index %s): %s | %s\n",
            lks__json_int(diff, "element"), lks__show_member(diff, "index"),
            lks__show_value(shown[0]), lks__show_value(shown[1]));
    fprintf(out, "%-*s%" JSON_INTEGER_FORMAT " of its %" JSON_INTEGER_FORMAT " elements differ",
            LKS__LABEL, "", lks__json_int(diff, "different_elements"),
            lks__json_int(diff, "elements"));
    if (json_object_get(diff, "tensors") != NULL)
        fprintf(out, "; %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT " tensors differ",
                lks__json_int(diff, "different"), lks__json_int(diff, "tensors"));
    fputc('\n', out);
}

static void print_weights(FILE *out, const json_t *weights)
{
    lks__each(diff, weights) {
        const json_t *forms = json_object_get(diff, "forms");
        const char *only = lks__json_str(diff, "only_in");
        fprintf(out, "%-*sfirst %s, ", LKS__LABEL, lks__show_member(diff, "part"),
                lks__show_member(diff, "tensor"));
        if (only != NULL)
            fprintf(out, "which only %c has\n", only[0] == 'a' ? 'A' : 'B');
        else if (forms != NULL)
            fprintf(out, "which is %s | %s\n", lks__show_value(json_array_get(forms, 0)),
                    lks__show_value(json_array_get(forms, 1)));
        else
            print_element(out, diff);
    }
}

/* Print the first virtual rank whose gradient differs, or that all are equal in the step that
 * differs. */
static void print_gradients(FILE *out, const json_t *report)
{
    const json_t *gradients = json_object_get(report, "gradients");
    const json_t *first = json_object_get(gradients, "first");
    const json_t *step = json_object_get(json_object_get(report, "first"), "iter");
    const json_int_t V = lks__json_int(gradients, "virtual_ranks");
    if (json_is_object(first))
        fprintf(out,
                "%-*sstep %" JSON_INTEGER_FORMAT ": %" JSON_INTEGER_FORMAT
                " of %" JSON_INTEGER_FORMAT " virtual ranks differ, first %" JSON_INTEGER_FORMAT
                ": %s | %s\n",
                LKS__LABEL, "gradients", lks__json_int(first, "iter"),
                lks__json_int(first, "different"), V, lks__json_int(first, "virtual_rank"),
                lks__show_member(first, "a"), lks__show_member(first, "b"));
    else if (step != NULL && json_equal(step, json_object_get(gradients, "last")))
        fprintf(out,
                "%-*sequal in step %" JSON_INTEGER_FORMAT " for all %" JSON_INTEGER_FORMAT
                " virtual ranks\n",
                LKS__LABEL, "gradients", lks__json_int(gradients, "last"), V);
}

static void print_evaluation(FILE *out, const json_t *report, const char *text)
{
    const json_t *evaluation = json_object_get(report, "evaluation");
    if (!json_is_object(evaluation))
        return;
    fprintf(out, "%s first at iteration %" JSON_INTEGER_FORMAT ":\n", text,
            lks__json_int(evaluation, "iter"));
    print_figures(out, evaluation);
}

static void print_first(FILE *out, const json_t *report)
{
    const json_t *first = json_object_get(report, "first");
    const char *kind = lks__json_str(first, "kind");
    if (kind != NULL && strcmp(kind, "checkpoint") == 0)
        fprintf(out,
                "The steps before checkpoint %" JSON_INTEGER_FORMAT
                " are equal; its weights aren't:\n",
                lks__json_int(first, "iter"));
    else if (kind != NULL)
        fprintf(out, "The records differ first at step %" JSON_INTEGER_FORMAT ":\n",
                lks__json_int(first, "iter"));
    else if (json_object_get(report, "state") != NULL &&
             json_array_size(json_object_get(report, "weights")) == 0)
        fputs("The same tensors, but a resume from them can differ.\n", out);
    json_t *outcomes = lks__diff_outcomes(report);
    lks__diff_print_rows(out, "outcome", outcomes);
    json_decref(outcomes);
    print_figures(out, first);
    print_gradients(out, report);
    if (json_object_get(report, "checkpoint") != NULL)
        fprintf(out, "The files of %s differ:\n", lks__show_member(report, "checkpoint"));
    print_weights(out, json_object_get(report, "weights"));
    print_evaluation(out, report, "Evaluations differ");
}

/* --- the place in a step ---------------------------------------------------------------------- */

enum { ENTRY = 3 * LKS__SHOWN };

/* "virtual rank 0, micro-batch 1, forward: output of transformer.wte" */
static const char *describe(const json_t *entry, char text[ENTRY])
{
    const char *key = lks__json_str(entry, "what");
    if (key == NULL)
        return "the end";
    text[0] = '\0';
    if (json_object_get(entry, "virtual_rank") != NULL)
        lks__append(text, ENTRY, "", "virtual rank %" JSON_INTEGER_FORMAT,
                    lks__json_int(entry, "virtual_rank"));
    if (json_object_get(entry, "micro_batch") != NULL)
        lks__append(text, ENTRY, ", ", "micro-batch %" JSON_INTEGER_FORMAT,
                    lks__json_int(entry, "micro_batch"));
    lks__append(text, ENTRY, ", ", "%s: %s", lks__trail_phase(key),
                lks__show_member(entry, "what"));
    if (json_object_get(entry, "name") != NULL)
        lks__append(text, ENTRY, " of ", "%s", lks__show_member(entry, "name"));
    return text;
}

/* Print a member of both entries, if they have it. */
static void print_both(FILE *out, const char *name, const json_t *a, const json_t *b)
{
    if (a != NULL || b != NULL)
        fprintf(out, "%-*s%s %s | %s\n", LKS__LABEL, "", name, lks__show_value(a),
                lks__show_value(b));
}

/* `forms`: NULL, or the types and shapes, which differ. */
static void print_entries(FILE *out, const json_t *a, const json_t *b, const json_t *forms)
{
    const json_t *x = json_object_get(a, "first"), *y = json_object_get(b, "first");
    if (forms != NULL) {
        print_both(out, "type and shape", json_array_get(forms, 0), json_array_get(forms, 1));
        return;
    }
    print_both(out, "value", json_object_get(a, "value"), json_object_get(b, "value"));
    print_both(out, "hash", json_object_get(a, "hash"), json_object_get(b, "hash"));
    for (size_t i = 0; i < json_array_size(x) && i < json_array_size(y); i++)
        print_both(out, i == 0 ? "begins with" : "           ", json_array_get(x, i),
                   json_array_get(y, i));
}

void lks__diff_print_place(FILE *out, const json_t *o)
{
    char text[2][ENTRY];
    const json_t *place = json_object_get(o, "place");
    const json_t *a = json_object_get(place, "a"), *b = json_object_get(place, "b");
    if (!json_is_object(place))
        return;
    const bool same = lks__trail_same_result(a, b);
    fprintf(out, "%-*sstep %" JSON_INTEGER_FORMAT ", %s", LKS__LABEL, "place",
            lks__json_int(o, "step"), describe(a, text[0]));
    if (!same)
        fprintf(out, " | %s", describe(b, text[1]));
    if (lks__json_int(o, "entries") > 0)
        fprintf(out, "; all %" JSON_INTEGER_FORMAT " results before it are equal",
                lks__json_int(o, "entries"));
    fputc('\n', out);
    if (!same)
        return;
    if (json_object_get(place, "element") == NULL) {
        print_entries(out, a, b, json_object_get(place, "forms"));
        return;
    }
    fprintf(out, "%-*s", LKS__LABEL, "");
    print_element(out, place);
}

/* `what` is equal: "run", or if evaluations differ "steps". */
static void print_same(FILE *out, const json_t *report, const char *what)
{
    const json_int_t steps = lks__json_int(report, "steps"),
                     checkpoints = lks__json_int(report, "checkpoints");
    const json_int_t extra[2] = {lks__json_int(report, "steps_a") - steps,
                                 lks__json_int(report, "steps_b") - steps};
    if (json_object_get(report, "entries") != NULL) {
        fprintf(out,
                "The same step: all %" JSON_INTEGER_FORMAT " results of step %" JSON_INTEGER_FORMAT
                " are equal.\n",
                lks__json_int(report, "entries"), lks__json_int(report, "step"));
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
                checkpoints == 1 ? "" : "s", lks__show_member(report, "params_hash"));
    fputs(".\n", out);
    for (int i = 0; i < 2; i++)
        if (extra[i] > 0)
            fprintf(out, "%c has %" JSON_INTEGER_FORMAT " more step%s.\n", "AB"[i], extra[i],
                    extra[i] == 1 ? "" : "s");
}

void lks__diff_print(FILE *out, const json_t *report)
{
    const bool same = lks__diff_same(report), steps = same || lks__diff_same_steps(report);
    fprintf(out, "%-*s%s | %s\n", LKS__LABEL, "A | B", lks__show_member(report, "a"),
            lks__show_member(report, "b"));
    lks__diff_print_rows(out, "changes no bit", json_object_get(report, "changes_no_bit"));
    lks__diff_print_rows(out, "evaluations only", json_object_get(report, "changes_evaluations"));
    lks__diff_print_rows(out, steps ? "no effect so far" : "can change bits",
                         json_object_get(report, "can_change_bits"));
    print_data(out, json_object_get(report, "data"));
    if (steps)
        print_same(out, report, same ? "run" : "steps");
    else
        print_first(out, report);
    if (steps && !same)
        print_evaluation(out, report, "Only evaluations differ,");
    lks__diff_print_place(out, report);
}
