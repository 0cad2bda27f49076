/* data/docs.h - the documents of a text file, one after the other, without the whole file in
 * memory.
 *
 * JSON lines (the name ends in .jsonl): every line is an object, and its member `field` is a
 * document. Other files are UTF-8 text, and blank lines divide documents; white space around a
 * document is dropped. */
#ifndef LKS_DATA_DOCS_H
#define LKS_DATA_DOCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

bool lks__docs_is_jsonl(const char *path);

typedef struct lks__docs lks__docs; /* opaque; close with lks__docs_close() */

/* `field` (kept, not copied; NULL: "text") is the member of JSON lines that has the text. ERR_IO if
 * it is no regular file or can't be read. */
lks_status lks__docs_open(const char *path, const char *field, lks__docs **docs_p);
void lks__docs_close(lks__docs *docs); /* NULL does nothing */

const char *lks__docs_name(const lks__docs *docs); /* the path, escaped */
void lks__docs_rewind(lks__docs *docs);

/* The next document: valid UTF-8, perhaps empty (JSON lines), and NULL at the end. Valid until the
 * next call. ERR_FORMAT if the text isn't UTF-8, a line isn't such an object, or a document exceeds
 * 1 GiB; names file, line and byte offset. */
lks_status lks__docs_next(lks__docs *docs, const char **text_p, size_t *bytes_p);

#endif
