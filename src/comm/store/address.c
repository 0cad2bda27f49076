#include "comm/store/address.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "comm/store/store.h"

void lks__address_bare(char *out, size_t bytes, const char *host)
{
    const size_t n = strlen(host);
    const bool inside = host[0] == '[' && n > 2 && host[n - 1] == ']';
    snprintf(out, bytes, "%.*s", (int)(inside ? n - 2 : n), host + inside);
}

lks_status lks__address_find(const char *host, int port, bool passive, struct addrinfo **list_p)
{
    char service[16], bare[NI_MAXHOST];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | (passive ? AI_PASSIVE : 0)};
    snprintf(service, sizeof service, "%d", port);
    /* Try it as a number first: the resolver for names loads libraries and may use the network. */
    lks__address_bare(bare, sizeof bare, host);
    int err = getaddrinfo(bare, service, &hints, list_p);
    hints.ai_flags &= ~AI_NUMERICHOST;
    if (err == EAI_NONAME)
        err = getaddrinfo(bare, service, &hints, list_p);
    if (err != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "the address of \"%s\" can't be found: %s; this machine must know the "
                         "name, or give its address as a number",
                         lks__shown(host, 256),
                         err == EAI_SYSTEM ? lks__sys_reason(errno) : gai_strerror(err));
    return LKS_OK;
}

char *lks__address_text(char text[LKS__ADDRESS_BYTES], const char *host, int port)
{
    const char *shown = lks__shown(host, LKS__ADDRESS_BYTES - 16);
    bool six = host[0] != '[' && strchr(host, ':') != NULL;
    snprintf(text, LKS__ADDRESS_BYTES, six ? "[%s]:%d" : "%s:%d", shown, port);
    return text;
}

lks_status lks__address_parse(const char *what, const char *text, char *host, size_t host_bytes,
                              int *port_p)
{
    const char *shown = lks__shown(text, 256);
    const char *first = text, *port = NULL;
    size_t n = strlen(text);
    if (text[0] == '[') {
        const char *end = strchr(text, ']');
        first = text + 1;
        n = end == NULL ? 0 : (size_t)(end - first);
        if (end != NULL && end[1] == ':')
            port = end + 2;
        else if (end != NULL && end[1] != '\0')
            n = 0;
    } else if (strchr(text, ':') != NULL && strchr(text, ':') == strrchr(text, ':')) {
        n = strcspn(text, ":");
        port = text + n + 1;
    } /* several colons without brackets: an IPv6 address without a port */
    if (n == 0 || n >= host_bytes)
        return lks__fail(LKS_ERR_CONFIG, "%s is \"%s\": expected HOST, HOST:PORT or [ADDRESS]:PORT",
                         what, shown);
    if (port != NULL) {
        char *end;
        unsigned long value = strtoul(port, &end, 10);
        if (*port < '0' || *port > '9' || *end != '\0' || value > 65535)
            return lks__fail(LKS_ERR_CONFIG, "%s is \"%s\": the port must be from 0 to 65535", what,
                             shown);
        *port_p = (int)value;
    }
    memcpy(host, first, n);
    host[n] = '\0';
    return LKS_OK;
}

bool lks__address_number(const struct sockaddr *a, char number[LKS__NUMBER_BYTES])
{
    const socklen_t bytes =
        a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    return getnameinfo(a, bytes, number, LKS__NUMBER_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
}

bool lks__address_is_loopback(const char *host, char number[LKS__NUMBER_BYTES])
{
    struct addrinfo *list;
    number[0] = '\0';
    if (lks__address_find(host, 0, true, &list) != LKS_OK)
        return false;
    const bool known = lks__address_number(list->ai_addr, number);
    freeaddrinfo(list);
    return known && (strncmp(number, "127.", 4) == 0 || strcmp(number, "::1") == 0);
}

void lks__address_advice(char number[LKS__NUMBER_BYTES])
{
    static const unsigned up = IFF_UP | IFF_RUNNING;
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0)
        all = NULL;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next)
        found = i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
                (i->ifa_flags & (up | IFF_LOOPBACK)) == up &&
                lks__address_number(i->ifa_addr, number);
    if (!found)
        snprintf(number, LKS__NUMBER_BYTES, "ADDRESS");
    if (all != NULL)
        freeifaddrs(all);
}

bool lks__address_is_cut(const char *address, char name[LKS__INTERFACE_BYTES])
{
    struct ifaddrs *all = NULL;
    bool cut = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i != NULL && !cut; i = i->ifa_next) {
        char number[LKS__NUMBER_BYTES];
        const int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) ||
            !lks__address_number(i->ifa_addr, number) || strcmp(number, address) != 0)
            continue;
        cut = (i->ifa_flags & IFF_RUNNING) == 0;
        snprintf(name, LKS__INTERFACE_BYTES, "%s", i->ifa_name);
    }
    freeifaddrs(all);
    return cut;
}

static void set_option(int fd, int level, int option, int value)
{
    /* If it fails, the connection is only slower. */
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

lks_status lks__address_listen(const char *host, int port, int *fd_p, int *port_p)
{
    char where[LKS__ADDRESS_BYTES], service[16] = "0";
    struct sockaddr_storage addr;
    struct addrinfo *list;
    LKS__TRY(lks__address_find(host, port, true, &list));
    socklen_t len = list->ai_addrlen;
    memcpy(&addr, list->ai_addr, len);
    freeaddrinfo(list);
    lks__address_text(where, host, port);
    const int fd = lks__sys_socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (fd < 0)
        return lks__fail(LKS_ERR_IO, "can't open a socket to listen on %s: %s", where,
                         lks__sys_reason(errno));
    if (port != 0) /* don't wait for the last connections of an earlier job to expire */
        set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (addr.ss_family == AF_INET6) /* "::" is every address, also of IPv4 */
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (lks__sys_bind(fd, (struct sockaddr *)&addr, len) != 0 || lks__sys_listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &len) != 0) {
        const int err = errno;
        lks__sys_close(fd);
        return lks__fail(err == EADDRINUSE || err == EADDRNOTAVAIL ? LKS_ERR_SUPPORT : LKS_ERR_IO,
                         "can't listen on %s: %s%s", where, strerror(err),
                         err == EADDRINUSE      ? "; choose another port"
                         : err == EADDRNOTAVAIL ? "; this host doesn't have that address"
                                                : "");
    }
    getnameinfo((struct sockaddr *)&addr, len, NULL, 0, service, sizeof service, NI_NUMERICSERV);
    *port_p = atoi(service);
    *fd_p = fd;
    return LKS_OK;
}

lks_status lks__link_timeout(int *seconds_p)
{
    const char *text = getenv(LKS__LINK_ENV);
    char *end;
    *seconds_p = LKS__LINK_PRESET_S;
    if (text == NULL || *text == '\0')
        return LKS_OK;
    long s = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || s < LKS__LINK_LEAST_S || s > LKS__LINK_MOST_S)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s is \"%s\": it must be a whole number of seconds from %d to %d",
                         LKS__LINK_ENV, lks__shown(text, 64), LKS__LINK_LEAST_S, LKS__LINK_MOST_S);
    *seconds_p = (int)s;
    return LKS_OK;
}

int lks__link_s(void)
{
    int link_s;
    return lks__link_timeout(&link_s) == LKS_OK ? link_s : LKS__LINK_PRESET_S;
}

void lks__address_tune(int fd, int link_s)
{
    const int probes = 60, interval = (link_s + probes - 1) / probes;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, interval);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, link_s / interval - 1);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, link_s * 1000);
}
