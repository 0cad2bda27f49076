#include "launch/output/consoles.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system/sys.h"

enum {
    QUEUE_BYTES = 192 << 10,
    CHUNK_BYTES = 4096, /* a pipe takes it in one write */
};

/* Seconds. */
static const double LOOK_S = 0.05;
static const double LAST_TRY_S = 0.2; /* after a signal, if the reader accepts output at once */

static bool is_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term != NULL && strcmp(term, "dumb") != 0;
}

static bool shows_colours(int fd)
{
    const char *no = getenv("NO_COLOR");
    return is_terminal(fd) && (no == NULL || *no == '\0');
}

/* True if both seem to be the same open file. */
static bool same_file(int a, int b)
{
    struct stat one, two;
    return fstat(a, &one) == 0 && fstat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino && one.st_rdev == two.st_rdev;
}

lks_status lks__consoles_open(lks__consoles **consoles_p)
{
    lks__consoles *c = calloc(1, sizeof *c);
    LKS__MEMORY(c, "for the ranks' output");
    c->at[0].fd = c->at[1].fd = -1;
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lks_status st = c->event < 0
                        ? lks__fail(LKS_ERR_IO, "can't make an eventfd: %s", lks__sys_reason(errno))
                        : LKS_OK;
    bool same = same_file(1, 2);
    c->terminal = is_terminal(1) && is_terminal(2);
    for (int i = 0; i < 2 && st == LKS_OK; i++) {
        struct console *k = &c->at[i];
        if (i == 0 || !same)
            st = lks__writer_open(QUEUE_BYTES, CHUNK_BYTES, c->event, &c->writers[i]);
        if (st != LKS_OK)
            break;
        k->writer = c->writers[same ? 0 : i];
        k->fd = fcntl(i + 1, F_DUPFD_CLOEXEC, 3);
        k->sink = lks__writer_sink(k->writer, k->fd);
        k->name = i == 0 ? "standard output" : "standard error";
        k->colours = shows_colours(i + 1);
        if (k->sink < 0)
            st = lks__no_memory("for the ranks' output");
    }
    if (st != LKS_OK) {
        lks__consoles_close(c, -1);
        return st;
    }
    *consoles_p = c;
    return LKS_OK;
}

void lks__consoles_hurry(lks__consoles *c, double patience_s)
{
    if (!c->hurried)
        c->hurried_at = lks__sys_now();
    if (!c->hurried || patience_s < c->patience_s)
        c->patience_s = patience_s;
    c->hurried = true;
}

void lks__consoles_unhurry(lks__consoles *c)
{
    c->hurried = c->at[0].dropping = c->at[1].dropping = false;
}

/* True if the reader has read nothing for too long although it could. */
static bool is_stuck(const lks__consoles *c, const struct console *k)
{
    return c->hurried && lks__sys_now() - c->hurried_at >= c->patience_s &&
           lks__writer_waits_s(k->writer) >= c->patience_s;
}

void lks__consoles_say(lks__consoles *c, const char *text)
{
    struct console *k = &c->at[1];
    size_t n = strlen(text);
    const char *clear = c->terminal ? LKS__CLEAR_LINE : "";
    if (lks__writer_add(k->writer, k->sink, clear, strlen(clear), text, n, 0))
        return;
    k->dropped += n;
    k->dropped_lines++;
}

static void say_dropped(lks__consoles *c, struct console *k, size_t bytes, size_t lines)
{
    char text[256];
    if (bytes == 0)
        return;
    int err = lks__writer_error(k->writer, k->sink);
    snprintf(text, sizeof text, "lockstep: %zu bytes (%zu lines) for the %s were dropped: %s\n",
             bytes, lines, k->name, err != 0 ? strerror(err) : "their reader was too slow");
    lks__consoles_say(c, text);
}

/* Once the reader has been missing for too long, or the console has failed, drop output. */
static void look_at_console(lks__consoles *c, struct console *k)
{
    int err = lks__writer_error(k->writer, k->sink);
    if (err != 0 && err != EPIPE && !k->said_failed) {
        char text[256];
        k->said_failed = true;
        snprintf(text, sizeof text, "lockstep: the %s can't be written: %s\n", k->name,
                 strerror(err));
        lks__consoles_say(c, text);
    }
    if ((k->dropping || k->dropped > 0) && err == 0 && lks__writer_waits_s(k->writer) < 0) {
        size_t bytes = k->dropped, lines = k->dropped_lines;
        k->dropping = false;
        k->dropped = k->dropped_lines = 0;
        say_dropped(c, k, bytes, lines);
    }
    k->dropping |= (err != 0 && err != EPIPE) || is_stuck(c, k);
}

void lks__consoles_look(lks__consoles *c)
{
    uint64_t count;
    (void)!read(c->event, &count, sizeof count);
    for (int i = 0; i < 2; i++)
        look_at_console(c, &c->at[i]);
}

bool lks__consoles_idle(lks__consoles *c)
{
    return lks__writer_waits_s(c->at[0].writer) < 0 && lks__writer_waits_s(c->at[1].writer) < 0;
}

static void wait_for_readers(lks__consoles *c, int signals)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = c->event, .events = POLLIN},
                              {.fd = signals, .events = POLLIN}};
        lks__consoles_look(c);
        bool stuck[2];
        for (int i = 0; i < 2; i++)
            stuck[i] = lks__writer_waits_s(c->at[i].writer) < 0 || is_stuck(c, &c->at[i]);
        if (lks__consoles_idle(c) || (stuck[0] && stuck[1]))
            return;
        poll(p, 2, c->hurried ? (int)(LOOK_S * 1e3) : -1);
        if (p[1].revents != 0) {
            lks__consoles_hurry(c, LAST_TRY_S);
            signals = -1;
        }
    }
}

void lks__consoles_close(lks__consoles *c, int signals)
{
    bool ended = true;
    if (c == NULL)
        return;
    if (c->at[0].writer != NULL && c->at[1].writer != NULL) {
        wait_for_readers(c, signals);
        size_t bytes[2] = {0, 0}, lines[2] = {0, 0};
        for (int i = 0; i < 2; i++)
            if (lks__writer_error(c->at[i].writer, c->at[i].sink) != EPIPE)
                lks__writer_left(c->at[i].writer, c->at[i].sink, &bytes[i], &lines[i]);
        for (int i = 0; i < 2; i++) /* don't count these messages themselves */
            say_dropped(c, &c->at[i], bytes[i] + c->at[i].dropped,
                        lines[i] + c->at[i].dropped_lines);
        lks__consoles_hurry(c, LAST_TRY_S);
        wait_for_readers(c, -1);
    }
    for (int i = 0; i < 2; i++)
        ended = lks__writer_close(c->writers[i]) && ended;
    const int fds[] = {c->at[0].fd, c->at[1].fd, c->event};
    for (int i = 0; i < 3 && ended; i++) /* otherwise a thread may still use them */
        lks__sys_close(fds[i]);
    free(c);
}
