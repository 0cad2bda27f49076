/* tools/commands/info.h - `lockstep info DATA` and `lockstep info RUN`. */
#pragma once

#include <stdbool.h>

/* True if `folder` contains tokens, and no run. */
bool info_is_data(const char *folder);
/* Print the kind and the number of the tokens in `folder`. Returns the exit code. */
int info_data(const char *folder);
/* Print the model, data, losses and state of the run in `folder`, which may be one of its
 * checkpoints. Returns the exit code. */
int info_run(const char *folder);
