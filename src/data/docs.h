/* data/docs.h - the documents of a text file, one after the other, without holding the file.
 *
 * JSON lines (the name ends in .jsonl): every line is an object whose "text" is a document. Other
 * files are UTF-8 text, in which blank lines divide documents; white space around one is dropped.
 */
#ifndef LKS_DATA_DOCS_H
#define LKS_DATA_DOCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__docs lks__docs; /* opaque; close with lks__docs_close() */

/* ERR_IO where it is no regular file or can't be read. */
lks_status lks__docs_open(const char *path, lks__docs **docs_p);
void lks__docs_close(lks__docs *docs); /* NULL is fine */

const char *lks__docs_name(const lks__docs *docs); /* the path, escaped */
void lks__docs_rewind(lks__docs *docs);

/* The next document: valid UTF-8, perhaps empty (JSON lines), and NULL at the end. It lives until
 * the next call. ERR_FORMAT names file, line and byte offset of what isn't UTF-8 or such an object;
 * so is a document of more than 1 GiB. */
lks_status lks__docs_next(lks__docs *docs, const char **text_p, size_t *bytes_p);

#endif
