#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system/sys.h"
#include "comm/store/address.h"
#include "comm/store/handshake.h"
#include "comm/store/store.h"

/* For an answer that needs no waiting. The kernel notices a lost peer earlier. */
static const double ANSWER_S = 30.0;
static const double HELLO_S = 5.0;
static const double SEND_S = 1.0; /* for the system to accept a message */
static const double LOOK_S = 0.1; /* a caller may give up, even if no signal interrupts the wait */

struct lks__store {
    int fd;
    char where[LKS__ADDRESS_BYTES];
    struct lks__reply reply; /* for lks__store_answer(), which reads in parts */
    unsigned char *value;
    size_t n_got;
    bool late;        /* a call was given up before its answer came, which comes first */
    unsigned n_later; /* requests of the ..._later() calls without an answer */
};

/* --- bytes with a deadline ---------------------------------------------------------------- */

static lks_status lost(const lks__store *s, int err)
{
    return lks__fail(LKS_ERR_PEER, "the connection to %s has ended: %s", s->where,
                     err != 0 ? strerror(err) : "the other end has closed it");
}

static lks_status wait_for(const lks__store *s, short events, double until)
{
    for (;;) {
        double left = until - lks__sys_now();
        struct pollfd p = {.fd = s->fd, .events = events};
        int n = poll(&p, 1, left <= 0 ? 0 : (int)(fmin(left, LOOK_S) * 1e3) + 1);
        if (n > 0)
            return LKS_OK;
        if (n < 0 && errno != EINTR)
            return lost(s, errno);
        LKS__TRY(lks__sys_give_up_check());
        if (lks__sys_now() >= until)
            return lks__fail(LKS_ERR_TIMEOUT, "%s doesn't answer", s->where);
    }
}

static lks_status put(const lks__store *s, const void *data, size_t bytes, double until)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = lks__sys_send(s->fd, (const char *)data + done, bytes - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            LKS__TRY(wait_for(s, POLLOUT, until));
        else
            return lost(s, errno);
    }
    return LKS_OK;
}

static lks_status take(const lks__store *s, void *data, size_t bytes, double until)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = lks__sys_recv(s->fd, (char *)data + done, bytes - done);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            LKS__TRY(wait_for(s, POLLIN, until));
        else
            return lost(s, n < 0 ? errno : 0);
    }
    return LKS_OK;
}

/* --- opening ------------------------------------------------------------------------------ */

/* True if the socket connects this host's address `number` to itself. */
static bool is_own(int fd, const char *number)
{
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    char mine[LKS__NUMBER_BYTES];
    return getsockname(fd, (struct sockaddr *)&own, &n) == 0 &&
           lks__address_number((struct sockaddr *)&own, mine) && strcmp(mine, number) == 0;
}

/* Try all addresses of the host once; ERR_PEER if none answers (yet). */
static lks_status connect_once(lks__store *s, const char *host, int port, int link_s, double until)
{
    struct addrinfo *list;
    LKS__TRY(lks__address_find(host, port, false, &list));
    lks_status st = LKS_OK;
    int left = 0; /* addresses to try: each may take its share of the time */
    s->fd = -1;
    for (struct addrinfo *a = list; a != NULL; a = a->ai_next)
        left++;
    for (struct addrinfo *a = list; a != NULL && s->fd < 0; a = a->ai_next, left--) {
        const double now = lks__sys_now(), own = now + (until - now) / left;
        char number[LKS__NUMBER_BYTES], shown[LKS__NUMBER_BYTES + 4] = "";
        int err = 0;
        socklen_t len = sizeof err;
        s->fd = lks__sys_socket(a->ai_family, SOCK_STREAM);
        if (s->fd < 0) {
            st = lks__fail(LKS_ERR_IO, "can't open a socket: %s", lks__sys_reason(errno));
            continue;
        }
        lks__address_tune(s->fd, link_s);
        bool started =
            lks__sys_connect(s->fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS;
        err = errno;
        if (started && (st = wait_for(s, POLLOUT, own)) == LKS_OK) {
            getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len);
            if (err == 0)
                break;
        } else if (started) {
            err = ETIMEDOUT;
        }
        const bool known = lks__address_number(a->ai_addr, number);
        const bool itself = err == ETIMEDOUT && known && is_own(s->fd, number);
        lks__sys_close(s->fd);
        s->fd = -1;
        if (started && st == LKS_ERR_STOPPED)
            break;
        /* the name may stand for an unexpected address */
        if (known && strcmp(number, host) != 0)
            snprintf(shown, sizeof shown, " (%s)", number);
        st = lks__fail(LKS_ERR_PEER, "can't connect to %s%s: %s%s", s->where, shown, strerror(err),
                       itself ? "; this host can't reach itself: is lo up?" : "");
    }
    freeaddrinfo(list);
    return s->fd >= 0 ? LKS_OK : st;
}

