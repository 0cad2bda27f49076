/* data/spm_text.h - ids of a SentencePiece model to text, one after the other as they are drawn.
 *
 * Spaces stand where pieces have their mark; byte tokens make up characters between them; control
 * tokens stand for nothing. What is no UTF-8, unknown tokens, and control characters but line feed
 * and tab become U+FFFD, so that the text is safe on a terminal. */
#ifndef LKS_DATA_SPM_TEXT_H
#define LKS_DATA_SPM_TEXT_H

#include "data/spm.h"

typedef struct lks__spm_text {
    const lks__spm *spm;
    lks_status (*put)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    char pending[4]; /* bytes of a character that isn't whole yet */
    size_t n_pending;
} lks__spm_text;

/* The text of one more id. Fails where `put` does. */
lks_status lks__spm_text_add(lks__spm_text *t, int32_t id);
lks_status lks__spm_text_end(lks__spm_text *t); /* what is pending becomes U+FFFD */

#endif
