/* model/table.h - the tensor table of a model: what drives sizes, initial values, decay, checkpoint
 * names, hashes, bucket ranges and the tests' labels.
 *
 * Table order is forward order. Offsets follow the order in which backward finishes the tensors, in
 * groups (one for each layer), and are the same in every arena: parameters, gradients, moments. */
#ifndef LKS_MODEL_TABLE_H
#define LKS_MODEL_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__model_config {
    int n_layer, n_head, n_embd, block_size, vocab_size;
    bool bias;     /* in Linears and LayerNorms */
    float dropout; /* probability, in [0, 1) */
} lks__model_config;

typedef enum lks__init {
    LKS__INIT_ZERO,
    LKS__INIT_ONE,
    LKS__INIT_NORMAL,  /* N(0, 0.02) */
    LKS__INIT_RESIDUAL /* N(0, 0.02 / sqrt(2 L)): projections into the residual stream */
} lks__init;

typedef struct lks__tensor {
    char name[48];     /* as in nanoGPT's state_dict */
    int n_dims;
    size_t shape[2];   /* a matrix is [out, in], as torch.nn.Linear has it */
    size_t count;
    size_t offset;     /* floats; a multiple of 16 */
    size_t first_block, n_blocks;
    int group;
    lks__init init;
    bool decay;        /* weight decay: matrices and embeddings only */
} lks__tensor;

/* Blocks of LKS__BLOCK elements inside each tensor are the unit of the norm's sums and of every
 * share of the arena. Block b is [block_start[b], block_start[b + 1]); a tensor's last block takes
 * in the padding behind it, which is zero for ever. */
enum { LKS__BLOCK = 4096 };

typedef struct lks__table {
    lks__tensor *tensors;
    size_t n_tensors;
    size_t count;        /* floats in an arena, padding included */
    size_t n_params;     /* without padding */
    size_t *block_start; /* [n_blocks + 1] */
    bool *block_decay;   /* [n_blocks] */
    size_t n_blocks;
    int n_groups;
    size_t *group_block; /* [n_groups + 1]: group g is blocks [group_block[g], group_block[g+1]) */
} lks__table;

/* ERR_CONFIG where the shape doesn't fit together (n_embd % n_head) or is beyond size_t. */
lks_status lks__table_gpt2(const lks__model_config *config, lks__table *table);
void lks__table_free(lks__table *table);

const lks__tensor *lks__table_find(const lks__table *table, const char *name); /* or NULL */

/* The tensor that holds arena offset `at` (floats). */
const lks__tensor *lks__table_at(const lks__table *table, size_t at);

#endif
