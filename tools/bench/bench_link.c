/* lockstep bench: the bandwidth of a plain TCP connection between two hosts, both ways at once. It
 * is the limit of any engine on this network. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/system/sys.h"
#include "bench.h"
#include "comm/store/address.h"
#include "comm/store/handshake.h"
#include "launch/doctor/tcp.h"

enum {
    ADDRESSES = 8,
    PATIENCE_MS = 10000, /* waiting time for the other side */
    ACCEPT_MS = 100,
    CONNECT_MS = 1000,
    PINGS = 200, /* at most; fewer if they take more than a second */
    LEAST_PINGS = 8,
    WARM_UP_BYTES = 8 << 20,
    LINK_BYTES = 64 << 20, /* at most; fewer if they take more than a second */
    LEAST_LINK_BYTES = 8 << 20,
    WINDOW_BYTES = 2 << 20,
    BURST_BYTES = 1 << 20,
    BURSTS = 5,
    CHUNK = 256 << 10,
};

/* A connection's window shrinks in a pause; after so long it is as small as it gets. */
static const double PAUSE_S = 2.0;
/* With shorter round trips than this, windows don't limit a link. */
static const double LONG_ROUND_S = 1e-3;

/* The address where the first rank listens, and the secret that the other side has to send. */
struct offer {
    uint64_t secret;
    int port, n;
    char addresses[ADDRESSES][INET6_ADDRSTRLEN];
};

/* Listen on this host, and fill in `o`. Returns the socket; -1 if that fails. */
static int listen_here(struct offer *o, bool same_machine)
{
    struct ifaddrs *all;
    int fd;
    if (lks__random(&o->secret, sizeof o->secret) != LKS_OK)
        return -1;
    if (same_machine) {
        snprintf(o->addresses[o->n++], INET6_ADDRSTRLEN, "127.0.0.1");
        return lks__address_listen("127.0.0.1", 0, &fd, &o->port) == LKS_OK ? fd : -1;
    }
    if (lks__address_listen("::", 0, &fd, &o->port) != LKS_OK &&
        lks__address_listen("0.0.0.0", 0, &fd, &o->port) != LKS_OK)
        return -1;
    if (getifaddrs(&all) != 0)
        return fd;
    for (const struct ifaddrs *i = all; i != NULL && o->n < ADDRESSES; i = i->ifa_next)
        o->n += lks__tcp_interface(i, o->addresses[o->n]);
    freeifaddrs(all);
    return fd;
}

static int accept_other(int listener, uint64_t secret)
{
    for (double end = lks__sys_now() + PATIENCE_MS * 1e-3; lks__sys_now() < end;) {
        const int fd = lks__tcp_accept(listener, ACCEPT_MS, PATIENCE_MS);
        uint64_t received = 0;
        if (fd < 0)
            continue;
        if (lks__tcp_recv(fd, &received, sizeof received) && received == secret)
            return fd;
        lks__sys_close(fd);
    }
    return -1;
}

/* Connect to the first address that answers. */
static int connect_other(const struct offer *o)
{
    for (int i = 0; i < o->n && i < ADDRESSES; i++) {
        struct addrinfo *to;
        if (lks__address_find(o->addresses[i], o->port, false, &to) != LKS_OK)
            continue;
        const int fd = lks__tcp_connect(to, CONNECT_MS, PATIENCE_MS);
        freeaddrinfo(to);
        if (fd < 0)
            continue;
        if (lks__tcp_send(fd, &o->secret, sizeof o->secret))
            return fd;
        lks__sys_close(fd);
    }
    return -1;
}

/* Receive `bytes` into a buffer of one CHUNK. */
static bool discard(int fd, char *buf, size_t bytes)
{
    bool ok = true;
    for (; bytes > 0 && ok; bytes -= bytes < CHUNK ? bytes : CHUNK)
        ok = lks__tcp_recv(fd, buf, bytes < CHUNK ? bytes : CHUNK);
    return ok;
}

struct sender {
    int fd;
    size_t bytes;
    char *buf; /* [CHUNK] */
    bool ok;
};

static void *send_main(void *arg)
{
    struct sender *s = arg;
    s->ok = true;
    for (size_t at = 0; at < s->bytes && s->ok; at += CHUNK)
        s->ok = lks__tcp_send(s->fd, s->buf, CHUNK);
    return NULL;
}

/* Send and receive `bytes`, more than a CHUNK, at the same time; both sides call it. The rate
 * counts bytes after the first CHUNK has arrived, so it includes no delay of the link. */
static bool exchange(int fd, char *bufs, size_t bytes, double *rate_p)
{
    struct sender s = {.fd = fd, .bytes = bytes, .buf = bufs};
    pthread_t thread;
    if (pthread_create(&thread, NULL, send_main, &s) != 0)
        return false;
    bool ok = discard(fd, bufs + CHUNK, CHUNK);
    const double began = lks__sys_now();
    ok = ok && discard(fd, bufs + CHUNK, bytes - CHUNK);
    *rate_p = (double)(bytes - CHUNK) / (lks__sys_now() - began);
    pthread_join(thread, NULL);
    return ok && s.ok;
}

