/* ckpt/safetensors.h - the safetensors container: 8 bytes header length, a JSON header, raw bytes.
 * Source: the format's README (huggingface/safetensors). Data only: nothing in it is ever run. */
#ifndef LKS_CKPT_SAFETENSORS_H
#define LKS_CKPT_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { LKS__ST_MAX_DIMS = 4 };

typedef struct lks__st_tensor {
    const char *name;
    const char *dtype; /* "F64" "F32" "F16" "BF16" "I64" "I32" "I16" "I8" "U64" … "U8" "BOOL" */
    int n_dims;        /* 0: a scalar */
    uint64_t shape[LKS__ST_MAX_DIMS];
    const void *data; /* little-endian, contiguous; may be NULL for 0 bytes */
    uint64_t bytes;   /* product of the shape (1 for a scalar) times the dtype's size */
} lks__st_tensor;

/* Write to `path` (must not exist; not renamed: the caller's folder is temporary), fsync'd; on
 * failure nothing is left there. `metadata`: an object of strings for __metadata__ (borrowed; may
 * be NULL). Keys of the header are sorted, data in the order given, straight from the caller's
 * memory, from a multiple of 64 bytes on. To each tensor's name metadata adds "xxh3:NAME" -> 16 hex
 * digits over its bytes, so that a reader can verify. Equal arguments give equal files.
 * Errors: ERR_ARG (a tensor that contradicts itself, a name twice), ERR_IO, ERR_NOMEM. */
lks_status lks__st_write(const char *path, const lks__st_tensor *tensors, size_t n,
                         const json_t *metadata);

/* What lks__st_write() writes before the data, for a container that goes elsewhere: length, header
 * and spaces up to a multiple of 64 bytes. Without `hashes` the tensors' data aren't looked at (may
 * be NULL), and metadata is as given. `name` is for messages. The caller frees the block. */
lks_status lks__st_head(const char *name, const lks__st_tensor *tensors, size_t n,
                        const json_t *metadata, bool hashes, char **block_p, size_t *bytes_p);

typedef struct lks__st_file lks__st_file; /* opaque; close with lks__st_close() */

/* Read the header and check all of it before anything is allocated from its numbers: header
 * <= 100 MB and within the file, known dtypes, shapes whose product is the range's length, ranges
 * contiguous from 0 to the file's end, no name twice. ERR_IO, ERR_FORMAT name file and reason. */
lks_status lks__st_open(const char *path, lks__st_file **file_p);
/* The same of a file whose lks__st_header_hash() is known, as 16 hex digits: a header with another
 * hash is ERR_FORMAT before any of it is parsed. NULL: not known. */
lks_status lks__st_open_known(const char *path, const char *header_hash, lks__st_file **file_p);
/* The same checks of a header alone, header[bytes] behind the length, of a container whose data the
 * caller has: nothing can be read through this file. ERR_FORMAT names `name`. */
lks_status lks__st_parse(const char *name, const char *header, size_t bytes, lks__st_file **file_p);
void lks__st_close(lks__st_file *file); /* NULL is fine */
size_t lks__st_count(const lks__st_file *file);
const lks__st_tensor *lks__st_get(const lks__st_file *file,
                                  size_t i); /* in the data's order;
                                              * data == NULL: not loaded */
const lks__st_tensor *lks__st_find(const lks__st_file *file, const char *name); /* or NULL */
const char *lks__st_metadata(const lks__st_file *file, const char *key);        /* or NULL */
/* Read one tensor's bytes into out[tensor->bytes]; `tensor` is one of lks__st_get()'s. Where the
 * metadata has its hash, it is checked: ERR_FORMAT names file and tensor. */
lks_status lks__st_read(lks__st_file *file, const lks__st_tensor *tensor, void *out);

/* XXH3-64 over the 8 bytes of length and the header. As the header holds the hash of every tensor
 * and its ranges cover all data, this one number stands for the whole file. */
uint64_t lks__st_header_hash(const lks__st_file *file);

/* Read all bytes (in pieces) and check the hash of every tensor; one without is ERR_FORMAT here.
 * hashes: NULL, or out [lks__st_count]. */
lks_status lks__st_verify(lks__st_file *file, uint64_t *hashes);

#endif
