/* train/audit/trail_file.h - `lockstep audit --trail=FILE`. */
#ifndef LKS_TRAIN_AUDIT_TRAIL_FILE_H
#define LKS_TRAIN_AUDIT_TRAIL_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "train/audit/trail.h"

typedef struct lks__trail_file {
    const char *path; /* borrowed */
    FILE *file;       /* to `text` */
    char *text;
    size_t bytes;
    bool complete; /* `text` has the trail's end */
    lks__trail trail;
} lks__trail_file;

/* Collect a trail in memory for a new file, or in place of an older trail. ERR_CONFIG: the file
 * exists and isn't a trail. ERR_IO names it. Don't move `t` while it is open. */
lks_status lks__trail_file_open(const char *path, lks__trail_file *t);
/* Write the file if the trail is complete. A zeroed
 * one does nothing. */
lks_status lks__trail_file_close(lks__trail_file *t);

#endif
