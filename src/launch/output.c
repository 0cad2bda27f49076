#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

enum {
    LINE_BYTES = 8192,       /* a longer line is shown in parts */
    PENDING_BYTES = 1 << 16, /* of one console; beyond it ranks wait */
    CHUNK_BYTES = 4096,      /* what a pipe that is ready takes without blocking */
    PREFIX_BYTES = 96,
};

/* Our own stdout or stderr. */
struct console {
    int fd;
    bool gone; /* nobody reads it any more */
    bool colours;
    char *pending;
    size_t n, cap;
};

struct stream {
    int fd, child_fd; /* -1: inherited or at its end */
    int file;         /* -1: none */
    bool file_failed;
    struct console *console; /* NULL: not shown */
    char prefix[PREFIX_BYTES];
    char line[LINE_BYTES];
    size_t n;
};

struct lks__output {
    int n;
    struct console consoles[2];
    struct stream *streams; /* [2 n]: rank by rank, stdout and stderr */
    char (*tails)[LKS__TAIL_BYTES];
    size_t *tail_bytes;
    struct stream *polled[]; /* [2 n] those of the last fill() */
};

/* --- consoles ----------------------------------------------------------------------------- */

/* Write what is pending: one chunk, which won't block where poll has said so, or all. */
static void console_write(struct console *c, bool all)
{
    size_t done = 0;
    while (done < c->n && !c->gone) {
        size_t want = c->n - done;
        ssize_t n = write(c->fd, c->pending + done, want < CHUNK_BYTES ? want : CHUNK_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN && all) { /* somebody has made it non-blocking */
            struct pollfd p = {.fd = c->fd, .events = POLLOUT};
            poll(&p, 1, 1000);
            continue;
        }
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            c->gone = true;
        else
            done += (size_t)n;
        if (!all)
            break;
    }
    if (c->gone)
        done = c->n;
    if (done > 0)
        memmove(c->pending, c->pending + done, c->n - done);
    c->n -= done;
}

static void console_add(struct console *c, const char *text, size_t n)
{
    if (c->n + n > c->cap) { /* beyond PENDING_BYTES by what one read became with its prefixes */
        size_t cap = 2 * (c->n + n) + PENDING_BYTES;
        char *more = realloc(c->pending, cap);
        if (more == NULL)
            return; /* rather a line less than the ranks' end */
        c->pending = more;
        c->cap = cap;
    }
    if (!c->gone && n > 0) {
        memcpy(c->pending + c->n, text, n);
        c->n += n;
    }
}

static bool shows_colours(int fd)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(fd) && term != NULL && strcmp(term, "dumb") != 0 && (no == NULL || *no == '\0');
}

/* --- streams ------------------------------------------------------------------------------ */

static void keep_tail(lks__output *o, int local, const char *text, size_t n)
{
    char *tail = o->tails[local];
    size_t have = o->tail_bytes[local];
    if (n > LKS__TAIL_BYTES) {
        text += n - LKS__TAIL_BYTES;
        n = LKS__TAIL_BYTES;
    }
    size_t keep = have + n > LKS__TAIL_BYTES ? LKS__TAIL_BYTES - n : have;
    memmove(tail, tail + have - keep, keep);
    memcpy(tail + keep, text, n);
    o->tail_bytes[local] = keep + n;
}

static void show_line(struct stream *s, const char *text, size_t n)
{
    console_add(s->console, s->prefix, strlen(s->prefix));
    console_add(s->console, text, n);
}

/* Lines end in \n, \r\n, or, redrawn in place, \r. */
static void show(struct stream *s, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        bool redrawn = s->n > 0 && s->line[s->n - 1] == '\r' && text[i] != '\n';
        if (redrawn || s->n == LINE_BYTES - 1) {
            show_line(s, s->line, s->n);
            s->n = 0;
        }
        s->line[s->n++] = text[i];
        if (text[i] == '\n') {
            show_line(s, s->line, s->n);
            s->n = 0;
        }
    }
}

