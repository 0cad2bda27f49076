/* report/record/leaves.h - OUT/leaves.bin: a hash of each virtual rank's gradient in each step
 * (docs/reference/formats.md). Rank 0 writes it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/system/sys.h"

#define LKS__LEAVES_FILE "leaves.bin"
enum { LKS__LEAVES_BLOCK = 4096 }; /* elements that are hashed together; the file records it */

typedef struct lks__leaves {
    char path[LKS__SYS_PATH];
    int fd;         /* -1: none */
    uint64_t bytes; /* size of the file when it was opened */
    /* The last record that was read or written; at = 0 before the first. */
    struct lks__leaf_record {
        uint64_t at;   /* its end */
        uint64_t iter; /* its iteration */
        uint32_t V, A; /* virtual ranks, and micro-batches of each */
    } last;
    uint64_t *record; /* after lks__leaves_next() the iteration, then last.V hashes */
    /* The file's words from `window_at` to `window_end`, in bytes; or the record to write. NULL:
     * closed. */
    uint64_t *window;
    uint64_t window_at, window_end;
    size_t n_words; /* of the record to write */
} lks__leaves;

/* Bytes that a step on V virtual ranks adds to the file. */
uint64_t lks__leaves_step_bytes(int V);

/* Open RUN/leaves.bin to read it from its beginning. A missing file has no records. ERR_IO names
 * the file. */
lks_status lks__leaves_open(const char *run, lks__leaves *l);
/* Read the next record. *any_p is false at the end; a record that the run is writing doesn't count.
 * ERR_FORMAT names the offset of one that no run has written. */
lks_status lks__leaves_next(lks__leaves *l, bool *any_p);

/* Open the file in `out_dir` to add records from iteration `iter` on: those from there on are cut
 * off, and so is all from the first invalid one on. With `create` it is made if it is missing. */
lks_status lks__leaves_resume(const char *out_dir, uint64_t iter, bool create, lks__leaves *l);
/* The run went back to `iter`: cut as above. A zeroed one does nothing, here and in sync. */
lks_status lks__leaves_back(lks__leaves *l, uint64_t iter);
/* Add a record: fill the returned hashes[V], then call lks__leaves_end(). */
uint64_t *lks__leaves_begin(lks__leaves *l, uint64_t iter, int V, int A);
lks_status lks__leaves_end(lks__leaves *l);
/* Make all records durable. */
lks_status lks__leaves_sync(lks__leaves *l);

lks_status lks__leaves_close(lks__leaves *l); /* a zeroed one does nothing */
