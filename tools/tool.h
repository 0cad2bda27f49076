/* tools/tool.h - what the commands of `lockstep` share. */
#ifndef LKS_TOOLS_TOOL_H
#define LKS_TOOLS_TOOL_H

#include <stdbool.h>

#include "base/status.h"
#include "train/settings.h"

enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,
    TOOL_USAGE = 2,    /* a command or a setting is unknown, mistyped or out of range */
    TOOL_SIGNAL = 128, /* + n: ended by signal n */
};

/* argv[0] is the command's name, NULL ends it; returns the exit code. */
typedef int tool_main(int argc, char **argv);

tool_main tool_prep, tool_run;

/* "lockstep NAME: " and the last error on stderr; returns the exit code for `st`. */
int tool_fail(const char *name, lks_status st);

/* Defaults, then config files and arguments. true: go on; false: end with *exit_p (help was asked
 * for and printed, or an error was). `usage` is the text above the list of settings. */
bool tool_settings(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   int max_positional, lks__settings *s, lks__args *args, int *exit_p);

/* List on stderr what was read and is not used. */
void tool_print_notes(const char *name, const lks__args *args);

#endif
