/* files/pickle/globals.h - the names that a pickle may use. Python would import and call them; here
 * each name is a kind of value. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum lks__pickle_role {
    LKS__PICKLE_ORDERED_DICT,
    LKS__PICKLE_REBUILD_TENSOR,
    LKS__PICKLE_REBUILD_PARAMETER,
    LKS__PICKLE_STORAGE_TYPE,
    LKS__PICKLE_ENCODE,     /* protocol 2's form of bytes: text of code points below 256 */
    LKS__PICKLE_BYTES_TYPE, /* protocol 2's form of empty bytes */
} lks__pickle_role;

typedef struct lks__pickle_global {
    const char *module, *name;
    lks__pickle_role role;
    const char *dtype; /* of a storage type */
    uint64_t item_bytes;
} lks__pickle_global;

/* NULL if the name is unknown. */
const lks__pickle_global *lks__pickle_global_find(const char *module, size_t module_bytes,
                                                  const char *name, size_t name_bytes);
/* The storage type of a dtype ("F32"), or NULL. */
const lks__pickle_global *lks__pickle_global_of(const char *dtype);
