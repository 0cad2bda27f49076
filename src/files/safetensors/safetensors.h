/* files/safetensors/safetensors.h - the safetensors container: 8 bytes header length, a JSON
 * header, raw bytes. Source: the format's README (huggingface/safetensors). It contains only data,
 * never code. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

enum { LKS__ST_MAX_DIMS = 64 };

typedef struct lks__st_tensor {
    const char *name;
    const char *dtype; /* "F64" "F32" "F16" "BF16" "I64" "I32" "I16" "I8" "U64" … "U8" "BOOL" */
    int n_dims;        /* 0: a scalar */
    uint64_t shape[LKS__ST_MAX_DIMS];
    const void *data; /* little-endian, contiguous; may be NULL for 0 bytes */
    uint64_t bytes;   /* product of the shape (1 for a scalar) times the dtype's size */
} lks__st_tensor;

/* True if the tensor has this dtype and this shape. */
static inline bool lks__st_has_form(const lks__st_tensor *t, const char *dtype, int n_dims,
                                    const uint64_t *shape)
{
    return strcmp(t->dtype, dtype) == 0 && t->n_dims == n_dims &&
           memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape) == 0;
}

/* Write to `path` and fsync; on failure no file is left. The file must not exist, and is not
 * renamed: the caller's folder is temporary. `metadata`: an object of strings for __metadata__
 * (borrowed; may be NULL). Keys of the header are sorted. Data follow in the given order, directly
 * from the caller's memory, starting at a multiple of 64 bytes. For each tensor the metadata get
 * "xxh3:NAME" -> 16 hex digits, the hash of its bytes, so that a reader can verify it. Equal
 * arguments give equal files. Errors: ERR_ARG (inconsistent tensor, duplicate name), ERR_IO,
 * ERR_NOMEM. */
lks_status lks__st_write(const char *path, const lks__st_tensor *tensors, size_t n,
                         const json_t *metadata);

/* The bytes that lks__st_write() writes before the data, for a container that is written elsewhere:
 * length, header and spaces up to a multiple of 64 bytes. Without `hashes` the data aren't read
 * (they may be NULL), and metadata are unchanged. `name` is for messages. The caller frees the
 * block. */
lks_status lks__st_head(const char *name, const lks__st_tensor *tensors, size_t n,
                        const json_t *metadata, bool hashes, char **block_p, size_t *bytes_p);

typedef struct lks__st_file lks__st_file; /* opaque; close with lks__st_close() */

/* Read the header and check all of it before anything is allocated from its numbers: at most 100 MB
 * and inside the file, known dtypes, shapes that fit their ranges, ranges contiguous from 0 to the
 * end of the file, no duplicate names. ERR_IO and ERR_FORMAT name file and reason. */
lks_status lks__st_open(const char *path, lks__st_file **file_p);
/* Open a file whose header has at most `most` bytes, and whose lks__st_header_hash() is known, as
 * 16 hex digits (NULL: not known): another header is ERR_FORMAT before any of it is parsed. */
lks_status lks__st_open_known(const char *path, uint64_t most, const char *header_hash,
                              lks__st_file **file_p);
/* Check a header only: header[bytes] follows the length, and the caller has the data. This file
 * can't be used for reading. ERR_FORMAT includes `name`. */
lks_status lks__st_parse(const char *name, const char *header, size_t bytes, lks__st_file **file_p);
void lks__st_close(lks__st_file *file); /* NULL does nothing */
size_t lks__st_count(const lks__st_file *file);
const lks__st_tensor *lks__st_get(const lks__st_file *file,
                                  size_t i); /* in data order; data == NULL: not loaded */
const lks__st_tensor *lks__st_find(const lks__st_file *file, const char *name); /* or NULL */
const char *lks__st_metadata(const lks__st_file *file, const char *key);        /* or NULL */
/* Read one tensor's bytes into out[tensor->bytes]; `tensor` is the file's. If the metadata contain
 * its hash, the bytes are checked: ERR_FORMAT names file and tensor. */
lks_status lks__st_read(lks__st_file *file, const lks__st_tensor *tensor, void *out);

/* Read `bytes` of a tensor, starting at its byte `at`, without checking the hash. */
lks_status lks__st_read_part(lks__st_file *file, const lks__st_tensor *tensor, uint64_t at,
                             void *out, size_t bytes);

/* XXH3-64 over the 8 bytes of length and the header. The header contains the hash of every tensor,
 * and its ranges cover all data, so this one number identifies the whole file. */
uint64_t lks__st_header_hash(const lks__st_file *file);

/* Read all bytes (in pieces) and check the hash of every tensor; a tensor without a hash is
 * ERR_FORMAT here. hashes: NULL, or out [lks__st_count]. */
lks_status lks__st_verify(lks__st_file *file, uint64_t *hashes);
