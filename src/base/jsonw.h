/* base/jsonw.h - one line of JSON into a buffer of the caller's.
 *
 * Metrics fix the format of each number (losses %.9g, other doubles %.17g), which a general JSON
 * library can't mix; reading is Jansson's. What doesn't fit is found at lks__jsonw_close(), so
 * calls between need no checks. */
#ifndef LKS_BASE_JSONW_H
#define LKS_BASE_JSONW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__jsonw {
    char *buf;
    size_t size, len;
    uint32_t arrays; /* bit d: the value open at depth d is an array */
    int depth;
    bool comma;    /* a value stands before: the next one needs a comma */
    bool overflow; /* the buffer or the depth was too small, or ends don't match */
} lks__jsonw;

void lks__jsonw_open(lks__jsonw *w, char *buf, size_t size);

/* `key` is the member's name inside an object; NULL inside an array and for the outermost value. */
void lks__jsonw_object(lks__jsonw *w, const char *key);
void lks__jsonw_array(lks__jsonw *w, const char *key);
void lks__jsonw_end(lks__jsonw *w); /* of the innermost object or array */

/* Any bytes: what isn't UTF-8 becomes U+FFFD. `value` NULL: null. */
void lks__jsonw_str(lks__jsonw *w, const char *key, const char *value);
void lks__jsonw_int(lks__jsonw *w, const char *key, int64_t value);
void lks__jsonw_u64(lks__jsonw *w, const char *key, uint64_t value);
void lks__jsonw_bool(lks__jsonw *w, const char *key, bool value);
/* JSON has no infinity and no NaN: they become null. */
void lks__jsonw_float(lks__jsonw *w, const char *key, double value);  /* %.9g */
void lks__jsonw_double(lks__jsonw *w, const char *key, double value); /* %.17g */

/* End the line: appends '\n' and a 0. *len_p counts the '\n'. ERR_NOMEM where the buffer was too
 * small, ERR_ARG where objects are still open; then nothing may be written. */
lks_status lks__jsonw_close(lks__jsonw *w, size_t *len_p);

#endif
