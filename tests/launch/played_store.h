/* tests/launch/played_store.h - a client of a store that isn't there. */
#pragma once

#include "comm/store/store.h"

/* A connection on which, right after the handshake, stands all that will ever be asked for: `n`
 * texts, at most 8,000 bytes together. So a client finds each at once, and the next one, too. The
 * caller closes the other end after the client. */
lks__store *played_store(const char *token, const char *const *list, size_t n, int *other_end_p);
