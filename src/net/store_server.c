#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/sys.h"
#include "net/address.h"
#include "net/store_values.h"

enum {
    MAX_STRANGERS = 64,    /* connections without a proof; the oldest makes room for the newest */
    MAX_MEMBERS = 4096,    /* connections with one */
    MAX_ANSWERS = 8 << 20, /* bytes that a member may leave unread */
    MAX_IN = LKS__STORE_KEY_BYTES + LKS__STORE_VALUE_BYTES + sizeof(struct lks__request),
};

static const double PROOF_S = 5.0; /* for a stranger to prove itself */

struct conn {
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
    struct conn **conns;
    size_t n_conns, cap_conns;
    struct pollfd *polls; /* [cap_conns + 2] */
};

/* --- one connection ----------------------------------------------------------------------- */

static void forget_will(struct conn *c)
{
    free(c->will_list);
    free(c->will);
    c->will_list = NULL;
    c->will = NULL;
}

static void free_conn(struct conn *c)
{
    lks__sys_close(c->fd);
    forget_will(c);
    free(c->in);
    free(c->out);
    free(c);
}

static bool grow(unsigned char **buf, size_t *cap, size_t need)
{
    if (need <= *cap)
        return true;
    size_t more = need + need / 2;
    unsigned char *p = realloc(*buf, more);
    if (p == NULL)
        return false;
    *buf = p;
    *cap = more;
    return true;
}

/* false: the connection is at its end. */
static bool flush(struct conn *c)
{
    size_t sent = 0;
    while (sent < c->n_out) {
        ssize_t n = lks__sys_send(c->fd, c->out + sent, c->n_out - sent);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return false;
        if (n < 0)
            break;
        sent += (size_t)n;
    }
    if (sent > 0)
        memmove(c->out, c->out + sent, c->n_out - sent);
    c->n_out -= sent;
    return !(c->closing && c->n_out == 0);
}

static void send_bytes(struct conn *c, const void *data, size_t bytes)
{
    if (c->n_out + bytes > MAX_ANSWERS || !grow(&c->out, &c->cap_out, c->n_out + bytes)) {
        c->n_out = 0; /* it doesn't read: no use in telling it more */
        c->closing = true;
        return;
    }
    if (bytes > 0)
        memcpy(c->out + c->n_out, data, bytes);
    c->n_out += bytes;
}

static void answer(struct conn *c, enum lks__answer what, const void *data, size_t bytes)
{
    struct lks__reply reply = {(uint32_t)what, (uint32_t)bytes};
    send_bytes(c, &reply, sizeof reply);
    send_bytes(c, data, bytes);
}

/* --- requests ----------------------------------------------------------------------------- */

/* Tell whoever waits for `key`. */
static void announce(lks__store_server *s, const char *key)
{
    const struct lks__value *v = NULL;
    for (size_t i = 0; i < s->n_conns; i++) {
        struct conn *c = s->conns[i];
        if (!c->waiting || strcmp(c->key, key) != 0)
            continue;
        if (v == NULL)
            v = lks__values_find(&s->values, key);
        c->waiting = false;
        answer(c, LKS__ANSWER_OK, v->data, v->bytes);
    }
}

static enum lks__answer set(lks__store_server *s, const char *key, const void *data, size_t bytes)
{
    enum lks__answer result = lks__values_set(&s->values, key, data, bytes);
    if (result == LKS__ANSWER_OK)
        announce(s, key);
    return result;
}

static enum lks__answer post(lks__store_server *s, const char *list, const void *data, size_t bytes)
{
    char key[LKS__STORE_KEY_BYTES];
    enum lks__answer result = lks__values_next(&s->values, list, key);
    return result == LKS__ANSWER_OK ? set(s, key, data, bytes) : result;
}

static void get(lks__store_server *s, struct conn *c, const char *key, const void *wait)
{
    const struct lks__value *v = lks__values_find(&s->values, key);
    uint32_t wait_ms;
    memcpy(&wait_ms, wait, sizeof wait_ms);
    if (v != NULL) {
        answer(c, LKS__ANSWER_OK, v->data, v->bytes);
    } else if (wait_ms == 0) {
        answer(c, LKS__ANSWER_TIMEOUT, NULL, 0);
    } else {
        c->waiting = true;
        c->wait_until = wait_ms == UINT32_MAX ? 0 : lks__sys_now() + 1e-3 * wait_ms;
        snprintf(c->key, sizeof c->key, "%s", key);
    }
}

