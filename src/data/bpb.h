/* data/bpb.h - bits per byte: how many bytes of text the tokens of a SentencePiece model stand for.
 *
 * The counts are those of parameter-golf's script: a token stands for its piece's bytes without the
 * mark of a leading space; the space counts where the token before it is text; a byte token stands
 * for one; control, unknown and unused tokens stand for none, and are boundaries. */
#ifndef LKS_DATA_BPB_H
#define LKS_DATA_BPB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/spm.h"

typedef struct lks__byte_table {
    uint32_t size;   /* of the vocabulary */
    uint16_t *bytes; /* [size] */
    bool *leading_space, *boundary;
    uint64_t model_hash; /* lks__spm_hash() */
} lks__byte_table;

/* From the model at `path`; ERR_CONFIG, naming file and both numbers, where it has another
 * vocabulary than `vocab_size`. */
lks_status lks__byte_table_open(const char *path, uint32_t vocab_size, lks__byte_table *table);
/* From the model in the token folder `dir`, which must be the one that its meta.json tells of;
 * *found_p = false, and OK, where there is no meta.json or none that names a model. */
lks_status lks__byte_table_in(const char *dir, uint32_t vocab_size, bool *found_p,
                              lks__byte_table *table);
void lks__byte_table_free(lks__byte_table *table); /* zeroed is fine */

/* Bytes of the n targets, each with the token before it. All ids are below table->size. */
uint64_t lks__byte_count(const lks__byte_table *table, const int32_t *prev, const int32_t *target,
                         size_t n);

/* Bits per byte of a mean loss in nats over n_tokens that stand for n_bytes; infinite for none. */
double lks__bpb(double loss, uint64_t n_tokens, uint64_t n_bytes);

#endif
