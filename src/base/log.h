/* base/log.h - what a run says: lines on stdout and in its log file, messages on stderr, and one
 * progress line that stays in place on a terminal.
 *
 * Text from files or peers is escaped by the caller. A write that fails is remembered, not
 * repeated: a run doesn't die in mid-step because its terminal went away, but it ends as failed. */
#ifndef LKS_BASE_LOG_H
#define LKS_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

typedef struct lks__log {
    const char *name; /* "lockstep train": begins messages */
    FILE *out, *err;
    int fd;         /* log file, or -1 */
    bool out_moves; /* out is a terminal that can rewrite a line */
    bool err_moves;
    bool live;     /* a progress line stands at the cursor */
    int out_errno; /* of the first write that failed; 0: none */
    int file_errno;
    bool (*on_wait)(void *ctx); /* see lks__log_on_wait() */
    void *on_wait_ctx;
    bool gave_up;     /* whoever should read was waited for, and is no more */
    uint64_t dropped; /* lines and messages that nobody read */
} lks__log;

/* To `out` and `err` (normally stdout and stderr); no file yet. `name` is kept, not copied. */
void lks__log_open(lks__log *log, const char *name, FILE *out, FILE *err);
void lks__log_close(lks__log *log); /* takes the progress line away */

/* Call fn(ctx) several times a second while somebody is waited for who should read stdout or stderr
 * and doesn't. Once it returns false, 5 s are left; then what isn't read is dropped and counted,
 * and lks__log_close() says how much. Without it the wait has no limit. */
void lks__log_on_wait(lks__log *log, bool (*fn)(void *ctx), void *ctx);

/* From now on append lines and messages to `path` too (made where missing). ERR_IO. */
lks_status lks__log_to_file(lks__log *log, const char *path);

/* "text\n" on stdout and in the file. */
void lks__log_line(lks__log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "name: text\n" on stderr and in the file. */
void lks__log_message(lks__log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One step's news: `line` goes to the file. A terminal shows `live` in place of the last one, cut
 * to its width; anything else gets `line` as a line. Either may be NULL: nothing there. */
void lks__log_progress(lks__log *log, const char *line, const char *live);

/* ERR_IO where a write has failed, saying which. */
lks_status lks__log_check(const lks__log *log);

#endif
