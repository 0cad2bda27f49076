/* entry.h - an entry of a queue of the deferred device. */
#pragma once

#include "compute/device.h"

enum { DEFERRED_MOST_BLOCKS = 32, DEFERRED_MOST_COPIES = 4 };

typedef struct deferred_entry deferred_entry;
struct deferred_entry {
    deferred_entry *next;
    const char *what;
    void (*run)(deferred_entry *e);     /* NULL: nothing to run */
    lks__mark after;                    /* it begins after this mark; .number 0: at any time */
    int blocks[DEFERRED_MOST_BLOCKS];   /* of device memory that it needs */
    void *copies[DEFERRED_MOST_COPIES]; /* of structs that the arguments point to */
    int n_blocks, n_copies;
};

/* A zeroed entry of `bytes`, which begin with a deferred_entry. */
void *deferred_entry_new(size_t bytes, const char *what, void (*run)(deferred_entry *e));

/* The entry needs the device memory at p; NULL is none. Dies if p is no device memory. */
void deferred_entry_needs(deferred_entry *e, const void *p);

/* Copy a struct of `bytes` at src, which is freed with the entry. */
void *deferred_entry_copy(deferred_entry *e, const void *src, size_t bytes);

void deferred_entry_put(deferred_entry *e, lks__queue queue);

/* Every operation of the table, put on the compute queue (operations.c). */
extern const lks__layers deferred_layers;
