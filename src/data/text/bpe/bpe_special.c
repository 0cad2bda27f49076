/* data/text/bpe/bpe_special.c - text in which a special token's spelling becomes that token. */
#include <stdlib.h>
#include <string.h>

#include "data/text/bpe/bpe.h"
#include "data/text/bpe/bpe_table.h"

static size_t length_of(const lks__bpe *bpe, uint32_t id)
{
    return bpe->start[id + 1] - bpe->start[id];
}

static int longer_first(const void *a, const void *b, void *ctx)
{
    const lks__bpe *bpe = ctx;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const size_t n = length_of(bpe, x), m = length_of(bpe, y);
    return n != m ? (n < m) - (n > m) : (x > y) - (x < y);
}

lks_status lks__bpe_index_specials(lks__bpe *bpe)
{
    for (uint32_t id = 0; id < bpe->n_ids; id++)
        bpe->n_specials += bpe->special[id] && length_of(bpe, id) > 0;
    bpe->specials = malloc((bpe->n_specials + 1) * sizeof *bpe->specials);
    LKS__MEMORY(bpe->specials, "for %zu special tokens", bpe->n_specials);
    size_t n = 0;
    for (uint32_t id = 0; id < bpe->n_ids; id++)
        if (bpe->special[id] && length_of(bpe, id) > 0) {
            const char *spelling = bpe->at + bpe->start[id];
            bpe->specials[n++] = id;
            bpe->begins_special[(unsigned char)spelling[0]] = true;
        }
    qsort_r(bpe->specials, n, sizeof *bpe->specials, longer_first, bpe);
    return LKS_OK;
}

lks_status lks__bpe_check_special(const lks__bpe *bpe)
{
    if (bpe->loose == 0)
        return LKS_OK;
    size_t bytes;
    const char *text = lks__bpe_bytes(bpe, (int32_t)bpe->loose - 1, &bytes);
    char shown[64];
    return lks__fail(
        LKS_ERR_SUPPORT,
        "the tokenizer's token %s has \"lstrip\", \"rstrip\" or \"single_word\", which "
        "--special doesn't support: leave --special out",
        lks__escape(shown, sizeof shown, text, bytes));
}

/* The longest special token whose spelling begins `text`, or -1. */
static int32_t special_at(const lks__bpe *bpe, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bpe->n_specials; i++) {
        const uint32_t id = bpe->specials[i];
        const size_t n = length_of(bpe, id);
        if (n <= bytes && memcmp(text, bpe->at + bpe->start[id], n) == 0)
            return (int32_t)id;
    }
    return -1;
}

lks_status lks__bpe_encode_special(const lks__bpe *bpe, lks__bpe_work *work, const char *text,
                                   size_t bytes, int32_t *ids, size_t *n_p)
{
    size_t n = 0, from = 0, made;
    for (size_t i = 0; i < bytes;) {
        int32_t id = -1;
        if (bpe->begins_special[(unsigned char)text[i]])
            id = special_at(bpe, text + i, bytes - i);
        if (id < 0) {
            i++;
            continue;
        }
        LKS__TRY(lks__bpe_encode(bpe, work, text + from, i - from, ids + n, &made));
        n += made;
        ids[n++] = id;
        from = i += length_of(bpe, (uint32_t)id);
    }
    LKS__TRY(lks__bpe_encode(bpe, work, text + from, bytes - from, ids + n, &made));
    *n_p = n + made;
    return LKS_OK;
}

bool lks__bpe_in_special(const lks__bpe *bpe, const char *text, size_t bytes, size_t cut)
{
    for (size_t i = 0; i < bpe->n_specials; i++) {
        const char *spelling = bpe->at + bpe->start[bpe->specials[i]];
        const size_t n = length_of(bpe, bpe->specials[i]);
        for (size_t at = cut < n ? 0 : cut - n + 1; at < cut; at++) {
            const size_t seen = bytes - at < n ? bytes - at : n;
            if (memcmp(text + at, spelling, seen) == 0)
                return true;
        }
    }
    return false;
}
