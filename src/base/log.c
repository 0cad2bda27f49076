#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"

enum { MAX_LINE = 4096, WAIT_MS = 100 };

static const double REDRAW_S = 0.25, FIRST_S = 5.0, REPEAT_S = 30.0; /* of lks__log_status() */
static const double STOP_S = 5.0; /* limit of the wait for a reader once the run must stop */

static bool can_move(FILE *f)
{
    const char *term = getenv("TERM");
    return isatty(fileno(f)) && term && strcmp(term, "dumb") != 0;
}

void lks__log_open(lks__log *log, const char *name, FILE *out, FILE *err)
{
    memset(log, 0, sizeof *log);
    log->name = name;
    log->out = out;
    log->err = err;
    log->files[0].fd = log->files[1].fd = -1;
    log->out_moves = can_move(out);
    log->err_moves = can_move(err);
}

/* True if it can take a line without blocking. If its reader is slow, wait, within limits. A file
 * that can't be polled is written without a check. */
static bool can_write(lks__log *log, FILE *f)
{
    struct pollfd p = {.fd = fileno(f), .events = POLLOUT};
    double limit = 0;
    while (log->on_wait != NULL && p.fd >= 0) {
        int n = poll(&p, 1, log->gave_up ? 0 : WAIT_MS);
        if (n > 0 || (n < 0 && errno != EINTR)) {
            log->gave_up = false;
            return true;
        }
        bool go_on = log->on_wait(log->on_wait_ctx);
        if (!go_on && limit == 0)
            limit = lks__sys_now() + STOP_S;
        log->gave_up |= !go_on && lks__sys_now() >= limit;
        if (log->gave_up) {
            log->dropped++;
            return false;
        }
    }
    return true;
}

static void write_out(lks__log *log, const char *text)
{
    if (!can_write(log, log->out))
        return;
    /* Flush each line, so that lines of ranks and of the launcher keep their order in a pipe. */
    if (fputs(text, log->out) < 0 || fflush(log->out) != 0)
        if (!log->out_errno)
            log->out_errno = errno ? errno : EIO;
}

static void write_file(lks__log *log, const char *text)
{
    for (int i = 0; i < 2; i++)
        if (log->files[i].fd >= 0 &&
            lks__sys_write_all(log->files[i].fd, text, strlen(text)) != 0 && !log->file_errno) {
            log->file_errno = errno ? errno : EIO;
            log->file_failed = i;
        }
}

static void clear_live(lks__log *log)
{
    if (log->live)
        write_out(log, LKS__CLEAR_LINE);
    log->live = false;
}

void lks__log_on_wait(lks__log *log, bool (*fn)(void *ctx), void *ctx)
{
    log->on_wait = fn;
    log->on_wait_ctx = ctx;
}

void lks__log_close(lks__log *log)
{
    clear_live(log);
    if (log->dropped > 0)
        lks__log_message(log, "%llu lines were dropped, because their reader was too slow",
                         (unsigned long long)log->dropped);
    for (int i = 0; i < 2; i++) {
        lks__sys_close(log->files[i].fd);
        log->files[i].fd = -1;
    }
}

lks_status lks__log_to_file(lks__log *log, const char *path)
{
    const int i = log->files[0].fd >= 0;
    LKS__TRY(lks__sys_append(path, &log->files[i].fd));
    snprintf(log->files[i].path, sizeof log->files[i].path, "%s", path);
    return LKS_OK;
}

/* Format "prefix text\n" into `out`. Text that doesn't fit is cut; the '\n' stays. */
static void format_line(char out[MAX_LINE], const char *prefix, const char *fmt, va_list ap)
{
    size_t n = (size_t)snprintf(out, MAX_LINE - 1, "%s", prefix);
    vsnprintf(out + n, MAX_LINE - 1 - n, fmt, ap);
    n = strlen(out);
    out[n] = '\n';
    out[n + 1] = '\0';
}

void lks__log_line(lks__log *log, const char *fmt, ...)
{
    char text[MAX_LINE];
    va_list ap;
    va_start(ap, fmt);
    format_line(text, "", fmt, ap);
    va_end(ap);
    clear_live(log);
    write_out(log, text);
    write_file(log, text);
}

void lks__log_message(lks__log *log, const char *fmt, ...)
{
    char text[MAX_LINE], prefix[128];
    va_list ap;
    snprintf(prefix, sizeof prefix, "%s: ", log->name);
    va_start(ap, fmt);
    format_line(text, prefix, fmt, ap);
    va_end(ap);
    if (log->err_moves)
        clear_live(log);
    if (can_write(log, log->err)) {
        fputs(text, log->err); /* a failure of stderr can't be reported anywhere */
        fflush(log->err);
    }
    write_file(log, text);
}

/* Columns of the terminal, read each time because it may have been resized. */
static size_t columns(FILE *f)
{
    struct winsize size;
    if (ioctl(fileno(f), TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
        return size.ws_col;
    return 80;
}

void lks__log_progress(lks__log *log, const char *line, const char *live)
{
    char text[MAX_LINE];
    if (line) {
        size_t n = (size_t)snprintf(text, sizeof text - 1, "%s", line);
        n = n < sizeof text - 2 ? n : sizeof text - 2;
        memcpy(text + n, "\n", 2);
        write_file(log, text);
        if (!log->out_moves)
            write_out(log, text);
    }
    if (!live || !log->out_moves)
        return;
    /* Count one column per character. Cut to the width: a wrapped line could not be erased. */
    size_t room = columns(log->out) - 1, n = 0, bytes = strlen(live);
    while (n < bytes && n < sizeof text - 16 && room > 0) {
        uint32_t cp;
        size_t len = lks__utf8_decode(live + n, bytes - n, &cp);
        if (len == 0)
            break;
        n += len;
        room--;
    }
    snprintf(text, sizeof text, "%.*s\033[K\r", (int)n, live);
    write_out(log, text);
    log->live = true;
}

void lks__log_live(lks__log *log, bool may)
{
    log->out_moves = log->out_moves && may;
}

void lks__log_work(lks__log *log)
{
    log->status_at = lks__sys_now() + (log->out_moves ? 2 * REDRAW_S : FIRST_S);
}

void lks__log_status(lks__log *log, const char *text)
{
    double now = lks__sys_now();
    char line[MAX_LINE];
    if (now < log->status_at)
        return;
    log->status_at = now + (log->out_moves ? REDRAW_S : REPEAT_S);
    if (log->out_moves) {
        lks__log_progress(log, NULL, text);
    } else if (can_write(log, log->err)) {
        snprintf(line, sizeof line, "%s: %s\n", log->name, text);
        fputs(line, log->err);
        fflush(log->err);
    }
}

lks_status lks__log_check(const lks__log *log)
{
    const char *path = log->files[log->file_failed].path;
    if (log->out_errno)
        return lks__fail(LKS_ERR_IO,
                         "writing to the standard output failed: %s; the files are written",
                         strerror(log->out_errno));
    if (log->file_errno)
        return lks__sys_failed_for(log->file_errno,
                                   lks__fail(LKS_ERR_IO, "writing to the log file %s failed: %s",
                                             lks__shown(path, 512), strerror(log->file_errno)));
    return LKS_OK;
}
