/* data/spm_text.h - ids of a SentencePiece model to text, id by id, as they are drawn.
 *
 * A piece's mark becomes a space. Byte tokens between pieces are joined to characters. Control
 * tokens give no text. Invalid UTF-8, unknown tokens, and control characters except line feed and
 * tab become U+FFFD, so the text is safe on a terminal. */
#ifndef LKS_DATA_SPM_TEXT_H
#define LKS_DATA_SPM_TEXT_H

#include "data/spm.h"

typedef struct lks__spm_text {
    const lks__spm *spm;
    lks_status (*put)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    char pending[4]; /* bytes of a character that isn't complete yet */
    size_t n_pending;
} lks__spm_text;

/* Add the text of one more id. Fails if `put` fails. */
lks_status lks__spm_text_add(lks__spm_text *t, int32_t id);
lks_status lks__spm_text_end(lks__spm_text *t); /* an incomplete character becomes U+FFFD */

#endif