static void end_line(struct stream *s)
{
    if (s->n == 0 || s->console == NULL)
        return;
    if (s->line[s->n - 1] != '\r')
        s->line[s->n++] = '\n';
    show_line(s, s->line, s->n);
    s->n = 0;
}

static void to_file(struct stream *s, const char *text, size_t n)
{
    if (s->file < 0 || s->file_failed || lks__sys_write_all(s->file, text, n) == 0)
        return;
    s->file_failed = true;
    fprintf(stderr, "a log file can't be written any more: %s\n", strerror(errno));
}

static void end_stream(struct stream *s)
{
    lks__sys_close(s->fd);
    s->fd = -1;
}

/* Take what is there, at most one buffer; false where there was nothing. */
static bool take(lks__output *o, struct stream *s)
{
    char text[16 << 10];
    ssize_t n;
    do
        n = read(s->fd, text, sizeof text);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        end_stream(s);
        return false;
    }
    size_t index = (size_t)(s - o->streams);
    if (index % 2 == 1)
        keep_tail(o, (int)(index / 2), text, (size_t)n);
    to_file(s, text, (size_t)n);
    if (s->console != NULL)
        show(s, text, (size_t)n);
    /* Whoever writes for nobody learns it, as without us in between. */
    if (s->console != NULL && s->console->gone && s->file < 0)
        end_stream(s);
    return true;
}

/* --- opening ------------------------------------------------------------------------------ */

static lks_status open_file(struct stream *s, const char *folder, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    s->file = lks__sys_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return s->file < 0 ? lks__sys_fail("can't write", path) : LKS_OK;
}

static lks_status open_stream(lks__output *o, int local, int which,
                              const struct lks__output_plan *plan, int rank, const char *host,
                              const char *folder)
{
    struct stream *s = &o->streams[2 * local + which];
    unsigned bit = which == 0 ? LKS__STD_OUT : LKS__STD_ERR;
    int fds[2];
    if (plan->inherit & bit)
        return LKS_OK;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return lks__fail(LKS_ERR_IO, "can't make a pipe for the output of rank %d: %s", rank,
                         strerror(errno));
    s->fd = fds[0];
    s->child_fd = fds[1];
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    if (plan->console & bit)
        s->console = &o->consoles[which];
    if (host != NULL && s->console != NULL && s->console->colours)
        snprintf(s->prefix, sizeof s->prefix, "\033[%dm[%.48s:%d]\033[0m ", 31 + rank % 6, host,
                 rank);
    else if (host != NULL)
        snprintf(s->prefix, sizeof s->prefix, "[%.48s:%d] ", host, rank);
    else if (s->console != NULL && which == 1 && o->consoles[0].colours)
        snprintf(s->prefix, sizeof s->prefix, "\r\033[K"); /* over a progress line on stdout */
    return plan->file & bit ? open_file(s, folder, which == 0 ? "stdout.log" : "stderr.log")
                            : LKS_OK;
}

