/* lockstep diff: finds the first difference between two runs. */
#include <stdio.h>

#include "../tool.h"
#include "base/text/jsontext.h"
#include "report/diff/diff.h"
#include "train/audit/diff.h"

static const char usage[] =
    "Usage: lockstep diff RUN_A RUN_B [--execute=STEPS] [--dataset=DIR] [--json]\n"
    "\n"
    "Finds the first difference between two runs: prints in which settings, data and\n"
    "machines they differ, and the first step whose loss, gradient norm or weights\n"
    "differ. Both are runs' folders, checkpoints (RUN/ckpt-N), .safetensors files, or\n"
    "trails that `lockstep audit --trail` wrote. For checkpoints and files it prints\n"
    "the first tensor and element that differ, for trails the first result. Nothing\n"
    "is written.\n"
    "\n"
    "For runs, it then executes the first step that differs again, for each run from\n"
    "its nearest checkpoint or its seed, and prints the first result that differs:\n"
    "virtual rank, micro-batch, forward or backward, module or tensor, and element.\n"
    "At most --execute=100 steps of each.\n"
    "\n"
    "The exit code is 0 if both are the same, and 3 if they differ.\n"
    "\n"
    "  lockstep diff out/mine out/theirs\n"
    "  lockstep diff out/mine/ckpt-00000020 out/theirs/ckpt-00000020\n";

struct diff {
    const char *a, *b;
    const lks__settings *s;
    lks__history both[2];
    json_t *report;
    lks_status st;
};

static void compare_records(void *arg)
{
    struct diff *d = arg;
    d->st = lks__diff(d->a, d->b, d->both, &d->report);
    LKS__THEN(d->st, lks__reads_diff(d->both, d->s, d->report));
    if (d->st == LKS_OK && !d->s->json)
        lks__diff_print(stdout, d->report);
}

static void conclude(void *arg)
{
    struct diff *d = arg;
    d->st = lks__remedy_add(d->both, d->s, d->report);
    if (d->st == LKS_OK && d->s->json)
        d->st = tool_print_json(d->report);
    else if (d->st == LKS_OK)
        lks__diff_print_cause(stdout, d->report);
}

/* Call a part that makes much JSON: without memory it is left where it is. */
static lks_status call(void (*part)(void *diff), struct diff *d)
{
    return lks__json_in_memory(part, d) ? d->st : lks__no_memory("to compare runs");
}

/* Execution can take long, so the records' part is printed before it. */
static lks_status compare(struct diff *d)
{
    LKS__TRY(call(compare_records, d));
    LKS__TRY(lks__place_diff(d->both, d->s, d->s->json ? stderr : stdout, d->report));
    LKS__TRY(call(conclude, d));
    return tool_flush();
}

int tool_diff(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    int code;
    if (!tool_settings("diff", LKS__CMD_DIFF, usage, argc, argv, LKS__ARGS_POSITIONAL, &s, &args,
                       &code))
        return code;
    struct diff d = {.a = args.positional[0], .b = args.positional[1], .s = &s};
    const lks_status st = args.n_positional == 2
                              ? compare(&d)
                              : lks__fail(LKS_ERR_CONFIG, "give two runs to compare, for example "
                                                          "`lockstep diff out/mine out/theirs`");
    code = st != LKS_OK               ? tool_fail("diff", st)
           : lks__diff_same(d.report) ? TOOL_OK
                                      : TOOL_DIFFERENT;
    json_decref(d.report);
    lks__history_close(&d.both[0]);
    lks__history_close(&d.both[1]);
    return code;
}
