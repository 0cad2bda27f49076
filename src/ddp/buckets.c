#include "ddp/buckets.h"

#include <stdlib.h>

static size_t floats_of(const lks__table *t, int first_group, int end_group)
{
    return t->block_start[t->group_block[end_group]] - t->block_start[t->group_block[first_group]];
}

bool lks__bucket_next(const lks__table *t, size_t bytes, int *first_p, int *end_p)
{
    int first = *end_p;
    while (first < t->n_groups && lks__table_is_empty(t, first))
        first++;
    if (first == t->n_groups)
        return false;
    int end = first + 1;
    while (end < t->n_groups && floats_of(t, first, end) * sizeof(float) < bytes)
        end++;
    while (lks__table_is_empty(t, end - 1))
        end--;
    *first_p = first;
    *end_p = end;
    return true;
}

lks_status lks__buckets_cut(const lks__table *t, size_t first_bytes, size_t bytes,
                            lks__buckets *buckets)
{
    const size_t first = first_bytes > 0 && first_bytes < bytes ? first_bytes : bytes;
    buckets->list = calloc((size_t)t->n_groups + 1, sizeof *buckets->list);
    buckets->n = 0;
    LKS__MEMORY(buckets->list, "for %d buckets", t->n_groups);
    for (int g = 0, end = 0; lks__bucket_next(t, end == 0 ? first : bytes, &g, &end);) {
        lks__bucket *b = &buckets->list[buckets->n++];
        b->last_group = end - 1;
        b->first_block = t->group_block[g];
        b->n_blocks = t->group_block[end] - b->first_block;
        b->start = t->block_start[b->first_block];
        b->count = floats_of(t, g, end);
        b->block_start = calloc(b->n_blocks + 1, sizeof *b->block_start);
        b->block_bytes = calloc(b->n_blocks + 1, sizeof *b->block_bytes);
        if (b->block_start == NULL || b->block_bytes == NULL)
            return lks__no_memory("for a bucket of %zu blocks", b->n_blocks);
        for (size_t i = 0; i <= b->n_blocks; i++) {
            b->block_start[i] = t->block_start[b->first_block + i] - b->start;
            b->block_bytes[i] = b->block_start[i] * sizeof(float);
        }
    }
    return LKS_OK;
}

void lks__buckets_free(lks__buckets *buckets)
{
    for (int i = 0; i < buckets->n; i++) {
        free(buckets->list[i].block_start);
        free(buckets->list[i].block_bytes);
    }
    free(buckets->list);
    *buckets = (lks__buckets){0};
}
