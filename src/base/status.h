/* base/status.h - recording failures. A function that fails records one message where the exact
 * cause is known, and returns the status; callers pass it on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lockstep/status.h"

/* Record the message for lks_last_error() and return `st`. Escape strings from files or peers with
 * lks__escape() first. */
lks_status lks__fail(lks_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Put "context: " in front of the recorded message; returns `st`. */
lks_status lks__fail_in(lks_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Record lines that show the failure in detail (for example the status table of all ranks). Tools
 * print them above the message. A process's first call wins. */
void lks__explain(const char *lines);
const char *lks__explanation(void); /* "" if none were recorded */

/* Copy `text` (any bytes) into `out` so that it is safe on a terminal: control bytes and invalid
 * UTF-8 become \xNN, quotes and backslashes are escaped, and text that doesn't fit is cut with
 * "...". Returns `out`. */
char *lks__escape(char *out, size_t out_bytes, const char *text, size_t text_bytes);
/* The string `text`, escaped in at most `bytes` bytes, which belong to the enclosing block. */
#define lks__shown(text, bytes) lks__escape((char[bytes]){0}, bytes, text, strlen(text))

/* Append to the text in `out`, which has room for `bytes`. `between` comes first, unless `out` is
 * "". False if the text was cut. */
bool lks__append(char *out, size_t bytes, const char *between, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Return ERR_ARG, which names the call and the argument `p`, if `p` is NULL; _IF: and `when` is
 * true. */
#define LKS__NEED(call, p) LKS__NEED_IF(1, call, p)
#define LKS__NEED_IF(when, call, p)                                                                \
    do {                                                                                           \
        if ((when) && (p) == NULL)                                                                 \
            return lks__fail(LKS_ERR_ARG, "%s: %s is NULL", call, #p);                             \
    } while (0)

/* Record the failure "no memory ...", for example "for %zu runs" or "to read a line", and return
 * ERR_NOMEM. LKS__MEMORY: return it if the allocation `p` is NULL. */
#define lks__no_memory(...) lks__fail(LKS_ERR_NOMEM, "no memory " __VA_ARGS__)
#define LKS__MEMORY(p, ...)                                                                        \
    do {                                                                                           \
        if ((p) == NULL)                                                                           \
            return lks__no_memory(__VA_ARGS__);                                                    \
    } while (0)

#define LKS__TRY(expr)                                                                             \
    do {                                                                                           \
        lks_status lks__try_st = (expr);                                                           \
        if (lks__try_st != LKS_OK)                                                                 \
            return lks__try_st;                                                                    \
    } while (0)

/* The same for a function that must clean up: the call is made, and `st` is its status, unless an
 * earlier one has failed. */
#define LKS__THEN(st, expr)                                                                        \
    do {                                                                                           \
        if ((st) == LKS_OK)                                                                        \
            (st) = (expr);                                                                         \
    } while (0)
