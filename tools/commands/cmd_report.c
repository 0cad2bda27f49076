/* lockstep report: compares runs. */
#include <stdio.h>

#include "../runs.h"
#include "../tool.h"
#include "report/view/compare.h"

static const char usage[] =
    "Usage: lockstep report [--json | --markdown | --csv] RUN…\n"
    "\n"
    "Compares runs: losses, speed, memory and resumes, the settings that differ, and\n"
    "the losses at equal steps and at equal times. RUN is a run's folder, a folder of\n"
    "runs, or NAME=FOLDER.\n"
    "\n"
    "Runs that differ only in the seed form a group. The report shows a group's mean\n"
    "and spread, and whether its difference to another group is more than chance\n"
    "(Welch's t test). With --margin the test is one-sided: is the later group lower\n"
    "by more than the margin?\n"
    "\n"
    "  lockstep report out/small out/large\n"
    "  lockstep report --metric=artifact_loss --margin=0.005 --alpha=0.01 \\\n"
    "                  out/record out/mine-*\n";

static lks_status report(const lks__settings *s, tool_runs *runs)
{
    json_t *report;
    if (s->json + s->markdown + s->csv > 1)
        return lks__fail(LKS_ERR_CONFIG, "give only one of --json, --markdown and --csv");
    const lks__compare_how how = {
        .metric = (lks__compare_metric)s->metric,
        .one_sided = s->from[LKS__SETTING_margin] >= LKS__FROM_FILE,
        .margin = s->margin,
        .alpha = s->alpha,
    };
    LKS__TRY(lks__compare(runs->all, runs->n, &how, &report));
    const lks_status st = s->json ? tool_print_json(report)
                                  : lks__compare_print(stdout, report,
                                                       s->markdown ? LKS__COMPARE_MARKDOWN
                                                       : s->csv    ? LKS__COMPARE_CSV
                                                                   : LKS__COMPARE_TEXT,
                                                       tool_columns(120));
    json_decref(report);
    LKS__TRY(st);
    for (size_t i = 0; i < runs->n; i++)
        if (runs->all[i].bad > 0)
            fprintf(stderr,
                    "lockstep report: lines of run %zu that are not a run's were left out: %zu\n",
                    i + 1, runs->all[i].bad);
    return tool_flush();
}

int tool_report(int argc, char **argv)
{
    return tool_runs_main("report", LKS__CMD_REPORT, usage, argc, argv, report);
}
