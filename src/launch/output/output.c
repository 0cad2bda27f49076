/* The ranks' streams: pipes, lines with prefixes, log files and last lines. */
#include "launch/output/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/system/sys.h"

enum {
    LINE_BYTES = 8192,           /* longer lines are shown in parts */
    READ_BYTES = 2 * LINE_BYTES, /* of one stream, until its lines are queued */
    SPARE_BYTES = 64 << 10,      /* of the consoles' queue: left for the launcher's messages */
    FILES_BYTES = 256 << 10,     /* of all files */
    PREFIX_BYTES = 96,
    ROUNDS = 16, /* of reading, if ranks write as fast as we read */
};

/* Seconds. */
static const double LOOK_S = 0.05;
static const double DISK_S = 5.0; /* for log files on a disk that doesn't answer */

static const char *const file_names[] = {"stdout.log", "stderr.log"};

struct stream {
    int fd, child_fd; /* -1: inherited, or at its end */
    int file;         /* -1: none */
    int file_sink;
    bool blocked;            /* there is no room for the text */
    struct console *console; /* NULL: not shown */
    char prefix[PREFIX_BYTES];
    size_t n;
    char text[READ_BYTES]; /* read but not queued yet */
};

struct lks__output {
    int n;
    lks__consoles *consoles;
    lks__writer *files;
    char *const *folders; /* of the files, one for each rank */
    bool said_files;
    bool ended; /* the ranks have ended */
    size_t files_dropped;
    int turn;               /* the stream whose line is queued first */
    struct stream *streams; /* [2 n]: rank by rank, stdout and stderr */
    char (*tails)[LKS__TAIL_BYTES];
    size_t *tail_bytes;
    struct stream *polled[]; /* [2 n] the streams of the last fill() */
};

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

/* Queue one line, or a part of a long line; false if there is no room. Dropped lines count as
 * queued. */
static bool show_line(struct stream *s, const char *text, size_t n, const char *end)
{
    struct console *k = s->console;
    char line[LINE_BYTES + 1];
    if (k->dropping) {
        k->dropped += strlen(s->prefix) + n + strlen(end);
        k->dropped_lines += *end != '\0' || text[n - 1] == '\n';
        return true;
    }
    if (*end != '\0') {
        memcpy(line, text, n);
        line[n++] = *end;
        text = line;
    }
    return lks__writer_add(k->writer, k->sink, s->prefix, strlen(s->prefix), text, n, SPARE_BYTES);
}

/* Bytes of the first line in text[n], or of the part of it that is shown separately; 0: the line
 * isn't complete. Lines end in \n, \r\n, or, if they are redrawn in place, \r. */
static size_t line_length(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            return i + 1;
        if ((i > 0 && text[i - 1] == '\r') || i == LINE_BYTES - 1)
            return i;
    }
    return 0;
}

/* Queue the text that was read, as far as there is room. `last`: also queue an unfinished line. */
static void show(struct stream *s, bool last)
{
    size_t done = 0, n;
    s->blocked = false;
    while (!s->blocked && s->n > done) {
        const char *text = s->text + done, *end = "";
        n = line_length(text, s->n - done);
        if (n == 0 && !last)
            break;
        if (n == 0) {
            n = s->n - done;
            end = text[n - 1] != '\r' ? "\n" : "";
        }
        s->blocked = !show_line(s, text, n, end);
        if (!s->blocked)
            done += n;
    }
    memmove(s->text, s->text + done, s->n - done);
    s->n -= done;
}

static void end_stream(struct stream *s)
{
    lks__sys_close(s->fd);
    s->fd = -1;
}

static bool reader_left(const struct stream *s)
{
    return s->console != NULL && lks__writer_error(s->console->writer, s->console->sink) == EPIPE;
}

/* Queue one line of each stream in turn, so that a rank that prints much gets no more room than
 * others. */
static void show_all(lks__output *o, bool last)
{
    for (int i = 0; i < 2 * o->n; i++) {
        struct stream *s = &o->streams[(o->turn + i) % (2 * o->n)];
        if (s->console == NULL || s->n == 0)
            continue;
        if (reader_left(s)) {
            s->n = 0;
            s->blocked = false; /* the stream can be read to its end */
        } else {
            show(s, last && s->fd < 0);
        }
    }
    o->turn = (o->turn + 1) % (2 * o->n);
}

