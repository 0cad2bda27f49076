#include "data/text/bpe/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/text/utf8.h"
#include "data/text/bpe/bpe_table.h"
#include "data/text/bpe/unicode_classes.h"

/* --- the index ------------------------------------------------------------------------------- */

static size_t slot_of(const lks__bpe *bpe, uint32_t left, uint32_t right)
{
    const uint64_t key = (uint64_t)left << 32 | right;
    return (size_t)(key * 0x9e3779b97f4a7c15u >> (64 - bpe->slot_bits));
}

/* The merge of two neighbours, or NULL. */
static const lks__bpe_merge *find(const lks__bpe *bpe, uint32_t left, uint32_t right)
{
    const size_t mask = ((size_t)1 << bpe->slot_bits) - 1;
    for (size_t i = slot_of(bpe, left, right);; i = (i + 1) & mask) {
        const lks__bpe_merge *m = &bpe->slots[i];
        if (m->left == left && m->right == right)
            return m;
        if (m->left == UINT32_MAX)
            return NULL;
    }
}

static void mark_class(lks__bpe *bpe, const lks__code_points *ranges, size_t n, uint8_t class)
{
    for (size_t i = 0; i < n; i++)
        memset(bpe->classes + ranges[i].first, class, ranges[i].last - ranges[i].first + 1);
}

lks_status lks__bpe_index(lks__bpe *bpe)
{
    bpe->slot_bits = 4;
    while ((size_t)1 << bpe->slot_bits < 2 * bpe->n_merges)
        bpe->slot_bits++;
    const size_t n_slots = (size_t)1 << bpe->slot_bits;
    bpe->slots = malloc(n_slots * sizeof *bpe->slots);
    bpe->classes = calloc(LKS__CODE_POINTS, 1);
    if (bpe->slots == NULL || bpe->classes == NULL)
        return lks__no_memory("for a vocabulary of %u tokens", bpe->n_ids);
    for (size_t i = 0; i < n_slots; i++)
        bpe->slots[i].left = UINT32_MAX;
    for (size_t i = 0; i < bpe->n_merges; i++) {
        const lks__bpe_merge *m = &bpe->merges[i];
        size_t at = slot_of(bpe, m->left, m->right);
        while (bpe->slots[at].left != UINT32_MAX)
            at = (at + 1) & (n_slots - 1);
        bpe->slots[at] = *m;
    }
    mark_class(bpe, lks__unicode_letters, lks__unicode_n_letters, LKS__CLASS_LETTER);
    mark_class(bpe, lks__unicode_numbers, lks__unicode_n_numbers, LKS__CLASS_NUMBER);
    mark_class(bpe, lks__unicode_spaces, lks__unicode_n_spaces, LKS__CLASS_SPACE);
    return lks__bpe_index_specials(bpe);
}

/* --- a thread's memory ----------------------------------------------------------------------- */

/* Most pieces of a text are repeated words, so their ids are cached. */
enum { CACHE_BITS = 14, CACHE_BYTES = 28, CACHE_IDS = 8 };

struct cached {
    char piece[CACHE_BYTES];
    uint16_t bytes; /* 0: the slot is free */
    uint16_t n_ids;
    int32_t ids[CACHE_IDS];
};

/* A part of a long piece, and a pair of neighbours that could be merged. */
struct part {
    int32_t id; /* -1: merged into the part before it */
    uint32_t before, after;
};
struct pair {
    uint32_t priority, left;   /* left: index of a part */
    int32_t left_id, right_id; /* when the pair was added; if they differ, the pair is gone */
};

struct lks__bpe_work {
    struct cached *cache;
    struct part *parts;
    struct pair *heap;
    size_t room, n_heap, heap_room;
};

lks__bpe_work *lks__bpe_work_open(void)
{
    lks__bpe_work *w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    w->cache = calloc((size_t)1 << CACHE_BITS, sizeof *w->cache);
    if (w->cache == NULL) {
        free(w);
        return NULL;
    }
    return w;
}

