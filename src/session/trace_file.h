/* session/trace_file.h - `--trace=FILE`: writes the spans of all ranks into one file for
 * chrome://tracing and Perfetto. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/trace.h"
#include "session/session.h"

typedef struct lks__trace_file {
    lks__trace *recorder; /* NULL: no trace was requested */
    const char *path;
    FILE *file; /* on rank 0; NULL on others */
    bool made;  /* the file is new */
} lks__trace_file;

/* Begin to record, in memory of fixed size. Does nothing if `path` (kept, not copied) is empty. */
lks_status lks__trace_file_start(lks__trace_file *f, const char *path);
/* Collective. Opens the file now, so that a run doesn't fail only at its end. */
lks_status lks__trace_file_open(lks__trace_file *f, lks__session *s);
/* Collective: gather the events of all ranks, and write them on rank 0. *dropped_p: number of
 * events that didn't fit into the ranks' rings; the file contains it, too. */
lks_status lks__trace_file_write(lks__trace_file *f, lks__session *s, uint64_t *dropped_p);
/* May be called at any time, also after a failure; removes a new file that was not written. */
void lks__trace_file_close(lks__trace_file *f);
