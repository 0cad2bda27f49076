#include "data/read/differ.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"

enum { BLOCK = 64, WORD = 64, CHUNK = 1 << 15 }; /* tokens, bits, tokens */

/* Read the same positions of both sides. */
static lks_status read_both(const lks__differ *d, uint64_t position, size_t n, int32_t *a,
                            int32_t *b)
{
    LKS__TRY(lks__shards_read(d->sides[0], position, n, a));
    return lks__shards_read(d->sides[1], position, n, b);
}

static void note(lks__differ *d, uint64_t position, int32_t a, int32_t b)
{
    if (d->different++ == 0) {
        d->first = position;
        d->ids[0] = a;
        d->ids[1] = b;
    }
    if (position < d->common)
        d->blocks[position / BLOCK / WORD] |= UINT64_C(1) << position / BLOCK % WORD;
}

static lks_status compare_common(lks__differ *d, int32_t *a, int32_t *b)
{
    for (uint64_t at = 0; at < d->common; at += CHUNK) {
        const size_t n = lks__min(d->common - at, CHUNK);
        LKS__TRY(read_both(d, at, n, a, b));
        const size_t left = memcmp(a, b, n * sizeof *a) != 0 ? n : 0;
        for (size_t i = 0; i < left; i++)
            if (a[i] != b[i])
                note(d, at + i, a[i], b[i]);
    }
    return LKS_OK;
}

/* Tokens that only the longer side has. */
static lks_status compare_rest(lks__differ *d)
{
    const int longer = lks__shards_count(d->sides[1]) > d->common;
    const uint64_t rest = lks__shards_count(d->sides[longer]) - d->common;
    int32_t ids[2] = {-1, -1};
    if (rest == 0)
        return LKS_OK;
    LKS__TRY(lks__shards_read(d->sides[longer], d->common, 1, &ids[longer]));
    note(d, d->common, ids[0], ids[1]);
    d->different += rest - 1;
    return LKS_OK;
}

lks_status lks__differ_open(const lks__shards *a, const lks__shards *b, lks__differ *d)
{
    *d = (lks__differ){.sides = {a, b},
                       .common = lks__min(lks__shards_count(a), lks__shards_count(b))};
    int32_t *chunks = malloc(2 * CHUNK * sizeof *chunks);
    d->blocks = calloc((size_t)(d->common / BLOCK / WORD + 1), sizeof *d->blocks);
    lks_status st = chunks != NULL && d->blocks != NULL ? compare_common(d, chunks, chunks + CHUNK)
                                                        : lks__no_memory("to compare tokens");
    LKS__THEN(st, compare_rest(d));
    free(chunks);
    if (st != LKS_OK)
        lks__differ_close(d);
    return st;
}

void lks__differ_close(lks__differ *d)
{
    free(d->blocks);
    *d = (lks__differ){.common = 0};
}

/* Compare the positions [at, end) of a block. */
static lks_status compare_block(const lks__differ *d, uint64_t at, uint64_t end, uint64_t *token_p)
{
    int32_t a[BLOCK], b[BLOCK];
    const size_t n = (size_t)(end - at);
    LKS__TRY(read_both(d, at, n, a, b));
    for (size_t i = n; i-- > 0;)
        if (a[i] != b[i])
            *token_p = at + i;
    return LKS_OK;
}

/* The same for positions that don't pass the side's end. */
static lks_status reads_piece(const lks__differ *d, uint64_t at, uint64_t end, uint64_t *token_p)
{
    const uint64_t begin = at, stop = lks__min(end, d->common);
    while (at < stop && *token_p == LKS__DIFFER_NONE) {
        const uint64_t block = at / BLOCK, next = lks__min((block + 1) * BLOCK, stop);
        const uint64_t bits = d->blocks[block / WORD] >> block % WORD;
        if (bits & 1)
            LKS__TRY(compare_block(d, at, next, token_p));
        at = bits == 0 ? (block / WORD + 1) * WORD * BLOCK : next;
    }
    if (end > d->common && *token_p == LKS__DIFFER_NONE)
        *token_p = begin > d->common ? begin : d->common;
    return LKS_OK;
}

lks_status lks__differ_reads(const lks__differ *d, int side, uint64_t position, size_t n,
                             uint64_t *token_p)
{
    const uint64_t count = lks__shards_count(d->sides[side]);
    *token_p = LKS__DIFFER_NONE;
    for (uint64_t left = n, at = position % count; left > 0; at = 0) {
        const uint64_t take = lks__min(left, count - at);
        LKS__TRY(reads_piece(d, at, at + take, token_p));
        left -= take;
    }
    return LKS_OK;
}
