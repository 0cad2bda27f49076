#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "launch/writer.h"

enum {
    LINE_BYTES = 8192,           /* a longer line is shown in parts */
    READ_BYTES = 2 * LINE_BYTES, /* of one stream, until they are queued */
    QUEUE_BYTES = 192 << 10,     /* of the consoles ... */
    SPARE_BYTES = 64 << 10,  /* ... of which ranks leave this much for the launcher's messages */
    FILES_BYTES = 256 << 10, /* of all files */
    CHUNK_BYTES = 4096,      /* a pipe takes it in one write */
    PREFIX_BYTES = 96,
    ROUNDS = 16, /* of reading, if ranks write as fast as we read */
};

/* Seconds. */
static const double LOOK_S = 0.05;
static const double LAST_TRY_S = 0.2; /* after a signal, for what the reader takes at once */
static const double DISK_S = 5.0;     /* for log files on a disk that doesn't answer */

/* The launcher's own stdout or stderr. */
struct console {
    lks__writer *writer;
    int fd, sink; /* fd: a duplicate, because stdout may be closed while a thread is stuck */
    const char *name;
    bool colours;
    bool said_failed;
    bool dropping; /* its reader has not read for too long */
    size_t dropped, dropped_lines;
};

struct lks__consoles {
    struct console at[2];
    lks__writer *writers[2]; /* the same one twice if both are the same file, to keep the order */
    int event;
    bool hurried;
    double hurried_at, patience_s;
};

struct stream {
    int fd, child_fd; /* -1: inherited, or at its end */
    int file;         /* -1: none */
    int file_sink;
    bool blocked;            /* there is no room for what was read */
    struct console *console; /* NULL: not shown */
    char prefix[PREFIX_BYTES];
    size_t n;
    char text[READ_BYTES]; /* read but not queued yet */
};

struct lks__output {
    int n;
    lks__consoles *consoles;
    lks__writer *files;
    bool said_files;
    bool ended; /* the ranks have ended */
    size_t files_dropped;
    int turn;               /* the stream that is queued first */
    struct stream *streams; /* [2 n]: rank by rank, stdout and stderr */
    char (*tails)[LKS__TAIL_BYTES];
    size_t *tail_bytes;
    struct stream *polled[]; /* [2 n] the streams of the last fill() */
};

/* --- consoles ----------------------------------------------------------------------------- */

static void close_if(int fd)
{
    if (fd >= 0)
        lks__sys_close(fd);
}

static bool shows_colours(int fd)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return isatty(fd) && term != NULL && strcmp(term, "dumb") != 0 && (no == NULL || *no == '\0');
}

/* Do both seem to be the same open file? */
static bool same_file(int a, int b)
{
    struct stat one, two;
    return fstat(a, &one) == 0 && fstat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino && one.st_rdev == two.st_rdev;
}

lks_status lks__consoles_open(lks__consoles **consoles_p)
{
    lks__consoles *c = calloc(1, sizeof *c);
    if (c == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the ranks' output");
    c->at[0].fd = c->at[1].fd = -1;
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lks_status st =
        c->event < 0 ? lks__fail(LKS_ERR_IO, "can't make an eventfd: %s", strerror(errno)) : LKS_OK;
    bool same = same_file(1, 2);
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
            st = lks__fail(LKS_ERR_NOMEM, "no memory for the ranks' output");
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

/* How long has the reader read nothing although it could? */
static bool is_stuck(const lks__consoles *c, const struct console *k)
{
    if (!c->hurried || lks__writer_idle(k->writer))
        return false;
    double since = lks__writer_progress(k->writer);
    if (since < c->hurried_at)
        since = c->hurried_at;
    return lks__sys_now() - since >= c->patience_s;
}

void lks__consoles_say(lks__consoles *c, const char *text)
{
    struct console *k = &c->at[1];
    size_t n = strlen(text);
    if (lks__writer_add(k->writer, k->sink, "", 0, text, n, 0))
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
             bytes, lines, k->name, err != 0 ? strerror(err) : "nobody read them in time");
    lks__consoles_say(c, text);
}

/* Has the reader returned, or been missing for too long? From now on, what can't be written for
 * that or another reason is dropped. */
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
    if (k->dropping && err == 0 && lks__writer_idle(k->writer)) {
        size_t bytes = k->dropped, lines = k->dropped_lines;
        k->dropping = false;
        k->dropped = k->dropped_lines = 0;
        say_dropped(c, k, bytes, lines);
    }
    k->dropping |= (err != 0 && err != EPIPE) || is_stuck(c, k);
}