lks_status lks__output_open(const struct lks__output_plan *plans, int n, int first_rank,
                            const char *host, char *const *folders, lks__output **output_p)
{
    lks__output *o = calloc(1, sizeof *o + 2 * (size_t)n * sizeof o->polled[0]);
    if (o == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the output of %d ranks", n);
    o->n = n;
    o->streams = calloc(2 * (size_t)n, sizeof *o->streams);
    o->tails = calloc((size_t)n, sizeof *o->tails);
    o->tail_bytes = calloc((size_t)n, sizeof *o->tail_bytes);
    lks_status st = LKS_OK;
    for (int i = 0; i < 2; i++) {
        o->consoles[i].fd = i + 1;
        o->consoles[i].colours = shows_colours(i + 1);
    }
    if (o->streams == NULL || o->tails == NULL || o->tail_bytes == NULL) {
        o->n = o->streams == NULL ? 0 : n;
        st = lks__fail(LKS_ERR_NOMEM, "no memory for the output of %d ranks", n);
    }
    for (int i = 0; o->streams != NULL && i < 2 * n; i++)
        o->streams[i].fd = o->streams[i].child_fd = o->streams[i].file = -1;
    for (int i = 0; i < 2 * n && st == LKS_OK; i++)
        st = open_stream(o, i / 2, i % 2, &plans[i / 2], first_rank + i / 2, host,
                         folders == NULL ? NULL : folders[i / 2]);
    if (st != LKS_OK) {
        lks__output_close(o);
        return st;
    }
    *output_p = o;
    return LKS_OK;
}

static void close_if(int fd)
{
    if (fd >= 0)
        lks__sys_close(fd);
}

void lks__output_close(lks__output *o)
{
    if (o == NULL)
        return;
    for (int i = 0; i < 2 * o->n; i++) {
        close_if(o->streams[i].fd);
        close_if(o->streams[i].child_fd);
        close_if(o->streams[i].file);
    }
    free(o->consoles[0].pending);
    free(o->consoles[1].pending);
    free(o->streams);
    free(o->tails);
    free(o->tail_bytes);
    free(o);
}

void lks__output_ends(const lks__output *o, int local, int fds[2])
{
    fds[0] = o->streams[2 * local].child_fd;
    fds[1] = o->streams[2 * local + 1].child_fd;
}

void lks__output_started(lks__output *o, int local)
{
    for (int i = 2 * local; i < 2 * local + 2; i++) {
        close_if(o->streams[i].child_fd);
        o->streams[i].child_fd = -1;
    }
}

/* --- in the launcher's loop --------------------------------------------------------------- */

int lks__output_polls(int n)
{
    return 2 * n + 2;
}

int lks__output_fill(lks__output *o, struct pollfd *p)
{
    int n = 0;
    for (int i = 0; i < 2; i++) {
        const struct console *c = &o->consoles[i];
        /* A negative descriptor is skipped by poll. */
        p[n++] = (struct pollfd){.fd = c->n > 0 ? c->fd : -1, .events = POLLOUT};
    }
    for (int i = 0; i < 2 * o->n; i++) {
        struct stream *s = &o->streams[i];
        if (s->fd < 0 || (s->console != NULL && s->console->n > PENDING_BYTES))
            continue;
        o->polled[n - 2] = s;
        p[n++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    }
    return n;
}

void lks__output_step(lks__output *o, const struct pollfd *p, int n_polls)
{
    for (int i = 2; i < n_polls; i++)
        if (p[i].revents != 0)
            take(o, o->polled[i - 2]);
    for (int i = 0; i < 2; i++) {
        struct pollfd now = {.fd = o->consoles[i].fd, .events = POLLOUT};
        if (o->consoles[i].n > 0 && poll(&now, 1, 0) > 0)
            console_write(&o->consoles[i], false);
    }
}

void lks__output_flush(lks__output *o, bool last)
{
    for (int i = 0; i < 2 * o->n; i++) {
        struct stream *s = &o->streams[i];
        while (s->fd >= 0 && take(o, s))
            ;
        if (last)
            end_line(s);
    }
    for (int i = 0; i < 2; i++)
        console_write(&o->consoles[i], true);
}

void lks__output_tail(const lks__output *o, int local, char text[2 * LKS__TAIL_BYTES])
{
    const char *tail = o->tails[local];
    size_t n = o->tail_bytes[local], first = n, out = 0;
    text[0] = '\0';
    while (n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == '\r'))
        n--;
    int lines = n > 0;
    for (first = n; first > 0; first--)
        if (tail[first - 1] == '\n' && lines++ == LKS__TAIL_LINES)
            break;
    for (size_t i = first; i < n && out < 2 * LKS__TAIL_BYTES - 8; i++) {
        unsigned char c = (unsigned char)tail[i];
        if (i == first || tail[i - 1] == '\n')
            out += (size_t)sprintf(text + out, "    ");
        text[out++] = c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f) ? (char)c : '?';
    }
    if (out > 0)
        text[out++] = '\n';
    text[out] = '\0';
}
