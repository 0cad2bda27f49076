/* ddp/buckets.h - cuts the gradient arena into contiguous ranges that are reduced as one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "model/table/table.h"

typedef struct lks__bucket {
    size_t first_block, n_blocks;
    int last_group;      /* the bucket is complete when this group is */
    size_t start, count; /* floats */
    size_t *block_start; /* [n_blocks + 1], from the bucket's start */
    size_t *block_bytes; /* block_start in bytes */
} lks__bucket;

typedef struct lks__buckets {
    lks__bucket *list; /* [n] in the table's order, which is backward's */
    int n;
} lks__buckets;

/* The next bucket of gradients, from group *end_p on: groups [*first_p, *end_p). Its first and last
 * group have trained tensors. Groups are joined until a bucket has `bytes`. False: no bucket is
 * left. */
bool lks__bucket_next(const lks__table *table, size_t bytes, int *first_p, int *end_p);

/* Cut all buckets; the first one has at least the smaller of `first_bytes` (0: no limit) and
 * `bytes`. After ERR_NOMEM, lks__buckets_free() frees the part that was allocated. */
lks_status lks__buckets_cut(const lks__table *table, size_t first_bytes, size_t bytes,
                            lks__buckets *buckets);
void lks__buckets_free(lks__buckets *buckets); /* a zeroed one does nothing */
