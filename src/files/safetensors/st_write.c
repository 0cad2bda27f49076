#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/number/checked.h"
#include "base/number/units.h"
#include "base/system/sys.h"
#include "files/safetensors/dtype.h"
#include "files/safetensors/safetensors.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are written as they lie in memory");

/* A reader that maps the file gets tensors aligned for any vector load. */
enum { DATA_ALIGN = 64 };

static lks_status bad_tensor(const lks__st_tensor *t, const char *path, const char *why)
{
    return lks__fail(LKS_ERR_ARG, "tensor \"%s\" cannot be written to %s: %s",
                     lks__shown(t->name, 200), lks__shown(path, 512), why);
}

/* Add the header's entry of one tensor, with its data at [begin, begin + bytes), and its hash to
 * `meta` (NULL: no hashes, and the data may be absent). */
static lks_status add_tensor(json_t *header, json_t *meta, const char *path,
                             const lks__st_tensor *t, uint64_t begin)
{
    const lks__st_dtype *dtype = lks__st_dtype_find(t->dtype);
    uint64_t bytes = dtype ? dtype->bytes : 0;
    if (!dtype)
        return bad_tensor(t, path, "its dtype is unknown");
    if (t->n_dims < 0 || t->n_dims > LKS__ST_MAX_DIMS)
        return bad_tensor(t, path, "it has too many dimensions");
    for (int d = 0; d < t->n_dims; d++)
        if (t->shape[d] > INT64_MAX || !lks__mul(bytes, t->shape[d], &bytes))
            return bad_tensor(t, path, "its shape is too large");
    if (bytes != t->bytes || (meta && bytes > 0 && !t->data))
        return bad_tensor(t, path, "its shape and its bytes differ");
    if (strcmp(t->name, LKS__ST_METADATA) == 0)
        return bad_tensor(t, path, "that name is reserved by the format");
    if (json_object_get(header, t->name))
        return bad_tensor(t, path, "the name occurs twice");

    json_t *shape = json_array();
    for (int d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape,
                              "data_offsets", (json_int_t)begin, (json_int_t)(begin + bytes));
    if (!entry || json_array_size(shape) != (size_t)t->n_dims) {
        json_decref(entry);
        return lks__no_memory("for the header of a safetensors file");
    }
    if (json_object_set_new(header, t->name, entry) < 0)
        return bad_tensor(t, path, "the name is not UTF-8");
    if (!meta)
        return LKS_OK;

    size_t key_bytes = sizeof LKS__ST_HASH_KEY + strlen(t->name);
    char *key = malloc(key_bytes);
    LKS__MEMORY(key, "for the header of a safetensors file");
    snprintf(key, key_bytes, "%s%s", LKS__ST_HASH_KEY, t->name);
    const char *hash = lks__hex(XXH3_64bits(t->data, t->bytes));
    int rc = json_object_set_new(meta, key, json_string(hash));
    free(key);
    return rc < 0 ? lks__no_memory("for the header of a safetensors file") : LKS_OK;
}

static lks_status fill_header(json_t *header, const char *path, const lks__st_tensor *tensors,
                              size_t n, const json_t *metadata, bool hashes)
{
    const char *key;
    json_t *value, *meta = json_object();
    uint64_t begin = 0, end;
    if (json_object_set_new(header, LKS__ST_METADATA, meta) < 0)
        return lks__no_memory("for the header of a safetensors file");
    /* Older Jansson versions' macro wants a non-const object, but only reads it. */
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return lks__fail(LKS_ERR_ARG, "safetensors metadata are strings, and \"%s\" is not",
                             key);
        if (json_object_set(meta, key, value) < 0)
            return lks__no_memory("for the header of a safetensors file");
    }
    for (size_t i = 0; i < n; i++, begin = end) {
        LKS__TRY(add_tensor(header, hashes ? meta : NULL, path, &tensors[i], begin));
        if (!lks__add(begin, tensors[i].bytes, &end) || end > INT64_MAX)
            return bad_tensor(&tensors[i], path, "the file would be too large");
    }
    return LKS_OK;
}

/* Length, header and padding spaces: one block of a multiple of DATA_ALIGN bytes. */
static lks_status header_block(const json_t *header, char **block_p, size_t *bytes_p)
{
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS;
    size_t text = json_dumpb(header, NULL, 0, flags);
    size_t bytes = lks__round_up(8 + text, DATA_ALIGN);
    char *block = text ? malloc(bytes) : NULL;
    LKS__MEMORY(block, "for the header of a safetensors file");
    if (bytes - 8 > LKS__ST_MAX_HEADER) {
        free(block);
        return lks__fail(LKS_ERR_ARG,
                         "a safetensors header of %zu bytes is over the format's limit", bytes - 8);
    }
    uint64_t length = bytes - 8;
    memcpy(block, &length, 8);
    memset(block + 8, ' ', bytes - 8);
    if (json_dumpb(header, block + 8, text, flags) != text) {
        free(block);
        return lks__no_memory("for the header of a safetensors file");
    }
    *block_p = block;
    *bytes_p = bytes;
    return LKS_OK;
}

lks_status lks__st_head(const char *name, const lks__st_tensor *tensors, size_t n,
                        const json_t *metadata, bool hashes, char **block_p, size_t *bytes_p)
{
    json_t *header = json_object();
    lks_status st = fill_header(header, name, tensors, n, metadata, hashes);
    LKS__THEN(st, header_block(header, block_p, bytes_p));
    json_decref(header);
    return st;
}

/* Sync after this many bytes. Otherwise the sync at the end of a large file could be one call of
 * several minutes, without a heartbeat. */
enum { SYNC_BYTES = 64 << 20 };

static bool write_data(int fd, const char *data, uint64_t bytes, uint64_t *unsynced)
{
    for (uint64_t at = 0; at < bytes;) {
        uint64_t room = SYNC_BYTES - *unsynced, n = bytes - at < room ? bytes - at : room;
        if (lks__sys_write_all(fd, data + at, n) != 0)
            return false;
        at += n;
        *unsynced += n;
        if (*unsynced == SYNC_BYTES) {
            if (lks__sys_fsync(fd) != 0)
                return false;
            *unsynced = 0;
        }
    }
    return true;
}

lks_status lks__st_write(const char *path, const lks__st_tensor *tensors, size_t n,
                         const json_t *metadata)
{
    char *block = NULL;
    size_t block_bytes = 0;
    lks_status st = LKS_OK;
    LKS__TRY(lks__st_head(path, tensors, n, metadata, true, &block, &block_bytes));

    int fd = lks__sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (fd < 0) {
        free(block);
        return lks__sys_fail("cannot create", path);
    }
    uint64_t unsynced = 0;
    bool ok = lks__sys_write_all(fd, block, block_bytes) == 0;
    for (size_t i = 0; ok && i < n; i++)
        ok = write_data(fd, tensors[i].data, tensors[i].bytes, &unsynced);
    ok = ok && lks__sys_fsync(fd) == 0;
    if (!ok)
        st = lks__sys_fail("cannot write", path);
    if (lks__sys_close(fd) < 0 && ok) /* a network file system may report a full disk only here */
        st = lks__sys_fail("cannot write", path);
    if (st != LKS_OK)
        lks__sys_unlink(path);
    free(block);
    return st;
}
