#include "comm/store/store_conn.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/store/address.h"

enum {
    /* Connections before they prove that they know the token (handshake.h); a new one replaces the
     * oldest. */
    MAX_STRANGERS = 64,
    MAX_MEMBERS = 4096, /* connections after their proof */
};

static const double PROOF_S = 5.0; /* time limit for a stranger's proof */

/* --- all connections ---------------------------------------------------------------------- */

static void drop(lks__store_server *s, size_t i)
{
    struct lks__conn *c = s->conns[i];
    memmove(&s->conns[i], &s->conns[i + 1], (s->n_conns - i - 1) * sizeof *s->conns);
    s->n_conns--;
    if (c->will_list != NULL)
        lks__store_server_post(s, c->will_list, c->will, c->will_bytes);
    lks__conn_free(c);
}

/* Connections are in order of arrival. */
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
    struct lks__conn **conns = realloc(s->conns, cap * sizeof(struct lks__conn *));
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
    struct lks__conn *c = calloc(1, sizeof *c);
    struct lks__hello hello;
    if (c == NULL || !make_room(s) || count(s, true) >= MAX_MEMBERS ||
        lks__random(c->nonce, sizeof c->nonce) != LKS_OK) {
        free(c);
        lks__sys_close(fd);
        return;
    }
    lks__address_tune(fd, s->link_s);
    c->fd = fd;
    c->deadline = lks__sys_now() + PROOF_S;
    memcpy(hello.magic, LKS__NET_MAGIC, sizeof hello.magic);
    memcpy(hello.nonce, c->nonce, sizeof hello.nonce);
    lks__conn_send(c, &hello, sizeof hello);
    s->conns[s->n_conns++] = c;
}

static void accept_all(lks__store_server *s)
{
    for (int tries = 0; tries < MAX_STRANGERS; tries++) {
        int fd = lks__sys_accept(s->listener);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            s->is_full = true;
            if (drop_oldest_stranger(s))
                continue;
            usleep(50000); /* no stranger to drop: don't spin */
            return;
        }
        if (fd < 0)
            return;
        if (count(s, false) >= MAX_STRANGERS)
            drop_oldest_stranger(s);
        welcome(s, fd);
    }
}

/* Handle all deadlines that have passed. Returns the milliseconds until the next deadline (-1:
 * none). */
static int expire(lks__store_server *s)
{
    double now = lks__sys_now(), next = 0;
    for (size_t i = 0; i < s->n_conns;) {
        struct lks__conn *c = s->conns[i];
        if (!c->member && now >= c->deadline) {
            drop(s, i);
            continue;
        }
        if (c->waiting && c->wait_until > 0 && now >= c->wait_until) {
            c->waiting = false;
            lks__conn_answer(c, LKS__ANSWER_TIMEOUT, NULL, 0);
        }
        double due = !c->member ? c->deadline : c->waiting ? c->wait_until : 0;
        if (due > 0 && (next == 0 || due < next))
            next = due;
        i++;
    }
    const double most_s = 3600.0; /* a later deadline is looked at again then */
    return next == 0 ? -1 : (int)((next - now < most_s ? next - now : most_s) * 1e3) + 1;
}

/* From the last connection to the first, because dropping one moves those after it. */
static void step(lks__store_server *s)
{
    int wait_ms = expire(s);
    s->polls[0] = (struct pollfd){.fd = s->stop_fd, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    size_t n = s->n_conns;
    for (size_t i = 0; i < n; i++) {
        struct lks__conn *c = s->conns[i];
        short events = (short)((c->closing ? 0 : POLLIN) | (c->n_out > 0 ? POLLOUT : 0));
        s->polls[i + 2] = (struct pollfd){.fd = c->fd, .events = events};
    }
    if (poll(s->polls, n + 2, wait_ms) <= 0)
        return;
    for (size_t i = n; i-- > 0;) {
        struct lks__conn *c = s->conns[i];
        if (s->polls[i + 2].revents == 0)
            continue;
        bool alive = (s->polls[i + 2].revents & (POLLERR | POLLNVAL)) == 0;
        if (alive && !c->closing)
            alive = lks__conn_take(s, c);
        if (!alive)
            drop(s, i);
    }
    for (size_t i = s->n_conns; i-- > 0;)
        if ((s->conns[i]->n_out > 0 || s->conns[i]->closing) && !lks__conn_flush(s->conns[i]))
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

static lks_status start_thread(lks__store_server *s)
{
    int err = lks__thread_start(&s->thread, run, s);
    return err == 0 ? LKS_OK
                    : lks__fail(LKS_ERR_NOMEM, "can't start the store's thread: %s",
                                lks__sys_start_reason(err));
}

static void free_server(lks__store_server *s)
{
    for (size_t i = 0; i < s->n_conns; i++)
        lks__conn_free(s->conns[i]);
    lks__sys_close(s->listener);
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
    LKS__MEMORY(s, "for the store");
    s->listener = -1;
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    s->token = strdup(token);
    if (!make_room(s) || s->token == NULL || s->stop_fd < 0)
        st = lks__fail(LKS_ERR_NOMEM, "no memory or descriptor for the store: %s",
                       lks__sys_reason(errno));
    LKS__THEN(st, lks__link_timeout(&s->link_s));
    LKS__THEN(st, lks__address_listen(host, port, &s->listener, &s->port));
    LKS__THEN(st, start_thread(s));
    if (st != LKS_OK) {
        free_server(s);
        return st;
    }
    *server_p = s;
    return LKS_OK;
}

bool lks__store_is_full(const lks__store_server *server)
{
    return server->is_full;
}

const char *lks__store_refused(lks__store_server *server)
{
    return server->n_told < server->n_refused ? server->refused[server->n_told++] : NULL;
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