static void look_at_consoles(lks__consoles *c)
{
    uint64_t count;
    (void)!read(c->event, &count, sizeof count);
    for (int i = 0; i < 2; i++)
        look_at_console(c, &c->at[i]);
}

static bool all_written(lks__consoles *c)
{
    return lks__writer_idle(c->at[0].writer) && lks__writer_idle(c->at[1].writer);
}

/* Wait until all is written, or will not be read. */
static void wait_for_readers(lks__consoles *c, int signals)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = c->event, .events = POLLIN},
                              {.fd = signals, .events = POLLIN}};
        look_at_consoles(c);
        bool stuck[2];
        for (int i = 0; i < 2; i++)
            stuck[i] = lks__writer_idle(c->at[i].writer) || is_stuck(c, &c->at[i]);
        if (all_written(c) || (stuck[0] && stuck[1]))
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
        for (int i = 0; i < 2; i++) /* these messages themselves aren't counted */
            say_dropped(c, &c->at[i], bytes[i] + c->at[i].dropped,
                        lines[i] + c->at[i].dropped_lines);
        lks__consoles_hurry(c, LAST_TRY_S);
        wait_for_readers(c, -1);
    }
    for (int i = 0; i < 2; i++)
        ended = lks__writer_close(c->writers[i]) && ended;
    for (int i = 0; i < 2 && ended; i++) /* otherwise a thread may still write to it */
        close_if(c->at[i].fd);
    if (ended)
        close_if(c->event);
    free(c);
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

/* Queue one line, or a part of a long one; false if there is no room. Lines that are dropped count
 * as queued. */
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

/* Bytes of the first line in text[n], or of the part of it that is shown separately; 0: it isn't
 * complete. Lines end in \n, \r\n, or, if they are redrawn in place, \r. */
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

/* Queue what was read, as far as there is room. `last`: also an unfinished line. */
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
        if (reader_left(s))
            s->n = 0;
        else
            show(s, last && s->fd < 0);
    }
    o->turn = (o->turn + 1) % (2 * o->n);
}

/* Is the disk not answering, now that ranks must end? */
static bool files_stuck(const lks__output *o)
{
    return (o->ended || o->consoles->hurried) && !lks__writer_idle(o->files) &&
           lks__sys_now() - lks__writer_progress(o->files) > DISK_S;
}

static bool file_has_room(const lks__output *o, const struct stream *s)
{
    return s->file < 0 || lks__writer_has_room(o->files, READ_BYTES) || files_stuck(o);
}

/* May more be read from it? */
static bool has_room(const struct stream *s)
{
    return !s->blocked && s->n < LINE_BYTES;
}

/* Read what is available, at most one buffer; false if there was nothing. */
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
    /* A rank whose output nobody reads learns it, as it would without the launcher. */
    if (reader_left(s) && s->file < 0)
        end_stream(s);
    return true;
}

/* --- opening ------------------------------------------------------------------------------ */

