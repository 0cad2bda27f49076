/* files/pickle/value.h - values as the stack machine makes them. */
#ifndef LKS_FILES_PICKLE_VALUE_H
#define LKS_FILES_PICKLE_VALUE_H

#include "files/pickle/globals.h"
#include "files/pickle/pickle.h"

/* Items of a tuple or list; of a dict keys and values in turn. */
typedef struct lks__pickle_items {
    lks__pickle_value **at;
    uint32_t *sorted; /* of a sealed dict: its pairs in the order of their keys */
    size_t n, room;
} lks__pickle_items;

struct lks__pickle_value {
    lks__pickle_kind kind;
    bool sealed; /* part of another value, or the result: it can't change any more */
    uint8_t depth;
    uint64_t weight; /* number of values in it, one that occurs twice counted twice */
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

/* All values of a pickle: they live until it is closed. */
typedef struct lks__pickle_heap {
    struct lks__pickle_block *blocks;
    char **copies; /* bytes that stand in the file in another form */
    size_t n_copies, room_copies;
} lks__pickle_heap;

/* A new value of depth 0 and weight 1; NULL: no memory. */
lks__pickle_value *lks__pickle_new(lks__pickle_heap *heap, lks__pickle_kind kind);
/* Memory that lives as long; NULL: no memory. */
char *lks__pickle_copy_room(lks__pickle_heap *heap, size_t bytes);
void lks__pickle_heap_free(lks__pickle_heap *heap);

/* Put `part` at the end of `whole`. On failure a reason stands in *why_p, or NULL: no memory. */
bool lks__pickle_append(lks__pickle_value *whole, lks__pickle_value *part, const char **why_p);
/* Nothing can be appended to it any more; a dict's keys are checked. The same. */
bool lks__pickle_seal(lks__pickle_value *v, const char **why_p);

#endif
