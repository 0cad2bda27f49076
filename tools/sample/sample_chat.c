/* lockstep sample --interactive: each line from standard input is followed by generated text, all
 * in one context. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "sample.h"
#include "session/signals.h"

enum { MOST_LINE = 1 << 20 };

/* Bytes from standard input that have not been used yet. */
struct input {
    char bytes[4096];
    size_t at, end;
    bool over;
};

/* Read more bytes. poll() returns after a signal; read() would be restarted. */
static lks_status fill(struct input *in)
{
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    while (true) {
        LKS__TRY(lks__sys_stop_check());
        if (poll(&fd, 1, -1) > 0)
            break;
        if (errno != EINTR)
            return lks__sys_fail("can't wait for", "standard input");
    }
    const ssize_t got = read(STDIN_FILENO, in->bytes, sizeof in->bytes);
    if (got < 0 && errno != EINTR)
        return lks__sys_fail("can't read", "standard input");
    in->at = 0;
    in->end = got < 0 ? 0 : (size_t)got;
    in->over = got == 0;
    return LKS_OK;
}

/* Read the next line with its line feed. The last line may lack one. *n_p is 0 at the end. */
static lks_status read_line(struct input *in, char *line, size_t *n_p)
{
    *n_p = 0;
    while (true) {
        if (in->at == in->end && !in->over)
            LKS__TRY(fill(in));
        if (in->over)
            return LKS_OK;
        for (; in->at < in->end; in->at++) {
            if (*n_p == MOST_LINE)
                return lks__fail(LKS_ERR_FORMAT, "standard input: a line has over %d bytes",
                                 MOST_LINE);
            line[(*n_p)++] = in->bytes[in->at];
            if (in->bytes[in->at] == '\n') {
                in->at++;
                return LKS_OK;
            }
        }
    }
}

static lks_status add(lks__writer *w, const lks__text *text, const char *line, size_t bytes)
{
    int32_t *ids = NULL;
    size_t n = 0;
    const lks_status st = lks__text_encode(text, line, bytes, &ids, &n);
    if (st == LKS_OK && n > 0)
        lks__generator_read(w->generator, ids, n);
    free(ids);
    return st;
}

/* Print the model's continuation. End its line on the terminal and, if the tokenizer knows line
 * feeds, in the context. */
static lks_status answer(lks__writer *w, const lks__text *text)
{
    bool newline;
    lks_status st = lks__write_answer(w, &newline);
    if (st == LKS_ERR_STOPPED && lks__stop_requested == SIGINT) {
        lks__signals_rearm();
        st = LKS_OK;
    }
    LKS__TRY(st);
    if (newline)
        return LKS_OK;
    (void)add(w, text, "\n", 1);
    return w->put(w->ctx, "\n", 1);
}

static lks_status chat(lks__writer *w, const lks__text *text, struct input *in, char *line)
{
    const bool terminal = isatty(STDIN_FILENO);
    const lks__meta *m = text->meta; /* a text in one line has no line feed */
    const bool feeds = m->chars == NULL || lks__meta_find_char(m, '\n') >= 0;
    while (true) {
        size_t n;
        if (terminal)
            fputs("> ", stderr);
        LKS__TRY(read_line(in, line, &n));
        if (n == 0)
            break;
        if (!feeds && line[n - 1] == '\n')
            n -= n > 1 && line[n - 2] == '\r' ? 2 : 1;
        const lks_status st = add(w, text, line, n);
        if (st == LKS_OK)
            LKS__TRY(answer(w, text));
        else if (st == LKS_ERR_FORMAT)
            fprintf(stderr, "lockstep sample: not read: %s\n", lks_last_error());
        else
            return st;
    }
    if (terminal)
        fputs("\n", stderr);
    return LKS_OK;
}

lks_status sample_chat(lks__writer *w, const lks__text *text)
{
    struct input *in = calloc(1, sizeof *in);
    char *line = malloc(MOST_LINE);
    lks_status st =
        in == NULL || line == NULL ? lks__no_memory("for a line") : chat(w, text, in, line);
    free(in);
    free(line);
    return st;
}
