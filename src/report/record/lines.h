/* report/record/lines.h - the lines of a file of JSON objects one by one. Memory doesn't grow with
 * the file. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/system/sys.h"

typedef struct lks__lines {
    char path[LKS__SYS_PATH];
    int fd;
    char *chunk;
    size_t have, at, next; /* bytes in `chunk`; where the current line begins, and the next one */
    uint64_t offset;       /* of chunk[0] in the file */
    uint64_t bytes;        /* size of the file when it was opened */
    /* Comparing two records, which are mostly equal. `untimed`: leave out the times of a train
     * line, its last members. `twin`: an object of the other record is used again for the same
     * line. */
    bool untimed;
    const struct lks__lines *twin;
    json_t *object; /* of the current line if it is a train line without times, else NULL, */
    size_t length;  /* and its text's */
} lks__lines;

/* Members that tell a step's times, at the end of its line; NULL after the last. */
extern const char *const lks__lines_times[];

/* Open a regular file; a link isn't followed. ERR_IO names it. */
lks_status lks__lines_open(const char *path, lks__lines *l);
/* Read the next complete line, without its line feed; NULL: none is left. Valid until the next
 * call. A line longer than 1 MiB, which lockstep doesn't write, comes in pieces of that size. */
lks_status lks__lines_text(lks__lines *l, char **text_p, size_t *bytes_p);
/* Read the next complete line as an object, which the caller frees; NULL: none is left. ERR_FORMAT
 * names the offset of a line that isn't one. */
lks_status lks__lines_next(lks__lines *l, json_t **object_p);
/* ERR_FORMAT for the current line, which `what` describes: "has no \"iter\"". */
lks_status lks__lines_bad(const lks__lines *l, const char *what);
void lks__lines_close(lks__lines *l); /* a zeroed one does nothing */