/* True if the disk doesn't respond although ranks must end. */
static bool files_stuck(const lks__output *o)
{
    return (o->ended || o->consoles->hurried) && lks__writer_waits_s(o->files) > DISK_S;
}

static bool file_has_room(const lks__output *o, const struct stream *s)
{
    return s->file < 0 || lks__writer_has_room(o->files, READ_BYTES) || files_stuck(o);
}

static bool has_room(const struct stream *s)
{
    return !s->blocked && s->n < LINE_BYTES;
}

/* Read the available text, at most one buffer; false if there was none. */
static bool take(lks__output *o, struct stream *s)
{
    char *text = s->text + s->n;
    size_t want = s->console == NULL ? READ_BYTES : READ_BYTES - s->n;
    if (!file_has_room(o, s))
        return false; /* the disk is slow */
    ssize_t n;
    do
        n = read(s->fd, text, want);
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
    if (s->file >= 0 && !lks__writer_add(o->files, s->file_sink, "", 0, text, (size_t)n, 0))
        o->files_dropped += (size_t)n;
    if (s->console != NULL)
        s->n += (size_t)n;
    /* If a rank's output has no reader, close the stream, so that the rank gets EPIPE as it would
     * without the launcher. */
    if (reader_left(s) && s->file < 0)
        end_stream(s);
    return true;
}

/* --- opening ------------------------------------------------------------------------------ */