void lks__bpe_work_close(lks__bpe_work *w)
{
    if (w == NULL)
        return;
    free(w->cache);
    free(w->parts);
    free(w->heap);
    free(w);
}

/* --- short pieces ---------------------------------------------------------------------------- */

enum { SHORT_BYTES = 64 };

/* Merge the neighbours with the lowest priority, leftmost first, until no merge applies. Returns
 * the number of ids. */
static size_t merge_short(const lks__bpe *bpe, const char *piece, size_t bytes, int32_t *ids)
{
    const lks__bpe_merge *merge[SHORT_BYTES]; /* merge of parts i and i + 1, or NULL */
    size_t n = bytes;
    for (size_t i = 0; i < n; i++)
        ids[i] = bpe->byte[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        merge[i] = find(bpe, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (merge[i] != NULL && (best == n || merge[i]->priority < merge[best]->priority))
                best = i;
        if (best == n)
            return n;
        ids[best] = (int32_t)merge[best]->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n)
            memmove(merge + best, merge + best + 1, (n - best - 1) * sizeof *merge);
        if (best + 1 < n)
            merge[best] = find(bpe, (uint32_t)ids[best], (uint32_t)ids[best + 1]);
        if (best > 0)
            merge[best - 1] = find(bpe, (uint32_t)ids[best - 1], (uint32_t)ids[best]);
    }
}

/* --- long pieces: a heap of pairs ------------------------------------------------------------ */

enum { NOBODY = UINT32_MAX };

static bool sooner(const struct pair *a, const struct pair *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->left < b->left;
}

static lks_status no_room(size_t bytes)
{
    return lks__no_memory("for the tokens of %zu bytes without white space", bytes);
}

static lks_status make_room(lks__bpe_work *w, size_t bytes)
{
    if (bytes <= w->room)
        return LKS_OK;
    if (bytes >= NOBODY)
        return no_room(bytes);
    free(w->parts);
    free(w->heap);
    w->room = 0;
    w->heap_room = 3 * bytes; /* a merge removes one pair and adds at most two */
    w->parts = malloc(bytes * sizeof *w->parts);
    w->heap = malloc(w->heap_room * sizeof *w->heap);
    if (w->parts == NULL || w->heap == NULL)
        return no_room(bytes);
    w->room = bytes;
    return LKS_OK;
}

