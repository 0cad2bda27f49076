/* tools/runs.h - the runs that a command line names. */
#pragma once

#include "report/view/series.h"
#include "settings/settings.h"

typedef lks__runs tool_runs;

/* The main function of a command about runs. Open the runs that the command line names, call
 * run(), and return the exit code. For a folder of runs, open the runs in it, and print their names
 * to stderr. Only a page or a screen of `watch` may begin without a run. */
int tool_runs_main(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   lks_status (*run)(const lks__settings *s, tool_runs *runs));
/* ERR_CONFIG, with a run as an example, unless `folder` is a folder. */
lks_status tool_run_folder(const char *command, const char *folder);
/* ERR_IO, with a remedy, unless `folder` has a checkpoint or is one. */
lks_status tool_run_check(const char *command, const char *folder);
/* The newest run in the folder `out`, quoted for a shell, as an example in messages; "out/my" if
 * there is none. Returns `out`. */
const char *tool_run_example(char out[600]);
/* True if the locale's terminal shows UTF-8. */
bool tool_utf8(void);
/* Columns of the terminal; without one COLUMNS, else `otherwise`. */
int tool_columns(int otherwise);
