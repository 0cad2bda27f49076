/* data/text/encoding.h - text that is not the UTF-8 that it should be: what it looks like, and
 * which command makes UTF-8 of it. */
#ifndef LKS_DATA_TEXT_ENCODING_H
#define LKS_DATA_TEXT_ENCODING_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* ERR_FORMAT for text[i], a byte that isn't UTF-8: names file, offset, line (0: not known), and
 * what the text looks like. `offset` is the byte's place in the file. */
lks_status lks__not_utf8(const char *path, const char *text, size_t bytes, size_t i,
                         uint64_t offset, uint64_t line);

/* Look at the first bytes of a file. ERR_FORMAT if they are those of a compressed file or another
 * container, with a command that unpacks it. */
lks_status lks__check_container(const char *path, const char *head, size_t bytes);

/* The name of the container whose first bytes these are, such as "gzip"; NULL: none. */
const char *lks__container_name(const char *head, size_t bytes);

/* A remark about what a kind of tokens keeps of a text, though the user may not want it: a byte
 * order mark, CRLF, bytes that aren't UTF-8. Returns `out`; "" if there is nothing to say. */
enum {
    LKS__KEEPS_MARK = 1,
    LKS__KEEPS_CRLF = 2,
    LKS__KEEPS_BYTES = 4,
    LKS__KEEPS_ALL = 7,
    LKS__REMARK = 640
};
const char *lks__text_remark(const char *path, const char *head, size_t bytes, int keeps,
                             char out[LKS__REMARK]);

#endif
