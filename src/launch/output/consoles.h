/* launch/output/consoles.h - the launcher's own stdout and stderr: queues that threads write, and
 * the handling of slow readers. */
#pragma once

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

typedef struct lks__consoles {
    struct console at[2];
    lks__writer *writers[2]; /* twice the same if both are one file, to keep the order */
    bool terminal;           /* both are a terminal, which may show a rank's progress line */
    int event;
    bool hurried;
    double hurried_at, patience_s;
} lks__consoles;

/* The launcher's own stdout and stderr, for a whole launch. */
lks_status lks__consoles_open(lks__consoles **consoles_p);

/* From now on drop the output for a reader that hasn't read for `patience_s`. May be called again:
 * the shortest time counts. */
void lks__consoles_hurry(lks__consoles *c, double patience_s);

/* Wait for slow readers again, and drop nothing more. */
void lks__consoles_unhurry(lks__consoles *c);

/* Print a message of the launcher on stderr. It is dropped only if the queue is full of such
 * messages. */
void lks__consoles_say(lks__consoles *c, const char *text);

/* Write the rest of the output, until `signals` (a descriptor; -1: none) is readable; then only the
 * part that can be written at once. Reports how much was dropped. NULL does nothing. */
void lks__consoles_close(lks__consoles *c, int signals);

/* Check whether the readers have returned, or been missing for too long. Never waits. */
void lks__consoles_look(lks__consoles *c);
bool lks__consoles_idle(lks__consoles *c); /* true if all is written */
