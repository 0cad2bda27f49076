/* launch/output/writer.h - a thread that writes, so that only this thread waits for a reader or a
 * disk.
 *
 * Records are put into a queue of fixed size and written in order, each completely. A record that
 * doesn't fit is refused; the caller waits for `event` (an eventfd), or drops it. The descriptors
 * stay blocking: O_NONBLOCK would affect all processes that share them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__writer lks__writer;

/* capacity  bytes that the queue holds
 * chunk     bytes for one write; longer records are written by themselves
 * event     is written to when there is room again after a refusal, when the queue is empty, and
 *           when a descriptor fails */
lks_status lks__writer_open(size_t capacity, size_t chunk, int event, lks__writer **writer_p);

/* Add a descriptor; returns its number for the calls below, or -1 if out of memory. */
int lks__writer_sink(lks__writer *w, int fd);

/* Queue a record of two parts (the first may be empty) if `spare` bytes then stay free. */
bool lks__writer_add(lks__writer *w, int sink, const char *head, size_t n_head, const char *text,
                     size_t n, size_t spare);

/* True if there is room for `n` bytes. False counts as a refusal, as in lks__writer_add(). */
bool lks__writer_has_room(lks__writer *w, size_t n);

int lks__writer_error(lks__writer *w, int sink); /* errno of the write that failed; 0: none */
/* Seconds since the last write, or since the first record after the queue was empty; -1 if all is
 * written. */
double lks__writer_waits_s(lks__writer *w);

/* Bytes and line ends that are still in the queue for a descriptor, or were lost when it failed. */
void lks__writer_left(lks__writer *w, int sink, size_t *bytes_p, size_t *lines_p);

/* End the thread. False if it is stuck in a write: then it keeps everything that it needs,
 * including `event` and descriptors, until it returns or the process ends. */
bool lks__writer_close(lks__writer *w);
