/* data/text/bpb.h - bits per byte: how many bytes of text tokens stand for.
 *
 * Characters count the bytes of their UTF-8, GPT-2's tokens their own; the end of a text counts
 * none.
 *
 * The counts of a SentencePiece model's tokens are those of parameter-golf's script. A token counts
 * the bytes of its piece without the mark of a leading space. The space counts if the previous
 * token is text. A byte token counts one byte. Control, unknown and unused tokens count none, and a
 * space after them doesn't count. */
#ifndef LKS_DATA_TEXT_BPB_H
#define LKS_DATA_TEXT_BPB_H

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
    uint64_t model_hash; /* lks__spm_hash(), of a SentencePiece model */
    bool is_bytes;       /* of tokens of single bytes */
} lks__byte_table;

/* From the SentencePiece model at `path`, or the data script's description of single bytes
 * (data/text/byte_tokens.h). ERR_CONFIG if its vocabulary isn't `vocab_size`; names the file and
 * both numbers. */
lks_status lks__byte_table_open(const char *path, uint32_t vocab_size, lks__byte_table *table);
/* From the model in the token folder `dir`, which must be the one that its meta.json names, or of
 * single bytes. *found_p = false, and OK, if there is no meta.json or it names neither. */
lks_status lks__byte_table_in(const char *dir, uint32_t vocab_size, bool *found_p,
                              lks__byte_table *table);
/* From a table of characters or of single bytes, and from a vocabulary of GPT-2's tokens. Ids from
 * there up to `vocab_size` count none. ERR_NOMEM; ERR_FORMAT for a token of very many bytes. */
lks_status lks__byte_table_chars(const lks__meta *meta, uint32_t vocab_size,
                                 lks__byte_table *table);
lks_status lks__byte_table_bpe(const lks__bpe *bpe, uint32_t vocab_size, lks__byte_table *table);
void lks__byte_table_free(lks__byte_table *table); /* a zeroed one is fine */

/* Bytes of the n targets; prev[i] is the token before target[i]. All ids are below table->size. */
uint64_t lks__byte_count(const lks__byte_table *table, const int32_t *prev, const int32_t *target,
                         size_t n);

/* Bits per byte of a mean loss in nats over n_tokens tokens of n_bytes bytes; infinite for 0
 * bytes. */
double lks__bpb(double loss, uint64_t n_tokens, uint64_t n_bytes);

#endif
