#include "report/live/feed.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "base/text/memstream.h"

enum {
    ROWS = 512,          /* per message */
    RANK_NUMBERS = 8192, /* per column of a message about ranks */
};

struct progress {
    unsigned epoch;
    bool begun;
    size_t points, evals, marks; /* sent or skipped */
    size_t stride;
    const json_t *host, *end; /* in the newest "about" */
    const char *state;
    unsigned samples; /* samples_made when they were sent */
    uint64_t ranks;   /* bytes of ranks.jsonl when it was sent */
};

struct lks__feed {
    const lks__runs *runs;
    struct progress *run;
    size_t n; /* of runs in the newest "runs" */
    bool named;
};

lks__feed *lks__feed_open(const lks__runs *runs)
{
    lks__feed *f = calloc(1, sizeof *f);
    if (f != NULL)
        f->runs = runs;
    return f;
}

void lks__feed_close(lks__feed *f)
{
    if (f != NULL)
        free(f->run);
    free(f);
}

static json_t *point_row(const lks__point *p)
{
    return json_pack("[I, o, o, o, o, o, o, o, o, o]", (json_int_t)p->iter, lks__json_real(p->loss),
                     lks__json_real(p->lr), lks__json_real(p->grad_norm), lks__json_real(p->tokens),
                     lks__json_real(p->seconds), lks__json_real(p->tok_per_s),
                     lks__json_real(p->mfu), lks__json_real(p->wait_ms), lks__json_real(p->ms));
}

static json_t *eval_row(const lks__eval_point *e)
{
    return json_pack("[I, o, o, o, o, o, b]", (json_int_t)e->iter, lks__json_real(e->train_loss),
                     lks__json_real(e->val_loss), lks__json_real(e->val_bpb),
                     lks__json_real(e->tokens), lks__json_real(e->seconds), e->final);
}

static json_t *mark_row(const lks__run_mark *m)
{
    return json_pack("[I, s, s]", (json_int_t)m->iter, m->kind, m->text);
}

static json_t *rows_message(const char *kind, size_t run, json_t *rows)
{
    return json_pack("{s:s, s:I, s:o}", "kind", kind, "run", (json_int_t)run, "rows", rows);
}

/* All rows about ranks, or every 2nd, 4th, … of them, with the newest. */
static json_t *rank_rows(const lks__series *s)
{
    json_t *rows = json_array();
    const size_t n = json_array_size(s->ranks);
    const json_t *last = n > 0 ? json_array_get(s->ranks, n - 1) : NULL;
    const size_t n_ranks = json_array_size(json_array_get(last, 5));
    size_t stride = 1;
    while (n / stride * n_ranks > RANK_NUMBERS)
        stride *= 2;
    for (size_t i = 0; i < n; i++)
        if ((n - 1 - i) % stride == 0)
            json_array_append(rows, json_array_get(s->ranks, i));
    return rows;
}

static json_t *about(const lks__feed *f, size_t i)
{
    const lks__series *s = &f->runs->all[i];
    return json_pack("{s:s, s:I, s:O?, s:O?, s:O?, s:s}", "kind", "about", "run", (json_int_t)i,
                     "config", s->config, "host", s->host, "end", s->end, "state",
                     lks__series_state(s));
}

static json_t *names(lks__feed *f)
{
    struct progress *run = realloc(f->run, (f->runs->n + 1) * sizeof *run);
    json_t *all = json_array();
    if (run == NULL || all == NULL) {
        f->run = run != NULL ? run : f->run;
        json_decref(all);
        return NULL;
    }
    f->run = run;
    for (size_t i = 0; i < f->runs->n; i++)
        json_array_append_new(all, json_string(f->runs->all[i].name));
    memset(run + f->n, 0, (f->runs->n - f->n) * sizeof *run);
    f->n = f->runs->n;
    f->named = true;
    return json_pack("{s:s, s:o}", "kind", "runs", "names", all);
}

static size_t stride_of(const lks__series *s)
{
    size_t stride = 1;
    while (s->n_points / stride > LKS__FEED_POINTS)
        stride *= 2;
    return stride;
}

/* True if point i is sent: each one of the stride and, after the run's end, the last one. */
static bool is_sent(const lks__series *s, const struct progress *p, size_t i)
{
    return i % p->stride == 0 || (s->end != NULL && i + 1 == s->n_points);
}

