/* weights/use/until.h - passes text on until one of some stop texts comes, however it is cut into
 * pieces. What may be the beginning of one is held back. */
#ifndef LKS_WEIGHTS_USE_UNTIL_H
#define LKS_WEIGHTS_USE_UNTIL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { LKS__UNTIL_MOST = 1024 }; /* bytes of the longest stop text */

typedef struct lks__until {
    const char *const *stops; /* texts of 1 to LKS__UNTIL_MOST bytes; NULL ends the list */
    lks_status (*put)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    bool ended;                 /* a stop text has come: neither it nor what follows is passed on */
    char held[LKS__UNTIL_MOST]; /* may be the beginning of a stop text */
    size_t n_held;
} lks__until; /* {.stops = …, .put = …} is empty */

/* Both fail only if `put` does. */
lks_status lks__until_add(lks__until *u, const char *text, size_t bytes);
/* The text is over: what was held back is passed on. */
lks_status lks__until_end(lks__until *u);

#endif