static lks_status prove_each_other(const lks__store *s, const char *token, double until)
{
    struct lks__hello hello;
    struct lks__proof proof;
    struct lks__verdict verdict;
    unsigned char mac[LKS__MAC_BYTES];
    LKS__TRY(take(s, &hello, sizeof hello, until));
    if (memcmp(hello.magic, LKS__NET_MAGIC, sizeof hello.magic) != 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "the program that listens on %s is not a store of this version of "
                         "lockstep; does another program use this port?",
                         s->where);
    memcpy(proof.magic, LKS__NET_MAGIC, sizeof proof.magic);
    LKS__TRY(lks__random(proof.nonce, sizeof proof.nonce));
    lks__prove(token, "client", hello.nonce, proof.nonce, proof.mac);
    LKS__TRY(put(s, &proof, sizeof proof, until));
    LKS__TRY(take(s, &verdict, sizeof verdict, until));
    lks__prove(token, "server", hello.nonce, proof.nonce, mac);
    if (verdict.refused != 0 || !lks__same_mac(mac, verdict.mac))
        return lks__fail(LKS_ERR_CONFIG,
                         "the job at %s has another token than this process; %s must be the same "
                         "on all nodes of a job",
                         s->where, LKS__TOKEN_ENV);
    return LKS_OK;
}

static void pause_before_next(int tries)
{
    long ms = tries < 5 ? 10L << tries : 250;
    struct timespec t = {.tv_nsec = ms * 1000000};
    nanosleep(&t, NULL);
}

lks_status lks__store_on(int fd, const char *where, const char *token, double timeout_s,
                         lks__store **store_p)
{
    lks__store *s = calloc(1, sizeof *s);
    if (s == NULL) {
        lks__sys_close(fd);
        return lks__no_memory("for a connection");
    }
    s->fd = fd;
    snprintf(s->where, sizeof s->where, "%s", where);
    lks_status st = prove_each_other(s, token, lks__sys_now() + timeout_s);
    if (st == LKS_OK)
        *store_p = s;
    else
        lks__store_close(s);
    return st;
}

/* A connection and both proofs take three round trips; the server waits as long (PROOF_S). */
double lks__store_try_s(double waited)
{
    return fmin(2.0 + waited / 4, HELLO_S);
}

lks_status lks__store_open(const char *host, int port, const char *token, double timeout_s,
                           lks__store **store_p)
{
    struct lks__store way = {.fd = -1}; /* names the address in messages */
    lks__address_text(way.where, host, port);
    double until = lks__sys_now() + timeout_s;
    int link_s;
    lks_status st;
    LKS__TRY(lks__link_timeout(&link_s));
    for (int tries = 0;; tries++) {
        double try_until = fmin(until, lks__sys_now() + HELLO_S);
        st = connect_once(&way, host, port, link_s, try_until);
        LKS__THEN(st, lks__store_on(way.fd, way.where, token, try_until - lks__sys_now(), store_p));
        /* Not serving yet, or no room for us: either may pass. */
        if ((st != LKS_ERR_PEER && st != LKS_ERR_TIMEOUT) || lks__sys_now() >= until)
            break;
        LKS__TRY(lks__sys_give_up_check());
        pause_before_next(tries);
    }
    if (st == LKS_ERR_PEER || st == LKS_ERR_TIMEOUT) {
        st = LKS_ERR_TIMEOUT;
        lks__fail_in(st, "no connection within %.3g s", timeout_s);
    }
    return st;
}

