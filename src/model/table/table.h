/* model/table/table.h - the tensor table of a model: it determines sizes, initial values, updates,
 * checkpoint names, hashes, bucket ranges and the labels of tests.
 *
 * Table order is forward order. Offsets follow the order in which backward completes the
 * tensors, in groups (one for each layer); frozen tensors come after all others. So the arenas of
 * gradients and moments, which contain only the trained tensors, are as long as the first part of
 * the parameters' arena, and the offsets are the same in all of them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* The activations that backward recomputes instead of reading those from forward. Changes no
 * bit. */
typedef enum lks__recompute {
    LKS__RECOMPUTE_NONE,
    LKS__RECOMPUTE_ROWS,  /* norms and activation functions: operations on single rows */
    LKS__RECOMPUTE_BLOCK, /* everything in a layer except its output */
    LKS__RECOMPUTE_NEVER  /* for activations that are always kept (model/frame.h) */
} lks__recompute;

typedef struct lks__model_config {
    const struct lks__model_ops *ops; /* the family: model/model.h */
    int n_layer, n_head, n_embd, block_size, vocab_size;
    bool bf16; /* matrix products in bfloat16, summed in float32 */
    lks__recompute recompute;
    /* gpt2 */
    bool bias;      /* in Linears and LayerNorms */
    bool gelu_tanh; /* GPT-2's tanh form of GELU, instead of the exact one */
    float dropout;  /* probability, in [0, 1) */
    /* golf */
    int n_kv_head, mlp_mult;
    bool tie_embeddings;
    float tied_embed_init_std, logit_softcap, rope_base, qk_gain_init;
    /* Parts of names (table/parts.h). A layer's matrix whose name contains one of scalar_parts is
     * SCALAR, and keep_float is true for names that contain one of float_parts. NULL: tensors keep
     * the kind of their row, and keep_float is true for SCALAR. Only lks__model_table() reads
     * them. */
    const char *scalar_parts, *float_parts;
} lks__model_config;

/* Kind of a tensor. Determines rates, decay and the optimizer's state. */
typedef enum lks__param_kind {
    LKS__PARAM_EMBED,  /* for tokens or positions; also a tied head */
    LKS__PARAM_HEAD,   /* a head that is not tied */
    LKS__PARAM_SCALAR, /* vectors, gains and scales, one for each channel or head */
    LKS__PARAM_MATRIX, /* in a layer */
    LKS__N_PARAM_KINDS
} lks__param_kind;

typedef enum lks__init {
    LKS__INIT_ZERO,
    LKS__INIT_ONE,
    LKS__INIT_NORMAL,   /* N(0, 0.02) */
    LKS__INIT_TIED,     /* the same, for an embedding that is also the head */
    LKS__INIT_RESIDUAL, /* N(0, 0.02 / sqrt(2 L)): projections into the residual stream */
    /* golf */
    LKS__INIT_EMBED,  /* N(0, 1), or N(0, tied_embed_init_std) if it is also the head */
    LKS__INIT_LINEAR, /* uniform within 1 / sqrt(in) */
    LKS__INIT_ZEROED, /* the same draws, then replaced by zeros */
    LKS__INIT_MIX,    /* a row of ones and one of zeros */
    LKS__INIT_GAIN    /* qk_gain_init */
} lks__init;

typedef struct lks__table_tensor {
    char name[48]; /* the name in the PyTorch script's state_dict */
    int n_dims;
    size_t shape[2]; /* a matrix is [out, in], as in torch.nn.Linear */
    size_t count;
    size_t offset; /* floats; a multiple of 16 */
    size_t first_block, n_blocks;
    int layer;    /* -1: outside the layers */
    size_t field; /* from its row */
    int group;
    lks__init init;
    lks__param_kind kind;
    bool frozen;      /* no gradient, no moments: model/table/freeze.h */
    bool overwritten; /* see its row */
    bool keep_float;  /* stays fp32 in an artifact, if it is too small for int8 */
} lks__table_tensor;

/* A row of a family's list of tensors, the one place that describes a tensor. The list is a macro,
 * because it also makes the struct of offsets:
 *
 *     #define LKS__GPT2_LAYER(X) X(fcw, "mlp.c_fc.weight", (4 * C, C), NORMAL, true) …
 *     struct lks__gpt2_tensors { LKS__GPT2_LAYER(LKS__TENSOR_FIELD) }; */
typedef struct lks__tensor_row {
    size_t field;     /* where the family's struct of offsets stores the tensor's offset */
    const char *name; /* without the layer's prefix */
    size_t shape[2];  /* [1] == 0: a vector */
    lks__init init;
    lks__param_kind kind;
    bool there; /* false: this model has no such tensor */
    /* Backward begins its gradient by one product of the whole matrix, which obeys
     * lks__backward.fresh. So the memory needs no zeros before. */
    bool overwritten;
} lks__tensor_row;

#define LKS__TENSOR_FIELD(field, ...) size_t field;
#define LKS__TENSOR_SHAPE(d0, d1)     .shape = {(d0), (d1)}

/* Blocks of LKS__BLOCK elements inside each tensor are the unit of the norm's sums and of every
 * share of the arena. Block b is [block_start[b], block_start[b + 1]). Each tensor is padded to a
 * multiple of LKS__PADDED elements. Its last block includes the padding, which always stays
 * zero. */
enum { LKS__BLOCK = 4096, LKS__PADDED = 16 };

typedef struct lks__table {
    lks__table_tensor *tensors;
    size_t n_tensors;
    size_t count;        /* floats in the parameters' arena, padding included */
    size_t n_params;     /* without padding */
    size_t *block_start; /* [n_blocks + 1] */
    size_t n_blocks;
    /* The same sizes without frozen tensors, for gradients and moments. */
    size_t trained_count, trained_params, trained_blocks;
    int n_groups;
    /* [n_groups + 1]: group g's trained tensors are blocks [group_block[g], group_block[g+1]) */
    size_t *group_block;
} lks__table;

/* Allocate room for `most` tensors in `n_groups` groups. ERR_NOMEM. */
lks_status lks__table_open(lks__table *table, size_t most, int n_groups);

/* Add the tensors of rows[n] that this model has to `group`. With layer >= 0 names get a prefix
 * ("blocks.3." for "blocks"). */
void lks__table_add(lks__table *table, const char *prefix, int layer, int group,
                    const lks__tensor_row *rows, size_t n);

/* Compute offsets and blocks after all tensors are added (name, shape, init, kind and group are
 * set), and again after a change of `frozen`. ERR_NOMEM: the table is freed. */
lks_status lks__table_lay_out(lks__table *table);
void lks__table_free(lks__table *table);

/* True if the group has no trained tensor. */
static inline bool lks__table_is_empty(const lks__table *table, int group)
{
    return table->group_block[group] == table->group_block[group + 1];
}

const lks__table_tensor *lks__table_find(const lks__table *table, const char *name); /* or NULL */

/* Store the offsets of the tensors of `layer` (-1: those outside) in a struct of offsets, by their
 * rows' fields; SIZE_MAX for tensors that the model lacks, such as biases. */
void lks__table_offsets(const lks__table *table, int layer, void *offsets, size_t bytes);
