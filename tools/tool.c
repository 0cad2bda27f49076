#include "tool.h"

#include <stdio.h>

int tool_fail(const char *name, lks_status st)
{
    fflush(stdout); /* first what came first */
    fprintf(stderr, "lockstep %s: %s\n", name, lks_last_error());
    return st == LKS_ERR_CONFIG ? TOOL_USAGE : TOOL_FAILED;
}

bool tool_settings(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   int max_positional, lks__settings *s, lks__args *args, int *exit_p)
{
    lks__settings_defaults(s);
    lks_status st = lks__settings_parse(s, command, argc - 1, argv + 1, max_positional, args);
    if (st != LKS_OK) {
        *exit_p = tool_fail(name, st);
        return false;
    }
    if (args->help) {
        fputs(usage, stdout);
        lks__settings_help(stdout, command);
        *exit_p = TOOL_OK;
        return false;
    }
    return true;
}

void tool_print_notes(const char *name, const lks__args *args)
{
    int n = args->n_notes < LKS__ARGS_NOTES ? args->n_notes : LKS__ARGS_NOTES;
    for (int i = 0; i < n; i++)
        fprintf(stderr, "lockstep %s: not used here: %s\n", name, args->notes[i]);
    if (n < args->n_notes)
        fprintf(stderr, "lockstep %s: not used here: %d more\n", name, args->n_notes - n);
}
