/* data/prep/input/docs.h - reads the documents of text files one by one, without loading a whole
 * file into memory.
 *
 * JSON lines: every line is an object, and its member `field` is a document; blank lines and a byte
 * order mark at the start are skipped. Other files are UTF-8 text, and blank lines separate
 * documents; white space around a document is dropped. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/prep/input/texts.h"

typedef struct lks__docs lks__docs; /* opaque; close with lks__docs_close() */

/* Read the documents of files [first, end). `texts` and `field` are kept, not copied. */
lks_status lks__docs_open(const lks__texts *texts, size_t first, size_t end, const char *field,
                          lks__docs **docs_p);
void lks__docs_close(lks__docs *docs); /* NULL does nothing */

/* From now on texts may contain any bytes; JSON lines are always UTF-8. */
void lks__docs_any_bytes(lks__docs *docs);
void lks__docs_rewind(lks__docs *docs);
/* Continue at byte `at` of file `file`, at a document's start returned by lks__docs_place(). */
void lks__docs_seek(lks__docs *docs, size_t file, uint64_t at);
/* JSON lines: the start of the document returned last. */
void lks__docs_place(const lks__docs *docs, size_t *file_p, uint64_t *at_p);
uint64_t lks__docs_done(const lks__docs *docs); /* bytes read since the start of the first file */

/* Read the next document: valid UTF-8 (see lks__docs_any_bytes()), possibly empty (JSON lines), and
 * NULL at the end. Valid until the next call. ERR_FORMAT if the text isn't UTF-8, a line isn't such
 * an object, or a document exceeds 1 GiB; the message contains file, line and byte offset. After a
 * seek, lines are counted from there. */
lks_status lks__docs_next(lks__docs *docs, const char **text_p, size_t *bytes_p);
/* Skip the next document, *found_p = false at the end. JSON isn't parsed: each line that isn't
 * blank counts as a document. */
lks_status lks__docs_skip(lks__docs *docs, bool *found_p);
