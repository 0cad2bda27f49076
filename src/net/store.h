/* net/store.h - a job's key-value store over TCP: how processes on several hosts find each other.
 *
 * One process serves it, in a thread of its own; all others, and it itself, are clients. Keys are
 * texts of 1 to LKS__STORE_KEY_BYTES - 1 bytes, values any bytes up to LKS__STORE_VALUE_BYTES; both
 * live as long as the server. The server is bound to the one address it is given.
 *
 * Both sides prove by a challenge (HMAC-SHA256 over two nonces) that they know the job's token; the
 * token itself is never sent. What goes over the wire afterwards is neither encrypted nor signed:
 * the network between the hosts of a job is trusted that far. Ranks of a launch find the store in
 * their environment as LOCKSTEP_STORE=ADDRESS:PORT (an IPv6 address in brackets) and the token as
 * LOCKSTEP_TOKEN. Whoever can't prove the token gets no memory beyond a fixed few bytes, and no
 * answer to anything.
 *
 * A peer whose machine or cable is gone is noticed after LKS__STORE_DEAD_S, by the kernel's
 * keep-alive: a process that is merely stopped or starved keeps its connection. */
#ifndef LKS_NET_STORE_H
#define LKS_NET_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__STORE_ENV "LOCKSTEP_STORE"
#define LKS__TOKEN_ENV "LOCKSTEP_TOKEN"

enum {
    LKS__STORE_KEY_BYTES = 256,
    LKS__STORE_VALUE_BYTES = 1 << 20,
    LKS__STORE_TOTAL_BYTES = 64 << 20, /* of all keys and values */
    LKS__STORE_DEAD_S = 5,
    LKS__TOKEN_BYTES = 33, /* a new token's 32 hex digits and a 0 */
};

/* A token nobody can guess. ERR_IO where the system has no random bytes. */
lks_status lks__token_new(char token[LKS__TOKEN_BYTES]);

/* --- server ------------------------------------------------------------------------------- */

typedef struct lks__store_server lks__store_server;

/* Serve on `host` (a name or a number of this machine) and `port` (0: a free one), for clients with
 * `token` (copied). ERR_IO names the address and the cause; ERR_SUPPORT where it is that the
 * address isn't this machine's, or somebody listens there already. */
lks_status lks__store_serve(const char *host, int port, const char *token,
                            lks__store_server **server_p);
int lks__store_port(const lks__store_server *server);
void lks__store_stop(lks__store_server *server); /* NULL is fine; closes all connections */

/* --- client: one connection, for one thread at a time ------------------------------------- */

typedef struct lks__store lks__store;

/* Connect, trying for `timeout_s` while nobody answers there. ERR_TIMEOUT says what stood in the
 * way; ERR_CONFIG where the tokens differ; ERR_FORMAT where something else listens. */
lks_status lks__store_open(const char *host, int port, const char *token, double timeout_s,
                           lks__store **store_p);
/* A client on the connection `fd`, which it closes in the end, and where it fails; `where` is the
 * store's name in messages. */
lks_status lks__store_on(int fd, const char *where, const char *token, double timeout_s,
                         lks__store **store_p);
/* The store that LOCKSTEP_STORE and LOCKSTEP_TOKEN name; ERR_SUPPORT where they aren't set. */
lks_status lks__store_open_env(double timeout_s, lks__store **store_p);
void lks__store_close(lks__store *store); /* NULL is fine */

/* After ERR_PEER (the connection has ended) or ERR_TIMEOUT of anything but a get, the client is
 * only good for closing. ERR_ARG: a key or value of a size that can't be; ERR_NOMEM: the store is
 * full. */
lks_status lks__store_set(lks__store *store, const char *key, const void *data, size_t bytes);

/* Wait until somebody has set `key`, at most timeout_s: then ERR_TIMEOUT naming the key. The value
 * is the caller's to free, with a 0 behind it that *bytes_p doesn't count. */
lks_status lks__store_get(lks__store *store, const char *key, double timeout_s, void **data_p,
                          size_t *bytes_p);

/* Add to a number that begins as 0; *sum_p is the sum after. */
lks_status lks__store_add(lks__store *store, const char *key, int64_t n, int64_t *sum_p);

/* --- lists, for news: whoever waits for LIST/1, LIST/2 ... sees what all others see --------- */

/* Set `LIST/n` for the next n from 1 on. */
lks_status lks__store_post(lks__store *store, const char *list, const void *data, size_t bytes);

/* What the server posts to `list` when this connection ends, for whatever reason. One at a time;
 * `data` NULL: nothing any more. */
lks_status lks__store_will(lks__store *store, const char *list, const void *data, size_t bytes);

/* A get without waiting in it: after ask(), answer() is IN_PROGRESS until the value is there.
 * The descriptor is readable when a look is due. Nothing else on this connection in between. */
lks_status lks__store_ask(lks__store *store, const char *key);
int lks__store_fd(const lks__store *store);
lks_status lks__store_answer(lks__store *store, void **data_p, size_t *bytes_p);

/* This end's address, as a number: how the server's network sees this host. */
lks_status lks__store_local_address(const lks__store *store, char *text, size_t text_bytes);

#endif
