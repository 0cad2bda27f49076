/* data/spm.h - SentencePiece models: text to ids, what an id stands for, training one.
 *
 * The library behind it is loaded when first used (data/spm_module.h): beside the program, or from
 * ../lib/lockstep, or from the folder that LOCKSTEP_MODULES names. ERR_SUPPORT where it can't be,
 * naming the package. */
#ifndef LKS_DATA_SPM_H
#define LKS_DATA_SPM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/spm_module.h"

typedef struct lks__spm lks__spm; /* opaque; close with lks__spm_close() */

/* Can it be used here? ERR_SUPPORT says why not. */
lks_status lks__spm_available(void);

/* ERR_IO, ERR_FORMAT name the file. */
lks_status lks__spm_open(const char *path, lks__spm **spm_p);
/* The model's own bytes; `where` begins messages. */
lks_status lks__spm_open_bytes(const char *model, size_t bytes, const char *where,
                               lks__spm **spm_p);
void lks__spm_close(lks__spm *spm); /* NULL is fine */

uint64_t lks__spm_hash(const lks__spm *spm); /* XXH3-64 of the model's bytes */
uint32_t lks__spm_size(const lks__spm *spm); /* of the vocabulary, at least 1 */
int32_t lks__spm_bos(const lks__spm *spm);   /* begins a document; -1: this model has none */
/* The text of `id` (below size) as UTF-8, without a 0 behind; it lives as long as spm. */
const char *lks__spm_piece(const lks__spm *spm, uint32_t id, size_t *bytes_p);
unsigned lks__spm_kind(const lks__spm *spm, uint32_t id); /* LKS__SPM_CONTROL … */

/* Text, valid UTF-8, to ids (malloc'd, the caller frees); no BOS or EOS is added. */
lks_status lks__spm_encode(const lks__spm *spm, const char *text, size_t bytes, int32_t **ids_p,
                           size_t *n_p);

/* Train a byte-pair model with the options that parameter-golf's exporter gives: bytes for what is
 * not in the vocabulary, digits apart, no space put in front, ids 0 to 3 for padding, BOS, EOS and
 * unknown. A text that can't fill `vocab_size` gives a smaller vocabulary. The model's bytes are
 * malloc'd, the caller frees. */
lks_status lks__spm_train(uint32_t vocab_size, lks__spm_next *next, void *ctx, char **model_p,
                          size_t *bytes_p);

#endif
