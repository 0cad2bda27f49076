/* net/store_conn.h - one connection of the store's server: what its bytes mean, and what is sent
 * back. Nothing here waits: store_server.c, which has the thread, says when there is something to
 * read or room to write. */
#ifndef LKS_NET_STORE_CONN_H
#define LKS_NET_STORE_CONN_H

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>

#include "net/store_values.h"

struct lks__conn {
    int fd;
    bool member, closing; /* closing: as soon as what it was told is sent */
    double deadline;      /* a stranger's */
    unsigned char nonce[LKS__NONCE_BYTES];

    unsigned char *in; /* a stranger's has room for the proof, and no more */
    size_t n_in, cap_in;
    unsigned char *out;
    size_t n_out, cap_out;

    bool waiting; /* for `key`; until `wait_until`, 0: for ever */
    double wait_until;
    char key[LKS__STORE_KEY_BYTES];

    char *will_list; /* NULL: no will */
    unsigned char *will;
    size_t will_bytes;
};

struct lks__store_server {
    pthread_t thread;
    int listener, stop_fd, port;
    char *token;
    lks__values values;
    struct lks__conn **conns;
    size_t n_conns, cap_conns;
    struct pollfd *polls; /* [cap_conns + 2] */
};

/* Read what is there, and serve it; false: the connection is at its end. */
bool lks__conn_take(lks__store_server *s, struct lks__conn *c);
/* Send what there is for it; false: the connection is at its end. */
bool lks__conn_flush(struct lks__conn *c);
/* To be sent with the next flush. */
void lks__conn_send(struct lks__conn *c, const void *data, size_t bytes);
void lks__conn_answer(struct lks__conn *c, enum lks__answer what, const void *data, size_t bytes);
void lks__conn_free(struct lks__conn *c); /* and close it; its will is the caller's to post */

/* Append to a list, and tell whoever waits for that. */
enum lks__answer lks__store_server_post(lks__store_server *s, const char *list, const void *data,
                                        size_t bytes);

#endif
