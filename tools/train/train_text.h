/* tools/train/train_text.h - `lockstep train TEXT`. */
#ifndef LKS_TOOLS_TRAIN_TRAIN_TEXT_H
#define LKS_TOOLS_TRAIN_TRAIN_TEXT_H

#include "settings/settings.h"

/* The environment variable by which train_text() tells the process that it becomes where an earlier
 * run was moved; empty if there was none. */
#define TRAIN_TEXT_MOVED "LOCKSTEP_TRAIN_MOVED"

/* Prepare the text args->positional[0] in OUT/data, choose settings for it, print the longer
 * commands, and replace this process by `lockstep train` with them. Returns the exit code if that
 * fails. */
int train_text(int argc, char **argv, const lks__settings *given, const lks__args *args);

/* After a failure or stop of the longer command: if it has not begun a run in `out`, remove the
 * tokens that train_text() left there, and move the earlier run back from `moved`. */
void train_text_undo(const char *out, bool lock, const char *moved);

#endif