static lks_status open_file(lks__output *o, struct stream *s, const char *folder, const char *name)
{
    char path[LKS__SYS_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    s->file = lks__sys_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (s->file < 0)
        return lks__sys_fail("can't write", path);
    if (o->files == NULL)
        LKS__TRY(lks__writer_open(FILES_BYTES, READ_BYTES, o->consoles->event, &o->files));
    s->file_sink = lks__writer_sink(o->files, s->file);
    return s->file_sink < 0 ? lks__no_memory("for \"%s\"", path) : LKS_OK;
}

static lks_status open_stream(lks__output *o, int local, int which,
                              const struct lks__output_plan *plan, int rank, const char *host,
                              const char *folder)
{
    struct stream *s = &o->streams[2 * local + which];
    unsigned bit = which == 0 ? LKS__STD_OUT : LKS__STD_ERR;
    static const char colours[] = {36, 32, 35, 34, 33}; /* red is for failures */
    int fds[2];
    if (plan->inherit & bit)
        return LKS_OK;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return lks__fail(LKS_ERR_IO, "can't make a pipe for the output of rank %d: %s", rank,
                         lks__sys_reason(errno));
    s->fd = fds[0];
    s->child_fd = fds[1];
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    if (plan->console & bit)
        s->console = &o->consoles->at[which];
    if (host != NULL && s->console != NULL && s->console->colours)
        snprintf(s->prefix, sizeof s->prefix, "\033[%dm[%.48s:%d]\033[0m ",
                 colours[(size_t)rank % sizeof colours], host, rank);
    else if (host != NULL)
        snprintf(s->prefix, sizeof s->prefix, "[%.48s:%d] ", host, rank);
    else if (s->console != NULL && which == 1 && o->consoles->terminal)
        snprintf(s->prefix, sizeof s->prefix, LKS__CLEAR_LINE);
    return plan->file & bit ? open_file(o, s, folder, file_names[which]) : LKS_OK;
}

lks_status lks__output_open(const struct lks__output_plan *plans, int n, int first_rank,
                            const char *host, char *const *folders, lks__consoles *consoles,
                            lks__output **output_p)
{
    lks__output *o = calloc(1, sizeof *o + 2 * (size_t)n * sizeof o->polled[0]);
    LKS__MEMORY(o, "for the output of %d ranks", n);
    o->n = n;
    o->consoles = consoles;
    o->folders = folders;
    o->streams = calloc(2 * (size_t)n, sizeof *o->streams);
    o->tails = calloc((size_t)n, sizeof *o->tails);
    o->tail_bytes = calloc((size_t)n, sizeof *o->tail_bytes);
    lks_status st = LKS_OK;
    if (o->streams == NULL || o->tails == NULL || o->tail_bytes == NULL) {
        o->n = o->streams == NULL ? 0 : n;
        st = lks__no_memory("for the output of %d ranks", n);
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

/* Write log files to their end, but don't wait for a disk that doesn't respond. */
static bool close_files(lks__output *o)
{
    size_t bytes = o->files_dropped;
    if (o->files == NULL)
        return true;
    for (double s = 0; (s = lks__writer_waits_s(o->files)) >= 0 && s < DISK_S;) {
        struct pollfd p = {.fd = o->consoles->event, .events = POLLIN};
        poll(&p, 1, 20);
        lks__consoles_look(o->consoles);
    }
    for (int i = 0; i < 2 * o->n; i++) {
        size_t more_bytes, more_lines;
        if (o->streams[i].file < 0)
            continue;
        lks__writer_left(o->files, o->streams[i].file_sink, &more_bytes, &more_lines);
        bytes += more_bytes;
    }
    if (bytes > 0) {
        char text[256];
        snprintf(text, sizeof text,
                 "lockstep: log files couldn't be written: %zu bytes are missing\n", bytes);
        lks__consoles_say(o->consoles, text);
    }
    return lks__writer_close(o->files);
}

void lks__output_close(lks__output *o)
{
    if (o == NULL)
        return;
    bool written = close_files(o);
    for (int i = 0; i < 2 * o->n; i++) {
        lks__sys_close(o->streams[i].fd);
        lks__sys_close(o->streams[i].child_fd);
        if (written)
            lks__sys_close(o->streams[i].file);
    }
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
        lks__sys_close(o->streams[i].child_fd);
        o->streams[i].child_fd = -1;
    }
}

/* --- in the launcher's loop --------------------------------------------------------------- */

int lks__output_polls(int n)
{
    return 2 * n + 1;
}

int lks__output_fill(lks__output *o, struct pollfd *p)
{
    int n = 1;
    p[0] = (struct pollfd){.fd = o->consoles->event, .events = POLLIN};
    for (int i = 0; i < 2 * o->n; i++) {
        struct stream *s = &o->streams[i];
        if (s->fd < 0 || !has_room(s) || !file_has_room(o, s))
            continue; /* the writer reports when there is room */
        o->polled[n - 1] = s;
        p[n++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    }
    return n;
}

double lks__output_next(const lks__output *o)
{
    return o->consoles->hurried && !lks__consoles_idle(o->consoles) ? lks__sys_now() + LOOK_S : 0;
}

static void say_failed_files(lks__output *o)
{
    for (int i = 0; i < 2 * o->n && o->files != NULL && !o->said_files; i++) {
        const struct stream *s = &o->streams[i];
        int err = s->file >= 0 ? lks__writer_error(o->files, s->file_sink) : 0;
        char text[1024];
        if (err == 0)
            continue;
        o->said_files = true;
        snprintf(text, sizeof text, "lockstep: %s/%s can't be written any more: %s\n",
                 lks__shown(o->folders[i / 2], 600), file_names[i % 2], strerror(err));
        lks__consoles_say(o->consoles, text);
    }
}

void lks__output_step(lks__output *o, const struct pollfd *p, int n_polls)
{
    for (int i = 1; i < n_polls; i++)
        if (p[i].revents != 0)
            take(o, o->polled[i - 1]);
    lks__consoles_look(o->consoles);
    if (p[0].revents != 0) {
        say_failed_files(o);
        for (int i = 0; i < 2 * o->n; i++) /* also inform ranks that print nothing more */
            if (o->streams[i].fd >= 0 && reader_left(&o->streams[i]) && o->streams[i].file < 0)
                end_stream(&o->streams[i]);
    }
    show_all(o, false);
}

bool lks__output_drain(lks__output *o, bool last)
{
    bool done = true, more = true;
    o->ended |= last;
    lks__consoles_look(o->consoles);
    for (int round = 0; more && round < ROUNDS; round++) {
        more = false;
        for (int i = 0; i < 2 * o->n; i++)
            if (o->streams[i].fd >= 0 && has_room(&o->streams[i]))
                more |= take(o, &o->streams[i]);
        show_all(o, last);
    }
    for (int i = 0; i < 2 * o->n; i++) {
        struct stream *s = &o->streams[i];
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        /* A process still holds it open, but doesn't write. */
        if (last && s->fd >= 0 && poll(&p, 1, 0) == 0)
            end_stream(s);
        done = done && s->n == 0 && s->fd < 0;
    }
    return done;
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
