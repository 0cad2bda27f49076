/* base/log.h - the output of a run: lines on stdout and in its log file, messages on stderr, and
 * one progress line that stays in place on a terminal.
 *
 * The caller escapes text from files or peers. If a write fails, the failure is recorded and later
 * writes are skipped: a run doesn't die in mid-step because its terminal went away, but it ends as
 * failed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* Clears a progress line: the cursor is at its beginning. Does nothing at the end of other text. */
#define LKS__CLEAR_LINE "\033[K"

typedef struct lks__log {
    const char *name; /* "lockstep train": the beginning of messages */
    FILE *out, *err;
    struct {
        int fd; /* -1: none */
        char path[1100];
    } files[2];     /* the log file, and a second one */
    bool out_moves; /* out is a terminal that can rewrite a line */
    bool err_moves;
    bool live;        /* the cursor is at the beginning of a progress line */
    double status_at; /* when the next lks__log_status() is due */
    int out_errno;    /* errno of the first failed write, or 0 */
    /* errno of the first failed write to a file, or 0, and that file's index in files. */
    int file_errno, file_failed;
    bool (*on_wait)(void *ctx); /* see lks__log_on_wait() */
    void *on_wait_ctx;
    bool gave_up;     /* the wait for a slow reader has ended; later writes don't wait */
    uint64_t dropped; /* number of unread lines and messages that were dropped */
} lks__log;

/* Write to `out` and `err` (normally stdout and stderr), and to no file yet. `name` is kept, not
 * copied. */
void lks__log_open(lks__log *log, const char *name, FILE *out, FILE *err);
void lks__log_close(lks__log *log); /* erases the progress line */

/* While a write waits for a slow reader of stdout or stderr, call fn(ctx) several times a second.
 * Once fn returns false, the wait ends within 5 s; after that, unread lines are dropped and
 * counted, and lks__log_close() reports the number. Without a function the wait has no limit. */
void lks__log_on_wait(lks__log *log, bool (*fn)(void *ctx), void *ctx);

/* From now on also append lines and messages to `path` (created if missing), at most two files.
 * ERR_IO. */
lks_status lks__log_to_file(lks__log *log, const char *path);

/* Write "text\n" to stdout and the log files. */
void lks__log_line(lks__log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Write "name: text\n" to stderr and the log files. */
void lks__log_message(lks__log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Show one step's progress: write `line` to the log files. A terminal replaces its progress line by
 * `live`, cut to its width; any other stdout prints `line` as a line. Either may be NULL, which
 * skips that output. */
void lks__log_progress(lks__log *log, const char *line, const char *live);

/* Set whether lines may be rewritten in place. Initially true if stdout is a terminal. */
void lks__log_live(lks__log *log, bool may);

/* Show the progress of long work in `text`; call it as often as you like. A terminal shows it as
 * its progress line, several times a second. Otherwise it is a message on stderr every few seconds,
 * so that programs that read stdout or the file never see it. */
void lks__log_status(lks__log *log, const char *text);
/* Start new work: its status is shown only after some time. */
void lks__log_work(lks__log *log);

/* ERR_IO if a write has failed; names the output. */
lks_status lks__log_check(const lks__log *log);
