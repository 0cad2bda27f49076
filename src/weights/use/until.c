#include "weights/use/until.h"

#include <string.h>

/* Pass on held[0, n), and forget the first n + skip bytes. */
static lks_status release(lks__until *u, size_t n, size_t skip)
{
    lks_status st = n == 0 ? LKS_OK : u->put(u->ctx, u->held, n);
    u->n_held -= n + skip;
    memmove(u->held, u->held + n + skip, u->n_held);
    return st;
}

/* The length of the stop text at the end of held[]; 0 if there is none. */
static size_t ends_with_stop(const lks__until *u)
{
    for (const char *const *stop = u->stops; *stop != NULL; stop++) {
        const size_t n = strlen(*stop);
        if (n <= u->n_held && memcmp(u->held + u->n_held - n, *stop, n) == 0)
            return n;
    }
    return 0;
}

/* True if held[from, n_held) is the beginning of a stop text. */
static bool may_become_stop(const lks__until *u, size_t from)
{
    for (const char *const *stop = u->stops; *stop != NULL; stop++)
        if (strncmp(u->held + from, *stop, u->n_held - from) == 0)
            return true;
    return false;
}

lks_status lks__until_add(lks__until *u, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes && !u->ended; i++) {
        size_t from = 0, n;
        u->held[u->n_held++] = text[i];
        if ((n = ends_with_stop(u)) > 0) {
            u->ended = true;
            return release(u, u->n_held - n, n);
        }
        while (from < u->n_held && !may_become_stop(u, from))
            from++;
        LKS__TRY(release(u, from, 0));
    }
    return LKS_OK;
}

lks_status lks__until_end(lks__until *u)
{
    return release(u, u->n_held, 0);
}
