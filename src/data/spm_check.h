/* data/spm_check.h - a SentencePiece model, looked through before SentencePiece has it.
 *
 * SentencePiece believes what a model says of itself: an altered one makes it read beyond its
 * tables, run out of stack, or take any amount of memory. What it may believe is found out here;
 * the rest (are there pieces, is one the unknown, is each there once) it finds out itself. */
#ifndef LKS_DATA_SPM_CHECK_H
#define LKS_DATA_SPM_CHECK_H

#include <stddef.h>

#include "base/status.h"

/* `where` begins messages, which name the byte of the model where it goes wrong. *plain_p, out: the
 * model without the samples that SentencePiece would try it on when it opens it (any texts, and so
 * any time and memory), malloc'd, the caller frees; NULL where it has none, and is fine as it is.
 * ERR_FORMAT, ERR_NOMEM. */
lks_status lks__spm_check(const char *model, size_t bytes, const char *where, char **plain_p,
                          size_t *plain_bytes_p);

#endif
