/* files/zip/zip.h - reads zip archives with stored entries, as torch.save writes them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct lks__zip_module;

/* Load the module lockstep_zip.so, or only check that it can be loaded. ERR_SUPPORT names the
 * package to install. */
lks_status lks__zip_module_open(const struct lks__zip_module **module_p);
lks_status lks__zip_available(void);

typedef struct lks__zip lks__zip; /* opaque; close with lks__zip_close() */

typedef struct lks__zip_entry {
    char *name; /* contains no 0 byte, but any other */
    uint64_t bytes, offset;
    uint32_t crc;
} lks__zip_entry;

/* Open a file, or data[bytes] that stay valid; `name` (escaped) then starts the error message.
 * Checks that every entry is stored, is inside the file and overlaps no other, and that names are
 * unique. ERR_SUPPORT, ERR_IO, ERR_NOMEM, ERR_FORMAT. */
lks_status lks__zip_open(const char *path, lks__zip **zip_p);
lks_status lks__zip_open_bytes(const char *name, const void *data, size_t bytes, lks__zip **zip_p);
void lks__zip_close(lks__zip *zip); /* NULL does nothing */

const char *lks__zip_name(const lks__zip *zip); /* the file's name, escaped */
size_t lks__zip_count(const lks__zip *zip);
const lks__zip_entry *lks__zip_entry_at(const lks__zip *zip, size_t i); /* in the order of names */
const lks__zip_entry *lks__zip_find(const lks__zip *zip, const char *name); /* or NULL */
/* Read a range of bytes inside an entry, without checking the checksum. */
lks_status lks__zip_read(const lks__zip *zip, const lks__zip_entry *entry, uint64_t first,
                         void *out, size_t bytes);
/* Read a whole entry into `out`, or only check it if `out` is NULL. ERR_FORMAT if its checksum
 * differs. */
lks_status lks__zip_read_all(const lks__zip *zip, const lks__zip_entry *entry, void *out);
