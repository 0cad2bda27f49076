/* comm/store/store_values.h - the values of the store's server by key, within a limit of memory. */
#pragma once

#include <stdint.h>

#include "comm/store/handshake.h"
#include "comm/store/store.h"

struct lks__value {
    char key[LKS__STORE_KEY_BYTES];
    unsigned char *data;
    size_t bytes;
};

typedef struct lks__values {
    void *tree; /* root of tsearch() */
    size_t total;
} lks__values;

/* NULL if it isn't set. */
struct lks__value *lks__values_find(lks__values *values, const char *key);
/* ANSWER_OK or ANSWER_FULL. */
enum lks__answer lks__values_set(lks__values *values, const char *key, const void *data,
                                 size_t bytes);
/* ANSWER_BAD if the existing value is not a number. */
enum lks__answer lks__values_add(lks__values *values, const char *key, int64_t n, int64_t *sum_p);
/* The key of the next value of a list; BAD if the key is too long. */
enum lks__answer lks__values_next(lks__values *values, const char *list,
                                  char key[LKS__STORE_KEY_BYTES]);
void lks__values_free(lks__values *values);
