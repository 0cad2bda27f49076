/* model/decode.h - passes over new tokens alone: keys and values of the tokens before are kept.
 *
 * The logits of a token don't depend on how its context was cut into passes, or on how many
 * sequences a pass has, to the last bit. They differ from lks__model_logits() by rounding. */
#ifndef LKS_MODEL_DECODE_H
#define LKS_MODEL_DECODE_H

#include "model/model.h"

typedef struct lks__decoder lks__decoder; /* opaque; close with lks__decoder_close() */

/* What it is opened for. */
typedef struct lks__decoder_size {
    size_t sequences;
    size_t positions; /* tokens of a sequence, at most block_size */
    size_t rows;      /* most tokens of a pass, all sequences together */
} lks__decoder_size;

/* For texts of up to `tokens` tokens each, prompts included: passes of *chunk_p tokens of a prompt,
 * and of a token of each text. *chunk_p: what is wanted, or 0 for the default; on return what a
 * pass may have. */
lks__decoder_size lks__decoder_size_for(const lks__model_config *config, size_t texts,
                                        uint64_t tokens, size_t *chunk_p);

/* Bytes of the device that a decoder takes. */
lks_status lks__decoder_bytes(const lks__model_config *config, const lks__decoder_size *size,
                              const lks__layers *layers, size_t *bytes_p);

/* Memory of the device for passes, and for keys and values. `config` is copied, `table` and
 * `device` are borrowed. ERR_NOMEM gives the bytes. */
lks_status lks__decoder_open(const lks__model_config *config, const lks__table *table,
                             const lks__decoder_size *size, lks__device *device,
                             lks__decoder **decoder_p);
void lks__decoder_close(lks__decoder *d); /* NULL does nothing */

/* Are keys and values kept? Not for families that can't; their passes begin at position 0. */
bool lks__decoder_keeps(const lks__decoder *d);

/* One pass: `n` tokens of each of the sequences [first, first + sequences), at positions from `at`
 * on. Tokens of earlier passes at those positions are forgotten. */
typedef struct lks__decoder_pass {
    size_t first, sequences, n, at;
    const int32_t *tokens; /* [sequences, n] */
    float *logits;         /* [sequences, vocab_size] after the last token of each; NULL: none */
} lks__decoder_pass;

/* Arrays are memory of the device; see model/model.h. */
void lks__decoder_run(lks__decoder *d, const float *params, const lks__decoder_pass *pass);

/* The first n positions of sequence 0 become those of the sequences [1, sequences). */
void lks__decoder_share(lks__decoder *d, size_t sequences, size_t n);

#endif
