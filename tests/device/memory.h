/* memory.h - device memory that only the device can access: an access by the host ends the process
 * with a sentence that names the address. One device in a thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ends the process by SIGABRT, with a sentence on stderr: the caller has broken the contract of
 * compute/device.h. */
void deferred_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

void deferred_memory_start(void); /* catch SIGSEGV */
void deferred_memory_stop(void);  /* free everything */

/* Zeros that end (up to 63 bytes before) an unreadable page; NULL: no memory. */
void *deferred_memory_alloc(size_t bytes);
/* The addresses are not used again before the stop, so that later uses are found. */
void deferred_memory_release(void *p, size_t bytes);

/* `what` runs from now on, and can access the device's blocks with these numbers. Blocks that are
 * open stay so until the host continues: protection is what an operation takes longest for. */
void deferred_memory_open(const char *what, const int numbers[], int n);
void deferred_memory_close(void); /* the host continues: no access */

/* Number of the block that contains [p, p + bytes), from 1; 0 if none of it is a device's. The
 * process ends with a message about `what`, which names p, if only a part of it is, or if the block
 * is another device's or was released. */
int deferred_memory_block(const char *what, const void *p, size_t bytes);

size_t deferred_memory_peak(void); /* the most bytes that were allocated at a time */
int deferred_memory_count(void);   /* blocks that are not released */
