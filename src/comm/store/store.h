/* comm/store/store.h - a job's key-value store over TCP, through which processes on several hosts
 * find each other.
 *
 * One process serves it, in a separate thread; all processes, the server's included, are clients.
 * Keys are texts of 1 to LKS__STORE_KEY_BYTES - 1 bytes, values any bytes up to
 * LKS__STORE_VALUE_BYTES; both live as long as the server. The server is bound only to the address
 * that it is given.
 *
 * Both sides prove by a challenge (HMAC-SHA256 over two nonces) that they know the job's token; the
 * token itself is never sent. Later messages are neither encrypted nor signed: the network between
 * the hosts of a job is trusted. Ranks of a launch find the store in their environment as
 * LOCKSTEP_STORE=ADDRESS:PORT (an IPv6 address in brackets) and the token as LOCKSTEP_TOKEN. A
 * client that can't prove the token gets no answer, and no memory beyond a few fixed bytes.
 *
 * If a peer's machine or cable fails, the kernel's keep-alive notices it after
 * LOCKSTEP_LINK_TIMEOUT seconds (5 by default). A process that is only stopped or starved keeps its
 * connection. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__STORE_ENV "LOCKSTEP_STORE"
#define LKS__TOKEN_ENV "LOCKSTEP_TOKEN"
#define LKS__LINK_ENV  "LOCKSTEP_LINK_TIMEOUT"

/* Keys of a group that is being opened: attempt, number of the group, name. "failed" is a reason
 * why it can't be opened. */
#define LKS__STORE_GROUP_KEY "engine/%.16s/%u/%s"

enum {
    LKS__STORE_KEY_BYTES = 256,
    LKS__STORE_VALUE_BYTES = 1 << 20,
    LKS__STORE_TOTAL_BYTES = 64 << 20, /* of all keys and values together */
    LKS__LINK_PRESET_S = 5,
    LKS__LINK_LEAST_S = 2,
    LKS__LINK_MOST_S = 3600,
    LKS__TOKEN_BYTES = 33, /* a new token: 32 hex digits and a 0 byte */
};

/* Read the seconds after which a silent machine counts as lost from the environment, or use the
 * default. ERR_CONFIG if the value is wrong. */
lks_status lks__link_timeout(int *seconds_p);
int lks__link_s(void); /* the seconds, once a store was opened */

/* Make a random token. ERR_IO if the system has no random bytes. */
lks_status lks__token_new(char token[LKS__TOKEN_BYTES]);

/* --- server ------------------------------------------------------------------------------- */

typedef struct lks__store_server lks__store_server;

/* Serve on `host` (a name or address of this machine) and `port` (0: a free port), for clients with
 * `token` (copied). ERR_CONFIG as lks__link_timeout(). ERR_IO names the address and the cause;
 * ERR_SUPPORT if the address isn't this machine's, or if another program already listens on it. */
lks_status lks__store_serve(const char *host, int port, const char *token,
                            lks__store_server **server_p);
int lks__store_port(const lks__store_server *server);
/* True if the server ever lacked a descriptor for a connection. */
bool lks__store_is_full(const lks__store_server *server);
/* The address of the next peer that was refused because it has another token, each once; NULL: no
 * more. */
const char *lks__store_refused(lks__store_server *server);
void lks__store_stop(lks__store_server *server); /* closes all connections; NULL does nothing */

/* --- client: one connection, for one thread at a time ------------------------------------- */

typedef struct lks__store lks__store;

/* Connect; if there is no answer, keep trying for `timeout_s`. ERR_TIMEOUT contains the last
 * reason, ERR_CONFIG if the tokens differ, ERR_FORMAT if another kind of program listens there. */
lks_status lks__store_open(const char *host, int port, const char *token, double timeout_s,
                           lks__store **store_p);
/* Seconds for the next lks__store_open() of a caller that has tried for `waited` seconds and looks
 * for failures between tries: short ones first, then longer ones for slow links. */
double lks__store_try_s(double waited);
/* Make a client on the connection `fd`, which is closed with the client, or on failure. `where` is
 * the store's name in messages. */
lks_status lks__store_on(int fd, const char *where, const char *token, double timeout_s,
                         lks__store **store_p);
/* Open the store that LOCKSTEP_STORE and LOCKSTEP_TOKEN name; ERR_SUPPORT if they aren't set. */
lks_status lks__store_open_env(double timeout_s, lks__store **store_p);
void lks__store_close(lks__store *store); /* NULL does nothing */

/* After ERR_PEER (the connection has ended), or ERR_TIMEOUT from any call but a get, the client can
 * only be closed. ERR_ARG: a key or value of an impossible size; ERR_NOMEM: the store is full. */
lks_status lks__store_set(lks__store *store, const char *key, const void *data, size_t bytes);

/* Wait until `key` is set, at most timeout_s: then ERR_TIMEOUT naming the key. The caller frees the
 * value, which is followed by a 0 byte that *bytes_p doesn't count. */
lks_status lks__store_get(lks__store *store, const char *key, double timeout_s, void **data_p,
                          size_t *bytes_p);

/* Add to a number, which starts at 0; *sum_p is the new value. */
lks_status lks__store_add(lks__store *store, const char *key, int64_t n, int64_t *sum_p);

/* set() without waiting for the answer, and post(), which sets `LIST/n` for the next n from 1 on.
 * told() collects the answers: IN_PROGRESS until all have arrived, and an error if a request was
 * refused or the connection has ended. Other calls wait for them. */
lks_status lks__store_set_later(lks__store *store, const char *key, const void *data, size_t bytes);
lks_status lks__store_post_later(lks__store *store, const char *list, const void *data,
                                 size_t bytes);
lks_status lks__store_told(lks__store *store);

/* --- lists: every client that waits for LIST/1, LIST/2 ... gets the same values --------------- */

/* Register the data that the server posts to `list` when this connection ends, for any reason. Each
 * connection has at most one. */
lks_status lks__store_will(lks__store *store, const char *list, const void *data, size_t bytes);

/* A get that doesn't block: after ask(), answer() returns IN_PROGRESS until the value is set. The
 * descriptor becomes readable when answer() should be called. Until then the connection can't be
 * used for other calls. */
lks_status lks__store_ask(lks__store *store, const char *key);
int lks__store_fd(const lks__store *store);
lks_status lks__store_answer(lks__store *store, void **data_p, size_t *bytes_p);

/* This end's address, as a number: the address of this host in the server's network. */
lks_status lks__store_local_address(const lks__store *store, char *text, size_t text_bytes);
