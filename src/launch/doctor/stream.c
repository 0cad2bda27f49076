#include "launch/doctor/stream.h"

#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/system/sys.h"
#include "comm/store/address.h"
#include "launch/doctor/tcp.h"

enum { PIECE = 1 << 20, LOOK_MS = 100, SILENT_MS = 1000, CONNECT_MS = 5000, ANSWER_MS = 10000 };
enum { TURNS = 6 }; /* times ANSWER_MS: other hosts' streams may come first */

static const double MOST_S = 15.0; /* limit for one stream, from any sender */

struct lks__stream_sink {
    int listener, port;
    uint8_t secret[LKS__STREAM_SECRET];
    atomic_bool stop;
    pthread_t thread;
    char piece[PIECE];
};

/* A stranger may send the secret byte by byte, so one limit is for all its bytes. */
static bool knows_secret(const lks__stream_sink *s, int fd)
{
    uint8_t secret[LKS__STREAM_SECRET], different = 0;
    const double until = lks__sys_now() + SILENT_MS * 1e-3;
    ssize_t got = 1;
    for (size_t n = 0; n < sizeof secret; n += (size_t)got) {
        got = lks__sys_recv(fd, secret + n, sizeof secret - n);
        if (got <= 0 || lks__sys_now() > until)
            return false;
    }
    for (int i = 0; i < LKS__STREAM_SECRET; i++)
        different |= secret[i] ^ s->secret[i];
    return different == 0;
}

/* One stream at a time: its sender begins once it has got a byte. */
static void take_stream(lks__stream_sink *s, int fd)
{
    uint64_t bytes = 0;
    const double until = lks__sys_now() + MOST_S;
    ssize_t got = 1;
    if (!knows_secret(s, fd) || lks__sys_send(fd, "", 1) != 1)
        return;
    while (got > 0 && lks__sys_now() < until && !s->stop) {
        got = lks__sys_recv(fd, s->piece, PIECE);
        bytes += got > 0 ? (uint64_t)got : 0;
    }
    if (got == 0)
        (void)lks__sys_send(fd, &bytes, sizeof bytes);
}

static void *run_sink(void *arg)
{
    lks__stream_sink *s = arg;
    while (!s->stop) {
        int fd = lks__tcp_accept(s->listener, LOOK_MS, SILENT_MS);
        if (fd < 0)
            continue;
        take_stream(s, fd);
        lks__sys_close(fd);
    }
    return NULL;
}

lks_status lks__stream_serve(const char *host, const uint8_t secret[LKS__STREAM_SECRET],
                             lks__stream_sink **sink_p)
{
    lks__stream_sink *s = calloc(1, sizeof *s);
    LKS__MEMORY(s, "to take streams");
    s->listener = -1;
    memcpy(s->secret, secret, LKS__STREAM_SECRET);
    lks_status st = lks__address_listen(host, 0, &s->listener, &s->port);
    if (st == LKS_OK && pthread_create(&s->thread, NULL, run_sink, s) != 0)
        st = lks__fail(LKS_ERR_NOMEM, "can't start a thread to take streams");
    if (st != LKS_OK) {
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

static const char *reason(void)
{
    return errno != 0 && errno != EAGAIN ? strerror(errno) : "no answer";
}

static lks_status failed(const char *where)
{
    return lks__fail(LKS_ERR_IO, "the stream to %s breaks: %s", where, reason());
}

/* A slow link confirms some of the bytes. One that loses large packets confirms none: the other
 * side gives up (no error) before this one does. */
static lks_status failed_after(int fd, const char *where, uint64_t sent)
{
    const int err = errno;
    int left = 0;
    if (sent == 0 || (err != EAGAIN && err != 0) || ioctl(fd, SIOCOUTQ, &left) != 0 ||
        (uint64_t)left < sent) {
        errno = err;
        return failed(where);
    }
    return lks__fail(LKS_ERR_PEER, "large packets to %s are lost", where);
}

static lks_status send_for(int fd, const char *where, double seconds, double *rate_p)
{
    uint64_t sent = 0, arrived = 0;
    char *piece = calloc(1, PIECE);
    const double started = lks__sys_now();
    lks_status st = piece == NULL ? lks__no_memory("for a stream") : LKS_OK;
    while (st == LKS_OK && lks__sys_now() - started < seconds) {
        const ssize_t n = lks__sys_send(fd, piece, PIECE);
        if (n < 0)
            st = failed_after(fd, where, sent);
        sent += n > 0 ? (uint64_t)n : 0;
    }
    free(piece);
    LKS__TRY(st);
    shutdown(fd, SHUT_WR);
    if (!lks__tcp_recv(fd, &arrived, sizeof arrived) || arrived != sent)
        return failed_after(fd, where, sent);
    *rate_p = (double)sent / (lks__sys_now() - started);
    return LKS_OK;
}

lks_status lks__stream_send(const char *host, int port, const uint8_t secret[LKS__STREAM_SECRET],
                            double seconds, double *rate_p)
{
    struct addrinfo *list;
    char where[LKS__ADDRESS_BYTES];
    lks__address_text(where, host, port);
    LKS__TRY(lks__address_find(host, port, false, &list));
    const int fd = lks__tcp_connect(list, CONNECT_MS, ANSWER_MS); /* a firewall may drop packets */
    freeaddrinfo(list);
    const bool barred = errno == EAGAIN || errno == ETIMEDOUT || errno == ECONNREFUSED ||
                        errno == EHOSTUNREACH || errno == ENETUNREACH;
    if (fd < 0)
        return lks__fail(barred ? LKS_ERR_PEER : LKS_ERR_IO, "can't connect to %s: %s", where,
                         reason());
    char turn;
    bool mine = false;
    lks_status st = lks__tcp_send(fd, secret, LKS__STREAM_SECRET) ? LKS_OK : failed(where);
    for (int i = 0; i < TURNS && st == LKS_OK && !mine && (i == 0 || errno == EAGAIN); i++)
        mine = lks__tcp_recv(fd, &turn, 1);
    LKS__THEN(st, mine ? send_for(fd, where, seconds, rate_p) : failed(where));
    lks__sys_close(fd);
    return st;
}
