#include "files/pickle/value.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"

enum {
    BLOCK = 512,
    MAX_WEIGHT = 1 << 24 /* 128 times the weight of a vocabulary of 65,536 characters */
};

typedef struct lks__pickle_block {
    struct lks__pickle_block *next;
    size_t n;
    lks__pickle_value values[BLOCK];
} block;

/* ---- the heap ---------------------------------------------------------------------------- */

lks__pickle_value *lks__pickle_new(lks__pickle_heap *heap, lks__pickle_kind kind)
{
    block *b = heap->blocks;
    if (!b || b->n == BLOCK) {
        b = malloc(sizeof *b);
        if (!b)
            return NULL;
        b->next = heap->blocks;
        b->n = 0;
        heap->blocks = b;
    }
    lks__pickle_value *v = &b->values[b->n];
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->weight = 1;
    if (kind == LKS__PICKLE_TENSOR && !(v->u.tensor = calloc(1, sizeof *v->u.tensor)))
        return NULL;
    b->n++;
    return v;
}

char *lks__pickle_copy_room(lks__pickle_heap *heap, size_t bytes)
{
    if (!lks__list_grow(&heap->copies, heap->n_copies, &heap->room_copies, sizeof *heap->copies))
        return NULL;
    char *copy = malloc(bytes + 1);
    if (copy)
        heap->copies[heap->n_copies++] = copy;
    heap->copied += bytes;
    return copy;
}

static bool has_items(const lks__pickle_value *v)
{
    return v->kind == LKS__PICKLE_TUPLE || v->kind == LKS__PICKLE_LIST ||
           v->kind == LKS__PICKLE_DICT;
}

static void free_value(lks__pickle_value *v)
{
    if (v->kind == LKS__PICKLE_TENSOR)
        free(v->u.tensor);
    if (has_items(v)) {
        free(v->u.items.at);
        free(v->u.items.sorted);
    }
}

void lks__pickle_heap_free(lks__pickle_heap *heap)
{
    while (heap->blocks) {
        block *b = heap->blocks;
        heap->blocks = b->next;
        for (size_t i = 0; i < b->n; i++)
            free_value(&b->values[i]);
        free(b);
    }
    for (size_t i = 0; i < heap->n_copies; i++)
        free(heap->copies[i]);
    free(heap->copies);
    memset(heap, 0, sizeof *heap);
}

/* ---- keys of dicts ----------------------------------------------------------------------- */

static int compare_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order != 0 ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* Whole numbers come before text. */
static int compare_keys(const lks__pickle_value *a, const lks__pickle_value *b)
{
    if (a->kind != b->kind)
        return a->kind == LKS__PICKLE_INT ? -1 : 1;
    if (a->kind == LKS__PICKLE_INT)
        return (a->u.whole > b->u.whole) - (a->u.whole < b->u.whole);
    return compare_text(a->u.text.at, a->u.text.bytes, b->u.text.at, b->u.text.bytes);
}

static int compare_pairs(const void *a, const void *b, void *at)
{
    lks__pickle_value *const *items = at;
    return compare_keys(items[2 * *(const uint32_t *)a], items[2 * *(const uint32_t *)b]);
}

static bool sort_keys(lks__pickle_items *items, const char **why_p)
{
    uint32_t n = (uint32_t)(items->n / 2);
    uint32_t *sorted = malloc(n * sizeof *sorted + 1);
    if (!sorted)
        return false;
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = i;
    qsort_r(sorted, n, sizeof *sorted, compare_pairs, items->at);
    items->sorted = sorted;
    for (uint32_t i = 1; i < n; i++)
        if (compare_pairs(&sorted[i - 1], &sorted[i], items->at) == 0) {
            *why_p = "a key occurs twice in a dict";
            return false;
        }
    return true;
}

