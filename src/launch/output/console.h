/* launch/output/console.h - the launcher's own stdout and stderr, only for output.c and
 * consoles.c. */
#ifndef LKS_LAUNCH_OUTPUT_CONSOLE_H
#define LKS_LAUNCH_OUTPUT_CONSOLE_H

#include "launch/output/output.h"
#include "launch/output/writer.h"

/* The launcher's own stdout or stderr. */
struct console {
    lks__writer *writer;
    int fd, sink; /* fd: a duplicate, because stdout may be closed while a thread is stuck */
    const char *name;
    bool colours;
    bool said_failed;
    bool dropping; /* its reader has not read for too long */
    size_t dropped, dropped_lines;
};

struct lks__consoles {
    struct console at[2];
    lks__writer *writers[2]; /* twice the same if both are one file, to keep the order */
    bool terminal;           /* both are a terminal, which may show a rank's progress line */
    int event;
    bool hurried;
    double hurried_at, patience_s;
};

/* Check whether the readers have returned, or been missing for too long. Never waits. */
void lks__consoles_look(lks__consoles *c);
bool lks__consoles_idle(lks__consoles *c); /* true if all is written */

#endif
