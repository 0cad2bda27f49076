/* tools/tool.h - settings, ranks, messages and exit codes of the commands. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/status.h"
#include "commands.h"
#include "session/session.h"
#include "settings/settings.h"

enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,
    TOOL_USAGE = 2,      /* a command or a setting is unknown, mistyped or out of range */
    TOOL_DIFFERENT = 3,  /* diff: the runs differ; audit: a claim of the record is false */
    TOOL_IMPOSSIBLE = 4, /* audit: a step can't be executed here */
    TOOL_SIGNAL = 128,   /* + n: ended by signal n */
};

/* argv[0] is the command's name. Returns the exit code. */
typedef int tool_main(int argc, char **argv);

#define X(name, flags, help) tool_main tool_##name;
TOOL_COMMANDS(X)
#undef X

/* Print "lockstep NAME: " and the last error to stderr, with this process's rank if there are
 * several. Returns the exit code for `st`. Prints nothing if another rank failed and lockstep's
 * launcher reports which. */
int tool_fail(const char *name, lks_status st);

/* Read defaults, then config files, then arguments: at most `max_positional` of them are positional
 * (settings/settings.h), and the command checks that these are enough. Returns false after printing
 * help or an error: exit with *exit_p then. --help prints `usage` above the list of settings. */
bool tool_settings(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   int max_positional, lks__settings *s, lks__args *args, int *exit_p);

/* True if a launcher started this process as a rank. A rank starts no others. */
bool tool_is_rank(void);
/* True if this process prints messages that concern all ranks. That is rank 0. With a foreign
 * launcher it is every rank, because rank 0 may never start. */
bool tool_speaks(void);

/* True if this command must start ranks. */
bool tool_launches(const lks__settings *s);
/* Start ranks as `s` requests, and wait for them. Returns the exit code. */
int tool_launch(const char *name, const lks__settings *s, int argc, char **argv);

/* Let SIGINT, SIGTERM and SIGHUP end this thread's work at its next lks__sys_stop_check(). For
 * commands that leave nothing half done. */
void tool_stoppable(void);
/* Print the name and size of the file that the command has written to stderr. For a folder: of its
 * weights. */
void tool_wrote(const char *name, const char *path);
/* True if stdout is a pipe that nobody reads any more. */
bool tool_reader_left(void);
/* Flush stdout. ERR_IO if any output couldn't be written, unless its reader has left. */
lks_status tool_flush(void);
/* Print a report to stdout. */
lks_status tool_print_json(const json_t *report);
/* Print "stopped by SIGTERM: " and `left`, a sentence about the remaining state, to stderr. Returns
 * the exit code. */
int tool_stopped(const char *name, int signo, const char *left);

/* Print to stderr which installed recipe is used, and which given settings are not used. */
void tool_print_notes(const char *name, const lks__args *args);
/* Print to stderr, on rank 0, why `auto` left out a device that the user may have expected. */
void tool_print_device_note(const char *name, const lks__session *session);
