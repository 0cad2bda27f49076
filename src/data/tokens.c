#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/sys.h"

enum {
    ID_BYTES = 2,
    BLOCK_IDS = 1 << 16,
    DIGEST_PAGE = 4096,
    DIGEST_PAGES = 4096,
};

/* Up to this size a file is read whole at the start: a fraction of a second from the disk. */
static const uint64_t WHOLE_BYTES = UINT64_C(256) << 20;

struct lks__tokens {
    char *path;
    char name[256]; /* the path, escaped, for messages */
    int fd;
    uint32_t vocab_size;
    uint64_t bytes;
    uint64_t whole_digest; /* of a file that was checked whole */
};

static inline uint32_t id_at(const uint8_t *ids, size_t i)
{
    return (uint32_t)ids[2 * i] | (uint32_t)ids[2 * i + 1] << 8;
}

static lks_status beyond_vocabulary(const lks__tokens *t, uint64_t index, uint32_t id)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: token id %u at byte offset %llu is beyond the vocabulary of %u tokens "
                     "(ids 0 to %u); the file and its meta.json or --vocab_size don't belong "
                     "together",
                     t->name, id, (unsigned long long)(index * ID_BYTES), t->vocab_size,
                     t->vocab_size - 1);
}

static lks_status read_bytes(const lks__tokens *t, uint64_t offset, size_t bytes, void *out)
{
    if (lks__sys_read_at(t->fd, out, bytes, offset) == 0)
        return LKS_OK;
    if (errno != 0)
        return lks__sys_fail("cannot read", t->path);
    return lks__fail(LKS_ERR_IO,
                     "%s has shrunk while it was in use: it had %llu bytes when it was opened, and "
                     "now ends before offset %llu",
                     t->name, (unsigned long long)t->bytes, (unsigned long long)(offset + bytes));
}

/* Little-endian ids to int32. `in` may be the upper half of `out`: ids are taken in ascending
 * order, and id i is read before anything behind it is overwritten. */
static lks_status widen(const lks__tokens *t, uint64_t first, size_t n, const uint8_t *in,
                        int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t id = id_at(in, i);
        if (id >= t->vocab_size)
            return beyond_vocabulary(t, first + i, id);
        out[i] = (int32_t)id;
    }
    return LKS_OK;
}

/* The whole file once: every id, and the digest on the way. */
static lks_status check_whole(lks__tokens *t)
{
    lks_status st = LKS_OK;
    uint8_t *block = malloc(BLOCK_IDS * ID_BYTES);
    XXH3_state_t *hash = XXH3_createState();
    if (!block || !hash || XXH3_64bits_reset(hash) != XXH_OK)
        st = lks__fail(LKS_ERR_NOMEM, "no memory to check %s", t->name);
    uint64_t n = t->bytes / ID_BYTES;
    for (uint64_t first = 0; first < n && st == LKS_OK; first += BLOCK_IDS) {
        size_t count = n - first < BLOCK_IDS ? (size_t)(n - first) : BLOCK_IDS;
        st = read_bytes(t, first * ID_BYTES, count * ID_BYTES, block);
        for (size_t i = 0; i < count && st == LKS_OK; i++) {
            uint32_t id = id_at(block, i);
            if (id >= t->vocab_size)
                st = beyond_vocabulary(t, first + i, id);
        }
        if (st == LKS_OK)
            XXH3_64bits_update(hash, block, count * ID_BYTES);
    }
    if (st == LKS_OK)
        t->whole_digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(block);
    return st;
}

/* Size and pages spread evenly from the first byte to the last: enough to tell two data sets, or
 * two states of one, apart without reading a hundred gigabytes. */
