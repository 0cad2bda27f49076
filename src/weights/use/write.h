/* weights/use/write.h - writes samples of a prompt as text, in order: the first while it is drawn;
 * the others, which are drawn at the same time, as a whole. */
#pragma once

#include "weights/use/generate.h"
#include "weights/use/text.h"
#include "weights/use/until.h"

typedef struct lks__writer {
    lks__generator *generator;
    const lks__text *text;
    lks__generate how;        /* draw, max_new_tokens; the rest is set by the functions below */
    const char *const *stops; /* as in weights/use/until.h: a text ends before one */
    lks_status (*put)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    uint64_t tokens; /* number of tokens drawn, out */
} lks__writer;

/* Write samples [0, n_samples) of prompt[n], drawing `at_once` of them at a time. Each is the
 * prompt, the new text, and a line of dashes. *n_whole_p counts the complete ones. */
lks_status lks__write_samples(lks__writer *w, const int32_t *prompt, size_t n, size_t at_once,
                              uint64_t n_samples, uint64_t *n_whole_p);

/* Continue after the context of the generator, which was opened for one sample: only new text.
 * *newline_p: true if it ends in a line feed. A request to stop ends the text (ERR_STOPPED). */
lks_status lks__write_answer(lks__writer *w, bool *newline_p);
