/* comm/store/store_conn.h - one connection of the store's server: parses its bytes and queues the
 * answers. These functions never wait: store_server.c has the thread and calls them when there are
 * bytes to read or room to write. */
#pragma once

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/store/address.h"
#include "comm/store/store_values.h"

enum { LKS__MOST_REFUSED = 32 }; /* peers whose addresses are kept */

struct lks__conn {
    int fd;
    bool member, closing; /* member: has proved the token; closing: close once its output is sent */
    double deadline;      /* for a stranger's proof */
    unsigned char nonce[LKS__NONCE_BYTES];

    unsigned char *in; /* a stranger's buffer has room for the proof only */
    size_t n_in, cap_in;
    unsigned char *out;
    size_t n_out, cap_out;

    bool waiting; /* for `key`, until `wait_until`; 0: without limit */
    double wait_until;
    char key[LKS__STORE_KEY_BYTES];

    char *will_list; /* NULL: nothing to post when the connection ends */
    unsigned char *will;
    size_t will_bytes;
};

struct lks__store_server {
    pthread_t thread;
    int listener, stop_fd, port;
    int link_s; /* seconds until a silent machine counts as lost */
    char *token;
    lks__values values;
    atomic_bool is_full; /* a connection found no free descriptor */
    /* Peers with another token; the server's thread only appends. */
    char refused[LKS__MOST_REFUSED][LKS__ADDRESS_BYTES];
    atomic_int n_refused;
    int n_told; /* number of them that lks__store_refused() has returned */
    struct lks__conn **conns;
    size_t n_conns, cap_conns;
    struct pollfd *polls; /* [cap_conns + 2] */
};

/* Read the available bytes and serve them; false if the connection has ended. */
bool lks__conn_take(lks__store_server *s, struct lks__conn *c);
/* Send the connection's output; false if the connection has ended. */
bool lks__conn_flush(struct lks__conn *c);
/* Queue bytes for the next flush. */
void lks__conn_send(struct lks__conn *c, const void *data, size_t bytes);
void lks__conn_answer(struct lks__conn *c, enum lks__answer what, const void *data, size_t bytes);
void lks__conn_free(struct lks__conn *c); /* also closes it; the caller posts its will */

/* Append to a list, and answer all connections that wait for the new entry. */
enum lks__answer lks__store_server_post(lks__store_server *s, const char *list, const void *data,
                                        size_t bytes);