/* The next message about run i; NULL if there is none yet. */
static json_t *next_of(lks__feed *f, size_t i)
{
    const lks__series *s = &f->runs->all[i];
    const char *state = lks__series_state(s);
    struct progress *p = &f->run[i];
    json_t *rows;
    if (!p->begun || p->epoch != s->epoch || stride_of(s) > 2 * p->stride) {
        *p = (struct progress){.epoch = s->epoch, .begun = true, .stride = stride_of(s)};
        return json_pack("{s:s, s:I}", "kind", "run", "run", (json_int_t)i);
    }
    if (p->host != s->host || p->end != s->end || p->state != state) {
        const bool ended = s->end != NULL && p->end != s->end;
        p->host = s->host;
        p->end = s->end;
        p->state = state;
        if (ended && p->points > 0 && p->points == s->n_points && (p->points - 1) % p->stride != 0)
            p->points--; /* it wasn't known to be the last one */
        return about(f, i);
    }
    if (p->points < s->n_points) {
        rows = json_array();
        for (; p->points < s->n_points && json_array_size(rows) < ROWS; p->points++)
            if (is_sent(s, p, p->points))
                json_array_append_new(rows, point_row(&s->points[p->points]));
        return rows_message("points", i, rows);
    }
    if (p->evals < s->n_evals) {
        rows = json_array();
        for (; p->evals < s->n_evals && json_array_size(rows) < ROWS; p->evals++)
            json_array_append_new(rows, eval_row(&s->evals[p->evals]));
        return rows_message("evals", i, rows);
    }
    if (p->marks < s->n_marks) {
        rows = json_array();
        for (; p->marks < s->n_marks && json_array_size(rows) < ROWS; p->marks++)
            json_array_append_new(rows, mark_row(&s->marks[p->marks]));
        return rows_message("marks", i, rows);
    }
    if (p->samples != s->samples_made && s->samples != NULL) {
        p->samples = s->samples_made;
        return rows_message("samples", i, json_incref(s->samples));
    }
    if (p->ranks != s->ranks_bytes) {
        p->ranks = s->ranks_bytes;
        return rows_message("ranks", i, rank_rows(s));
    }
    return NULL;
}

char *lks__feed_next(lks__feed *f)
{
    json_t *message = NULL;
    if (!f->named || f->n < f->runs->n)
        message = names(f);
    for (size_t i = 0; i < f->n && message == NULL; i++)
        message = next_of(f, i);
    if (message == NULL)
        return NULL;
    char *text = lks__json_dump(message, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(message);
    return text;
}

/* --- a file ----------------------------------------------------------------------------------- */

/* Escape "<", because "</script>" ends a script even within its strings. */
static bool put_data(FILE *out, const char *text)
{
    bool put = true;
    for (; *text != '\0' && put; text++)
        put = *text == '<' ? fputs("\\u003c", out) >= 0 : fputc(*text, out) != EOF;
    return put;
}

struct writing {
    lks__feed *feed;
    FILE *out;
    bool whole; /* so far; false without any message */
};

static void put_messages(void *arg)
{
    struct writing *w = arg;
    const char *before = "[";
    for (char *message; (message = lks__feed_next(w->feed)) != NULL; before = ",\n") {
        w->whole = (w->whole || before[0] == '[') && fputs(before, w->out) >= 0 &&
                   put_data(w->out, message);
        free(message);
    }
}

char *lks__feed_page(const lks__runs *runs, size_t *bytes_p)
{
    static const char marker[] = "id=\"data\">";
    const char *at = strstr(lks__page, marker) + sizeof marker - 1;
    char *page = NULL;
    lks__feed *feed = lks__feed_open(runs);
    FILE *out = feed != NULL ? open_memstream(&page, bytes_p) : NULL;
    if (out == NULL) {
        lks__feed_close(feed);
        return NULL;
    }
    struct writing w = {feed, out, false};
    fwrite(lks__page, 1, (size_t)(at - lks__page), out);
    const bool whole = lks__json_in_memory(put_messages, &w) && w.whole && fputs("]", out) >= 0 &&
                       fputs(at, out) >= 0;
    lks__feed_close(feed);
    if (lks__memstream_end(out, &page) != NULL && whole)
        return page;
    free(page);
    return NULL;
}
