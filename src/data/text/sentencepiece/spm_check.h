/* data/text/sentencepiece/spm_check.h - check a SentencePiece model before SentencePiece opens it.
 *
 * SentencePiece trusts a model's contents: an altered one makes it read beyond its tables, run out
 * of stack, or take any amount of memory. This check finds such models. SentencePiece itself finds
 * the other errors: no pieces, no piece for unknown characters, a piece twice. */
#ifndef LKS_DATA_TEXT_SENTENCEPIECE_SPM_CHECK_H
#define LKS_DATA_TEXT_SENTENCEPIECE_SPM_CHECK_H

#include <stddef.h>

#include "base/status.h"

/* Check a model. `where` begins messages, which name the byte offset of the error. *plain_p, out: a
 * copy of the model without its samples (malloc'd, the caller frees); NULL if it has none, so that
 * the model can be used as it is. SentencePiece would encode the samples when it opens the model,
 * and they can be any texts, so they could take any time and memory. ERR_FORMAT, ERR_NOMEM. */
lks_status lks__spm_check(const char *model, size_t bytes, const char *where, char **plain_p,
                          size_t *plain_bytes_p);

#endif