static const lks__pickle_value *find(const lks__pickle_value *dict, const lks__pickle_value *key)
{
    if (lks__pickle_kind_of(dict) != LKS__PICKLE_DICT)
        return NULL;
    size_t low = 0, high = dict->u.items.n / 2;
    while (low < high) {
        size_t middle = low + (high - low) / 2, pair = dict->u.items.sorted[middle];
        int order = compare_keys(key, dict->u.items.at[2 * pair]);
        if (order == 0)
            return dict->u.items.at[2 * pair + 1];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- construction -------------------------------------------------------------------------- */

bool lks__pickle_seal(lks__pickle_value *v, const char **why_p)
{
    *why_p = NULL;
    if (v->sealed)
        return true;
    if (v->kind == LKS__PICKLE_DICT && v->u.items.n % 2 != 0) {
        *why_p = "a dict has a key without a value";
        return false;
    }
    if (v->kind == LKS__PICKLE_DICT && !sort_keys(&v->u.items, why_p))
        return false;
    v->sealed = true;
    return true;
}

static bool grow(lks__pickle_items *items)
{
    size_t room = items->room ? items->room * 2 : 4;
    lks__pickle_value **at = realloc(items->at, room * sizeof *at);
    if (!at)
        return false;
    items->at = at;
    items->room = room;
    return true;
}

bool lks__pickle_append(lks__pickle_value *whole, lks__pickle_value *part, const char **why_p)
{
    bool is_key = whole->kind == LKS__PICKLE_DICT && whole->u.items.n % 2 == 0;
    if (!lks__pickle_seal(part, why_p))
        return false;
    if (whole->sealed)
        *why_p = "a value is changed after it became part of another value";
    else if (is_key && part->kind != LKS__PICKLE_TEXT && part->kind != LKS__PICKLE_INT)
        *why_p = "a key of a dict is neither text nor a whole number";
    else if (part->depth + 1 > LKS__PICKLE_MAX_DEPTH)
        *why_p = "values are nested more than 64 deep";
    else if (whole->weight + part->weight > MAX_WEIGHT)
        *why_p = "a value has more than 16,777,216 parts, counted each time they occur";
    if (*why_p || (whole->u.items.n == whole->u.items.room && !grow(&whole->u.items)))
        return false;
    whole->u.items.at[whole->u.items.n++] = part;
    whole->weight += part->weight;
    if (whole->depth < part->depth + 1)
        whole->depth = (uint8_t)(part->depth + 1);
    return true;
}

/* ---- use --------------------------------------------------------------------------------- */

lks__pickle_kind lks__pickle_kind_of(const lks__pickle_value *v)
{
    return v ? v->kind : LKS__PICKLE_NONE;
}

const char *lks__pickle_kind_name(lks__pickle_kind kind)
{
    static const char *const names[] = {"None",   "a boolean", "a whole number", "a float",
                                        "text",   "bytes",     "a tuple",        "a list",
                                        "a dict", "a tensor",  "a storage",      "a name"};
    return names[kind];
}

bool lks__pickle_bool(const lks__pickle_value *v)
{
    return v->u.truth;
}

int64_t lks__pickle_int(const lks__pickle_value *v)
{
    return v->u.whole;
}

double lks__pickle_float(const lks__pickle_value *v)
{
    return v->u.real;
}

const char *lks__pickle_text(const lks__pickle_value *v, size_t *bytes_p)
{
    *bytes_p = v->u.text.bytes;
    return v->u.text.at;
}

const lks__pickle_tensor *lks__pickle_tensor_of(const lks__pickle_value *v)
{
    return v->u.tensor;
}

bool lks__pickle_is(const lks__pickle_value *v, const char *text)
{
    return lks__pickle_kind_of(v) == LKS__PICKLE_TEXT && v->u.text.bytes == strlen(text) &&
           memcmp(v->u.text.at, text, v->u.text.bytes) == 0;
}

size_t lks__pickle_count(const lks__pickle_value *v)
{
    return v->kind == LKS__PICKLE_DICT ? v->u.items.n / 2 : v->u.items.n;
}

const lks__pickle_value *lks__pickle_item(const lks__pickle_value *v, size_t i)
{
    return v->u.items.at[v->kind == LKS__PICKLE_DICT ? 2 * i + 1 : i];
}

const lks__pickle_value *lks__pickle_key(const lks__pickle_value *v, size_t i)
{
    return v->u.items.at[2 * i];
}

const lks__pickle_value *lks__pickle_find_text(const lks__pickle_value *dict, const char *key,
                                               size_t bytes)
{
    const lks__pickle_value wanted = {.kind = LKS__PICKLE_TEXT, .u.text = {key, bytes}};
    return find(dict, &wanted);
}

const lks__pickle_value *lks__pickle_find(const lks__pickle_value *dict, const char *key)
{
    return lks__pickle_find_text(dict, key, strlen(key));
}

const lks__pickle_value *lks__pickle_find_int(const lks__pickle_value *dict, int64_t key)
{
    const lks__pickle_value wanted = {.kind = LKS__PICKLE_INT, .u.whole = key};
    return find(dict, &wanted);
}
