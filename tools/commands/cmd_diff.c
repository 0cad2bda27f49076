/* lockstep diff: finds the first difference between two runs. */
#include <stdio.h>
#include <stdlib.h>

#include "../tool.h"
#include "base/text/jsontext.h"
#include "report/diff/diff.h"
#include "train/audit/place.h"
#include "train/audit/reads.h"
#include "train/audit/remedy.h"

static const char usage[] =
    "Usage: lockstep diff RUN_A RUN_B [--execute=STEPS] [--dataset=DIR] [--json]\n"
    "\n"
    "Finds the first difference between two runs: prints in which settings, data and machines "
    "they\n"
    "differ, and the first step whose loss, gradient norm or weights differ. Both are runs'\n"
    "folders, checkpoints (RUN/ckpt-N), .safetensors files, or trails that `lockstep audit\n"
    "--trail` wrote. For checkpoints and files it prints the first tensor and element that "
    "differ,\n"
    "for trails the first result. Nothing is written.\n"
    "\n"
    "For runs, it then executes the first step that differs again, for each run from its nearest\n"
    "checkpoint or its seed, and prints the first result that differs: virtual rank, micro-batch,\n"
    "forward or backward, module or tensor, and element. At most --execute=100 steps of each.\n"
    "\n"
    "The exit code is 0 if both are the same, and 3 if they differ.\n"
    "\n"
    "  lockstep diff out/mine out/theirs\n"
    "  lockstep diff out/mine/ckpt-00000020 out/theirs/ckpt-00000020\n";

static lks_status print_json(const json_t *report)
{
    char *text = lks__json_dump(report, JSON_INDENT(1));
    LKS__MEMORY(text, "for the report");
    puts(text);
    free(text);
    return LKS_OK;
}

/* Execution can take long, so the records' part is printed before it. */
static lks_status compare(const char *a, const char *b, const lks__settings *s,
                          lks__history both[2], json_t **report_p)
{
    LKS__TRY(lks__diff(a, b, both, report_p));
    LKS__TRY(lks__reads_diff(both, s, *report_p));
    if (!s->json)
        lks__diff_print(stdout, *report_p);
    LKS__TRY(lks__place_diff(both, s, s->json ? stderr : stdout, *report_p));
    LKS__TRY(lks__remedy_add(both, s, *report_p));
    if (s->json)
        LKS__TRY(print_json(*report_p));
    else
        lks__diff_print_cause(stdout, *report_p);
    return tool_flush();
}

int tool_diff(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    json_t *report = NULL;
    lks__history both[2] = {{.run = NULL}, {.run = NULL}};
    int code;
    if (!tool_settings("diff", LKS__CMD_DIFF, usage, argc, argv, LKS__ARGS_POSITIONAL, &s, &args,
                       &code))
        return code;
    const lks_status st = args.n_positional == 2
                              ? compare(args.positional[0], args.positional[1], &s, both, &report)
                              : lks__fail(LKS_ERR_CONFIG, "give two runs to compare, for example "
                                                          "`lockstep diff out/mine out/theirs`");
    code = st != LKS_OK ? tool_fail("diff", st) : lks__diff_same(report) ? TOOL_OK : TOOL_DIFFERENT;
    json_decref(report);
    lks__history_close(&both[0]);
    lks__history_close(&both[1]);
    return code;
}
