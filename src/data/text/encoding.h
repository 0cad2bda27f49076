/* data/text/encoding.h - text that should be UTF-8 but is not: guesses its encoding, and suggests a
 * command that converts it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The path of standard input, for messages. */
#define LKS__STDIN_NAME "standard input"

/* ERR_FORMAT for text[i], a byte that isn't UTF-8. The message contains file, offset, line (0: not
 * known), and the likely encoding. `offset` is the byte's position in the file. */
lks_status lks__not_utf8(const char *path, const char *text, size_t bytes, size_t i,
                         uint64_t offset, uint64_t line);

/* iconv's name of the encoding if a file's first bytes look like text of wide characters, else
 * NULL. */
const char *lks__wide_encoding(const char *head, size_t bytes);

/* Check the first bytes of a file. ERR_FORMAT, with a command that unpacks it, if they belong to a
 * compressed file or another container. */
lks_status lks__check_container(const char *path, const char *head, size_t bytes);

/* The name of the container that begins with these bytes, such as "gzip", or NULL. */
const char *lks__container_name(const char *head, size_t bytes);

/* A remark about bytes that a kind of tokens keeps, though the user may not want them: a byte order
 * mark, CRLF, bytes that aren't UTF-8, NUL characters. Returns `out`, which may be "". */
enum {
    LKS__KEEPS_MARK = 1,
    LKS__KEEPS_CRLF = 2,
    LKS__KEEPS_BYTES = 4,
    LKS__KEEPS_NUL = 8,
    LKS__KEEPS_ALL = 15,
    LKS__REMARK = 768
};
const char *lks__text_remark(const char *path, const char *head, size_t bytes, int keeps,
                             char out[LKS__REMARK]);
