/* data/staged.h - files that appear together: all are complete on the disk, under names beside
 * theirs, before the first takes its own. A full disk leaves the folder as it was, instead of new
 * tokens beside an old vocabulary. */
#ifndef LKS_DATA_STAGED_H
#define LKS_DATA_STAGED_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__staged {
    const char *dir; /* lives as long as this does */
    char **from, **to;
    int n, room;
} lks__staged; /* {.dir = …} is an empty one */

/* Write one, aside. */
lks_status lks__staged_add(lks__staged *staged, const char *name, const void *data, size_t bytes);
/* Give all their names, in the order in which they were added, and sync the folder. On failure all
 * names have what they had before. */
lks_status lks__staged_commit(lks__staged *staged);
bool lks__staged_has(const lks__staged *staged, const char *name);
/* Frees; what was not committed goes. */
void lks__staged_close(lks__staged *staged);

#endif