static lks_status hash_pages(const lks__tokens *t, uint64_t *digest_p)
{
    uint8_t page[DIGEST_PAGE], size[8];
    XXH3_state_t *hash = XXH3_createState();
    if (!hash || XXH3_64bits_reset(hash) != XXH_OK)
        return lks__fail(LKS_ERR_NOMEM, "no memory to hash %s", t->name);
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)(t->bytes >> (8 * i));
    XXH3_64bits_update(hash, size, sizeof size);
    uint64_t stride = (t->bytes - DIGEST_PAGE) / (DIGEST_PAGES - 1);
    lks_status st = LKS_OK;
    for (uint64_t i = 0; i < DIGEST_PAGES && st == LKS_OK; i++) {
        uint64_t offset = i + 1 < DIGEST_PAGES ? i * stride : t->bytes - DIGEST_PAGE;
        st = read_bytes(t, offset, sizeof page, page);
        XXH3_64bits_update(hash, page, sizeof page);
    }
    if (st == LKS_OK)
        *digest_p = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return st;
}

lks_status lks__tokens_open(const char *path, uint32_t vocab_size, lks__tokens **tokens_p)
{
    lks_status st;
    struct stat info;
    lks__tokens *t = calloc(1, sizeof *t);
    if (!t)
        return lks__fail(LKS_ERR_NOMEM, "no memory to open a token file");
    t->fd = -1;
    t->vocab_size = vocab_size;
    lks__escape(t->name, sizeof t->name, path, strlen(path));
    t->path = strdup(path);
    if (!t->path) {
        st = lks__fail(LKS_ERR_NOMEM, "no memory to open %s", t->name);
        goto fail;
    }

    /* O_NONBLOCK: opening a pipe that nobody writes to must not wait. */
    t->fd = lks__sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (t->fd < 0) {
        st = errno == ENOENT
                 ? lks__fail(LKS_ERR_IO,
                             "there is no token file %s; make one with `lockstep prep char "
                             "--input=TEXT --out=DIR`",
                             t->name)
                 : lks__sys_fail("cannot open", path);
        goto fail;
    }
    if (fstat(t->fd, &info) < 0) {
        st = lks__sys_fail("cannot read", path);
        goto fail;
    }
    if (!S_ISREG(info.st_mode)) {
        st = lks__fail(LKS_ERR_IO, "%s is %s, where a file of uint16 token ids is expected",
                       t->name, S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
        goto fail;
    }
    t->bytes = (uint64_t)info.st_size;
    if (t->bytes == 0 || t->bytes % ID_BYTES != 0) {
        st = t->bytes == 0
                 ? lks__fail(LKS_ERR_FORMAT, "%s is empty: it holds no tokens", t->name)
                 : lks__fail(LKS_ERR_FORMAT,
                             "%s has %llu bytes, an odd number: uint16 token ids take two bytes "
                             "each, so the file is cut off or not a token file",
                             t->name, (unsigned long long)t->bytes);
        goto fail;
    }
    if (t->bytes <= WHOLE_BYTES && (st = check_whole(t)) != LKS_OK)
        goto fail;
    *tokens_p = t;
    return LKS_OK;
fail:
    lks__tokens_close(t);
    return st;
}

void lks__tokens_close(lks__tokens *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        lks__sys_close(t->fd);
    free(t->path);
    free(t);
}

uint64_t lks__tokens_count(const lks__tokens *t)
{
    return t->bytes / ID_BYTES;
}

const char *lks__tokens_path(const lks__tokens *t)
{
    return t->path;
}

lks_status lks__tokens_digest(const lks__tokens *t, uint64_t *digest_p)
{
    if (t->bytes > WHOLE_BYTES)
        return hash_pages(t, digest_p);
    *digest_p = t->whole_digest;
    return LKS_OK;
}

lks_status lks__tokens_read(const lks__tokens *t, uint64_t first, size_t n, int32_t *out)
{
    uint64_t count = lks__tokens_count(t);
    if (first > count || n > count - first)
        return lks__fail(LKS_ERR_ARG, "%s: tokens %llu to %llu asked for, but it has %llu", t->name,
                         (unsigned long long)first, (unsigned long long)(first + n),
                         (unsigned long long)count);
    /* Into the upper half of the output, then widened in place: no buffer, one system call. */
    uint8_t *raw = (uint8_t *)out + n * (sizeof *out - ID_BYTES);
    LKS__TRY(read_bytes(t, first * ID_BYTES, n * ID_BYTES, raw));
    return widen(t, first, n, raw, out);
}