static enum lks__answer keep_will(struct conn *c, const char *list, const void *data, size_t bytes)
{
    char *name = strdup(list);
    unsigned char *copy = malloc(bytes + 1);
    if (name == NULL || copy == NULL) {
        free(name);
        free(copy);
        return LKS__ANSWER_FULL;
    }
    memcpy(copy, data, bytes);
    forget_will(c);
    c->will_list = name;
    c->will = copy;
    c->will_bytes = bytes;
    return LKS__ANSWER_OK;
}

static void serve(lks__store_server *s, struct conn *c, const struct lks__request *r,
                  const char *key, const unsigned char *value)
{
    int64_t n;
    switch (r->op) {
    case LKS__OP_GET:
        if (r->value_bytes == sizeof(uint32_t)) {
            get(s, c, key, value);
            return;
        }
        break;
    case LKS__OP_SET:
        answer(c, set(s, key, value, r->value_bytes), NULL, 0);
        return;
    case LKS__OP_ADD:
        if (r->value_bytes == sizeof n) {
            memcpy(&n, value, sizeof n);
            enum lks__answer result = lks__values_add(&s->values, key, n, &n);
            if (result == LKS__ANSWER_OK)
                announce(s, key);
            answer(c, result, &n, result == LKS__ANSWER_OK ? sizeof n : 0);
            return;
        }
        break;
    case LKS__OP_POST:
        answer(c, post(s, key, value, r->value_bytes), NULL, 0);
        return;
    case LKS__OP_WILL:
        answer(c, keep_will(c, key, value, r->value_bytes), NULL, 0);
        return;
    case LKS__OP_NO_WILL:
        forget_will(c);
        answer(c, LKS__ANSWER_OK, NULL, 0);
        return;
    default:
        break;
    }
    answer(c, LKS__ANSWER_BAD, NULL, 0);
    c->closing = true;
}

/* A whole proof has come: believe it or not. */
static void judge(lks__store_server *s, struct conn *c)
{
    struct lks__proof proof;
    struct lks__verdict verdict = {1, {0}};
    unsigned char mac[LKS__MAC_BYTES];
    memcpy(&proof, c->in, sizeof proof);
    c->n_in = 0;
    lks__prove(s->token, "client", c->nonce, proof.nonce, mac);
    if (memcmp(proof.magic, LKS__NET_MAGIC, sizeof proof.magic) == 0 &&
        lks__same_mac(mac, proof.mac)) {
        verdict.refused = 0;
        lks__prove(s->token, "server", c->nonce, proof.nonce, verdict.mac);
        c->member = true;
    } else {
        c->closing = true;
    }
    send_bytes(c, &verdict, sizeof verdict);
}

/* Serve what has come so far; false: it breaks the protocol. */
static bool digest(lks__store_server *s, struct conn *c)
{
    size_t done = 0;
    while (!c->closing && !c->waiting && c->member) {
        struct lks__request r;
        char key[LKS__STORE_KEY_BYTES];
        if (c->n_in - done < sizeof r)
            break;
        memcpy(&r, c->in + done, sizeof r);
        if (r.key_bytes == 0 || r.key_bytes >= sizeof key || r.value_bytes > LKS__STORE_VALUE_BYTES)
            return false;
        size_t bytes = sizeof r + r.key_bytes + r.value_bytes;
        if (c->n_in - done < bytes)
            break;
        memcpy(key, c->in + done + sizeof r, r.key_bytes);
        key[r.key_bytes] = '\0';
        if (strlen(key) != r.key_bytes)
            return false;
        serve(s, c, &r, key, c->in + done + sizeof r + r.key_bytes);
        done += bytes;
    }
    if (done > 0)
        memmove(c->in, c->in + done, c->n_in - done);
    c->n_in -= done;
    return true;
}