lks_status lks__store_open_env(double timeout_s, lks__store **store_p)
{
    const char *where = getenv(LKS__STORE_ENV), *token = getenv(LKS__TOKEN_ENV);
    char host[256];
    int port = 0;
    if (where == NULL || token == NULL)
        return lks__fail(LKS_ERR_SUPPORT, "%s is not set: `lockstep run` sets it",
                         where == NULL ? LKS__STORE_ENV : LKS__TOKEN_ENV);
    LKS__TRY(lks__address_parse(LKS__STORE_ENV, where, host, sizeof host, &port));
    return lks__store_open(host, port, token, timeout_s, store_p);
}

void lks__store_close(lks__store *store)
{
    if (store == NULL)
        return;
    lks__sys_close(store->fd);
    free(store->value);
    free(store);
}

/* --- requests ----------------------------------------------------------------------------- */

static lks_status ask(const lks__store *s, enum lks__store_op op, const char *key,
                      const void *value, size_t bytes, double until)
{
    size_t n = strlen(key);
    if (n == 0 || n >= LKS__STORE_KEY_BYTES || bytes > LKS__STORE_VALUE_BYTES)
        return lks__fail(LKS_ERR_ARG,
                         "a key of %zu bytes with a value of %zu: it must have 1 to %d, and at "
                         "most %d",
                         n, bytes, LKS__STORE_KEY_BYTES - 1, LKS__STORE_VALUE_BYTES);
    struct lks__request r = {(uint32_t)op, (uint32_t)n, (uint32_t)bytes};
    char head[sizeof r + LKS__STORE_KEY_BYTES];
    memcpy(head, &r, sizeof r);
    memcpy(head + sizeof r, key, n);
    LKS__TRY(put(s, head, sizeof r + n, until));
    return put(s, value, bytes, until);
}

static lks_status meaning(const lks__store *s, const struct lks__reply *r, const char *key)
{
    const char *shown = lks__shown(key, LKS__STORE_KEY_BYTES);
    switch (r->answer) {
    case LKS__ANSWER_OK:
        return LKS_OK;
    case LKS__ANSWER_TIMEOUT:
        return lks__fail(LKS_ERR_TIMEOUT, "no process has set \"%s\" in the store at %s in time",
                         shown, s->where);
    case LKS__ANSWER_FULL:
        return lks__fail(LKS_ERR_NOMEM, "the store at %s has no room for \"%s\"", s->where, shown);
    default:
        return lks__fail(LKS_ERR_ARG, "the store at %s refuses the request for \"%s\"", s->where,
                         shown);
    }
}

/* Read the available part of a reply into s->reply and s->value; OK when it is complete. */
static lks_status take_some(lks__store *s)
{
    for (;;) {
        unsigned char *to = (unsigned char *)&s->reply + s->n_got;
        size_t want = sizeof s->reply - s->n_got;
        if (s->n_got >= sizeof s->reply) {
            size_t have = s->n_got - sizeof s->reply;
            if (s->reply.value_bytes > LKS__STORE_VALUE_BYTES)
                return lost(s, EPROTO);
            if (s->value == NULL && (s->value = malloc((size_t)s->reply.value_bytes + 1)) == NULL)
                return lks__no_memory("for %u bytes from %s", s->reply.value_bytes, s->where);
            to = s->value + have;
            want = s->reply.value_bytes - have;
            if (want == 0)
                return LKS_OK;
        }
        ssize_t n = lks__sys_recv(s->fd, to, want);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return LKS_IN_PROGRESS;
        if (n <= 0)
            return lost(s, n < 0 ? errno : 0);
        s->n_got += (size_t)n;
    }
}

/* Pass a complete reply to the caller: its status, and its value if it is OK and the caller wants
 * it. */
static lks_status hand_over(lks__store *s, const char *key, void **data_p, size_t *bytes_p)
{
    lks_status st = meaning(s, &s->reply, key);
    s->n_got = 0;
    s->value[s->reply.value_bytes] = '\0';
    if (st == LKS_OK && data_p != NULL) {
        *data_p = s->value;
        *bytes_p = s->reply.value_bytes;
    } else {
        free(s->value);
    }
    s->value = NULL;
    return st;
}

