/* Hash pieces with XXH3, with its state on the stack. */
#define XXH_STATIC_LINKING_ONLY

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/checked.h"
#include "base/number/units.h"
#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "files/safetensors/dtype.h"
#include "files/safetensors/safetensors.h"

enum { PIECE = 1 << 20 };

#define DATA_ELSEWHERE UINT64_MAX

typedef struct entry {
    lks__st_tensor tensor; /* first: callers have its address */
    uint64_t begin, end;   /* offsets relative to the file's data_start */
} entry;

struct lks__st_file {
    int fd;
    char *path;
    char shown[512]; /* the path, safe to print */
    uint64_t data_start;
    uint64_t header_hash;
    json_t *header; /* owns the names and the metadata; a tensor's value is its index below */
    entry *entries; /* in data order */
    size_t n;
};

static lks_status bad(const lks__st_file *file, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound safetensors file: %s", file->shown, what);
}

static lks_status bad_entry(const lks__st_file *file, const char *name, const char *what)
{
    return lks__fail(LKS_ERR_FORMAT, "%s is not a sound safetensors file: tensor \"%s\" %s",
                     file->shown, lks__shown(name, 200), what);
}

/* Read a non-negative JSON integer. Booleans, reals and strings are refused. */
static bool natural(const json_t *value, uint64_t *n_p)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *n_p = (uint64_t)json_integer_value(value);
    return true;
}

static lks_status parse_entry(const lks__st_file *file, const char *name, const json_t *value,
                              entry *e)
{
    const json_t *dtype_name = json_object_get(value, "dtype");
    const json_t *shape = json_object_get(value, "shape");
    const json_t *range = json_object_get(value, "data_offsets");
    if (json_object_size(value) != 3 || !json_is_string(dtype_name) || !json_is_array(shape) ||
        !json_is_array(range))
        return bad_entry(file, name, "does not consist of dtype, shape and data_offsets");

    const lks__st_dtype *dtype = lks__st_dtype_find(json_string_value(dtype_name));
    if (!dtype)
        return bad_entry(file, name, "has an unknown dtype");
    if (json_array_size(shape) > LKS__ST_MAX_DIMS)
        return bad_entry(file, name, "has too many dimensions");
    uint64_t bytes = dtype->bytes;
    e->tensor.n_dims = (int)json_array_size(shape);
    for (int d = 0; d < e->tensor.n_dims; d++) {
        uint64_t *extent = &e->tensor.shape[d];
        if (!natural(json_array_get(shape, (size_t)d), extent))
            return bad_entry(file, name, "has an extent that is not a whole number");
        if (!lks__mul(bytes, *extent, &bytes))
            return bad_entry(file, name, "has a shape whose size overflows");
    }
    if (json_array_size(range) != 2 || !natural(json_array_get(range, 0), &e->begin) ||
        !natural(json_array_get(range, 1), &e->end) || e->begin > e->end)
        return bad_entry(file, name, "has data_offsets that are not a range");
    if (e->end - e->begin != bytes)
        return bad_entry(file, name, "has a range that does not fit its shape");
    e->tensor.name = name;
    e->tensor.dtype = dtype->name;
    e->tensor.bytes = bytes;
    return LKS_OK;
}

/* Order by position. Empty tensors at the same position are ordered by name, because the format
 * defines no order. */
static int by_place(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

/* For a header only, data_bytes is DATA_ELSEWHERE. */
static lks_status parse_header(lks__st_file *file, uint64_t data_bytes)
{
    const char *key;
    json_t *value;
    json_t *meta = json_object_get(file->header, LKS__ST_METADATA);
    if (meta && !json_is_object(meta))
        return bad(file, "__metadata__ is not an object");
    json_object_foreach(meta, key, value)
    {
        if (!json_is_string(value))
            return bad(file, "__metadata__ contains something other than strings");
    }

    size_t n = json_object_size(file->header) - (meta ? 1 : 0);
    file->entries = calloc(n ? n : 1, sizeof *file->entries);
    LKS__MEMORY(file->entries, "for the %zu tensors of %s", n, file->shown);
    json_object_foreach(file->header, key, value)
    {
        if (value != meta) {
            LKS__TRY(parse_entry(file, key, value, &file->entries[file->n]));
            file->n++;
        }
    }

    /* Each byte belongs to one tensor: no hidden data between or after them. */
    qsort(file->entries, n, sizeof *file->entries, by_place);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &file->entries[i];
        if (e->begin != at)
            return bad_entry(file, e->tensor.name,
                             e->begin < at ? "overlaps another tensor" : "has a gap before it");
        at = e->end;
        if (at > data_bytes)
            return bad_entry(file, e->tensor.name,
                             "reaches beyond the end of the file, which is truncated");
    }
    if (at != data_bytes && data_bytes != DATA_ELSEWHERE)
        return bad(file, "bytes follow its last tensor");
    for (size_t i = 0; i < n; i++)
        if (json_object_iter_set_new(file->header,
                                     json_object_key_to_iter(file->entries[i].tensor.name),
                                     json_integer((json_int_t)i)) < 0)
            return lks__no_memory("for the %zu tensors of %s", n, file->shown);
    return LKS_OK;
}

