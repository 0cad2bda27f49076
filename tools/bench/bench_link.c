/* Bandwidth of a plain TCP connection between two hosts, both ways at once: the limit of any engine
 * on this network. It replaces a measurement with iperf3. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "bench.h"
#include "comm/store/address.h"
#include "comm/store/handshake.h"

enum {
    ADDRESSES = 8,
    PATIENCE_S = 10, /* waiting time for the other side */
    PINGS = 200,     /* at most, and for about a second */
    LEAST_PINGS = 8,
    WARM_UP_BYTES = 8 << 20,
    LINK_BYTES = 64 << 20, /* at most, and for about a second */
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
    uint64_t word;
    int port, n;
    char addresses[ADDRESSES][INET6_ADDRSTRLEN];
};

static void list_addresses(struct offer *o, bool same_machine)
{
    struct ifaddrs *all, *i;
    if (same_machine)
        snprintf(o->addresses[o->n++], INET6_ADDRSTRLEN, "127.0.0.1");
    if (same_machine || getifaddrs(&all) != 0)
        return;
    for (i = all; i != NULL && o->n < ADDRESSES; i = i->ifa_next) {
        const struct sockaddr *a = i->ifa_addr;
        if (a == NULL || (i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP))
            continue;
        const void *bytes = a->sa_family == AF_INET
                                ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                                : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
        bool usable = a->sa_family == AF_INET || (a->sa_family == AF_INET6 &&
                                                  !IN6_IS_ADDR_LINKLOCAL((struct in6_addr *)bytes));
        if (usable && inet_ntop(a->sa_family, bytes, o->addresses[o->n], INET6_ADDRSTRLEN) != NULL)
            o->n++;
    }
    freeifaddrs(all);
}

static int listen_here(struct offer *o, bool same_machine)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in any4 = {.sin_family = AF_INET};
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    int both = 0, fd = lks__sys_socket(AF_INET6, SOCK_STREAM);
    if (same_machine)
        any4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && !same_machine)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    if (same_machine || fd < 0 || lks__sys_bind(fd, (struct sockaddr *)&any, sizeof any) != 0) {
        if (fd >= 0)
            lks__sys_close(fd);
        fd = lks__sys_socket(AF_INET, SOCK_STREAM);
        if (fd < 0 || lks__sys_bind(fd, (struct sockaddr *)&any4, sizeof any4) != 0)
            goto fail;
    }
    if (lks__sys_listen(fd, 4) != 0 || getsockname(fd, (struct sockaddr *)&bound, &n) != 0)
        goto fail;
    /* The port is at the same offset in both families. */
    o->port = ntohs(((struct sockaddr_in *)&bound)->sin_port);
    list_addresses(o, same_machine);
    return fd;
fail:
    if (fd >= 0)
        lks__sys_close(fd);
    return -1;
}

static void set_limits(int fd)
{
    struct timeval limit = {.tv_sec = PATIENCE_S};
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static bool send_all(int fd, const void *buf, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t some = lks__sys_send(fd, (const char *)buf + at, bytes - at);
        if (some <= 0)
            return false;
        at += (size_t)some;
    }
    return true;
}

static bool recv_all(int fd, void *buf, size_t bytes, bool keep)
{
    for (size_t at = 0; at < bytes;) {
        size_t room = bytes - at < CHUNK || keep ? bytes - at : CHUNK;
        ssize_t some = lks__sys_recv(fd, (char *)buf + (keep ? at : 0), room);
        if (some <= 0)
            return false;
        at += (size_t)some;
    }
    return true;
}

static int accept_other(int fd, uint64_t word)
{
    for (double end = lks__sys_now() + PATIENCE_S; lks__sys_now() < end;) {
        struct pollfd look = {.fd = fd, .events = POLLIN};
        if (poll(&look, 1, 100) != 1)
            continue;
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        uint64_t said = 0;
        if (peer < 0)
            continue;
        set_limits(peer);
        if (recv_all(peer, &said, sizeof said, true) && said == word)
            return peer;
        lks__sys_close(peer);
    }
    return -1;
}

