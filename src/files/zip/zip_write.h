/* files/zip/zip_write.h - writes a zip archive of stored entries to a file or to memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__zip_writer lks__zip_writer; /* opaque; close with lks__zip_writer_close() */

/* Put bytes [first, first + bytes) of the entry that was added as number `entry`, from 0, into
 * `out`. */
typedef lks_status lks__zip_part(const void *ctx, size_t entry, uint64_t first, void *out,
                                 size_t bytes);

/* `path` NULL: write into memory. Otherwise the file is an lks__sys_new until the writer is closed;
 * the path is kept, not copied. */
lks_status lks__zip_writer_open(const char *path, lks__zip_part *read, const void *ctx,
                                lks__zip_writer **w_p);
/* Add an entry; the file keeps the order of the calls. `filling`: bytes of an extra field before
 * the data. lks__zip_writer_finish() reads the data. */
lks_status lks__zip_writer_add(lks__zip_writer *w, const char *name, uint64_t bytes,
                               unsigned filling);
lks_status lks__zip_writer_finish(lks__zip_writer *w);
/* The bytes written into memory; the caller frees them. */
void lks__zip_writer_take(lks__zip_writer *w, unsigned char **data_p, size_t *bytes_p);
/* If `st` is OK, rename the file to its final name; else remove it. Returns `st`, or the rename's
 * error. */
lks_status lks__zip_writer_close(lks__zip_writer *w, lks_status st);
