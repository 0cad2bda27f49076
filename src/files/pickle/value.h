/* files/pickle/value.h - the values that the stack machine creates. */
#pragma once

#include "files/pickle/globals.h"
#include "files/pickle/pickle.h"

/* Items of a tuple or list; for a dict alternating keys and values. */
typedef struct lks__pickle_items {
    lks__pickle_value **at;
    uint32_t *sorted; /* if sealed: the dict's pairs in the order of their keys */
    size_t n, room;
} lks__pickle_items;

struct lks__pickle_value {
    lks__pickle_kind kind;
    bool sealed; /* part of another value, or the result: can't change any more */
    uint8_t depth;
    uint64_t weight; /* number of values in it; repeated values count each time */
    union {
        bool truth;
        int64_t whole;
        double real;
        struct {
            const char *at;
            size_t bytes;
        } text;
        lks__pickle_items items;
        const lks__pickle_global *global;
        lks__pickle_storage storage;
        lks__pickle_tensor *tensor;
    } u;
};

/* All values of a pickle. They live until it is closed. */
typedef struct lks__pickle_heap {
    struct lks__pickle_block *blocks;
    char **copies;                        /* bytes that the file stores in another form */
    size_t n_copies, room_copies, copied; /* copied: their bytes */
} lks__pickle_heap;

/* A new value of depth 0 and weight 1; NULL if out of memory. */
lks__pickle_value *lks__pickle_new(lks__pickle_heap *heap, lks__pickle_kind kind);
/* Memory that lives as long as the heap; NULL if out of memory. */
char *lks__pickle_copy_room(lks__pickle_heap *heap, size_t bytes);
void lks__pickle_heap_free(lks__pickle_heap *heap);

/* Append `part` to `whole`. On failure *why_p is a reason, or NULL if out of memory. */
bool lks__pickle_append(lks__pickle_value *whole, lks__pickle_value *part, const char **why_p);
/* Check a dict's keys and forbid further appends. Errors as above. */
bool lks__pickle_seal(lks__pickle_value *v, const char **why_p);

/* --- rebuild.c -------------------------------------------------------------------------------- */

/* Calls of the known names: the values that they return for their arguments. On failure these
 * functions return NULL and set *why_p to a reason, or to NULL if out of memory. */

/* REDUCE: `arguments` is a tuple. */
lks__pickle_value *lks__pickle_rebuild(lks__pickle_heap *heap, const lks__pickle_global *global,
                                       const lks__pickle_value *arguments, const char **why_p);
/* BINPERSID: ('storage', type, key, device, count). */
lks__pickle_value *lks__pickle_storage_of(lks__pickle_heap *heap, const lks__pickle_value *id,
                                          const char **why_p);