/* Connect to the first of the addresses that answers. */
static int connect_other(const struct offer *o)
{
    for (int i = 0; i < o->n && i < ADDRESSES; i++) {
        struct addrinfo *to;
        char host[INET6_ADDRSTRLEN];
        snprintf(host, sizeof host, "%s", o->addresses[i]);
        if (lks__address_find(host, o->port, false, &to) != LKS_OK)
            continue;
        int fd = lks__sys_socket(to->ai_family, SOCK_STREAM), error = ETIMEDOUT;
        socklen_t n = sizeof error;
        if (fd >= 0) {
            fcntl(fd, F_SETFL, O_NONBLOCK);
            struct pollfd look = {.fd = fd, .events = POLLOUT};
            int rc = lks__sys_connect(fd, to->ai_addr, to->ai_addrlen);
            if (rc == 0 || (errno == EINPROGRESS && poll(&look, 1, 1000) == 1))
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
            fcntl(fd, F_SETFL, 0);
            set_limits(fd);
        }
        freeaddrinfo(to);
        if (fd >= 0 && error == 0 && send_all(fd, &o->word, sizeof o->word))
            return fd;
        if (fd >= 0)
            lks__sys_close(fd);
    }
    return -1;
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
        s->ok = send_all(s->fd, s->buf, CHUNK);
    return NULL;
}

/* Send and receive `bytes`, more than a CHUNK, at the same time; both sides call it. The rate is
 * that at which they arrive after the first CHUNK, so no delay of the link is in it. */
static bool exchange(int fd, char *bufs, size_t bytes, double *rate_p)
{
    struct sender s = {.fd = fd, .bytes = bytes, .buf = bufs};
    pthread_t thread;
    if (pthread_create(&thread, NULL, send_main, &s) != 0)
        return false;
    bool ok = recv_all(fd, bufs + CHUNK, CHUNK, false);
    const double began = lks__sys_now();
    ok = ok && recv_all(fd, bufs + CHUNK, bytes - CHUNK, false);
    *rate_p = (double)(bytes - CHUNK) / (lks__sys_now() - began);
    pthread_join(thread, NULL);
    return ok && s.ok;
}

/* The first side's number, on both sides. */
static bool agree(int fd, bool first, double *number)
{
    return first ? send_all(fd, number, sizeof *number)
                 : recv_all(fd, number, sizeof *number, true);
}

/* A link sends what fits in the connection's window at its own speed. */
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
        if (first ? !send_all(fd, &byte, 1) || !recv_all(fd, &byte, 1, true)
                  : !recv_all(fd, &byte, 1, true) || !send_all(fd, &byte, 1))
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

/* Seconds to send WINDOW_BYTES one way, and the answer, after a pause. */
static bool one_way(int fd, bool first, char *bufs, double *seconds_p)
{
    char byte = 0;
    const struct timespec pause = {.tv_sec = (time_t)PAUSE_S};
    nanosleep(&pause, NULL);
    const double started = lks__sys_now();
    for (size_t at = 0; first && at < WINDOW_BYTES; at += CHUNK)
        if (!send_all(fd, bufs, CHUNK))
            return false;
    if (!first && !recv_all(fd, bufs, WINDOW_BYTES, false))
        return false;
    const bool answered = first ? recv_all(fd, &byte, 1, true) : send_all(fd, &byte, 1);
    *seconds_p = lks__sys_now() - started;
    return answered && agree(fd, first, seconds_p);
}

/* The first window with which WINDOW_BYTES take `seconds`, if each window is twice the one before
 * it, and the answer comes a round trip after the last of them has been sent. */
static double window_of(const struct bench_link *link, double seconds)
{
    const double waited = seconds - link->round_s - WINDOW_BYTES / link->burst;
    const double rounds = waited > 0 ? waited / link->round_s : 0;
    return WINDOW_BYTES / (exp2(rounds + 1) - 1);
}

static bool measure(int fd, bool first, struct bench_link *link)
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
    return ok;
}

lks_status bench_link(lks_comm *comm, int other, bool same_machine, struct bench_link *link)
{
    int rank = lks_comm_rank(comm), listening = -1, fd = -1;
    struct offer o = {0};
    if (rank == 0 && lks__random(&o.word, sizeof o.word) == LKS_OK)
        listening = listen_here(&o, same_machine);
    LKS__TRY(lks_comm_broadcast(comm, &o, sizeof o, LKS_UINT8, 0));
    *link = (struct bench_link){0};
    if (rank == 0 && listening >= 0)
        fd = accept_other(listening, o.word);
    else if (rank == other)
        fd = connect_other(&o);
    if (fd >= 0)
        measure(fd, rank == 0, link);
    if (listening >= 0)
        lks__sys_close(listening);
    if (fd >= 0)
        lks__sys_close(fd);
    return lks_comm_broadcast(comm, link, sizeof *link, LKS_UINT8, 0);
}