/* Copy the first side's number to the other side. */
static bool agree(int fd, bool first, double *number)
{
    return first ? lks__tcp_send(fd, number, sizeof *number)
                 : lks__tcp_recv(fd, number, sizeof *number);
}

/* Bytes per second of bursts that fit in the connection's window. */
static bool median_burst(int fd, bool first, char *bufs, double *rate_p)
{
    double rates[BURSTS];
    for (int i = 0; i < BURSTS; i++)
        if (!exchange(fd, bufs, BURST_BYTES, &rates[i]) || !agree(fd, first, &rates[i]))
            return false;
    *rate_p = bench_median(rates, BURSTS);
    return true;
}

static bool ping(int fd, bool first, double *seconds_p)
{
    double times[PINGS], wanted = PINGS;
    char byte = 0;
    for (int i = 0; i < (int)wanted; i++) {
        double started = lks__sys_now();
        if (first ? !lks__tcp_send(fd, &byte, 1) || !lks__tcp_recv(fd, &byte, 1)
                  : !lks__tcp_recv(fd, &byte, 1) || !lks__tcp_send(fd, &byte, 1))
            return false;
        times[i] = lks__sys_now() - started;
        if (i == LEAST_PINGS - 1) {
            const double in_a_second = 1.0 / (times[i] > 1e-6 ? times[i] : 1e-6);
            wanted = in_a_second < LEAST_PINGS ? LEAST_PINGS
                     : in_a_second > PINGS     ? PINGS
                                               : in_a_second;
            if (!agree(fd, first, &wanted))
                return false;
        }
    }
    *seconds_p = bench_median(times, (int)wanted);
    return agree(fd, first, seconds_p);
}

/* Seconds to send WINDOW_BYTES one way after a pause, and to receive an answer. */
static bool one_way(int fd, bool first, char *bufs, double *seconds_p)
{
    char byte = 0;
    const struct timespec pause = {.tv_sec = (time_t)PAUSE_S};
    nanosleep(&pause, NULL);
    const double started = lks__sys_now();
    for (size_t at = 0; first && at < WINDOW_BYTES; at += CHUNK)
        if (!lks__tcp_send(fd, bufs, CHUNK))
            return false;
    if (!first && !discard(fd, bufs, WINDOW_BYTES))
        return false;
    const bool answered = first ? lks__tcp_recv(fd, &byte, 1) : lks__tcp_send(fd, &byte, 1);
    *seconds_p = lks__sys_now() - started;
    return answered && agree(fd, first, seconds_p);
}

/* The first window, in bytes, with which WINDOW_BYTES take `seconds`. Each window is twice the
 * previous one, and the answer arrives a round trip after the last byte was sent. */
static double window_of(const struct bench_link *link, double seconds)
{
    const double waited = seconds - link->round_s - WINDOW_BYTES / link->burst;
    const double rounds = waited > 0 ? waited / link->round_s : 0;
    return WINDOW_BYTES / (exp2(rounds + 1) - 1);
}

static void measure(int fd, bool first, struct bench_link *link)
{
    double seconds, in_a_second = 0.0;
    char *bufs = calloc(2, CHUNK);
    bool ok = bufs != NULL && ping(fd, first, &link->round_s) &&
              exchange(fd, bufs, WARM_UP_BYTES, &in_a_second) && agree(fd, first, &in_a_second);
    size_t bytes = in_a_second < LEAST_LINK_BYTES ? LEAST_LINK_BYTES
                   : in_a_second > LINK_BYTES     ? LINK_BYTES
                                                  : (size_t)in_a_second;
    bytes -= bytes % CHUNK;
    ok = ok && exchange(fd, bufs, bytes, &link->rate);
    if (!ok)
        link->rate = 0.0;
    if (ok && link->round_s > LONG_ROUND_S) {
        ok = median_burst(fd, first, bufs, &link->burst) && one_way(fd, first, bufs, &seconds);
        link->window = ok ? window_of(link, seconds) : 0.0;
    }
    free(bufs);
}

lks_status bench_link(lks_comm *comm, int other, bool same_machine, struct bench_link *link)
{
    const int rank = lks_comm_rank(comm);
    struct offer o = {0};
    const int listener = rank == 0 ? listen_here(&o, same_machine) : -1;
    LKS__TRY(lks_comm_broadcast(comm, &o, sizeof o, LKS_UINT8, 0));
    const int fd = listener >= 0   ? accept_other(listener, o.secret)
                   : rank == other ? connect_other(&o)
                                   : -1;
    *link = (struct bench_link){0};
    if (fd >= 0) {
        measure(fd, rank == 0, link);
        lks__sys_close(fd);
    }
    lks__sys_close(listener);
    return lks_comm_broadcast(comm, link, sizeof *link, LKS_UINT8, 0);
}
