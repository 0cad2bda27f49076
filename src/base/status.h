/* base/status.h - recording failures. Every function that fails says so once, where the exact
 * cause is known, and returns the status; callers pass it on. */
#ifndef LKS_BASE_STATUS_H
#define LKS_BASE_STATUS_H

#include <stddef.h>

#include "lockstep/status.h"

/* Record the sentence for lks_last_error() and return `st`. Strings that come from files or peers
 * go through lks__escape() first. */
lks_status lks__fail(lks_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Put "context: " in front of the recorded sentence; returns `st`. */
lks_status lks__fail_in(lks_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Lines that show the failure at hand (the table of all ranks), for tools to print above the
 * sentence: the process's first ones stay. */
void lks__explain(const char *lines);
const char *lks__explanation(void); /* "" where there are none */

/* Copy `text` (any bytes) into `out` so that it is safe on a terminal: control bytes and invalid
 * UTF-8 become \xNN, quotes and backslashes are escaped; cut with "..." where it does not fit.
 * Returns `out`. */
char *lks__escape(char *out, size_t out_bytes, const char *text, size_t text_bytes);

#define LKS__TRY(expr)                                                                             \
    do {                                                                                           \
        lks_status lks__try_st = (expr);                                                           \
        if (lks__try_st != LKS_OK)                                                                 \
            return lks__try_st;                                                                    \
    } while (0)

#endif
