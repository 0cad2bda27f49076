/* launch/output/output.h - the output of ranks: one stream of whole lines, each with the prefix
 * "[host:rank] ", one file per rank and stream, and the last lines of stderr, to print when a rank
 * dies.
 *
 * A stream goes through a pipe of the launcher if it must be processed; otherwise the rank has the
 * launcher's own stream. Threads write (writer.h), and all queues are bounded. If our output isn't
 * read, we stop reading, and the ranks' writes wait as they would without us, while the launcher
 * continues to watch the ranks. Output is dropped, and counted, only when ranks must end or have
 * ended, so that no rank waits for a reader when it should save its state. */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "launch/output/consoles.h"

/* torchrun's bits of --redirects and --tee. */
enum { LKS__STD_OUT = 1, LKS__STD_ERR = 2, LKS__STD_BOTH = 3 };

/* Destinations of one rank's streams; bits as above. */
struct lks__output_plan {
    unsigned inherit; /* the rank has the launcher's stream */
    unsigned console; /* shown on the console */
    unsigned file;    /* written to stdout.log, stderr.log */
};

enum { LKS__TAIL_LINES = 10, LKS__TAIL_BYTES = 4096 };

typedef struct lks__output lks__output;

/* plans   [n] by local rank
 * host    for prefixes, NULL: none
 * folders [n] folders for the ranks' files, until lks__output_close(); NULL: none has files
 * ERR_IO, ERR_NOMEM. */
lks_status lks__output_open(const struct lks__output_plan *plans, int n, int first_rank,
                            const char *host, char *const *folders, lks__consoles *consoles,
                            lks__output **output_p);
void lks__output_close(lks__output *o); /* files are written to their end, unless the disk hangs */

/* The ends of the pipes that rank `local` writes to, or -1 for an inherited stream. After the fork
 * the launcher closes its copies. */
void lks__output_ends(const lks__output *o, int local, int fds[2]);
void lks__output_started(lks__output *o, int local);

/* fill() stores at most lks__output_polls(n) entries to poll from `p` on and returns their number,
 * which is passed to step() after poll(). poll() must not wait longer than until next() (0: no
 * limit). None of them blocks. */
int lks__output_polls(int n);
int lks__output_fill(lks__output *o, struct pollfd *p);
double lks__output_next(const lks__output *o);
void lks__output_step(lks__output *o, const struct pollfd *p, int n_polls);

/* Read the available output and queue as much of it as fits. `last`: the ranks have ended, so
 * unfinished lines count. True if all of it is queued. */
bool lks__output_drain(lks__output *o, bool last);

/* The last lines of a rank's stderr, indented, safe on a terminal; "" if there are none, or the
 * stream was inherited. */
void lks__output_tail(const lks__output *o, int local, char text[2 * LKS__TAIL_BYTES]);
