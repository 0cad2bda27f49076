/* launch/output.h - what ranks write: one stream of whole lines with "[host:rank] " before each, a
 * file for each rank and stream, and the last lines of stderr for when it dies.
 *
 * A stream goes through a pipe of the launcher's unless there is nothing to do with it; then the
 * rank has the launcher's own. A reader that doesn't read stops the ranks' writing in the end, as
 * it would without us, but never the launcher's watch over them. */
#ifndef LKS_LAUNCH_OUTPUT_H
#define LKS_LAUNCH_OUTPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* torchrun's bits of --redirects and --tee. */
enum { LKS__STD_NONE = 0, LKS__STD_OUT = 1, LKS__STD_ERR = 2, LKS__STD_BOTH = 3 };

/* Where one rank's streams go; bits as above. */
struct lks__output_plan {
    unsigned inherit; /* not through us at all */
    unsigned console; /* shown */
    unsigned file;    /* written to stdout.log, stderr.log */
};

enum { LKS__TAIL_LINES = 10, LKS__TAIL_BYTES = 4096 };

typedef struct lks__output lks__output;

/* plans   [n] by local rank
 * host    for prefixes, NULL: none
 * folders [n] where a rank's files go, of those that have one; may be NULL
 * ERR_IO, ERR_NOMEM. */
lks_status lks__output_open(const struct lks__output_plan *plans, int n, int first_rank,
                            const char *host, char *const *folders, lks__output **output_p);
void lks__output_close(lks__output *o);

/* The ends that rank `local` writes to, or -1 for what it inherits; after the fork the launcher
 * lets go of its copies. */
void lks__output_ends(const lks__output *o, int local, int fds[2]);
void lks__output_started(lks__output *o, int local);

/* What to poll: at most lks__output_polls(n) entries, filled from `p` on; their number is returned
 * and handed back to step(), after poll(). */
int lks__output_polls(int n);
int lks__output_fill(lks__output *o, struct pollfd *p);
void lks__output_step(lks__output *o, const struct pollfd *p, int n_polls);

/* Everything that has been written so far goes where it belongs; blocks while the reader does.
 * `last`: unfinished lines, too. */
void lks__output_flush(lks__output *o, bool last);

/* The last lines of a rank's stderr, each of them indented, fit for a terminal; "" where there are
 * none, or it was inherited. */
void lks__output_tail(const lks__output *o, int local, char text[2 * LKS__TAIL_BYTES]);

#endif
