/* tools/commands/info_data.h - `lockstep info DATA`. */
#ifndef LKS_TOOLS_COMMANDS_INFO_DATA_H
#define LKS_TOOLS_COMMANDS_INFO_DATA_H

#include <stdbool.h>

/* True if `folder` contains tokens, and no run. */
bool info_is_data(const char *folder);
/* Print the kind and the number of the tokens in `folder`. Returns the exit code. */
int info_data(const char *folder);

#endif
