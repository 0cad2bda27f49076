/* Distance between two hosts that are network namespaces of this machine: packets between their
 * devices t0 (`ip tuntap add dev t0 mode tun`) arrive so many seconds later.
 *
 *     plan_distance SECONDS NAMESPACE NAMESPACE
 *
 * A kernel with netem needs none of this; not all have it. It ends when it is killed. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* A direction's packets that are on their way: more than any window of TCP. */
enum { PACKETS = 1 << 15, MOST_BYTES = 9100 };

struct packet {
    double due;
    size_t bytes;
    char data[MOST_BYTES];
};

struct direction {
    int from, to;
    struct packet *packets; /* [PACKETS], in turn */
    size_t first, n;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const char *what)
{
    perror(what);
    return -1;
}

/* Our end of t0 in a namespace. */
static int open_device(const char *name)
{
    char path[64];
    struct ifreq wanted = {.ifr_name = "t0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        return fail(path);
    close(space);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &wanted) != 0)
        return fail("t0");
    return fd;
}

/* Take what has come. A packet without room is lost, as on any link. */
static void take(struct direction *d, double seconds)
{
    char lost[MOST_BYTES];
    while (true) {
        struct packet *p = &d->packets[(d->first + d->n) % PACKETS];
        ssize_t bytes = read(d->from, d->n < PACKETS ? p->data : lost, MOST_BYTES);
        if (bytes <= 0)
            return;
        if (d->n == PACKETS)
            continue;
        p->due = now() + seconds;
        p->bytes = (size_t)bytes;
        d->n++;
    }
}

static void give(struct direction *d)
{
    for (const double at = now(); d->n > 0 && d->packets[d->first].due <= at; d->n--) {
        const struct packet *p = &d->packets[d->first];
        if (write(d->to, p->data, p->bytes) < 0 && errno == EAGAIN)
            return;
        d->first = (d->first + 1) % PACKETS;
    }
}

/* Seconds until the next packet is due. */
static double rest(const struct direction *d)
{
    double least = 1.0;
    for (int i = 0; i < 2; i++) {
        const double due = d[i].n > 0 ? d[i].packets[d[i].first].due - now() : 1.0;
        least = due < least ? due : least;
    }
    return least > 0 ? least : 0;
}

int main(int argc, char **argv)
{
    struct direction d[2] = {{0}};
    int fds[2];
    if (argc != 4)
        return 2;
    const double seconds = atof(argv[1]);
    for (int i = 0; i < 2; i++) {
        fds[i] = open_device(argv[2 + i]);
        d[i].packets = malloc(PACKETS * sizeof *d[i].packets);
        if (fds[i] < 0 || d[i].packets == NULL)
            return 1;
    }
    for (int i = 0; i < 2; i++) {
        d[i].from = fds[i];
        d[i].to = fds[1 - i];
    }
    puts("ready");
    fflush(stdout);
    while (true) {
        struct pollfd look[2] = {{.fd = fds[0], .events = POLLIN},
                                 {.fd = fds[1], .events = POLLIN}};
        const double wait = rest(d);
        const struct timespec until = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
        ppoll(look, 2, &until, NULL);
        for (int i = 0; i < 2; i++) {
            take(&d[i], seconds);
            give(&d[i]);
        }
    }
}
