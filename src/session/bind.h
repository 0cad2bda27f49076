/* session/bind.h - binding of a host's ranks to its cores, by hwloc. */
#pragma once

#include <stddef.h>

#include "session/bind_module.h"

/* --bind, in this order (LKS__WORDS_bind). */
enum lks__bind {
    LKS__BIND_AUTO,  /* on machines with several memory nodes, unless the ranks are already bound */
    LKS__BIND_CORES, /* always */
    LKS__BIND_NONE,
};

/* Find the share of local rank `rank` of `ranks`. Returns the library's name; NULL if it can't,
 * with the reason in `why`. */
const char *lks__bind_find(int rank, int ranks, lks__bind_share *share, char *why,
                           size_t why_bytes);

/* Bind this thread, and those that it starts later, to its share, according to `mode`; after any
 * failure it stays unbound. Every rank calls it with the same `ranks` (more than 1), and must have
 * inherited the same processors. */
void lks__bind(enum lks__bind mode, int rank, int ranks);
