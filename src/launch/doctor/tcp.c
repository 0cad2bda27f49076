#include "launch/doctor/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/time.h>

#include "base/system/sys.h"

bool lks__tcp_address(const struct sockaddr *a, char text[INET6_ADDRSTRLEN])
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a;
    if (a->sa_family == AF_INET)
        return inet_ntop(AF_INET, &four->sin_addr, text, INET6_ADDRSTRLEN) != NULL;
    return a->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) &&
           inet_ntop(AF_INET6, &six->sin6_addr, text, INET6_ADDRSTRLEN) != NULL;
}

bool lks__tcp_interface(const struct ifaddrs *i, char text[INET6_ADDRSTRLEN])
{
    return i->ifa_addr != NULL && (i->ifa_flags & (IFF_LOOPBACK | IFF_UP)) == IFF_UP &&
           lks__tcp_address(i->ifa_addr, text);
}

static bool wait_for(int fd, short events, int ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, ms) == 1;
}

static int close_with(int fd, int error)
{
    lks__sys_close(fd);
    errno = error;
    return -1;
}

static int make_blocking(int fd, int limit_ms)
{
    const struct timeval limit = {limit_ms / 1000, limit_ms % 1000 * 1000};
    fcntl(fd, F_SETFL, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

int lks__tcp_accept(int listener, int wait_ms, int limit_ms)
{
    const int fd = wait_for(listener, POLLIN, wait_ms) ? lks__sys_accept(listener) : -1;
    return fd >= 0 ? make_blocking(fd, limit_ms) : -1;
}

int lks__tcp_connect(const struct addrinfo *to, int wait_ms, int limit_ms)
{
    int error = ETIMEDOUT;
    socklen_t bytes = sizeof error;
    const int fd = lks__sys_socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (fd < 0)
        return -1;
    if (lks__sys_connect(fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS)
        return close_with(fd, errno);
    if (wait_for(fd, POLLOUT, wait_ms))
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    return error == 0 ? make_blocking(fd, limit_ms) : close_with(fd, error);
}

bool lks__tcp_send(int fd, const void *data, size_t bytes)
{
    for (const char *from = data; bytes > 0;) {
        const ssize_t n = lks__sys_send(fd, from, bytes);
        if (n < 0)
            return false;
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool lks__tcp_recv(int fd, void *data, size_t bytes)
{
    errno = 0;
    for (char *to = data; bytes > 0;) {
        const ssize_t n = lks__sys_recv(fd, to, bytes);
        if (n <= 0)
            return false;
        to += n;
        bytes -= (size_t)n;
    }
    return true;
}
