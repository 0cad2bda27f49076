#include "train/loop/report/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/system/sys.h"

enum { MESSAGE = 400 };

static const double TEXT_S = 1.0; /* least seconds between two STATUS lines */
static const double SHARE = 0.25; /* of WATCHDOG_USEC, between signs of life */

/* Connect to a path, or to an abstract name, which systemd writes with '@'. */
static int dial(const char *name)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = strlen(name);
    errno = EINVAL;
    if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof to.sun_path)
        return -1;
    memcpy(to.sun_path, name, n);
    if (name[0] == '@')
        to.sun_path[0] = '\0';
    const int fd = lks__sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK);
    if (fd < 0)
        return -1;
    if (lks__sys_connect(fd, (const struct sockaddr *)&to,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) == 0)
        return fd;
    const int err = errno;
    lks__sys_close(fd);
    errno = err;
    return -1;
}

/* A message may be lost if the socket is full, so each one repeats READY. */
static void put(const lks__notify *n, const char *text)
{
    lks__sys_send(n->fd, text, strlen(text));
}

bool lks__notify_open(lks__notify *n)
{
    const char *name = getenv("NOTIFY_SOCKET"), *limit = getenv("WATCHDOG_USEC");
    *n = (lks__notify){.fd = -1};
    if (name == NULL || name[0] == '\0')
        return true;
    n->fd = dial(name);
    if (n->fd < 0)
        return false;
    if (limit != NULL && strtod(limit, NULL) >= 1.0)
        n->alive_s = SHARE * strtod(limit, NULL) * 1e-6;
    put(n, "READY=1\n");
    return true;
}

void lks__notify_close(lks__notify *n)
{
    lks__sys_close(n->fd);
    n->fd = -1;
}

void lks__notify_alive(lks__notify *n, const char *text)
{
    char message[MESSAGE], shown[MESSAGE / 2] = "";
    if (n->fd < 0)
        return;
    const double now = lks__sys_now();
    const bool sign = n->alive_s > 0.0 && now >= n->next_alive;
    const bool told = text != NULL && now >= n->next_text;
    if (!sign && !told)
        return;
    if (told)
        snprintf(shown, sizeof shown, "STATUS=%s\n", text);
    snprintf(message, sizeof message, "READY=1\n%s%s", shown, sign ? "WATCHDOG=1\n" : "");
    put(n, message);
    if (sign)
        n->next_alive = now + n->alive_s;
    if (told)
        n->next_text = now + TEXT_S;
}

void lks__notify_stopping(lks__notify *n)
{
    if (n->fd >= 0)
        put(n, "STOPPING=1\nSTATUS=saves and ends\n");
}