static lks_status read_failed(const lks__st_file *file)
{
    if (errno == 0)
        return lks__fail(LKS_ERR_FORMAT, "%s is truncated: it ended while it was read",
                         file->shown);
    return lks__sys_fail("cannot read", file->path);
}

static lks_status parse_text(lks__st_file *file, const char *text, size_t bytes,
                             uint64_t data_bytes)
{
    json_error_t error;
    if (bytes < 2 || text[0] != '{')
        return bad(file, "its header does not start with '{'");
    file->header = lks__json_load(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!file->header) {
        char what[JSON_ERROR_TEXT_LENGTH * 4 + 64];
        const char *why = lks__shown(error.text, JSON_ERROR_TEXT_LENGTH * 4);
        snprintf(what, sizeof what, "its header at byte %d: %s", error.position, why);
        return lks__json_no_memory(&error) ? lks__no_memory("for the header of %s", file->shown)
                                           : bad(file, what);
    }
    return parse_header(file, data_bytes);
}

/* Read the header into block[8 + length], and parse it. */
static lks_status read_block(lks__st_file *file, char *block, uint64_t length, uint64_t file_bytes,
                             const char *expected)
{
    if (lks__sys_read_at(file->fd, block, 8 + length, 0) < 0)
        return read_failed(file);
    /* Bytes 0..7 were read again: the file may have been replaced meanwhile. */
    if (memcmp(block, &length, 8) != 0)
        return bad(file, "it changed while it was read");
    file->header_hash = XXH3_64bits(block, 8 + length);
    if (expected && strcmp(lks__hex(file->header_hash), expected) != 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is altered or damaged: its header has changed since it was written",
                         file->shown);
    file->data_start = 8 + length;
    return parse_text(file, block + 8, length, file_bytes - file->data_start);
}

/* Read the header of at most `most` bytes. expected: its hash in 16 hex digits, or NULL if not
 * known. The hash is compared before the header is parsed, so that a foreign header costs no more
 * than its own bytes. */
static lks_status read_header(lks__st_file *file, uint64_t most, const char *expected)
{
    uint64_t length, file_bytes;
    LKS__TRY(lks__sys_file_bytes(file->fd, file->path, &file_bytes));
    if (file_bytes < 8)
        return bad(file, "it is truncated within its first 8 bytes");
    if (lks__sys_read_at(file->fd, &length, sizeof length, 0) < 0)
        return read_failed(file);
    if (length > most)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s is not a sound safetensors file: its header of %llu bytes is over the "
                         "limit of %llu",
                         file->shown, (unsigned long long)length, (unsigned long long)most);
    if (length > file_bytes - 8)
        return bad(file, "its header reaches beyond the end of the file, which is truncated");

    char *block = malloc(8 + length);
    LKS__MEMORY(block, "for the header of %s", file->shown);
    const lks_status st = read_block(file, block, length, file_bytes, expected);
    free(block);
    return st;
}

static lks_status new_file(const char *path, lks__st_file **file_p)
{
    lks__st_file *file = calloc(1, sizeof *file);
    char *copy = strdup(path);
    if (!file || !copy) {
        free(file);
        free(copy);
        return lks__no_memory("to open a safetensors file");
    }
    file->fd = -1;
    file->path = copy;
    lks__escape(file->shown, sizeof file->shown, path, strlen(path));
    *file_p = file;
    return LKS_OK;
}

lks_status lks__st_open(const char *path, lks__st_file **file_p)
{
    return lks__st_open_known(path, LKS__ST_MAX_HEADER, NULL, file_p);
}

lks_status lks__st_open_known(const char *path, uint64_t most, const char *header_hash,
                              lks__st_file **file_p)
{
    lks_status st;
    lks__st_file *file = NULL;
    LKS__TRY(new_file(path, &file));
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    file->fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    st = file->fd < 0 ? lks__sys_fail("cannot open", path) : read_header(file, most, header_hash);
    if (st != LKS_OK) {
        lks__st_close(file);
        return st;
    }
    *file_p = file;
    return LKS_OK;
}

