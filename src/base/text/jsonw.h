/* base/text/jsonw.h - writes one line of JSON into the caller's buffer.
 *
 * Metrics fix the format of each number (losses %.9g, other doubles %.17g); a general JSON library
 * can't mix formats. Jansson does the reading. lks__jsonw_close() reports a line that doesn't fit,
 * so the calls before it need no checks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__jsonw {
    char *buf;
    size_t size, len;
    uint32_t arrays; /* bit d: the open value at depth d is an array */
    int depth;
    bool comma;    /* a value precedes, so the next one needs a comma */
    bool overflow; /* the buffer or the depth is too small, or an end doesn't match */
} lks__jsonw;

void lks__jsonw_open(lks__jsonw *w, char *buf, size_t size);

/* `key` is the member's name inside an object; NULL inside an array and for the outermost value. */
void lks__jsonw_object(lks__jsonw *w, const char *key);
void lks__jsonw_array(lks__jsonw *w, const char *key);
void lks__jsonw_end(lks__jsonw *w); /* end the innermost object or array */

/* `value` may contain any bytes: invalid UTF-8 becomes U+FFFD. NULL becomes null. */
void lks__jsonw_str(lks__jsonw *w, const char *key, const char *value);
void lks__jsonw_int(lks__jsonw *w, const char *key, int64_t value);
void lks__jsonw_u64(lks__jsonw *w, const char *key, uint64_t value);
void lks__jsonw_bool(lks__jsonw *w, const char *key, bool value);
/* Infinity and NaN become null, because JSON lacks them. */
void lks__jsonw_float(lks__jsonw *w, const char *key, double value);  /* %.9g */
void lks__jsonw_double(lks__jsonw *w, const char *key, double value); /* %.17g */

/* End the line: append '\n' and a 0 byte. *len_p counts the '\n'. ERR_NOMEM if the buffer was too
 * small, ERR_ARG if objects are still open; the line must not be used then. */
lks_status lks__jsonw_close(lks__jsonw *w, size_t *len_p);
