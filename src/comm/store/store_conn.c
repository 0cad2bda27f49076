#include "comm/store/store_conn.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/list.h"
#include "base/system/sys.h"

enum {
    MAX_ANSWERS = 8 << 20, /* bytes that a member may leave unread */
    MAX_IN = LKS__STORE_KEY_BYTES + LKS__STORE_VALUE_BYTES + sizeof(struct lks__request),
};

/* --- its bytes ---------------------------------------------------------------------------- */

static void forget_will(struct lks__conn *c)
{
    free(c->will_list);
    free(c->will);
    c->will_list = NULL;
    c->will = NULL;
}

void lks__conn_free(struct lks__conn *c)
{
    lks__sys_close(c->fd);
    forget_will(c);
    free(c->in);
    free(c->out);
    free(c);
}

bool lks__conn_flush(struct lks__conn *c)
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

void lks__conn_send(struct lks__conn *c, const void *data, size_t bytes)
{
    if (c->n_out + bytes > MAX_ANSWERS ||
        !lks__list_room(&c->out, c->n_out + bytes, &c->cap_out, 1)) {
        c->n_out = 0; /* the peer doesn't read, so sending more is useless */
        c->closing = true;
        return;
    }
    if (bytes > 0)
        memcpy(c->out + c->n_out, data, bytes);
    c->n_out += bytes;
}

void lks__conn_answer(struct lks__conn *c, enum lks__answer what, const void *data, size_t bytes)
{
    struct lks__reply reply = {(uint32_t)what, (uint32_t)bytes};
    lks__conn_send(c, &reply, sizeof reply);
    lks__conn_send(c, data, bytes);
}

/* --- requests ----------------------------------------------------------------------------- */

static void announce(lks__store_server *s, const char *key)
{
    const struct lks__value *v = NULL;
    for (size_t i = 0; i < s->n_conns; i++) {
        struct lks__conn *c = s->conns[i];
        if (!c->waiting || strcmp(c->key, key) != 0)
            continue;
        if (v == NULL)
            v = lks__values_find(&s->values, key);
        c->waiting = false;
        lks__conn_answer(c, LKS__ANSWER_OK, v->data, v->bytes);
    }
}

static enum lks__answer set(lks__store_server *s, const char *key, const void *data, size_t bytes)
{
    enum lks__answer result = lks__values_set(&s->values, key, data, bytes);
    if (result == LKS__ANSWER_OK)
        announce(s, key);
    return result;
}

enum lks__answer lks__store_server_post(lks__store_server *s, const char *list, const void *data,
                                        size_t bytes)
{
    char key[LKS__STORE_KEY_BYTES];
    enum lks__answer result = lks__values_next(&s->values, list, key);
    if (result != LKS__ANSWER_OK)
        return result;
    announce(s, list); /* the key of the list's length */
    return set(s, key, data, bytes);
}

static void get(lks__store_server *s, struct lks__conn *c, const char *key, const void *wait)
{
    const struct lks__value *v = lks__values_find(&s->values, key);
    uint32_t wait_ms;
    memcpy(&wait_ms, wait, sizeof wait_ms);
    if (v != NULL) {
        lks__conn_answer(c, LKS__ANSWER_OK, v->data, v->bytes);
    } else if (wait_ms == 0) {
        lks__conn_answer(c, LKS__ANSWER_TIMEOUT, NULL, 0);
    } else {
        c->waiting = true;
        c->wait_until = wait_ms == UINT32_MAX ? 0 : lks__sys_now() + 1e-3 * wait_ms;
        snprintf(c->key, sizeof c->key, "%s", key);
    }
}

static enum lks__answer keep_will(struct lks__conn *c, const char *list, const void *data,
                                  size_t bytes)
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

static void serve(lks__store_server *s, struct lks__conn *c, const struct lks__request *r,
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
        lks__conn_answer(c, set(s, key, value, r->value_bytes), NULL, 0);
        return;
    case LKS__OP_ADD:
        if (r->value_bytes == sizeof n) {
            memcpy(&n, value, sizeof n);
            enum lks__answer result = lks__values_add(&s->values, key, n, &n);
            if (result == LKS__ANSWER_OK)
                announce(s, key);
            lks__conn_answer(c, result, &n, result == LKS__ANSWER_OK ? sizeof n : 0);
            return;
        }
        break;
    case LKS__OP_POST:
        lks__conn_answer(c, lks__store_server_post(s, key, value, r->value_bytes), NULL, 0);
        return;
    case LKS__OP_WILL:
        lks__conn_answer(c, keep_will(c, key, value, r->value_bytes), NULL, 0);
        return;
    default:
        break;
    }
    lks__conn_answer(c, LKS__ANSWER_BAD, NULL, 0);
    c->closing = true;
}

/* Keep the address of a peer with another token, each address once. */
static void keep_refused(lks__store_server *s, int fd)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof addr;
    char *to = s->refused[s->n_refused];
    if (s->n_refused == LKS__MOST_REFUSED || getpeername(fd, (struct sockaddr *)&addr, &len) != 0 ||
        getnameinfo((struct sockaddr *)&addr, len, to, LKS__ADDRESS_BYTES, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return;
    for (int i = 0; i < s->n_refused; i++)
        if (strcmp(s->refused[i], to) == 0)
            return;
    s->n_refused++;
}

static void judge(lks__store_server *s, struct lks__conn *c)
{
    struct lks__proof proof;
    struct lks__verdict verdict = {1, {0}};
    unsigned char mac[LKS__MAC_BYTES];
    memcpy(&proof, c->in, sizeof proof);
    c->n_in = 0;
    lks__prove(s->token, "client", c->nonce, proof.nonce, mac);
    const bool ours = memcmp(proof.magic, LKS__NET_MAGIC, sizeof proof.magic) == 0;
    if (ours && lks__same_mac(mac, proof.mac)) {
        verdict.refused = 0;
        lks__prove(s->token, "server", c->nonce, proof.nonce, verdict.mac);
        c->member = true;
    } else {
        c->closing = true;
        if (ours)
            keep_refused(s, c->fd);
    }
    lks__conn_send(c, &verdict, sizeof verdict);
}

/* Serve the requests that have arrived; false if they break the protocol. */
static bool digest(lks__store_server *s, struct lks__conn *c)
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

bool lks__conn_take(lks__store_server *s, struct lks__conn *c)
{
    for (;;) {
        size_t want = c->member ? 4096 : sizeof(struct lks__proof) - c->n_in;
        if (c->n_in > MAX_IN) /* more than one request at a time */
            return false;
        if (!lks__list_room(&c->in, c->n_in + want, &c->cap_in, 1))
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
