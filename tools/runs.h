/* tools/runs.h - runs that a command line names. */
#ifndef LKS_TOOLS_RUNS_H
#define LKS_TOOLS_RUNS_H

#include "report/view/series.h"
#include "settings/settings.h"

typedef struct tool_runs {
    lks__series *all;
    size_t n;
} tool_runs;

/* Open the runs that the command line names: in place of a folder that is no run, those in it,
 * which are named on stderr. ERR_CONFIG if there are none; close in any case. */
lks_status tool_runs_open(const char *tool, const lks__args *args, tool_runs *runs);
/* ERR_IO, with what to do, unless `folder` has a checkpoint or is one. */
lks_status tool_run_check(const char *command, const char *folder);
/* The newest run in the folder `out`, as a shell reads it, for a message; "out/my" if there is
 * none. Returns `out`. */
const char *tool_run_example(char out[600]);
/* Does the terminal of this locale show UTF-8? */
bool tool_utf8(void);
void tool_runs_close(tool_runs *runs);

#endif
