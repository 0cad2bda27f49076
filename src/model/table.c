#include "model/table.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/* Where a tensor is: once before the layers, in each layer, or once after them. */
enum place { HEAD, LAYER, TAIL };

/* name, place, shape, init, whether it exists without biases. Tensors of two dimensions have decay.
 * (nanoGPT model.py; the head shares wte.) */
#define GPT2_TENSORS(X)                                                                            \
    X("wte.weight", HEAD, (Vp, C), NORMAL, true)                                                   \
    X("wpe.weight", HEAD, (T, C), NORMAL, true)                                                    \
    X("ln_1.weight", LAYER, (C, 0), ONE, true)                                                     \
    X("ln_1.bias", LAYER, (C, 0), ZERO, false)                                                     \
    X("attn.c_attn.weight", LAYER, (3 * C, C), NORMAL, true)                                       \
    X("attn.c_attn.bias", LAYER, (3 * C, 0), ZERO, false)                                          \
    X("attn.c_proj.weight", LAYER, (C, C), RESIDUAL, true)                                         \
    X("attn.c_proj.bias", LAYER, (C, 0), ZERO, false)                                              \
    X("ln_2.weight", LAYER, (C, 0), ONE, true)                                                     \
    X("ln_2.bias", LAYER, (C, 0), ZERO, false)                                                     \
    X("mlp.c_fc.weight", LAYER, (4 * C, C), NORMAL, true)                                          \
    X("mlp.c_fc.bias", LAYER, (4 * C, 0), ZERO, false)                                             \
    X("mlp.c_proj.weight", LAYER, (C, 4 * C), RESIDUAL, true)                                      \
    X("mlp.c_proj.bias", LAYER, (C, 0), ZERO, false)                                               \
    X("ln_f.weight", TAIL, (C, 0), ONE, true)                                                      \
    X("ln_f.bias", TAIL, (C, 0), ZERO, false)

struct shape {
    size_t d0, d1;
};

static struct shape shape_of(size_t d0, size_t d1)
{
    return (struct shape){d0, d1};
}

static void add(lks__table *table, const char *name, int layer, int group, struct shape shape,
                lks__init init)
{
    lks__tensor *t = &table->tensors[table->n_tensors++];
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "transformer.h.%d.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "transformer.%s", name);
    t->n_dims = shape.d1 == 0 ? 1 : 2;
    t->shape[0] = shape.d0;
    t->shape[1] = shape.d1;
    t->count = shape.d1 == 0 ? shape.d0 : shape.d0 * shape.d1;
    t->init = init;
    t->kind = t->n_dims == 2 ? LKS__PARAM_DECAY : LKS__PARAM_PLAIN;
    t->group = group;
}

static void add_place(lks__table *table, enum place where, int layer, int group,
                      const lks__model_config *c)
{
    const size_t C = (size_t)c->n_embd, T = (size_t)c->block_size, Vp = (size_t)c->vocab_size;
#define X(name, place, shape, init, always)                                                        \
    if (place == where && (always || c->bias))                                                     \
        add(table, name, layer, group, shape_of shape, LKS__INIT_##init);
    GPT2_TENSORS(X)
#undef X
}

/* Set offsets and blocks, group by group in the order of backward. */
lks_status lks__table_lay_out(lks__table *table)
{
    size_t at = 0, n_blocks = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        n_blocks += (table->tensors[i].count + LKS__BLOCK - 1) / LKS__BLOCK;
        table->n_params += table->tensors[i].count;
    }
    table->n_blocks = n_blocks;
    table->block_start = calloc(n_blocks + 1, sizeof *table->block_start);
    table->block_kind = calloc(n_blocks, sizeof *table->block_kind);
    table->group_block = calloc((size_t)table->n_groups + 1, sizeof *table->group_block);
    if (table->block_start == NULL || table->block_kind == NULL || table->group_block == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the table of %zu tensors with %zu values",
                         table->n_tensors, table->n_params);
    size_t block = 0;
    for (int group = 0; group < table->n_groups; group++) {
        table->group_block[group] = block;
        for (size_t i = 0; i < table->n_tensors; i++) {
            lks__tensor *t = &table->tensors[i];
            if (t->group != group)
                continue;
            t->offset = at;
            t->first_block = block;
            t->n_blocks = (t->count + LKS__BLOCK - 1) / LKS__BLOCK;
            for (size_t b = 0; b < t->n_blocks; b++) {
                table->block_kind[block] = (unsigned char)t->kind;
                table->block_start[block++] = at + b * LKS__BLOCK;
            }
            at += lks__round_up(t->count, 16);
        }
    }
    table->group_block[table->n_groups] = block;
    table->block_start[block] = at;
    table->count = at;
    return LKS_OK;
}

lks_status lks__table_gpt2(const lks__model_config *c, lks__table *table)
{
    memset(table, 0, sizeof *table);
    if (c->n_embd % c->n_head != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "n_embd = %d is not a multiple of n_head = %d: every head takes an equal "
                         "part of the width",
                         c->n_embd, c->n_head);
    uint64_t largest, all;
    uint64_t rows = (uint64_t)(c->vocab_size > c->block_size ? c->vocab_size : c->block_size);
    if (!lks__mul(rows + 16 * (uint64_t)c->n_layer * (uint64_t)c->n_embd, (uint64_t)c->n_embd,
                  &largest) ||
        !lks__mul(largest, 8 * sizeof(float), &all) || all > SIZE_MAX / 2)
        return lks__fail(LKS_ERR_CONFIG, "the model's shape is larger than memory can address");
    table->n_groups = c->n_layer + 2;
    size_t most = (size_t)c->n_layer * 16 + 8;
    table->tensors = calloc(most, sizeof *table->tensors);
    if (table->tensors == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a table of %zu tensors", most);
    add_place(table, HEAD, -1, c->n_layer + 1, c);
    for (int l = 0; l < c->n_layer; l++)
        add_place(table, LAYER, l, c->n_layer - l, c);
    add_place(table, TAIL, -1, 0, c);
    lks_status st = lks__table_lay_out(table);
    if (st != LKS_OK)
        lks__table_free(table);
    return st;
}

void lks__table_free(lks__table *table)
{
    free(table->tensors);
    free(table->block_start);
    free(table->block_kind);
    free(table->group_block);
    memset(table, 0, sizeof *table);
}

const lks__tensor *lks__table_find(const lks__table *table, const char *name)
{
    for (size_t i = 0; i < table->n_tensors; i++)
        if (strcmp(table->tensors[i].name, name) == 0)
            return &table->tensors[i];
    return NULL;
}

size_t lks__table_offset(const lks__table *table, const char *format, ...)
{
    char name[sizeof table->tensors->name];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const lks__tensor *t = lks__table_find(table, name);
    return t == NULL ? SIZE_MAX : t->offset;
}

const lks__tensor *lks__table_at(const lks__table *table, size_t at)
{
    const lks__tensor *best = NULL;
    for (size_t i = 0; i < table->n_tensors; i++)
        if (table->tensors[i].offset <= at && table->tensors[i].count > 0 &&
            (best == NULL || table->tensors[i].offset > best->offset))
            best = &table->tensors[i];
    return best;
}
