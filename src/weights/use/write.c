#include "weights/use/write.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"

static const char rule[] = "\n---------------\n";

/* A sample's text on its way out: tokens become characters, a stop text ends them, and they go to
 * the output or, while an earlier sample is written there, to memory. */
struct sample {
    lks__writer *w;
    lks__utf8_stream chars;
    lks__until until;
    bool prompt; /* in the prompt, which is copied unchanged */
    bool direct;
    char last; /* last byte that was passed on */
    char *kept;
    size_t n_kept, room;
};

static lks_status keep(struct sample *s, const char *text, size_t bytes)
{
    if (!lks__list_room(&s->kept, s->n_kept + bytes, &s->room, 1))
        return lks__no_memory("for a sample of %zu bytes", s->n_kept + bytes);
    memcpy(s->kept + s->n_kept, text, bytes);
    s->n_kept += bytes;
    return LKS_OK;
}

static lks_status put_out(void *ctx, const char *text, size_t bytes)
{
    struct sample *s = ctx;
    s->last = text[bytes - 1];
    return s->direct ? s->w->put(s->w->ctx, text, bytes) : keep(s, text, bytes);
}

static lks_status put_chars(void *ctx, const char *text, size_t bytes)
{
    struct sample *s = ctx;
    return s->prompt ? put_out(s, text, bytes) : lks__until_add(&s->until, text, bytes);
}

static void begin(struct sample *s, lks__writer *w, bool direct)
{
    s->w = w;
    s->direct = direct;
    s->chars = (lks__utf8_stream){.put = put_chars, .ctx = s};
    s->until = (lks__until){.stops = w->stops, .put = put_out, .ctx = s};
    s->n_kept = 0;
    s->last = '\0';
}

static lks_status finish(struct sample *s)
{
    LKS__TRY(lks__utf8_stream_end(&s->chars));
    return lks__until_end(&s->until);
}

static lks_status take(void *ctx, size_t sample, int32_t token, bool *end_p)
{
    struct sample *s = (struct sample *)ctx + sample;
    s->w->tokens++;
    LKS__TRY(lks__text_add(s->w->text, token, &s->chars));
    *end_p = s->until.ended;
    return LKS_OK;
}

static lks_status copy_prompt(struct sample *s, const int32_t *prompt, size_t n)
{
    s->prompt = true;
    for (size_t i = 0; i < n; i++)
        LKS__TRY(lks__text_add(s->w->text, prompt[i], &s->chars));
    s->prompt = false;
    return LKS_OK;
}

/* Write samples [first, first + n_samples). */
static lks_status write_group(struct sample *list, size_t n_samples, lks__writer *w,
                              const int32_t *prompt, size_t n, uint64_t first, uint64_t *n_whole_p)
{
    lks__generate how = w->how;
    how.first = (uint32_t)first;
    how.sink = take;
    how.ctx = list;
    for (size_t i = 0; i < n_samples; i++) {
        begin(&list[i], w, i == 0);
        LKS__TRY(copy_prompt(&list[i], prompt, n));
    }
    lks__generator_begin(w->generator, n_samples);
    lks__generator_read(w->generator, prompt, n);
    LKS__TRY(lks__generator_write(w->generator, &how));
    for (size_t i = 0; i < n_samples; i++) {
        LKS__TRY(finish(&list[i]));
        if (list[i].n_kept > 0)
            LKS__TRY(w->put(w->ctx, list[i].kept, list[i].n_kept));
        LKS__TRY(w->put(w->ctx, rule, sizeof rule - 1));
        ++*n_whole_p;
    }
    return LKS_OK;
}

lks_status lks__write_samples(lks__writer *w, const int32_t *prompt, size_t n, size_t at_once,
                              uint64_t n_samples, uint64_t *n_whole_p)
{
    lks_status st = LKS_OK;
    struct sample *list = calloc(at_once, sizeof *list);
    LKS__MEMORY(list, "for %zu samples", at_once);
    for (uint64_t i = 0; i < n_samples && st == LKS_OK; i += at_once) {
        const size_t group = n_samples - i < at_once ? (size_t)(n_samples - i) : at_once;
        st = write_group(list, group, w, prompt, n, i, n_whole_p);
    }
    for (size_t i = 0; i < at_once; i++)
        free(list[i].kept);
    free(list);
    return st;
}

lks_status lks__write_answer(lks__writer *w, bool *newline_p)
{
    struct sample s = {0};
    begin(&s, w, true);
    lks__generate how = w->how;
    how.first = 0;
    how.sink = take;
    how.ctx = &s;
    lks_status st = lks__generator_write(w->generator, &how);
    if (st == LKS_OK || st == LKS_ERR_STOPPED) {
        lks_status ended = finish(&s);
        st = ended != LKS_OK ? ended : st;
    }
    *newline_p = s.last == '\n';
    return st;
}