/* Read what is there; false: the connection is at its end. */
static bool take(lks__store_server *s, struct conn *c)
{
    for (;;) {
        size_t want = c->member ? 4096 : sizeof(struct lks__proof) - c->n_in;
        if (c->n_in > MAX_IN) /* more than one request at a time */
            return false;
        if (!grow(&c->in, &c->cap_in, c->n_in + want))
            return false;
        ssize_t n = lks__sys_recv(c->fd, c->in + c->n_in, want);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0)
            return false;
        c->n_in += (size_t)n;
        if (!c->member && c->n_in == sizeof(struct lks__proof))
            judge(s, c);
        else if (!digest(s, c))
            return false;
        if (c->closing)
            return true;
    }
}

/* --- all connections ---------------------------------------------------------------------- */

static void drop(lks__store_server *s, size_t i)
{
    struct conn *c = s->conns[i];
    memmove(&s->conns[i], &s->conns[i + 1], (s->n_conns - i - 1) * sizeof *s->conns);
    s->n_conns--;
    if (c->will_list != NULL)
        post(s, c->will_list, c->will, c->will_bytes);
    free_conn(c);
}

/* Connections are in the order in which they came. */
static bool drop_oldest_stranger(lks__store_server *s)
{
    for (size_t i = 0; i < s->n_conns; i++)
        if (!s->conns[i]->member) {
            drop(s, i);
            return true;
        }
    return false;
}

static size_t count(const lks__store_server *s, bool member)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_conns; i++)
        n += s->conns[i]->member == member;
    return n;
}

static bool make_room(lks__store_server *s)
{
    if (s->n_conns < s->cap_conns)
        return true;
    size_t cap = s->cap_conns * 2 + 8;
    struct conn **conns = realloc(s->conns, cap * sizeof(struct conn *));
    if (conns == NULL)
        return false;
    s->conns = conns;
    struct pollfd *polls = realloc(s->polls, (cap + 2) * sizeof *polls);
    if (polls == NULL)
        return false;
    s->polls = polls;
    s->cap_conns = cap;
    return true;
}

static void welcome(lks__store_server *s, int fd)
{
    struct conn *c = calloc(1, sizeof *c);
    struct lks__hello hello;
    if (c == NULL || !make_room(s) || count(s, true) >= MAX_MEMBERS ||
        lks__random(c->nonce, sizeof c->nonce) != LKS_OK) {
        free(c);
        lks__sys_close(fd);
        return;
    }
    lks__address_tune(fd);
    c->fd = fd;
    c->deadline = lks__sys_now() + PROOF_S;
    memcpy(hello.magic, LKS__NET_MAGIC, sizeof hello.magic);
    memcpy(hello.nonce, c->nonce, sizeof hello.nonce);
    send_bytes(c, &hello, sizeof hello);
    s->conns[s->n_conns++] = c;
}

static void accept_all(lks__store_server *s)
{
    for (int tries = 0; tries < MAX_STRANGERS; tries++) {
        int fd = lks__sys_accept(s->listener);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && drop_oldest_stranger(s))
            continue;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            usleep(50000); /* no descriptor and nobody to take one from: don't spin */
        if (fd < 0)
            return;
        if (count(s, false) >= MAX_STRANGERS)
            drop_oldest_stranger(s);
        welcome(s, fd);
    }
}

/* What is overdue, and milliseconds until the next thing will be (-1: nothing will). */
static int expire(lks__store_server *s)
{
    double now = lks__sys_now(), next = 0;
    for (size_t i = 0; i < s->n_conns;) {
        struct conn *c = s->conns[i];
        if (!c->member && now >= c->deadline) {
            drop(s, i);
            continue;
        }
        if (c->waiting && c->wait_until > 0 && now >= c->wait_until) {
            c->waiting = false;
            answer(c, LKS__ANSWER_TIMEOUT, NULL, 0);
        }
        double due = !c->member ? c->deadline : c->waiting ? c->wait_until : 0;
        if (due > 0 && (next == 0 || due < next))
            next = due;
        i++;
    }
    return next == 0 ? -1 : (int)((next - now) * 1e3) + 1;
}

/* Wills may post while connections are dropped, so what is readable is looked up by the poll's
 * order first, and dropped after. */
