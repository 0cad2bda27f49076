/* session/trace_file.h - `--trace=FILE`: the spans of all ranks as one file that chrome://tracing
 * and Perfetto open. */
#ifndef LKS_SESSION_TRACE_FILE_H
#define LKS_SESSION_TRACE_FILE_H

#include <stdbool.h>

#include "base/trace.h"
#include "session/session.h"

typedef struct lks__trace_file {
    lks__trace *recorder; /* NULL: nothing was asked for */
    const char *path;
    int fd;    /* rank 0; -1 elsewhere */
    bool made; /* it wasn't there before */
} lks__trace_file;

/* Begin to record, in memory of fixed size. An empty `path` (kept, not copied): nothing. */
lks_status lks__trace_file_start(lks__trace_file *f, const char *path);
/* Collective. The file is opened now, so that a run doesn't end by learning that it can't be. */
lks_status lks__trace_file_open(lks__trace_file *f, lks__session *s);
/* Collective: gather what the ranks have recorded, and write it on rank 0. *dropped_p: events that
 * didn't fit into a rank's ring, over all ranks. The file says so, too. */
lks_status lks__trace_file_write(lks__trace_file *f, lks__session *s, uint64_t *dropped_p);
/* Any time, also after a failure; a file that was made and not written is taken away. */
void lks__trace_file_close(lks__trace_file *f);

#endif
