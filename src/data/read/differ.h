/* data/read/differ.h - the tokens in which two datasets differ, position by position. */
#pragma once

#include "data/read/shards.h"

typedef struct lks__differ {
    const lks__shards *sides[2];
    uint64_t common;    /* tokens that both have */
    uint64_t different; /* positions with other tokens, or with a token on one side only */
    uint64_t first;     /* the first of these, if there is one */
    int32_t ids[2];     /* its tokens; -1: that side ends before it */
    uint64_t *blocks;   /* a bit for each block of positions: it has a difference */
} lks__differ;

/* Compare all tokens; reads both datasets from beginning to end. */
lks_status lks__differ_open(const lks__shards *a, const lks__shards *b, lks__differ *d);
void lks__differ_close(lks__differ *d); /* a zeroed one does nothing */

/* Find the first of the n tokens from `position` on, as lks__shards_read() reads them from side 0
 * or 1, that differs from the other side's token at its position. *token_p: that position, or
 * LKS__DIFFER_NONE. */
#define LKS__DIFFER_NONE UINT64_MAX
lks_status lks__differ_reads(const lks__differ *d, int side, uint64_t position, size_t n,
                             uint64_t *token_p);
