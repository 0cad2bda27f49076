/* model/table.h - the tensor table of a model: it determines sizes, initial values, updates,
 * checkpoint names, hashes, bucket ranges and the labels of tests.
 *
 * Table order is forward order. Offsets follow the order in which backward completes the
 * tensors, in groups (one for each layer). They are the same in every arena: parameters,
 * gradients, moments. */
#ifndef LKS_MODEL_TABLE_H
#define LKS_MODEL_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct lks__model_config {
    const struct lks__model_ops *ops; /* the family's: model/model.h */
    int n_layer, n_head, n_embd, block_size, vocab_size;
    bool bf16; /* matrix products in bfloat16, summed in float32 */
    /* gpt2 */
    bool bias;     /* in Linears and LayerNorms */
    float dropout; /* probability, in [0, 1) */
    /* golf */
    int n_kv_head, mlp_mult;
    bool tie_embeddings;
    float tied_embed_init_std, logit_softcap, rope_base, qk_gain_init;
} lks__model_config;

/* Which optimizer updates a tensor, and how: AdamW with decay or without (gpt2); Adam with the rate
 * of the embedding, the head or the scalars, or Muon (golf). */
typedef enum lks__param_kind {
    LKS__PARAM_DECAY,
    LKS__PARAM_PLAIN,
    LKS__PARAM_EMBED,
    LKS__PARAM_HEAD,
    LKS__PARAM_SCALAR,
    LKS__PARAM_MATRIX,
    LKS__N_PARAM_KINDS
} lks__param_kind;

typedef enum lks__init {
    LKS__INIT_ZERO,
    LKS__INIT_ONE,
    LKS__INIT_NORMAL,   /* N(0, 0.02) */
    LKS__INIT_RESIDUAL, /* N(0, 0.02 / sqrt(2 L)): projections into the residual stream */
    /* golf */
    LKS__INIT_EMBED,  /* N(0, 1), or N(0, tied_embed_init_std) if it is also the head */
    LKS__INIT_LINEAR, /* uniform within 1 / sqrt(in) */
    LKS__INIT_MIX,    /* a row of ones and one of zeros */
    LKS__INIT_GAIN    /* qk_gain_init */
} lks__init;

typedef struct lks__tensor {
    char name[48]; /* as in the PyTorch script's state_dict */
    int n_dims;
    size_t shape[2]; /* a matrix is [out, in], as in torch.nn.Linear */
    size_t count;
    size_t offset; /* floats; a multiple of 16 */
    size_t first_block, n_blocks;
    int group;
    lks__init init;
    lks__param_kind kind;
} lks__tensor;

/* Blocks of LKS__BLOCK elements inside each tensor are the unit of the norm's sums and of every
 * share of the arena. Block b is [block_start[b], block_start[b + 1]). A tensor's last block
 * includes the padding after it, which always stays zero. */
enum { LKS__BLOCK = 4096 };

typedef struct lks__table {
    lks__tensor *tensors;
    size_t n_tensors;
    size_t count;              /* floats in an arena, padding included */
    size_t n_params;           /* without padding */
    size_t *block_start;       /* [n_blocks + 1] */
    unsigned char *block_kind; /* [n_blocks] lks__param_kind of the block's tensor */
    size_t n_blocks;
    int n_groups;
    size_t *group_block; /* [n_groups + 1]: group g is blocks [group_block[g], group_block[g+1]) */
} lks__table;

/* Set the offsets and blocks of a table whose tensors have name, shape, init, kind and group
 * (n_tensors, n_groups set). ERR_NOMEM; the caller frees the table in any case. */
lks_status lks__table_lay_out(lks__table *table);

lks_status lks__table_gpt2(const lks__model_config *config, lks__table *table);
void lks__table_free(lks__table *table);

const lks__tensor *lks__table_find(const lks__table *table, const char *name); /* or NULL */

/* Arena offset of the tensor of that name; SIZE_MAX if there is none, for example a bias. */
size_t lks__table_offset(const lks__table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The tensor that contains arena offset `at` (floats). */
const lks__tensor *lks__table_at(const lks__table *table, size_t at);

#endif
