/* weights/use/write.h - samples of a prompt as text, in order: the first as it is drawn, the
 * others, which are drawn beside it, whole. */
#ifndef LKS_WEIGHTS_USE_WRITE_H
#define LKS_WEIGHTS_USE_WRITE_H

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
    uint64_t tokens; /* that were drawn, out */
} lks__writer;

/* Samples [0, n_samples) of prompt[n], `at_once` of them side by side. Each is the prompt, the new
 * text, and a line of dashes. *n_whole_p counts those that were written whole. */
lks_status lks__write_samples(lks__writer *w, const int32_t *prompt, size_t n, size_t at_once,
                              uint64_t n_samples, uint64_t *n_whole_p);

/* Go on from what the generator, opened for one sample, has read: new text alone. *newline_p: does
 * it end in a line feed? A request to stop ends the text (ERR_STOPPED). */
lks_status lks__write_answer(lks__writer *w, bool *newline_p);

#endif
