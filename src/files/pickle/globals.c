#include "files/pickle/globals.h"

#include <stdbool.h>
#include <string.h>

static const lks__pickle_global known[] = {
    {"collections", "OrderedDict", LKS__PICKLE_ORDERED_DICT, NULL, 0},
    {"torch._utils", "_rebuild_tensor_v2", LKS__PICKLE_REBUILD_TENSOR, NULL, 0},
    {"torch._utils", "_rebuild_parameter", LKS__PICKLE_REBUILD_PARAMETER, NULL, 0},
    {"_codecs", "encode", LKS__PICKLE_ENCODE, NULL, 0},
    {"__builtin__", "bytes", LKS__PICKLE_BYTES_TYPE, NULL, 0},
    {"builtins", "bytes", LKS__PICKLE_BYTES_TYPE, NULL, 0},
    {"torch", "DoubleStorage", LKS__PICKLE_STORAGE_TYPE, "F64", 8},
    {"torch", "FloatStorage", LKS__PICKLE_STORAGE_TYPE, "F32", 4},
    {"torch", "HalfStorage", LKS__PICKLE_STORAGE_TYPE, "F16", 2},
    {"torch", "BFloat16Storage", LKS__PICKLE_STORAGE_TYPE, "BF16", 2},
    {"torch", "LongStorage", LKS__PICKLE_STORAGE_TYPE, "I64", 8},
    {"torch", "IntStorage", LKS__PICKLE_STORAGE_TYPE, "I32", 4},
    {"torch", "ShortStorage", LKS__PICKLE_STORAGE_TYPE, "I16", 2},
    {"torch", "CharStorage", LKS__PICKLE_STORAGE_TYPE, "I8", 1},
    {"torch", "ByteStorage", LKS__PICKLE_STORAGE_TYPE, "U8", 1},
    {"torch", "BoolStorage", LKS__PICKLE_STORAGE_TYPE, "BOOL", 1},
};

static bool same(const char *word, const char *text, size_t bytes)
{
    return strlen(word) == bytes && memcmp(word, text, bytes) == 0;
}

const lks__pickle_global *lks__pickle_global_find(const char *module, size_t module_bytes,
                                                  const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (same(known[i].module, module, module_bytes) && same(known[i].name, name, name_bytes))
            return &known[i];
    return NULL;
}

const lks__pickle_global *lks__pickle_global_of(const char *dtype)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].dtype && strcmp(known[i].dtype, dtype) == 0)
            return &known[i];
    return NULL;
}
