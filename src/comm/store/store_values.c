#include "comm/store/store_values.h"

#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct lks__value *)a)->key, ((const struct lks__value *)b)->key);
}

struct lks__value *lks__values_find(lks__values *values, const char *key)
{
    struct lks__value probe;
    snprintf(probe.key, sizeof probe.key, "%s", key);
    struct lks__value **at = tfind(&probe, &values->tree, compare);
    return at == NULL ? NULL : *at;
}

static void free_value(void *value)
{
    free(((struct lks__value *)value)->data);
    free(value);
}

static struct lks__value *new_value(lks__values *values, const char *key)
{
    struct lks__value *v = calloc(1, sizeof *v);
    if (v == NULL)
        return NULL;
    snprintf(v->key, sizeof v->key, "%s", key);
    if (tsearch(v, &values->tree, compare) == NULL) {
        free(v);
        return NULL;
    }
    values->total += sizeof *v;
    return v;
}

enum lks__answer lks__values_set(lks__values *values, const char *key, const void *data,
                                 size_t bytes)
{
    struct lks__value *v = lks__values_find(values, key);
    size_t before = v != NULL ? v->bytes : 0, more = v != NULL ? bytes : bytes + sizeof *v;
    if (values->total - before + more > LKS__STORE_TOTAL_BYTES)
        return LKS__ANSWER_FULL;
    unsigned char *copy = malloc(bytes + 1);
    if (copy == NULL)
        return LKS__ANSWER_FULL;
    if (v == NULL && (v = new_value(values, key)) == NULL) {
        free(copy);
        return LKS__ANSWER_FULL;
    }
    if (bytes > 0)
        memcpy(copy, data, bytes);
    free(v->data);
    v->data = copy;
    v->bytes = bytes;
    values->total += bytes - before;
    return LKS__ANSWER_OK;
}

enum lks__answer lks__values_add(lks__values *values, const char *key, int64_t n, int64_t *sum_p)
{
    const struct lks__value *v = lks__values_find(values, key);
    int64_t sum = 0;
    if (v != NULL && v->bytes != sizeof sum)
        return LKS__ANSWER_BAD;
    if (v != NULL)
        memcpy(&sum, v->data, sizeof sum);
    if (__builtin_add_overflow(sum, n, &sum))
        return LKS__ANSWER_BAD;
    *sum_p = sum;
    return lks__values_set(values, key, &sum, sizeof sum);
}

enum lks__answer lks__values_next(lks__values *values, const char *list,
                                  char key[LKS__STORE_KEY_BYTES])
{
    int64_t n;
    if (strlen(list) + 24 > LKS__STORE_KEY_BYTES)
        return LKS__ANSWER_BAD;
    enum lks__answer answer = lks__values_add(values, list, 1, &n);
    if (answer == LKS__ANSWER_OK)
        snprintf(key, LKS__STORE_KEY_BYTES, "%.*s/%" PRId64, LKS__STORE_KEY_BYTES - 24, list, n);
    return answer;
}

void lks__values_free(lks__values *values)
{
    tdestroy(values->tree, free_value);
    values->tree = NULL;
}
