/* report/diff/history.h - the lines of a run's metrics.jsonl one by one, in the order in which the
 * run wrote them, with the settings that held at each. */
#pragma once

#include "report/diff/claims.h"
#include "report/record/lines.h"

typedef struct lks__history {
    const char *run;  /* its folder, borrowed */
    lks__lines lines; /* of metrics.jsonl */
    /* Up to the current line: the config line, with the changes of resumes; the host line of the
     * newest start; and for each setting that a resume changed, the iteration. NULL before the
     * first such line. */
    json_t *settings, *host, *changed;
    json_t *line;
    lks__claims claims; /* of all lines so far, so that a record is read only once */
} lks__history;

/* Open RUN/metrics.jsonl. ERR_CONFIG if it is missing. A link isn't followed. */
lks_status lks__history_open(const char *run, lks__history *h);

/* Read the next line that has an iteration. *line_p is borrowed until the next call; NULL: none is
 * left. An incomplete last line, which the run is writing, isn't read. ERR_FORMAT names the offset
 * of a line that no run has written, and so does each further call. */
lks_status lks__history_next(lks__history *h, const json_t **line_p);
/* Read the rest for the claims. ERR_CONFIG if the record has no step. */
lks_status lks__history_finish(lks__history *h);

void lks__history_close(lks__history *h); /* a zeroed one does nothing */
