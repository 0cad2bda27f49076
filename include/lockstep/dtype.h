/* lockstep/dtype.h - element types of collectives and of saved tensors. Any thread may call its
 * functions, and so may a child of fork(). */
#ifndef LOCKSTEP_DTYPE_H
#define LOCKSTEP_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Name, value, bytes of one element. No type has the value 0, so that an omitted field is noticed.
 * All types can be broadcast, gathered and saved. float32, float64, int32, int64 and both 16-bit
 * floats can be reduced. */
#define LKS_DTYPE_MAP(X)                                                                           \
    X(FLOAT32, 1, 4, "float32")                                                                    \
    X(FLOAT64, 2, 8, "float64")                                                                    \
    X(INT32, 3, 4, "int32")                                                                        \
    X(INT64, 4, 8, "int64")                                                                        \
    X(UINT8, 5, 1, "uint8") /* bytes: any memory, for example structs */                           \
    X(FLOAT16, 6, 2, "float16")                                                                    \
    X(BFLOAT16, 7, 2, "bfloat16")                                                                  \
    X(UINT64, 8, 8, "uint64")                                                                      \
    X(INT8, 9, 1, "int8")                                                                          \
    X(BOOL, 10, 1, "bool")

typedef enum lks_dtype {
#define X(name, value, bytes, text) LKS_##name = value,
    LKS_DTYPE_MAP(X)
#undef X
} lks_dtype;

/* For a value that isn't a type: 0, and "no type". */
size_t lks_dtype_bytes(lks_dtype dtype);
const char *lks_dtype_name(lks_dtype dtype); /* "float32" and so on; static */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
