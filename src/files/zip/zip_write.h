/* files/zip/zip_write.h - a zip archive of stored entries, into a file or into memory. */
#ifndef LKS_FILES_ZIP_ZIP_WRITE_H
#define LKS_FILES_ZIP_ZIP_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__zip_writer lks__zip_writer; /* opaque; close with lks__zip_writer_close() */

/* Put bytes [first, first + bytes) of an entry into `out`. */
typedef lks_status lks__zip_part(void *ctx, uint64_t first, void *out, size_t bytes);

/* `path` NULL: into memory. Else a temporary file beside it, until it is closed with LKS_OK. */
lks_status lks__zip_writer_open(const char *path, lks__zip_writer **w_p);
/* Entries stand in the file in this order. `filling`: bytes of an extra field before the data. The
 * data are read by lks__zip_writer_finish(). */
lks_status lks__zip_writer_add(lks__zip_writer *w, const char *name, uint64_t bytes,
                               unsigned filling, lks__zip_part *read, void *ctx);
lks_status lks__zip_writer_finish(lks__zip_writer *w);
/* What was written into memory; the caller frees it. */
void lks__zip_writer_take(lks__zip_writer *w, unsigned char **data_p, size_t *bytes_p);
/* With `st` OK the file gets its name; else it is removed. Returns `st`, or how that failed. */
lks_status lks__zip_writer_close(lks__zip_writer *w, lks_status st);

#endif
