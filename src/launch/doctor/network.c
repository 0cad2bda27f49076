#include <net/if.h>
#include <string.h>
#include <unistd.h>

#include "launch/doctor/doctor.h"
#include "launch/doctor/tcp.h"

static void look_at_interfaces(lks__doctor *d)
{
    struct ifaddrs *list;
    int n_outside = 0;
    bool loopback = false;
    if (getifaddrs(&list) != 0) {
        lks__doctor_say(d, LKS__NOTE, "interfaces", "other hosts can't be reached", "none found");
        return;
    }
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN];
        loopback |= (i->ifa_flags & (IFF_LOOPBACK | IFF_UP)) == (IFF_LOOPBACK | IFF_UP);
        if (!lks__tcp_interface(i, text))
            continue;
        const char *name = lks__shown(i->ifa_name, 4 * IF_NAMESIZE);
        bool running = (i->ifa_flags & IFF_RUNNING) != 0;
        lks__doctor_say(d, running ? LKS__FINE : LKS__NOTE, "interface",
                        "the cable is unplugged, or nothing is connected to its other end",
                        "%s has %s%s", name, text, running ? "" : ", but no carrier");
        n_outside++;
    }
    freeifaddrs(list);
    if (n_outside == 0)
        lks__doctor_say(d, LKS__NOTE, "interface", "runs on one host don't need it",
                        "no interface to other hosts is up");
    if (!loopback)
        lks__doctor_say(d, LKS__NOTE, "loopback",
                        "without it this host can't be the first node of a job: ip link set lo up",
                        "lo is down");
}

/* A host name that other hosts use as the master's address must not refer to those hosts
 * themselves. */
static void look_at_name(lks__doctor *d)
{
    char name[256] = "", text[INET6_ADDRSTRLEN] = "";
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    gethostname(name, sizeof name - 1);
    const char *shown = lks__shown(name, 300);
    int rc = getaddrinfo(name, NULL, &hints, &list);
    bool known = rc == 0 && list != NULL && lks__tcp_address(list->ai_addr, text);
    bool loopback = known && (strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0);
    if (!known)
        lks__doctor_say(d, LKS__NOTE, "host name", "add it to /etc/hosts, or use numeric addresses",
                        "%s: %s", shown, rc != 0 ? gai_strerror(rc) : "it has no address");
    else
        lks__doctor_say(
            d, loopback ? LKS__NOTE : LKS__FINE, "host name",
            "other hosts can't use it as --master-addr: give one of the addresses above",
            "%s is %s", shown, text);
    if (list != NULL)
        freeaddrinfo(list);
}

void lks__doctor_network(lks__doctor *d)
{
    look_at_interfaces(d);
    look_at_name(d);
}
