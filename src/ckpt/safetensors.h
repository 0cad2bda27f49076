/* ckpt/safetensors.h - the safetensors container: 8 bytes header length, a JSON header, raw bytes.
 * Source: the format's README (huggingface/safetensors). Data only: nothing in it is ever run. */
#ifndef LKS_CKPT_SAFETENSORS_H
#define LKS_CKPT_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { LKS__ST_MAX_DIMS = 4 };

typedef struct lks__st_tensor {
    const char *name;
    const char *dtype; /* "F32", "F16", "BF16", "I64", "U32", "U16", "I8", "U8" */
    int n_dims;
    uint64_t shape[LKS__ST_MAX_DIMS];
    const void *data; /* little-endian, contiguous */
    uint64_t bytes;
} lks__st_tensor;

/* Write to `path` (must not exist; not renamed: the caller's folder is temporary), fsync'd.
 * `metadata`: strings for __metadata__ (borrowed; may be NULL). Keys of the header are sorted, data
 * in the order given. To each tensor's name metadata adds "xxh3:NAME" -> 16 hex digits over its
 * bytes, so that a reader can verify. */
lks_status lks__st_write(const char *path, const lks__st_tensor *tensors, size_t n,
                         const json_t *metadata);

typedef struct lks__st_file lks__st_file; /* opaque; close with lks__st_close() */

/* Read the header and check all of it before anything is allocated from its numbers: header
 * <= 100 MB and within the file, known dtypes, shapes whose product is the range's length, ranges
 * contiguous from 0 to the file's end, no name twice. ERR_IO, ERR_FORMAT name file and reason. */
lks_status lks__st_open(const char *path, lks__st_file **file_p);
void lks__st_close(lks__st_file *file); /* NULL is fine */
size_t lks__st_count(const lks__st_file *file);
const lks__st_tensor *lks__st_get(const lks__st_file *file, size_t i); /* data == NULL: not loaded */
const lks__st_tensor *lks__st_find(const lks__st_file *file, const char *name); /* or NULL */
const char *lks__st_metadata(const lks__st_file *file, const char *key);        /* or NULL */
/* Read one tensor's bytes into out[tensor->bytes]. Where the metadata has its hash, it is checked:
 * ERR_FORMAT names file and tensor. */
lks_status lks__st_read(lks__st_file *file, const lks__st_tensor *tensor, void *out);

#endif
