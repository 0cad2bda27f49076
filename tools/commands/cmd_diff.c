/* lockstep diff: finds the first difference between two runs. */
#include <stdio.h>
#include <stdlib.h>

#include "../tool.h"
#include "base/text/jsontext.h"
#include "report/diff/diff.h"
#include "train/audit/reads.h"

static const char usage[] =
    "Usage: lockstep diff RUN_A RUN_B [--json]\n"
    "\n"
    "Finds the first difference between two runs: prints in which settings, data and machines "
    "they\n"
    "differ, and the first step whose loss, gradient norm or weights differ. Both are runs'\n"
    "folders, checkpoints (RUN/ckpt-N), .safetensors files, or trails that `lockstep audit\n"
    "--trail` wrote. For checkpoints and files it prints the first tensor and element that "
    "differ,\n"
    "for trails the first result. Nothing is executed or written.\n"
    "\n"
    "The exit code is 0 if both are the same, and 3 if they differ.\n"
    "\n"
    "  lockstep diff out/mine out/theirs\n"
    "  lockstep diff out/mine/ckpt-00000020 out/theirs/ckpt-00000020\n";

enum { DIFFER = 3 };

static lks_status print(const lks__settings *s, const json_t *report)
{
    char *text = s->json ? lks__json_dump(report, JSON_INDENT(1)) : NULL;
    if (s->json && text == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the report");
    if (s->json)
        puts(text);
    else {
        lks__diff_print(stdout, report);
        lks__diff_print_cause(stdout, report);
    }
    free(text);
    return tool_flush();
}

int tool_diff(int argc, char **argv)
{
    lks__settings s;
    lks__args args;
    json_t *report = NULL;
    int code;
    if (!tool_settings("diff", LKS__CMD_DIFF, usage, argc, argv, LKS__ARGS_POSITIONAL, &s, &args,
                       &code))
        return code;
    lks_status st = args.n_positional == 2
                        ? lks__diff(args.positional[0], args.positional[1], &report)
                        : lks__fail(LKS_ERR_CONFIG, "give two runs to compare, for example "
                                                    "`lockstep diff out/mine out/theirs`");
    if (st == LKS_OK)
        st = lks__reads_diff(args.positional[0], args.positional[1], report);
    if (st == LKS_OK)
        st = print(&s, report);
    code = st != LKS_OK ? tool_fail("diff", st) : lks__diff_same(report) ? TOOL_OK : DIFFER;
    json_decref(report);
    return code;
}