static void push(lks__bpe_work *w, struct pair pair)
{
    size_t i = w->n_heap++;
    for (; i > 0 && sooner(&pair, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = pair;
}

static struct pair pop(lks__bpe_work *w)
{
    const struct pair first = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && sooner(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!sooner(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return first;
}

static void push_pair(const lks__bpe *bpe, lks__bpe_work *w, uint32_t left)
{
    if (left == NOBODY || w->parts[left].after == NOBODY)
        return;
    const int32_t a = w->parts[left].id, b = w->parts[w->parts[left].after].id;
    const lks__bpe_merge *m = find(bpe, (uint32_t)a, (uint32_t)b);
    if (m != NULL)
        push(w, (struct pair){m->priority, left, a, b});
}

static lks_status merge_long(const lks__bpe *bpe, lks__bpe_work *w, const char *piece, size_t bytes,
                             int32_t *ids, size_t *n_p)
{
    LKS__TRY(make_room(w, bytes));
    for (size_t i = 0; i < bytes; i++)
        w->parts[i] = (struct part){.id = bpe->byte[(unsigned char)piece[i]],
                                    .before = i == 0 ? NOBODY : (uint32_t)(i - 1),
                                    .after = i + 1 == bytes ? NOBODY : (uint32_t)(i + 1)};
    w->n_heap = 0;
    for (size_t i = 0; i < bytes; i++)
        push_pair(bpe, w, (uint32_t)i);
    while (w->n_heap > 0) {
        const struct pair p = pop(w);
        struct part *left = &w->parts[p.left];
        if (left->id != p.left_id || left->after == NOBODY ||
            w->parts[left->after].id != p.right_id)
            continue;
        struct part *right = &w->parts[left->after];
        left->id = (int32_t)find(bpe, (uint32_t)p.left_id, (uint32_t)p.right_id)->id;
        right->id = -1;
        left->after = right->after;
        if (left->after != NOBODY)
            w->parts[left->after].before = p.left;
        push_pair(bpe, w, left->before);
        push_pair(bpe, w, p.left);
    }
    size_t n = 0;
    for (uint32_t i = 0; i != NOBODY; i = w->parts[i].after)
        ids[n++] = w->parts[i].id;
    *n_p = n;
    return LKS_OK;
}

/* --- encoding -------------------------------------------------------------------------------- */

static lks_status encode_piece(const lks__bpe *bpe, lks__bpe_work *w, const char *piece,
                               size_t bytes, int32_t *ids, size_t *n_p)
{
    if (bytes > SHORT_BYTES)
        return merge_long(bpe, w, piece, bytes, ids, n_p);
    if (bytes > CACHE_BYTES) {
        *n_p = merge_short(bpe, piece, bytes, ids);
        return LKS_OK;
    }
    struct cached *c = &w->cache[XXH3_64bits(piece, bytes) >> (64 - CACHE_BITS)];
    if (c->bytes == bytes && memcmp(c->piece, piece, bytes) == 0) {
        for (size_t i = 0; i < c->n_ids; i++)
            ids[i] = c->ids[i];
        *n_p = c->n_ids;
        return LKS_OK;
    }
    const size_t n = merge_short(bpe, piece, bytes, ids);
    if (n <= CACHE_IDS) {
        memcpy(c->piece, piece, bytes);
        memcpy(c->ids, ids, n * sizeof *ids);
        c->bytes = (uint16_t)bytes;
        c->n_ids = (uint16_t)n;
    }
    *n_p = n;
    return LKS_OK;
}

lks_status lks__bpe_encode(const lks__bpe *bpe, lks__bpe_work *work, const char *text, size_t bytes,
                           int32_t *ids, size_t *n_p)
{
    size_t n = 0;
    for (size_t i = 0, end; i < bytes; i = end) {
        size_t made;
        end = lks__bpe_piece_end(bpe, text, i, bytes);
        LKS__TRY(encode_piece(bpe, work, text + i, end - i, ids + n, &made));
        n += made;
    }
    *n_p = n;
    return LKS_OK;
}

/* --- looking up ------------------------------------------------------------------------------ */

uint32_t lks__bpe_size(const lks__bpe *bpe)
{
    return bpe->n_ids;
}

int32_t lks__bpe_end_of_text(const lks__bpe *bpe)
{
    return bpe->end_of_text;
}

const char *lks__bpe_bytes(const lks__bpe *bpe, int32_t id, size_t *bytes_p)
{
    *bytes_p = 0;
    if (id < 0 || (uint32_t)id >= bpe->n_ids || bpe->start[id] == bpe->start[id + 1])
        return NULL;
    *bytes_p = bpe->start[id + 1] - bpe->start[id];
    return bpe->at + bpe->start[id];
}

lks_status lks__bpe_hash(const lks__bpe *bpe, uint64_t *hash_p)
{
    char *text;
    size_t bytes;
    LKS__TRY(lks__bpe_text(bpe, &text, &bytes, hash_p));
    free(text);
    return LKS_OK;
}

void lks__bpe_close(lks__bpe *bpe)
{
    if (bpe == NULL)
        return;
    free(bpe->start);
    free(bpe->at);
    free(bpe->special);
    free(bpe->specials);
    free(bpe->merges);
    free(bpe->slots);
    free(bpe->classes);
    free(bpe);
}
