/* ckpt/dtype.h - what writer and reader of the container both know about it. */
#ifndef LKS_CKPT_DTYPE_H
#define LKS_CKPT_DTYPE_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LKS__ST_METADATA   "__metadata__"
#define LKS__ST_HASH_KEY   "xxh3:" /* + the tensor's name */
#define LKS__ST_MAX_HEADER 100000000u

/* The bytes of one element. `name` is the table's own string: it outlives any file. */
typedef struct lks__dtype {
    const char *name;
    uint64_t bytes;
} lks__dtype;

static inline const lks__dtype *lks__dtype_find(const char *name)
{
    static const lks__dtype table[] = {{"F64", 8},     {"F32", 4},     {"F16", 2}, {"BF16", 2},
                                       {"I64", 8},     {"I32", 4},     {"I16", 2}, {"I8", 1},
                                       {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
                                       {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

/* A hash as it stands in all files: 16 lower-case hex digits. */
static inline void lks__hash_text(uint64_t hash, char out[17])
{
    snprintf(out, 17, "%016" PRIx64, hash);
}

#endif
