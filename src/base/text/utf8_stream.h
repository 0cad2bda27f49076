/* base/text/utf8_stream.h - receives bytes in pieces of any size and passes them on as whole
 * characters that are safe on a terminal: invalid UTF-8 and control characters, except line feed,
 * CR before it, and tab, become U+FFFD. */
#pragma once

#include <stddef.h>

#include "base/status.h"

typedef struct lks__utf8_stream {
    lks_status (*put)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    char pending[4]; /* bytes of an incomplete character */
    size_t n_pending;
} lks__utf8_stream; /* {.put = …} is empty */

/* Both fail only if `put` does. */
lks_status lks__utf8_stream_add(lks__utf8_stream *s, const char *bytes, size_t n);
lks_status lks__utf8_stream_end(lks__utf8_stream *s); /* an incomplete character becomes U+FFFD */
