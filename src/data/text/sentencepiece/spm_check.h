/* data/text/sentencepiece/spm_check.h - checks a SentencePiece model before SentencePiece opens it.
 *
 * SentencePiece trusts a model's contents: an altered model makes it read beyond its tables,
 * overflow the stack, or use any amount of memory. This check finds such models. SentencePiece
 * itself finds the other errors: no pieces, no piece for unknown characters, a duplicate piece. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* Check a model. `where` starts messages, which contain the byte offset of the error. *plain_p,
 * out: a copy of the model without its samples (malloc'd, the caller frees); NULL if it has none,
 * so that the model can be used unchanged. SentencePiece would encode the samples when it opens the
 * model; they can be any texts, so they could need any time and memory. ERR_FORMAT, ERR_NOMEM. */
lks_status lks__spm_check(const char *model, size_t bytes, const char *where, char **plain_p,
                          size_t *plain_bytes_p);

/* --- spm_map.c -------------------------------------------------------------------------------- */

/* Check the table of characters in a model, its rules that rewrite a text before it is cut into
 * tokens: no lookup of any text may leave the table, run in a circle or meet more rules than
 * SentencePiece has room for. ERR_FORMAT if the table is damaged; records no message: *at_p is the
 * position in the table, *why_p (static) the reason. ERR_NOMEM. */
lks_status lks__spm_map_check(const void *map, size_t bytes, size_t *at_p, const char **why_p);
