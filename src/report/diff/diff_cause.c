/* report/diff/diff_cause.c - prints the place in a step, the cause of a difference and its remedy.
 */

#include "base/text/jsontext.h"
#include "base/text/shell.h"
#include "report/diff/diff.h"
#include "report/diff/facts.h"
#include "report/diff/show.h"
#include "report/diff/trails.h"

#define word_of(report, side) lks__quoted(lks__json_str(report, side), LKS__SHOWN)

/* Print how to find out which of two records this machine computes. */
static void print_audits(FILE *out, const json_t *report)
{
    const json_t *gradient = json_object_get(json_object_get(report, "gradients"), "first");
    const json_t *first = json_is_object(gradient) ? gradient : json_object_get(report, "first");
    if (strcmp(lks__json_str(report, "kind"), "run") == 0 && json_is_object(first))
        fprintf(out,
                "%-*s`lockstep audit %s --step=%" JSON_INTEGER_FORMAT
                "`, and the same for %s, compute that step again\n",
                LKS__LABEL, "", word_of(report, "a"), lks__json_int(first, "iter"),
                word_of(report, "b"));
}

static void print_execution(FILE *out, const json_t *execution)
{
    if (json_is_true(json_object_get(execution, "begun")))
        fprintf(out, "%-*snot possible here: %s\n", LKS__LABEL, "",
                lks__show_reason(execution, "why_not"));
    else if (json_object_get(execution, "why_not") != NULL)
        fprintf(out, "%-*sstep %" JSON_INTEGER_FORMAT " isn't executed again: %s\n", LKS__LABEL,
                "execution", lks__json_int(execution, "step"),
                lks__show_reason(execution, "why_not"));
    else if (json_is_null(json_object_get(execution, "place")))
        fprintf(out, "%-*sall %" JSON_INTEGER_FORMAT " results of the step are equal\n", LKS__LABEL,
                "place", lks__json_int(execution, "entries"));
    else
        lks__diff_print_place(out, execution);
}

/* Print each record that the execution refutes. */
static void print_false(FILE *out, const json_t *report)
{
    const json_t *execution = json_object_get(report, "execution");
    lks__each(row, json_object_get(execution, "false")) {
        const char *side = lks__json_str(row, "run");
        fprintf(out, "%-*s%s's record doesn't follow from its settings: %s\n", LKS__LABEL, "cause",
                side[0] == 'a' ? "A" : "B", lks__show_member(row, "claim"));
        fprintf(out,
                "%-*sit was computed wrongly then, or its record was changed; `lockstep audit %s "
                "--step=%" JSON_INTEGER_FORMAT "` repeats this\n",
                LKS__LABEL, "", word_of(report, side), lks__json_int(execution, "step"));
    }
}

/* Print the command that makes the runs equal. */
static void print_remedy(FILE *out, const json_t *remedy)
{
    char text[LKS__SHOWN];
    const char *run = lks__json_str(remedy, "run");
    if (json_object_get(remedy, "why_not") != NULL)
        fprintf(out, "%-*snot possible here: %s\n", LKS__LABEL, "remedy",
                lks__show_reason(remedy, "why_not"));
    if (run == NULL)
        return;
    const bool is_a = run[0] == 'a';
    if (json_is_null(json_object_get(remedy, "resumed")))
        fprintf(out, "%-*sthis command trains %c again, as the same run as %c:\n", LKS__LABEL,
                "remedy", "BA"[is_a], "AB"[is_a]);
    else
        fprintf(out,
                "%-*sthis command continues %c from checkpoint %" JSON_INTEGER_FORMAT
                " as the same run as %c, and keeps %c's later steps in a folder earlier-N:\n",
                LKS__LABEL, "remedy", "BA"[is_a], lks__json_int(remedy, "resumed"), "AB"[is_a],
                "BA"[is_a]);
    fprintf(out, "%-*s%s", LKS__LABEL, "", lks__shell_program(text, sizeof text));
    lks__each(word, json_object_get(remedy, "command"))
        fprintf(out, " %s", lks__quoted(json_string_value(word), LKS__SHOWN));
    fputc('\n', out);
}

/* "train token 812 is 17 | 12, read first in step 3". If no such step comes before the first
 * difference, other lengths explain it: "train has 900 | 901 tokens". */
