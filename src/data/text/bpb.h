/* data/text/bpb.h - bits per byte: the number of bytes of text that tokens encode.
 *
 * A character counts the bytes of its UTF-8, a GPT-2 token its own bytes; the end of a text counts
 * none.
 *
 * The counts of a SentencePiece model's tokens are those of parameter-golf's script. A token counts
 * the bytes of its piece without the mark of a leading space. The space counts if the previous
 * token is text. A byte token counts one byte. Control, unknown and unused tokens count none, and a
 * space after them doesn't count. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/text/bpe/bpe.h"
#include "data/text/meta.h"
#include "data/text/sentencepiece/spm.h"

typedef struct lks__byte_table {
    uint32_t size;   /* size of the vocabulary */
    uint16_t *bytes; /* [size] */
    bool *leading_space, *boundary;
    uint64_t model_hash; /* lks__spm_hash() of a SentencePiece model */
    bool is_bytes;       /* for single-byte tokens */
} lks__byte_table;

/* Compute the table from the SentencePiece model at `path`, or from the data script's description
 * of single bytes (data/text/byte_tokens.h). ERR_CONFIG if its vocabulary isn't `vocab_size`; the
 * message contains the file and both numbers. */
lks_status lks__byte_table_open(const char *path, uint32_t vocab_size, lks__byte_table *table);
/* Compute the table from the model in the token folder `dir`, which must be the one in its
 * meta.json, or for single bytes. *found_p = false, and OK, if meta.json doesn't exist or describes
 * another kind. */
lks_status lks__byte_table_in(const char *dir, uint32_t vocab_size, bool *found_p,
                              lks__byte_table *table);
/* Compute the table for characters or single bytes, or for a vocabulary of GPT-2's tokens. Ids
 * beyond the vocabulary, up to `vocab_size`, count none. ERR_NOMEM; ERR_FORMAT for an extremely
 * long token. */
lks_status lks__byte_table_chars(const lks__meta *meta, uint32_t vocab_size,
                                 lks__byte_table *table);
lks_status lks__byte_table_bpe(const lks__bpe *bpe, uint32_t vocab_size, lks__byte_table *table);
void lks__byte_table_free(lks__byte_table *table); /* a zeroed table is fine */

/* Bytes of the n targets; prev[i] is the token before target[i]. All ids are below table->size. */
uint64_t lks__byte_count(const lks__byte_table *table, const int32_t *prev, const int32_t *target,
                         size_t n);

/* Bits per byte for a mean loss in nats over n_tokens tokens of n_bytes bytes; infinite for 0
 * bytes. */
double lks__bpb(double loss, uint64_t n_tokens, uint64_t n_bytes);
