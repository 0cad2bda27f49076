/* files/safetensors/dtype.h - definitions for both the writer and the reader of the container. */
#pragma once

#include <stdint.h>
#include <string.h>

#define LKS__ST_METADATA   "__metadata__"
#define LKS__ST_HASH_KEY   "xxh3:" /* followed by the tensor's name */
#define LKS__ST_MAX_HEADER 100000000u

/* `bytes` is the size of one element. `name` is a string constant of this table, so it outlives any
 * file. */
typedef struct lks__st_dtype {
    const char *name;
    uint64_t bytes;
} lks__st_dtype;

static inline const lks__st_dtype *lks__st_dtype_find(const char *name)
{
    static const lks__st_dtype table[] = {{"F64", 8},     {"F32", 4},     {"F16", 2}, {"BF16", 2},
                                          {"I64", 8},     {"I32", 4},     {"I16", 2}, {"I8", 1},
                                          {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
                                          {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}
