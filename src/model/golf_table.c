/* model/golf_table.c - the tensors of parameter-golf's model (train_gpt.py, GPT and Block). */
#include "model/golf_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum place { FRONT, LAYER, TAIL };

/* name, place, shape, init, kind; in the order of the script's state_dict. H: the MLP's width. */
#define GOLF_TENSORS(X)                                                                            \
    X("skip_weights", FRONT, (S, C), ONE, SCALAR)                                                  \
    X("tok_emb.weight", FRONT, (V, C), EMBED, EMBED)                                               \
    X("attn_scale", LAYER, (C, 0), ONE, SCALAR)                                                    \
    X("mlp_scale", LAYER, (C, 0), ONE, SCALAR)                                                     \
    X("resid_mix", LAYER, (2, C), MIX, SCALAR)                                                     \
    X("attn.q_gain", LAYER, (NH, 0), GAIN, SCALAR)                                                 \
    X("attn.c_q.weight", LAYER, (C, C), LINEAR, MATRIX)                                            \
    X("attn.c_k.weight", LAYER, (KV, C), LINEAR, MATRIX)                                           \
    X("attn.c_v.weight", LAYER, (KV, C), LINEAR, MATRIX)                                           \
    X("attn.proj.weight", LAYER, (C, C), ZERO, MATRIX)                                             \
    X("mlp.fc.weight", LAYER, (H, C), LINEAR, MATRIX)                                              \
    X("mlp.proj.weight", LAYER, (C, H), ZERO, MATRIX)                                              \
    X("lm_head.weight", TAIL, (V, C), ZERO, HEAD)

enum { TENSORS_A_LAYER = 10, TENSORS_ELSEWHERE = 3 };

struct shape {
    size_t d0, d1;
};

static struct shape shape_of(size_t d0, size_t d1)
{
    return (struct shape){d0, d1};
}

size_t lks__golf_encoders(const lks__model_config *c)
{
    return (size_t)c->n_layer / 2;
}

/* Backward completes the head, the layers from last to first, and the embedding, which may also be
 * the head. All layers of the second half add to the skip weights, so these belong to the last
 * group. */
static int group_of(const lks__model_config *c, int layer, lks__param_kind kind)
{
    int head = c->tie_embeddings ? 0 : 1;
    if (kind == LKS__PARAM_HEAD)
        return 0;
    if (layer < 0)
        return head + c->n_layer;
    return head + c->n_layer - 1 - layer;
}

static void add(lks__table *table, const lks__model_config *c, const char *name, int layer,
                struct shape shape, lks__init init, lks__param_kind kind)
{
    lks__tensor *t = &table->tensors[table->n_tensors++];
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "blocks.%d.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = shape.d1 == 0 ? 1 : 2;
    t->shape[0] = shape.d0;
    t->shape[1] = shape.d1;
    t->count = shape.d1 == 0 ? shape.d0 : shape.d0 * shape.d1;
    t->init = init;
    t->kind = kind;
    t->group = group_of(c, layer, kind);
}

/* A single layer has no skip, but the script's state_dict still contains skip weights, with no
 * row. */
static void add_place(lks__table *table, enum place where, int layer, const lks__model_config *c)
{
    const size_t C = (size_t)c->n_embd, V = (size_t)c->vocab_size, NH = (size_t)c->n_head;
    const size_t KV = C / NH * (size_t)c->n_kv_head, H = C * (size_t)c->mlp_mult;
    const size_t S = lks__golf_encoders(c);
#define X(name, place, shape, init, kind)                                                          \
    if (place == where)                                                                            \
        add(table, c, name, layer, shape_of shape, LKS__INIT_##init, LKS__PARAM_##kind);
    GOLF_TENSORS(X)
#undef X
}

static lks_status check_shape(const lks__model_config *c)
{
    const struct {
        const char *name;
        int value;
    } positive[] = {
        {"num_layers", c->n_layer},       {"model_dim", c->n_embd},  {"num_heads", c->n_head},
        {"num_kv_heads", c->n_kv_head},   {"mlp_mult", c->mlp_mult}, {"vocab_size", c->vocab_size},
        {"train_seq_len", c->block_size},
    };
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        if (positive[i].value < 1)
            return lks__fail(LKS_ERR_CONFIG, "%s = %d: the model needs at least 1",
                             positive[i].name, positive[i].value);
    if (c->n_embd % c->n_head != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "model_dim = %d is not a multiple of num_heads = %d: every head takes an "
                         "equal part of the width",
                         c->n_embd, c->n_head);
    if (c->n_head % c->n_kv_head != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "num_heads = %d is not a multiple of num_kv_heads = %d: every key/value "
                         "head serves an equal number of query heads",
                         c->n_head, c->n_kv_head);
    if (c->n_embd / c->n_head % 2 != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "model_dim / num_heads = %d is odd: rotary positions rotate the two "
                         "halves of a head, so it must be even",
                         c->n_embd / c->n_head);
    /* written so that NaN fails, too */
    if (!(c->logit_softcap > 0.0f))
        return lks__fail(LKS_ERR_CONFIG, "logit_softcap = %g: it must be greater than 0",
                         (double)c->logit_softcap);
    if (!(c->rope_base > 0.0f))
        return lks__fail(LKS_ERR_CONFIG, "rope_base = %g: it must be greater than 0",
                         (double)c->rope_base);
    if (c->tie_embeddings && !(c->tied_embed_init_std >= 0.0f))
        return lks__fail(LKS_ERR_CONFIG, "tied_embed_init_std = %g: it must be at least 0",
                         (double)c->tied_embed_init_std);
    return LKS_OK;
}

static lks_status check_size(const lks__model_config *c)
{
    uint64_t rows, floats, bytes, C = (uint64_t)c->n_embd, layer = 4 * C + 8;
    uint64_t mlp;
    if (!lks__mul(2 * C, (uint64_t)c->mlp_mult, &mlp) || !lks__add(layer, mlp, &layer) ||
        !lks__mul(layer, (uint64_t)c->n_layer, &rows) ||
        !lks__add(rows, 2 * (uint64_t)c->vocab_size, &rows) || !lks__mul(rows, C, &floats) ||
        !lks__mul(floats, 8 * sizeof(float), &bytes) || bytes > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG, "the model's shape is larger than memory can address");
    return LKS_OK;
}

lks_status lks__table_golf(const lks__model_config *c, lks__table *table)
{
    memset(table, 0, sizeof *table);
    LKS__TRY(check_shape(c));
    LKS__TRY(check_size(c));
    table->n_groups = c->n_layer + (c->tie_embeddings ? 1 : 2);
    size_t most = (size_t)c->n_layer * TENSORS_A_LAYER + TENSORS_ELSEWHERE;
    table->tensors = calloc(most, sizeof *table->tensors);
    if (table->tensors == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a table of %zu tensors", most);
    add_place(table, FRONT, -1, c);
    for (int l = 0; l < c->n_layer; l++)
        add_place(table, LAYER, l, c);
    if (!c->tie_embeddings)
        add_place(table, TAIL, -1, c);
    lks_status st = lks__table_lay_out(table);
    if (st != LKS_OK)
        lks__table_free(table);
    return st;
}