static lks_status ask_later(lks__store *s, enum lks__store_op op, const char *key,
                            const void *value, size_t bytes)
{
    LKS__TRY(ask(s, op, key, value, bytes, lks__sys_now() + SEND_S));
    s->n_later++;
    return LKS_OK;
}

lks_status lks__store_told(lks__store *store)
{
    if (store->late) {
        LKS__TRY(take_some(store));
        store->late = false;
        (void)hand_over(store, "", NULL, NULL);
    }
    while (store->n_later > 0) {
        LKS__TRY(take_some(store));
        store->n_later--;
        LKS__TRY(hand_over(store, "an earlier message", NULL, NULL));
    }
    return LKS_OK;
}

static lks_status exchange(lks__store *s, enum lks__store_op op, const char *key, const void *value,
                           size_t bytes, double timeout_s, void **data_p, size_t *bytes_p)
{
    double until = lks__sys_now() + timeout_s;
    lks_status st;
    while ((st = lks__store_told(s)) == LKS_IN_PROGRESS)
        LKS__TRY(wait_for(s, POLLIN, until));
    LKS__TRY(st);
    LKS__TRY(ask(s, op, key, value, bytes, until));
    s->late = true;
    while ((st = take_some(s)) == LKS_IN_PROGRESS)
        LKS__TRY(wait_for(s, POLLIN, until));
    s->late = false;
    return st == LKS_OK ? hand_over(s, key, data_p, bytes_p) : st;
}

lks_status lks__store_set(lks__store *store, const char *key, const void *data, size_t bytes)
{
    return exchange(store, LKS__OP_SET, key, data, bytes, ANSWER_S, NULL, NULL);
}

lks_status lks__store_get(lks__store *store, const char *key, double timeout_s, void **data_p,
                          size_t *bytes_p)
{
    double ms = ceil(fmax(timeout_s, 0) * 1e3);
    uint32_t wait_ms = ms >= UINT32_MAX ? UINT32_MAX - 1 : (uint32_t)ms;
    return exchange(store, LKS__OP_GET, key, &wait_ms, sizeof wait_ms, timeout_s + ANSWER_S, data_p,
                    bytes_p);
}

lks_status lks__store_add(lks__store *store, const char *key, int64_t n, int64_t *sum_p)
{
    void *data = NULL;
    size_t bytes = 0;
    LKS__TRY(exchange(store, LKS__OP_ADD, key, &n, sizeof n, ANSWER_S, &data, &bytes));
    lks_status st = bytes == sizeof *sum_p ? LKS_OK : lost(store, EPROTO);
    if (st == LKS_OK)
        memcpy(sum_p, data, sizeof *sum_p);
    free(data);
    return st;
}

lks_status lks__store_set_later(lks__store *store, const char *key, const void *data, size_t bytes)
{
    return ask_later(store, LKS__OP_SET, key, data, bytes);
}

lks_status lks__store_post_later(lks__store *store, const char *list, const void *data,
                                 size_t bytes)
{
    return ask_later(store, LKS__OP_POST, list, data, bytes);
}

lks_status lks__store_will(lks__store *store, const char *list, const void *data, size_t bytes)
{
    return exchange(store, LKS__OP_WILL, list, data, bytes, ANSWER_S, NULL, NULL);
}

lks_status lks__store_ask(lks__store *store, const char *key)
{
    uint32_t wait_ms = UINT32_MAX;
    return ask(store, LKS__OP_GET, key, &wait_ms, sizeof wait_ms, lks__sys_now() + ANSWER_S);
}

int lks__store_fd(const lks__store *store)
{
    return store->fd;
}

lks_status lks__store_answer(lks__store *store, void **data_p, size_t *bytes_p)
{
    LKS__TRY(take_some(store));
    return hand_over(store, "the value", data_p, bytes_p);
}

lks_status lks__store_local_address(const lks__store *store, char *text, size_t text_bytes)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    if (getsockname(store->fd, (struct sockaddr *)&addr, &len) != 0 ||
        getnameinfo((struct sockaddr *)&addr, len, text, (socklen_t)text_bytes, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return lost(store, errno);
    return LKS_OK;
}
