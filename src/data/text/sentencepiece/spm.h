/* data/text/sentencepiece/spm.h - SentencePiece models: text to ids, ids to text, training.
 *
 * The library is loaded at its first use (data/text/sentencepiece/spm_module.h), from the program's
 * folder, ../lib/lockstep, or the folder in LOCKSTEP_MODULES. ERR_SUPPORT if it can't be loaded;
 * the message names the package to install. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/text/sentencepiece/spm_module.h"

typedef struct lks__spm lks__spm; /* opaque; close with lks__spm_close() */

/* OK if SentencePiece is available; else ERR_SUPPORT with the reason. */
lks_status lks__spm_available(void);

/* Read the file `path`, or sp.model in the folder `path`. The caller frees the model. */
lks_status lks__spm_read(const char *path, char **model_p, size_t *bytes_p);
/* As lks__spm_read(). ERR_IO and ERR_FORMAT name the file. */
lks_status lks__spm_open(const char *path, lks__spm **spm_p);
/* Open a model from its bytes; `where` starts messages. */
lks_status lks__spm_open_bytes(const char *model, size_t bytes, const char *where,
                               lks__spm **spm_p);
void lks__spm_close(lks__spm *spm); /* NULL does nothing */

uint64_t lks__spm_hash(const lks__spm *spm); /* XXH3-64 of the model's bytes */
uint32_t lks__spm_size(const lks__spm *spm); /* size of the vocabulary, at least 1 */
int32_t lks__spm_bos(const lks__spm *spm);   /* id that begins a document; -1: none */
/* The text of `id` (below size) as UTF-8, without a terminating 0 byte; valid as long as spm. */
const char *lks__spm_piece(const lks__spm *spm, uint32_t id, size_t *bytes_p);
unsigned lks__spm_kind(const lks__spm *spm, uint32_t id); /* LKS__SPM_CONTROL … */

/* Encode valid UTF-8 (ids malloc'd, the caller frees); no BOS or EOS is added. */
lks_status lks__spm_encode(const lks__spm *spm, const char *text, size_t bytes, int32_t **ids_p,
                           size_t *n_p);

/* Train a byte-pair model with the options of parameter-golf's exporter: bytes for characters
 * outside the vocabulary, single digits, no space added in front, ids 0 to 3 for padding, BOS, EOS
 * and unknown. If the text is too small for `vocab_size`, the vocabulary is smaller. The caller
 * frees the model's bytes. */
lks_status lks__spm_train(uint32_t vocab_size, lks__spm_next *next, void *ctx, char **model_p,
                          size_t *bytes_p);
