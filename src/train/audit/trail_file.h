/* train/audit/trail_file.h - `lockstep audit --trail=FILE`. */
#ifndef LKS_TRAIN_AUDIT_TRAIL_FILE_H
#define LKS_TRAIN_AUDIT_TRAIL_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "train/audit/trail.h"

typedef struct lks__trail_file {
    const char *path; /* borrowed */
    char *unfinished; /* the file's name until it is complete */
    FILE *file;
    bool complete; /* its end was written */
    lks__trail trail;
} lks__trail_file;

/* Create the file, or replace a trail when the new one is complete. ERR_CONFIG: the file exists and
 * isn't a trail. ERR_IO names it. Don't move `t` while it is open. */
lks_status lks__trail_file_open(const char *path, lks__trail_file *t);
/* Remove the file unless it is complete. A zeroed
 * one does nothing. */
lks_status lks__trail_file_close(lks__trail_file *t);

#endif
