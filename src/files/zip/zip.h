/* files/zip/zip.h - a zip archive whose entries are stored, as torch.save writes it, for reading.
 */
#ifndef LKS_FILES_ZIP_ZIP_H
#define LKS_FILES_ZIP_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* OK if libzip's module can be loaded; else ERR_SUPPORT with what to install. */
lks_status lks__zip_available(void);

typedef struct lks__zip lks__zip; /* opaque; close with lks__zip_close() */

typedef struct lks__zip_entry {
    char *name; /* without a 0 byte; may hold any others */
    uint64_t bytes, offset;
    uint32_t crc;
} lks__zip_entry;

/* Open a file, or data[bytes] that stay valid; `name` starts the error sentence then (escaped).
 * Checked before anything is read on its word: every entry is stored, inside of the file, apart
 * from all others, and no name comes twice. ERR_SUPPORT, ERR_IO, ERR_NOMEM, ERR_FORMAT. */
lks_status lks__zip_open(const char *path, lks__zip **zip_p);
lks_status lks__zip_open_bytes(const char *name, const void *data, size_t bytes, lks__zip **zip_p);
void lks__zip_close(lks__zip *zip); /* NULL does nothing */

const char *lks__zip_name(const lks__zip *zip); /* the file's, escaped */
size_t lks__zip_count(const lks__zip *zip);
const lks__zip_entry *lks__zip_entry_at(const lks__zip *zip, size_t i);     /* in order of names */
const lks__zip_entry *lks__zip_find(const lks__zip *zip, const char *name); /* or NULL */
/* Read bytes of an entry, which must be inside of it; the checksum isn't checked. */
lks_status lks__zip_read(const lks__zip *zip, const lks__zip_entry *entry, uint64_t first,
                         void *out, size_t bytes);
/* Read a whole entry into `out`, or only check it if that is NULL. ERR_FORMAT if its checksum is
 * another. */
lks_status lks__zip_read_all(const lks__zip *zip, const lks__zip_entry *entry, void *out);

#endif
