/* tools/tool.h - what the commands of `lockstep` share. */
#ifndef LKS_TOOLS_TOOL_H
#define LKS_TOOLS_TOOL_H

#include <stdbool.h>

#include "base/status.h"
#include "commands.h"
#include "session/session.h"
#include "settings/settings.h"

enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,
    TOOL_USAGE = 2,    /* a command or a setting is unknown, mistyped or out of range */
    TOOL_SIGNAL = 128, /* + n: ended by signal n */
};

/* argv[0] is the command's name, NULL ends it; returns the exit code. */
typedef int tool_main(int argc, char **argv);

#define X(name, flags, help) tool_main tool_##name;
TOOL_COMMANDS(X)
#undef X

/* Print "lockstep NAME: " (with this process's rank, if there are several) and the last error to
 * stderr; returns the exit code for `st`. Prints nothing if another rank failed and lockstep's
 * launcher reports which. */
int tool_fail(const char *name, lks_status st);

/* Read defaults, then config files, then arguments. True: go on; false: exit with *exit_p, because
 * help was requested and printed, or because of an error. `usage` is the text above the list of
 * settings. */
bool tool_settings(const char *name, unsigned command, const char *usage, int argc, char **argv,
                   int max_positional, lks__settings *s, lks__args *args, int *exit_p);

/* Was this process started as a rank (is RANK set)? Then it starts none itself. */
bool tool_is_rank(void);
/* May this process say what all ranks know? Rank 0 does, and ranks of another launcher: one may
 * wait for a rank 0 that never starts. */
bool tool_speaks(void);

/* Must this command start ranks of itself? */
bool tool_launches(const lks__settings *s);
/* Start ranks as `s` requests, and wait for them; returns the exit code. */
int tool_launch(const char *name, const lks__settings *s, int argc, char **argv);

/* For commands that leave nothing half done: from now on SIGINT, SIGTERM and SIGHUP end this
 * thread's work at its next piece (base/system/sys.h). */
void tool_stoppable(void);
/* Name the file that the command has written, and its size, on stderr. Of a folder: its weights'.
 */
void tool_wrote(const char *name, const char *path);
/* Has all that was printed been written? ERR_IO with the cause. */
lks_status tool_flush(void);
/* Print "stopped by SIGTERM: " and `left`, which tells what remains, to stderr; returns the exit
 * code. */
int tool_stopped(const char *name, int signo, const char *left);

/* Print to stderr which installed recipe is used, and what was given but is not used. */
void tool_print_notes(const char *name, const lks__args *args);
/* On rank 0: why `auto` left out a device that the user may have expected. */
void tool_print_device_note(const char *name, const lks__session *session);

#endif
