/* tools/train/train_text.h - `lockstep train TEXT`. */
#ifndef LKS_TOOLS_TRAIN_TRAIN_TEXT_H
#define LKS_TOOLS_TRAIN_TRAIN_TEXT_H

#include "settings/settings.h"

/* Prepare the text args->positional[0] in OUT/data, choose settings for it, print the longer
 * commands, and replace this process by `lockstep train` with them. Returns the exit code if that
 * fails. */
int train_text(int argc, char **argv, const lks__settings *given, const lks__args *args);

#endif
