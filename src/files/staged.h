/* files/staged.h - replaces several files together: all are complete on disk, under temporary
 * names, before the first old one is moved away. So a full disk leaves the folder unchanged, and a
 * folder never combines new tokens with an old vocabulary. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__staged_file {
    char *to, *old; /* its name, and the name of the old file until all new ones are in place */
    char *from;     /* temporary name; NULL: the old file is removed, without a new one */
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
/* Let the commit remove the folder's other files that readers would combine with the new ones:
 * those for which is_other() is true, and temporary files of killed processes, of either kind. Call
 * it after adding all new files, at least two. */
lks_status lks__staged_others(lks__staged *staged,
                              bool (*is_other)(const char *name, const void *ctx), const void *ctx);
/* Move the old files away, then give the new ones their names, and sync the folder. The first file
 * that was added is moved away first and is in place last, the last one the other way round:
 * without the first, readers must refuse the folder. On failure every name has its old file again,
 * or the message names its backup. */
lks_status lks__staged_commit(lks__staged *staged);
/* Free the set, and remove files that were not committed. */
void lks__staged_close(lks__staged *staged);