static void print_data_cause(FILE *out, const json_t *report)
{
    const json_t *splits = json_object_get(json_object_get(report, "data"), "splits");
    const json_t *split = json_array_get(splits, 0);
    const json_t *read = json_array_get(json_object_get(split, "read"), 0);
    const json_t *lengths = json_object_get(split, "tokens");
    const json_t *a = json_array_get(lengths, 0), *b = json_array_get(lengths, 1);
    const json_t *first = json_object_get(report, "first");
    const bool is_read = json_is_object(read);
    const bool late =
        json_is_object(first) && lks__json_int(first, "iter") < lks__json_int(read, "step");
    fprintf(out, "%-*sthe data differ", LKS__LABEL, "cause");
    if (split != NULL)
        fprintf(out, ": %s ", lks__show_member(split, "split"));
    if (split != NULL && (!is_read || late) && !json_equal(a, b)) {
        fprintf(out, "has %s | %s tokens, so samplers can draw other positions\n",
                lks__show_value(a), lks__show_value(b));
        return;
    }
    if (split != NULL) {
        const json_t *token = is_read ? read : split, *ids = json_object_get(token, "ids");
        fprintf(out, "token %" JSON_INTEGER_FORMAT " is %s | %s", lks__json_int(token, "token"),
                lks__show_value(json_array_get(ids, 0)), lks__show_value(json_array_get(ids, 1)));
    }
    if (is_read)
        fprintf(out, ", read first in step %" JSON_INTEGER_FORMAT, lks__json_int(read, "step"));
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
    char text[256], word[LKS__SHOWN];
    lks__each(row, rows) {
        if (!is_setting(row))
            continue;
        snprintf(word, sizeof word, "--%s=%s", lks__json_str(row, "name"),
                 lks__json_text(json_object_get(row, "a"), text));
        fprintf(out, " %s", lks__quoted(word, LKS__SHOWN));
    }
    fputc('\n', out);
}

/* Print the next step after a comparison of two trails, whose runs aren't available. */
static void print_next(FILE *out, const json_t *report, const json_t *rows)
{
    const json_t *entry = json_object_get(json_object_get(report, "place"), "a");
    const char *what = lks__json_str(entry, "what");
    const char *phase = what != NULL ? lks__trail_phase(what) : "";
    bool any = false;
    lks__each(row, rows)
        any |= is_setting(row);
    fprintf(out, "%-*s", LKS__LABEL, "remedy");
    if (any) {
        fputs("train B again with A's settings:", out);
        print_settings(out, rows);
    } else if (strcmp(phase, "before the step") == 0) {
        fputs(lks__json_int(report, "step") > 0
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

/* Print how two machines compare a step that this one can't execute, if machines differ. */
static void print_trails(FILE *out, const json_t *report, const json_t *rows)
{
    size_t n = 0;
    lks__each(row, rows)
        n += lks__facts_machine(row);
    if (n > 0)
        fprintf(out,
                "%-*s`lockstep audit %s --step=%" JSON_INTEGER_FORMAT
                " --trail=FILE` on that run's machine, the same for B, and `lockstep diff` of both "
                "files find the place\n",
                LKS__LABEL, "next", word_of(report, "a"),
                lks__json_int(json_object_get(report, "execution"), "step"));
}

/* No recorded fact differs. */
static void print_unknown(FILE *out, const json_t *report)
{
    static const char *const sources[][2] = {
        {"run", "the records"}, {"checkpoint", "state.json"}, {"trail", "the trails' first lines"}};
    const char *kind = lks__json_str(report, "kind"), *source = NULL;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        if (strcmp(sources[i][0], kind) == 0)
            source = sources[i][1];
    if (json_is_true(json_object_get(report, "by_clock"))) {
        fprintf(
            out,
            "%-*sperhaps the clock: with max_wallclock_seconds, learning rates and the last step "
            "follow it; with --max_wallclock_seconds=0 they don't\n",
            LKS__LABEL, "cause");
        return;
    }
    if (source == NULL)
        fprintf(out, "%-*snot known, because files of weights don't tell how they were made\n",
                LKS__LABEL, "cause");
    else
        fprintf(out, "%-*sno setting, data, commit or device in %s differs\n", LKS__LABEL, "cause",
                source);
    if (lks__diff_same_steps(report))
        fprintf(out, "%-*s`lockstep audit %s`, and the same for %s, evaluate again\n", LKS__LABEL,
                "", word_of(report, "a"), word_of(report, "b"));
    else
        print_audits(out, report);
}

static void print_explanation(FILE *out, const json_t *report, const json_t *rows)
{
    const size_t n = json_array_size(rows);
    const char *name = lks__json_str(json_array_get(rows, 0), "name");
    if (n == 0) {
        print_unknown(out, report);
    } else if (n == 1 && lks__facts_data(name)) {
        print_data_cause(out, report);
    } else if (n == 1) {
        lks__diff_print_rows(out, "cause", rows);
    } else {
        fprintf(out, "%-*sone or more of these %zu:\n", LKS__LABEL, "cause", n);
        lks__diff_print_rows(out, "", rows);
    }
    if (json_object_get(json_object_get(report, "execution"), "why_not") != NULL)
        print_trails(out, report, rows);
    print_remedy(out, json_object_get(report, "remedy"));
    if (strcmp(lks__json_str(report, "kind"), "trail") == 0)
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
    else if (json_is_null(json_object_get(execution, "place")))
        fprintf(out, "%-*sA's or B's record doesn't follow from its run\n", LKS__LABEL, "cause");
    else
        print_explanation(out, report, rows);
    json_decref(rows);
}
