/* weights/use/until.h - passes text on until a stop text occurs, however the text is cut into
 * pieces. A possible beginning of a stop text is held back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { LKS__UNTIL_MOST = 1024 }; /* bytes of the longest stop text */

typedef struct lks__until {
    const char *const *stops; /* texts of 1 to LKS__UNTIL_MOST bytes; NULL ends the list */
    lks_status (*put)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    bool ended; /* a stop text occurred: neither it nor the text after it is passed on */
    char held[LKS__UNTIL_MOST]; /* may be the beginning of a stop text */
    size_t n_held;
} lks__until; /* {.stops = …, .put = …} is empty */

/* Both fail only if `put` does. */
lks_status lks__until_add(lks__until *u, const char *text, size_t bytes);
/* End of the text: pass on the bytes that were held back. */
lks_status lks__until_end(lks__until *u);