lks_status lks__st_parse(const char *name, const char *header, size_t bytes, lks__st_file **file_p)
{
    lks__st_file *file = NULL;
    LKS__TRY(new_file(name, &file));
    lks_status st = parse_text(file, header, bytes, DATA_ELSEWHERE);
    if (st != LKS_OK) {
        lks__st_close(file);
        return st;
    }
    *file_p = file;
    return LKS_OK;
}

void lks__st_close(lks__st_file *file)
{
    if (!file)
        return;
    lks__sys_close(file->fd);
    json_decref(file->header);
    free(file->entries);
    free(file->path);
    free(file);
}

size_t lks__st_count(const lks__st_file *file)
{
    return file->n;
}

const lks__st_tensor *lks__st_get(const lks__st_file *file, size_t i)
{
    return i < file->n ? &file->entries[i].tensor : NULL;
}

const lks__st_tensor *lks__st_find(const lks__st_file *file, const char *name)
{
    const json_t *index = json_object_get(file->header, name);
    return json_is_integer(index) ? lks__st_get(file, (size_t)json_integer_value(index)) : NULL;
}

const char *lks__st_metadata(const lks__st_file *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, LKS__ST_METADATA), key));
}

uint64_t lks__st_header_hash(const lks__st_file *file)
{
    return file->header_hash;
}

/* A tensor's hash from the metadata, or NULL. */
static lks_status stored_hash(const lks__st_file *file, const char *name, const char **hash_p)
{
    size_t key_bytes = sizeof LKS__ST_HASH_KEY + strlen(name);
    char *key = malloc(key_bytes);
    LKS__MEMORY(key, "to read %s", file->shown);
    snprintf(key, key_bytes, "%s%s", LKS__ST_HASH_KEY, name);
    *hash_p = lks__st_metadata(file, key);
    free(key);
    return LKS_OK;
}

static lks_status check_hash(const lks__st_file *file, const char *name, uint64_t hash,
                             const char *stored)
{
    if (strcmp(lks__hex(hash), stored) == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT,
                     "%s is altered or damaged: the bytes of tensor \"%s\" do not match their hash",
                     file->shown, lks__shown(name, 200));
}

lks_status lks__st_read(lks__st_file *file, const lks__st_tensor *tensor, void *out)
{
    const char *stored = NULL;
    const entry *e = (const entry *)tensor;
    LKS__TRY(stored_hash(file, tensor->name, &stored));
    if (lks__sys_read_at(file->fd, out, tensor->bytes, file->data_start + e->begin) < 0)
        return read_failed(file);
    return stored ? check_hash(file, tensor->name, XXH3_64bits(out, tensor->bytes), stored)
                  : LKS_OK;
}

lks_status lks__st_read_part(lks__st_file *file, const lks__st_tensor *tensor, uint64_t at,
                             void *out, size_t bytes)
{
    const entry *e = (const entry *)tensor;
    if (at > tensor->bytes || bytes > tensor->bytes - at)
        return lks__fail(LKS_ERR_ARG, "the part to read is not one of a tensor of %s", file->shown);
    if (lks__sys_read_at(file->fd, out, bytes, file->data_start + e->begin + at) < 0)
        return read_failed(file);
    return LKS_OK;
}

static lks_status hash_entry(lks__st_file *file, const entry *e, void *piece, uint64_t *hash_p)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint64_t at = e->begin; at < e->end;) {
        size_t bytes = e->end - at < PIECE ? (size_t)(e->end - at) : PIECE;
        if (lks__sys_read_at(file->fd, piece, bytes, file->data_start + at) < 0)
            return read_failed(file);
        XXH3_64bits_update(&state, piece, bytes);
        at += bytes;
    }
    *hash_p = XXH3_64bits_digest(&state);
    return LKS_OK;
}

lks_status lks__st_verify(lks__st_file *file, uint64_t *hashes)
{
    lks_status st = LKS_OK;
    void *piece = malloc(PIECE);
    LKS__MEMORY(piece, "to verify %s", file->shown);
    for (size_t i = 0; i < file->n && st == LKS_OK; i++) {
        const char *name = file->entries[i].tensor.name, *stored = NULL;
        uint64_t hash;
        st = stored_hash(file, name, &stored);
        if (st == LKS_OK && !stored)
            st = bad_entry(file, name, "has no hash");
        LKS__THEN(st, hash_entry(file, &file->entries[i], piece, &hash));
        LKS__THEN(st, check_hash(file, name, hash, stored));
        if (st == LKS_OK && hashes)
            hashes[i] = hash;
    }
    free(piece);
    return st;
}