static void step(lks__store_server *s)
{
    int wait_ms = expire(s);
    s->polls[0] = (struct pollfd){.fd = s->stop_fd, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    size_t n = s->n_conns;
    for (size_t i = 0; i < n; i++) {
        struct conn *c = s->conns[i];
        short events = (short)((c->closing ? 0 : POLLIN) | (c->n_out > 0 ? POLLOUT : 0));
        s->polls[i + 2] = (struct pollfd){.fd = c->fd, .events = events};
    }
    if (poll(s->polls, n + 2, wait_ms) <= 0)
        return;
    for (size_t i = n; i-- > 0;) {
        struct conn *c = s->conns[i];
        if (s->polls[i + 2].revents == 0)
            continue;
        bool alive = (s->polls[i + 2].revents & (POLLERR | POLLNVAL)) == 0;
        if (alive && !c->closing)
            alive = take(s, c);
        if (!alive)
            drop(s, i);
    }
    for (size_t i = s->n_conns; i-- > 0;)
        if ((s->conns[i]->n_out > 0 || s->conns[i]->closing) && !flush(s->conns[i]))
            drop(s, i);
    if (s->polls[1].revents != 0)
        accept_all(s);
}

static void *run(void *arg)
{
    lks__store_server *s = arg;
    pthread_setname_np(pthread_self(), "lockstep-store");
    do
        step(s);
    while (s->polls[0].revents == 0);
    return NULL;
}

/* --- from outside ------------------------------------------------------------------------- */

static lks_status listen_on(lks__store_server *s, const char *host, int port)
{
    char where[LKS__ADDRESS_BYTES];
    struct addrinfo *list;
    LKS__TRY(lks__address_find(host, port, true, &list));
    struct sockaddr_storage addr;
    socklen_t len = list->ai_addrlen;
    memcpy(&addr, list->ai_addr, len); /* the first: a server is at one place */
    freeaddrinfo(list);
    lks__address_text(where, host, port);
    int on = 1, fd = lks__sys_socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (fd < 0)
        return lks__fail(LKS_ERR_IO, "can't open a socket to listen on %s: %s", where,
                         strerror(errno));
    s->listener = fd;
    /* A port that a job has just left is free: its last connections need not be waited for. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (lks__sys_bind(fd, (struct sockaddr *)&addr, len) != 0 || lks__sys_listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0)
        return lks__fail(errno == EADDRINUSE || errno == EADDRNOTAVAIL ? LKS_ERR_SUPPORT
                                                                       : LKS_ERR_IO,
                         "can't listen on %s: %s%s", where, strerror(errno),
                         errno == EADDRINUSE ? "; choose another port, or 0 for a free one" : "");
    char service[16] = "0";
    getnameinfo((struct sockaddr *)&addr, len, NULL, 0, service, sizeof service, NI_NUMERICSERV);
    s->port = atoi(service);
    return LKS_OK;
}

static lks_status start_thread(lks__store_server *s)
{
    sigset_t all, before;
    sigfillset(&all); /* signals are the program's business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err == 0 ? LKS_OK
                    : lks__fail(LKS_ERR_NOMEM, "can't start the store's thread: %s", strerror(err));
}

static void free_server(lks__store_server *s)
{
    for (size_t i = 0; i < s->n_conns; i++)
        free_conn(s->conns[i]);
    if (s->listener >= 0)
        lks__sys_close(s->listener);
    if (s->stop_fd >= 0)
        lks__sys_close(s->stop_fd);
    lks__values_free(&s->values);
    free(s->conns);
    free(s->polls);
    free(s->token);
    free(s);
}

lks_status lks__store_serve(const char *host, int port, const char *token,
                            lks__store_server **server_p)
{
    lks__store_server *s = calloc(1, sizeof *s);
    lks_status st = LKS_OK;
    if (s == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the store");
    s->listener = -1;
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    s->token = strdup(token);
    if (!make_room(s) || s->token == NULL || s->stop_fd < 0)
        st = lks__fail(LKS_ERR_NOMEM, "no memory or descriptor for the store");
    if (st == LKS_OK)
        st = listen_on(s, host, port);
    if (st == LKS_OK)
        st = start_thread(s);
    if (st != LKS_OK) {
        free_server(s);
        return st;
    }
    *server_p = s;
    return LKS_OK;
}

int lks__store_port(const lks__store_server *server)
{
    return server->port;
}

void lks__store_stop(lks__store_server *server)
{
    if (server == NULL)
        return;
    (void)eventfd_write(server->stop_fd, 1);
    pthread_join(server->thread, NULL);
    free_server(server);
}
