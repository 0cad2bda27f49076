/* lockstep plot: draws the losses of runs. */
#include <stdio.h>

#include "../runs.h"
#include "../tool.h"
#include "report/plot/plot.h"

static const char usage[] =
    "Usage: lockstep plot [--out=FILE.svg|FILE.png] [--axis=steps|tokens|time]\n"
    "                     [--log_scale] RUN…\n"
    "\n"
    "Draws the training and validation losses of runs, into a file or, without --out,\n"
    "as text. RUN is a run's folder, a folder of runs, or NAME=FOLDER.\n"
    "\n"
    "  lockstep plot --out=loss.svg small=out/small large=out/large\n";

static lks_status plot(const lks__settings *s, tool_runs *runs)
{
    const lks__plot p = {.runs = runs->all,
                         .n = runs->n,
                         .axis = (lks__plot_axis)s->axis, /* both in the same order */
                         .log_scale = s->log_scale};
    if (s->out[0] != '\0') {
        LKS__TRY(lks__plot_file(&p, s->out));
        tool_wrote("plot", s->out);
        return LKS_OK;
    }
    LKS__TRY(lks__plot_text(&p, stdout, tool_columns(80), tool_utf8()));
    return tool_flush();
}

int tool_plot(int argc, char **argv)
{
    return tool_runs_main("plot", LKS__CMD_PLOT, usage, argc, argv, plot);
}
