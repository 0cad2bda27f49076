/* launch/writer.h - a thread that writes: only it ever waits for whoever reads, or for a disk.
 *
 * Records are put into a queue of fixed size and written in their order, each whole. What doesn't
 * fit is refused, and the caller waits for `event` (an eventfd), or drops it. The descriptors stay
 * as they are: O_NONBLOCK would hold for everybody who shares them. */
#ifndef LKS_LAUNCH_WRITER_H
#define LKS_LAUNCH_WRITER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__writer lks__writer;

/* capacity  bytes that the queue holds
 * chunk     bytes for one write; longer records are written by themselves
 * event     is written to when there is room again after a refusal, when the queue is empty, and
 *           when a descriptor fails */
lks_status lks__writer_open(size_t capacity, size_t chunk, int event, lks__writer **writer_p);

/* One more descriptor: its number for the calls below, or -1 without memory. */
int lks__writer_sink(lks__writer *w, int fd);

/* Put a record of two parts (the first may be empty) into the queue if `spare` bytes stay free. */
bool lks__writer_add(lks__writer *w, int sink, const char *head, size_t n_head, const char *text,
                     size_t n, size_t spare);

/* Is there room for so much? A refusal is one as above. */
bool lks__writer_has_room(lks__writer *w, size_t n);

int lks__writer_error(lks__writer *w, int sink); /* errno of the write that failed; 0 */
bool lks__writer_idle(lks__writer *w);           /* all is written */
double lks__writer_progress(lks__writer *w); /* when it last wrote, or began to have something */

/* What is still in the queue for a descriptor, or was lost when it failed: bytes, ends of lines. */
void lks__writer_left(lks__writer *w, int sink, size_t *bytes_p, size_t *lines_p);

/* Ends the thread. False if it is stuck in a write: then it keeps all it needs, `event` and
 * descriptors too, until it comes back or the process ends. */
bool lks__writer_close(lks__writer *w);

#endif
