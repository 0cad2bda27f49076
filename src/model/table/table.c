#include "model/table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"

lks_status lks__table_open(lks__table *table, size_t most, int n_groups)
{
    memset(table, 0, sizeof *table);
    table->n_groups = n_groups;
    table->tensors = calloc(most, sizeof *table->tensors);
    LKS__MEMORY(table->tensors, "for a table of %zu tensors", most);
    return LKS_OK;
}

void lks__table_add(lks__table *table, const char *prefix, int layer, int group,
                    const lks__tensor_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const lks__tensor_row *row = &rows[i];
        if (!row->there)
            continue;
        lks__table_tensor *t = &table->tensors[table->n_tensors++];
        if (layer >= 0)
            snprintf(t->name, sizeof t->name, "%s.%d.%s", prefix, layer, row->name);
        else
            snprintf(t->name, sizeof t->name, "%s", row->name);
        t->n_dims = row->shape[1] == 0 ? 1 : 2;
        t->shape[0] = row->shape[0];
        t->shape[1] = row->shape[1];
        t->count = row->shape[1] == 0 ? row->shape[0] : row->shape[0] * row->shape[1];
        t->layer = layer;
        t->field = row->field;
        t->init = row->init;
        t->kind = row->kind;
        t->overwritten = row->overwritten;
        t->group = group;
    }
}

void lks__table_offsets(const lks__table *table, int layer, void *offsets, size_t bytes)
{
    memset(offsets, 0xff, bytes);
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (t->layer == layer)
            memcpy((char *)offsets + t->field, &t->offset, sizeof t->offset);
    }
}

static size_t blocks_of(const lks__table_tensor *t)
{
    return (t->count + LKS__BLOCK - 1) / LKS__BLOCK;
}

/* The next free place in the arena, and its block. */
struct place {
    size_t at, block;
};

/* The order in the arena: trained ones first, then by group, then as in the table. */
static int by_place(const void *a, const void *b)
{
    const lks__table_tensor *x = *(lks__table_tensor *const *)a,
                            *y = *(lks__table_tensor *const *)b;
    if (x->frozen != y->frozen)
        return x->frozen ? 1 : -1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x > y) - (x < y);
}

static void place(lks__table *table, lks__table_tensor *t, struct place *next)
{
    t->offset = next->at;
    t->first_block = next->block;
    t->n_blocks = blocks_of(t);
    for (size_t b = 0; b < t->n_blocks; b++)
        table->block_start[next->block++] = next->at + b * LKS__BLOCK;
    next->at += lks__round_up(t->count, LKS__PADDED);
}

static void count_tensors(lks__table *table)
{
    table->n_blocks = table->n_params = table->trained_params = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        table->n_blocks += blocks_of(t);
        table->n_params += t->count;
        table->trained_params += t->frozen ? 0 : t->count;
    }
}

/* Set offsets and blocks, group by group in the order of backward. */
lks_status lks__table_lay_out(lks__table *table)
{
    struct place next = {0, 0};
    size_t i = 0;
    count_tensors(table);
    free(table->block_start);
    free(table->group_block);
    table->block_start = calloc(table->n_blocks + 1, sizeof *table->block_start);
    table->group_block = calloc((size_t)table->n_groups + 1, sizeof *table->group_block);
    lks__table_tensor **order = calloc(table->n_tensors + 1, sizeof *order);
    if (table->block_start == NULL || table->group_block == NULL || order == NULL) {
        free(order);
        lks_status st = lks__no_memory("for the table of %zu tensors with %zu values",
                                       table->n_tensors, table->n_params);
        lks__table_free(table);
        return st;
    }
    for (size_t t = 0; t < table->n_tensors; t++)
        order[t] = &table->tensors[t];
    qsort(order, table->n_tensors, sizeof *order, by_place);
    for (int group = 0; group < table->n_groups; group++) {
        table->group_block[group] = next.block;
        for (; i < table->n_tensors && !order[i]->frozen && order[i]->group == group; i++)
            place(table, order[i], &next);
    }
    table->group_block[table->n_groups] = table->trained_blocks = next.block;
    table->trained_count = next.at;
    for (; i < table->n_tensors; i++)
        place(table, order[i], &next);
    free(order);
    table->block_start[next.block] = table->count = next.at;
    return LKS_OK;
}

void lks__table_free(lks__table *table)
{
    free(table->tensors);
    free(table->block_start);
    free(table->group_block);
    memset(table, 0, sizeof *table);
}

const lks__table_tensor *lks__table_find(const lks__table *table, const char *name)
{
    for (size_t i = 0; i < table->n_tensors; i++)
        if (strcmp(table->tensors[i].name, name) == 0)
            return &table->tensors[i];
    return NULL;
}