static lks_status open_file(lks__output *o, struct stream *s, const char *folder, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    s->file = lks__sys_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (s->file < 0)
        return lks__sys_fail("can't write", path);
    if (o->files == NULL)
        LKS__TRY(lks__writer_open(FILES_BYTES, READ_BYTES, o->consoles->event, &o->files));
    s->file_sink = lks__writer_sink(o->files, s->file);
    return s->file_sink < 0 ? lks__fail(LKS_ERR_NOMEM, "no memory for \"%s\"", path) : LKS_OK;
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
        s->console = &o->consoles->at[which];
    if (host != NULL && s->console != NULL && s->console->colours)
        snprintf(s->prefix, sizeof s->prefix, "\033[%dm[%.48s:%d]\033[0m ", 31 + rank % 6, host,
                 rank);
    else if (host != NULL)
        snprintf(s->prefix, sizeof s->prefix, "[%.48s:%d] ", host, rank);
    else if (s->console != NULL && which == 1 && o->consoles->at[0].colours)
        /* Overwrites a progress line on stdout. */
        snprintf(s->prefix, sizeof s->prefix, "\r\033[K");
    return plan->file & bit ? open_file(o, s, folder, which == 0 ? "stdout.log" : "stderr.log")
                            : LKS_OK;
}

lks_status lks__output_open(const struct lks__output_plan *plans, int n, int first_rank,
                            const char *host, char *const *folders, lks__consoles *consoles,
                            lks__output **output_p)
{
    lks__output *o = calloc(1, sizeof *o + 2 * (size_t)n * sizeof o->polled[0]);
    if (o == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the output of %d ranks", n);
    o->n = n;
    o->consoles = consoles;
    o->streams = calloc(2 * (size_t)n, sizeof *o->streams);
    o->tails = calloc((size_t)n, sizeof *o->tails);
    o->tail_bytes = calloc((size_t)n, sizeof *o->tail_bytes);
    lks_status st = LKS_OK;
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

/* Write log files to their end, but don't wait for a disk that doesn't answer. */
static bool close_files(lks__output *o)
{
    size_t bytes = o->files_dropped;
    if (o->files == NULL)
        return true;
    while (!lks__writer_idle(o->files) &&
           lks__sys_now() - lks__writer_progress(o->files) < DISK_S) {
        struct pollfd p = {.fd = o->consoles->event, .events = POLLIN};
        poll(&p, 1, 20);
        look_at_consoles(o->consoles);
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
        close_if(o->streams[i].fd);
        close_if(o->streams[i].child_fd);
        if (written)
            close_if(o->streams[i].file);
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
        close_if(o->streams[i].child_fd);
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
    return o->consoles->hurried && !all_written(o->consoles) ? lks__sys_now() + LOOK_S : 0;
}

static void say_failed_files(lks__output *o)
{
    for (int i = 0; i < 2 * o->n && o->files != NULL && !o->said_files; i++) {
        const struct stream *s = &o->streams[i];
        int err = s->file >= 0 ? lks__writer_error(o->files, s->file_sink) : 0;
        char text[256];
        if (err == 0)
            continue;
        o->said_files = true;
        snprintf(text, sizeof text, "lockstep: a log file can't be written any more: %s\n",
                 strerror(err));
        lks__consoles_say(o->consoles, text);
    }
}

void lks__output_step(lks__output *o, const struct pollfd *p, int n_polls)
{
    for (int i = 1; i < n_polls; i++)
        if (p[i].revents != 0)
            take(o, o->polled[i - 1]);
    look_at_consoles(o->consoles);
    if (p[0].revents != 0) {
        say_failed_files(o);
        for (int i = 0; i < 2 * o->n; i++) /* inform also the ranks that print nothing more */
            if (o->streams[i].fd >= 0 && reader_left(&o->streams[i]) && o->streams[i].file < 0)
                end_stream(&o->streams[i]);
    }
    show_all(o, false);
}

bool lks__output_drain(lks__output *o, bool last)
{
    bool done = true, more = true;
    o->ended |= last;
    look_at_consoles(o->consoles);
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
        /* A process still holds it open, and is silent. */
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
