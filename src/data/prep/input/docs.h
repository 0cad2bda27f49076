/* data/prep/input/docs.h - the documents of text files, one after the other, without a whole file
 * in memory.
 *
 * JSON lines: every line is an object, and its member `field` is a document. Other files are UTF-8
 * text, and blank lines divide documents; white space around a document is dropped. */
#ifndef LKS_DATA_PREP_INPUT_DOCS_H
#define LKS_DATA_PREP_INPUT_DOCS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/prep/input/texts.h"

typedef struct lks__docs lks__docs; /* opaque; close with lks__docs_close() */

/* Documents of files [first, end). `texts` and `field` are kept, not copied. */
lks_status lks__docs_open(const lks__texts *texts, size_t first, size_t end, const char *field,
                          lks__docs **docs_p);
void lks__docs_close(lks__docs *docs); /* NULL does nothing */

/* From now on texts may have any bytes; JSON lines are UTF-8 in any case. */
void lks__docs_any_bytes(lks__docs *docs);
void lks__docs_rewind(lks__docs *docs);
/* Go on at byte `at` of file `file`, which a document begins at: one that lks__docs_place() gave.
 */
void lks__docs_seek(lks__docs *docs, size_t file, uint64_t at);
/* JSON lines: where the document begins that was returned last. */
void lks__docs_place(const lks__docs *docs, size_t *file_p, uint64_t *at_p);
uint64_t lks__docs_done(const lks__docs *docs); /* bytes read since the first file's beginning */

/* The next document: valid UTF-8 (see lks__docs_any_bytes()), perhaps empty (JSON lines), and NULL
 * at the end. Valid until the next call. ERR_FORMAT if the text isn't UTF-8, a line isn't such an
 * object, or a document exceeds 1 GiB; names file, line and byte offset. After a seek lines count
 * from there. */
lks_status lks__docs_next(lks__docs *docs, const char **text_p, size_t *bytes_p);
/* Pass the next document by, *found_p = false at the end. JSON isn't looked at: a line is one. */
lks_status lks__docs_skip(lks__docs *docs, bool *found_p);

#endif
