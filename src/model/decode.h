/* model/decode.h - passes over new tokens only: keys and values of earlier tokens are kept.
 *
 * The logits of a token don't depend on how its context was cut into passes, or on the number of
 * sequences in a pass, to the last bit. They differ from those of whole sequences by rounding. */
#pragma once

#include "model/model.h"

typedef struct lks__decoder lks__decoder; /* opaque; close with lks__decoder_close() */

/* The sizes for which a decoder is opened. */
typedef struct lks__decoder_size {
    size_t sequences;
    size_t positions; /* tokens per sequence, at most block_size */
    size_t rows;      /* most tokens of a pass, counted over all sequences */
} lks__decoder_size;

/* Sizes for texts of up to `tokens` tokens each, prompts included. A pass reads *chunk_p tokens of
 * a prompt, or one token of each text. On entry *chunk_p is the wish, or 0 for the default; on
 * return it is the number that a pass may read. */
lks__decoder_size lks__decoder_size_for(const lks__model_config *config, size_t texts,
                                        uint64_t tokens, size_t *chunk_p);

/* Bytes of device memory that a decoder needs. */
lks_status lks__decoder_bytes(const lks__model_config *config, const lks__decoder_size *size,
                              const lks__layers *layers, size_t *bytes_p);

/* Allocate device memory for passes, and for keys and values. `config` is copied, `table` and
 * `device` are borrowed. The message of ERR_NOMEM names the bytes. */
lks_status lks__decoder_open(const lks__model_config *config, const lks__table *table,
                             const lks__decoder_size *size, lks__device *device,
                             lks__decoder **decoder_p);
void lks__decoder_close(lks__decoder *d); /* NULL does nothing */

/* True if keys and values are kept. Some families can't; then every pass begins at position 0. */
bool lks__decoder_keeps(const lks__decoder *d);

/* One pass: `n` tokens of each of the sequences [first, first + sequences), at positions from `at`
 * on. Replaces the tokens that earlier passes put at those positions. */
typedef struct lks__decoder_pass {
    size_t first, sequences, n, at;
    const int32_t *tokens; /* [sequences, n] */
    float *logits;         /* [sequences, vocab_size] after the last token of each; NULL: none */
} lks__decoder_pass;

/* Arrays are memory of the device; see model/model.h. */
void lks__decoder_run(lks__decoder *d, const float *params, const lks__decoder_pass *pass);

/* Copy the first n positions of sequence 0 to the sequences [1, sequences). */
void lks__decoder_share(lks__decoder *d, size_t sequences, size_t n);
