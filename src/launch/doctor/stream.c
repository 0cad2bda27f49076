#include "launch/doctor/stream.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/store/address.h"

enum { PIECE = 1 << 20, LOOK_MS = 100, SECRET_MS = 1000 };

static const double MOST_S = 15.0; /* limit for one stream, from any sender */

struct lks__stream_sink {
    int listener, port;
    uint8_t secret[LKS__STREAM_SECRET];
    atomic_bool stop;
    pthread_t thread;
    char piece[PIECE];
};

/* Wait for the socket; false after `ms`. */
static bool wait_for(int fd, short events, int ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, ms) == 1;
}

/* Read exactly n bytes. */
static bool read_all(int fd, void *data, size_t n, int ms)
{
    for (char *to = data; n > 0;) {
        ssize_t got = wait_for(fd, POLLIN, ms) ? recv(fd, to, n, 0) : -1;
        if (got <= 0)
            return false;
        to += got;
        n -= (size_t)got;
    }
    return true;
}

static void take_stream(lks__stream_sink *s, int fd)
{
    uint8_t secret[LKS__STREAM_SECRET], different = 0;
    uint64_t bytes = 0;
    const double until = lks__sys_now() + MOST_S;
    ssize_t got = 1;
    if (!read_all(fd, secret, sizeof secret, SECRET_MS))
        return;
    for (int i = 0; i < LKS__STREAM_SECRET; i++)
        different |= secret[i] ^ s->secret[i];
    if (different != 0)
        return;
    while (got > 0 && lks__sys_now() < until && !s->stop) {
        got = wait_for(fd, POLLIN, SECRET_MS) ? recv(fd, s->piece, PIECE, 0) : -1;
        bytes += got > 0 ? (uint64_t)got : 0;
    }
    if (got == 0)
        (void)lks__sys_send(fd, &bytes, sizeof bytes);
}

static void *run_sink(void *arg)
{
    lks__stream_sink *s = arg;
    while (!s->stop) {
        int fd = wait_for(s->listener, POLLIN, LOOK_MS) ? lks__sys_accept(s->listener) : -1;
        if (fd < 0)
            continue;
        take_stream(s, fd);
        lks__sys_close(fd);
    }
    return NULL;
}

static lks_status listen_at(lks__stream_sink *s, const char *host)
{
    struct addrinfo *list;
    struct sockaddr_storage addr;
    char service[16] = "0";
    LKS__TRY(lks__address_find(host, 0, true, &list));
    socklen_t bytes = list->ai_addrlen;
    memcpy(&addr, list->ai_addr, bytes);
    freeaddrinfo(list);
    s->listener = lks__sys_socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (s->listener < 0 || lks__sys_bind(s->listener, (struct sockaddr *)&addr, bytes) != 0 ||
        lks__sys_listen(s->listener, 8) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&addr, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&addr, bytes, NULL, 0, service, sizeof service,
                    NI_NUMERICSERV) != 0)
        return lks__fail(LKS_ERR_IO, "can't listen for streams: %s", lks__sys_reason(errno));
    s->port = atoi(service);
    return LKS_OK;
}

lks_status lks__stream_serve(const char *host, const uint8_t secret[LKS__STREAM_SECRET],
                             lks__stream_sink **sink_p)
{
    lks__stream_sink *s = calloc(1, sizeof *s);
    if (s == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to take streams");
    s->listener = -1;
    memcpy(s->secret, secret, LKS__STREAM_SECRET);
    lks_status st = listen_at(s, host);
    if (st == LKS_OK && pthread_create(&s->thread, NULL, run_sink, s) != 0)
        st = lks__fail(LKS_ERR_NOMEM, "can't start a thread to take streams");
    if (st != LKS_OK) {
        if (s->listener >= 0)
            lks__sys_close(s->listener);
        free(s);
        return st;
    }
    *sink_p = s;
    return LKS_OK;
}

int lks__stream_port(const lks__stream_sink *s)
{
    return s->port;
}

void lks__stream_stop(lks__stream_sink *s)
{
    if (s == NULL)
        return;
    s->stop = true;
    pthread_join(s->thread, NULL);
    lks__sys_close(s->listener);
    free(s);
}

static lks_status failed(const char *where)
{
    return lks__fail(LKS_ERR_IO, "the stream to %s breaks: %s", where,
                     errno != 0 ? strerror(errno) : "no answer");
}

/* Connect within 5 s; a firewall may drop the packets. */
static lks_status connect_to(const struct addrinfo *a, const char *where, int *fd_p)
{
    int err = 0;
    socklen_t bytes = sizeof err;
    int fd = lks__sys_socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (fd < 0)
        return failed(where);
    *fd_p = fd;
    if (lks__sys_connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return LKS_OK;
    if (errno != EINPROGRESS)
        return failed(where);
    errno = ETIMEDOUT;
    if (!wait_for(fd, POLLOUT, 5000))
        return failed(where);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
    errno = err;
    return err == 0 ? LKS_OK : failed(where);
}

static lks_status send_for(int fd, const char *where, double seconds, double *rate_p)
{
    uint64_t sent = 0, arrived = 0;
    char *piece = calloc(1, PIECE);
    const double started = lks__sys_now();
    lks_status st = piece == NULL ? lks__fail(LKS_ERR_NOMEM, "no memory for a stream") : LKS_OK;
    while (st == LKS_OK && lks__sys_now() - started < seconds) {
        errno = 0;
        ssize_t n = wait_for(fd, POLLOUT, 5000) ? lks__sys_send(fd, piece, PIECE) : -1;
        if (n < 0 && errno != EAGAIN)
            st = failed(where);
        sent += n > 0 ? (uint64_t)n : 0;
    }
    free(piece);
    LKS__TRY(st);
    shutdown(fd, SHUT_WR);
    errno = 0;
    if (!read_all(fd, &arrived, sizeof arrived, 10000) || arrived != sent)
        return failed(where);
    *rate_p = (double)sent / (lks__sys_now() - started);
    return LKS_OK;
}

lks_status lks__stream_send(const char *host, int port, const uint8_t secret[LKS__STREAM_SECRET],
                            double seconds, double *rate_p)
{
    struct addrinfo *list;
    char where[LKS__ADDRESS_BYTES];
    int fd = -1;
    lks__address_text(where, host, port);
    LKS__TRY(lks__address_find(host, port, false, &list));
    lks_status st = connect_to(list, where, &fd);
    freeaddrinfo(list);
    errno = 0;
    if (st == LKS_OK && lks__sys_send(fd, secret, LKS__STREAM_SECRET) != LKS__STREAM_SECRET)
        st = failed(where);
    if (st == LKS_OK)
        st = send_for(fd, where, seconds, rate_p);
    if (fd >= 0)
        lks__sys_close(fd);
    return st;
}
