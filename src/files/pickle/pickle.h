/* files/pickle/pickle.h - Python's pickles, read as data.
 *
 * A pickle is a program for a small stack machine. Python's reader lets it call any function; this
 * reader calls nothing. It supports None, booleans, 64-bit integers, floats, text, bytes, tuples,
 * lists, dicts (OrderedDict too), and tensors as PyTorch rebuilds them. Any other opcode or name is
 * refused, with its offset. It reads the default output of protocols 2 to 5.
 *
 * A hostile pickle can't use more memory or time than its size allows: each opcode creates one
 * value at most, copies of text are limited, and a value that is part of another value can't change
 * any more. So cycles are impossible, and the depth and expanded size of each value are known when
 * it is used. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    LKS__PICKLE_MAX_DIMS = 8,
    LKS__PICKLE_MAX_DEPTH = 64,
    LKS__PICKLE_MAX_BYTES = 8 << 20, /* a checkpoint of 600 tensors needs 100 KB, and its values up
                                        to 100 times the size of the pickle */
};

typedef enum lks__pickle_kind {
    LKS__PICKLE_NONE,
    LKS__PICKLE_BOOL,
    LKS__PICKLE_INT,
    LKS__PICKLE_FLOAT,
    LKS__PICKLE_TEXT, /* valid UTF-8, may contain U+0000 */
    LKS__PICKLE_BYTES,
    LKS__PICKLE_TUPLE,
    LKS__PICKLE_LIST,
    LKS__PICKLE_DICT, /* keys are text or integers, without duplicates */
    LKS__PICKLE_TENSOR,
    LKS__PICKLE_STORAGE, /* the memory of tensors; only inside a tensor */
    LKS__PICKLE_GLOBAL,  /* a known name; only while a value is built */
} lks__pickle_kind;

typedef struct lks__pickle_value lks__pickle_value;

typedef struct lks__pickle_storage {
    const char *dtype; /* "F32", as in safetensors */
    uint64_t item_bytes, count;
    const char *key; /* the name of its entry, `data/KEY`; key_bytes long */
    size_t key_bytes;
} lks__pickle_storage;

/* Element (i, j, …) is element first + i * stride[0] + j * stride[1] + … of the storage. All
 * elements are inside the storage, and there are at most as many as it contains. */
typedef struct lks__pickle_tensor {
    const lks__pickle_storage *storage;
    int n_dims;
    uint64_t shape[LKS__PICKLE_MAX_DIMS], stride[LKS__PICKLE_MAX_DIMS];
    uint64_t first, count;
} lks__pickle_tensor;

/* Called when a storage is first named: check that a storage of `bytes` bytes with this key exists.
 */
typedef lks_status lks__pickle_has(void *ctx, const lks__pickle_storage *storage, uint64_t bytes);

typedef struct lks__pickle lks__pickle; /* opaque; close with lks__pickle_close() */

/* Parse data[bytes], which must stay valid as long as the pickle. `where` starts the error message:
 * a file's name, already escaped. `has` NULL: tensors are refused. ERR_FORMAT includes the offset.
 */
lks_status lks__pickle_parse(const char *where, const void *data, size_t bytes,
                             lks__pickle_has *has, void *ctx, lks__pickle **pickle_p);
/* Parse a whole file that contains no tensors. */
lks_status lks__pickle_open(const char *path, lks__pickle **pickle_p);
void lks__pickle_close(lks__pickle *pickle); /* NULL does nothing */

const lks__pickle_value *lks__pickle_root(const lks__pickle *pickle);

lks__pickle_kind lks__pickle_kind_of(const lks__pickle_value *v); /* NULL: LKS__PICKLE_NONE */
const char *lks__pickle_kind_name(lks__pickle_kind kind);         /* "a dict" */
/* The value must have this kind. */
bool lks__pickle_bool(const lks__pickle_value *v);
int64_t lks__pickle_int(const lks__pickle_value *v);
double lks__pickle_float(const lks__pickle_value *v);
const char *lks__pickle_text(const lks__pickle_value *v,
                             size_t *bytes_p); /* also for bytes; no terminating 0 byte */
const lks__pickle_tensor *lks__pickle_tensor_of(const lks__pickle_value *v);
/* True if `v`, of any kind, is text equal to `text`. */
bool lks__pickle_is(const lks__pickle_value *v, const char *text);
/* Number of items of a tuple, list or dict; item i, and in a dict its key, in the file's order. */
size_t lks__pickle_count(const lks__pickle_value *v);
const lks__pickle_value *lks__pickle_item(const lks__pickle_value *v, size_t i);
const lks__pickle_value *lks__pickle_key(const lks__pickle_value *v, size_t i);
/* The value for a key, or NULL if `dict` is not a dict or lacks the key. */
const lks__pickle_value *lks__pickle_find(const lks__pickle_value *dict, const char *key);
const lks__pickle_value *lks__pickle_find_text(const lks__pickle_value *dict, const char *key,
                                               size_t bytes);
const lks__pickle_value *lks__pickle_find_int(const lks__pickle_value *dict, int64_t key);
