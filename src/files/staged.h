/* files/staged.h - replaces several files together: all are complete on disk, under temporary
 * names, before the first one is renamed. So a full disk leaves the folder unchanged, instead of
 * combining new tokens with an old vocabulary. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__staged_file {
    char *from, *to;
} lks__staged_file;

typedef struct lks__staged {
    const char *dir; /* must stay valid while this is open */
    lks__staged_file *files;
    size_t n, room;
} lks__staged; /* {.dir = …} is an empty set */

/* Add a file that the caller writes under the temporary name *from_p. */
lks_status lks__staged_name(lks__staged *staged, const char *name, const char **from_p);
/* Write one file under a temporary name. */
lks_status lks__staged_add(lks__staged *staged, const char *name, const void *data, size_t bytes);
/* Create a file under a temporary name. The caller writes and syncs it, and closes *fd_p. */
lks_status lks__staged_open(lks__staged *staged, const char *name, int *fd_p);
/* Rename all files, in the order in which they were added, and sync the folder. On failure every
 * name has its old file again, or the message names its backup. */
lks_status lks__staged_commit(lks__staged *staged);
bool lks__staged_has(const lks__staged *staged, const char *name);
/* Free the set, and remove files that were not committed. */
void lks__staged_close(lks__staged *staged);
