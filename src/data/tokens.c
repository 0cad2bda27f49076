#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/number/checked.h"
#include "base/system/sys.h"
#include "base/text/utf8.h"

enum {
    BLOCK_BYTES = 1 << 17, /* a multiple of all ids and of a header */
    DIGEST_PAGE = 4096,
    DIGEST_PAGES = 4096,
    TEXT_BYTES = 4096,
    TEXT_LEAST = 8,                   /* fewer bytes of tokens may be text by chance */
    HEADER_BYTES = LKS__SHARD_HEADER, /* 32 bits each: magic, version, number of tokens, unused */
};

static const struct format {
    uint32_t magic, version;
    int id_bytes;
} formats[] = {
    {20240520, 1, 2}, /* GPT-2 shards of llm.c and parameter-golf */
    {20240801, 7, 4}, /* Llama 3 shards of llm.c */
};

struct lks__tokens {
    char *path;
    char name[256]; /* the path, escaped, for messages */
    int fd;
    uint32_t vocab_size;
    uint64_t bytes;        /* size of the file */
    uint64_t start;        /* bytes before the ids */
    uint64_t id_bytes;     /* 2 or 4 */
    bool is_whole;         /* all ids were checked at opening */
    uint64_t whole_digest; /* if is_whole */
};

static inline uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void lks__shard_header(int id_bytes, uint32_t n_tokens, uint8_t header[LKS__SHARD_HEADER])
{
    const struct format *f = &formats[id_bytes == 4];
    const uint32_t head[] = {f->magic, f->version, n_tokens};
    memset(header, 0, LKS__SHARD_HEADER);
    memcpy(header, head, sizeof head);
}

static inline uint32_t id_at(const lks__tokens *t, const uint8_t *ids, size_t i)
{
    return t->id_bytes == 2 ? (uint32_t)ids[2 * i] | (uint32_t)ids[2 * i + 1] << 8
                            : u32_at(ids + 4 * i);
}

static lks_status beyond_vocabulary(const lks__tokens *t, uint64_t index, uint32_t id)
{
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: token id %u at byte offset %llu is beyond the vocabulary of %u tokens "
                     "(ids 0 to %u); the file and its meta.json, meta.pkl or --vocab_size "
                     "don't belong together",
                     t->name, id, (unsigned long long)lks__tokens_offset(t, index), t->vocab_size,
                     t->vocab_size - 1);
}

static lks_status read_bytes(const lks__tokens *t, uint64_t offset, size_t bytes, void *out)
{
    if (lks__sys_read_at(t->fd, out, bytes, offset) == 0)
        return LKS_OK;
    if (errno != 0)
        return lks__sys_fail("cannot read", t->path);
    lks_status st = lks__fail(
        LKS_ERR_IO,
        "%s became shorter while it was in use: it had %llu bytes when it was opened, and "
        "now ends before offset %llu",
        t->name, (unsigned long long)t->bytes, (unsigned long long)(offset + bytes));
    lks__sys_set_lasting(lks_last_error()); /* a restart might begin again on other data */
    return st;
}

/* Convert little-endian ids to int32. `in` may be the upper end of `out`: ids are converted in
 * ascending order, and id i is read before bytes after it are overwritten. */
static lks_status widen(const lks__tokens *t, uint64_t first, size_t n, const uint8_t *in,
                        int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t id = id_at(t, in, i);
        if (id >= t->vocab_size)
            return beyond_vocabulary(t, first + i, id);
        out[i] = (int32_t)id;
    }
    return LKS_OK;
}

/* Check the ids in `n` bytes of the file from offset `at` on. Bytes before t->start are no ids. */
static lks_status check_ids(const lks__tokens *t, uint64_t at, size_t n, const uint8_t *block)
{
    for (size_t i = at < t->start ? (size_t)(t->start - at) : 0; i < n; i += t->id_bytes) {
        const uint32_t id = id_at(t, block + i, 0);
        if (id >= t->vocab_size)
            return beyond_vocabulary(t, (at + i - t->start) / t->id_bytes, id);
    }
    return LKS_OK;
}

/* Hash the file from offset `at` on, and, with `checks`, check every id. */
static lks_status hash_from(const lks__tokens *t, uint64_t at, bool checks, uint64_t *hash_p)
{
    lks_status st = LKS_OK;
    uint8_t *block = malloc(BLOCK_BYTES);
    XXH3_state_t *hash = XXH3_createState();
    if (!block || !hash || XXH3_64bits_reset(hash) != XXH_OK)
        st = lks__no_memory("to read %s", t->name);
    for (; at < t->bytes && st == LKS_OK; at += BLOCK_BYTES) {
        const size_t n = lks__min(t->bytes - at, BLOCK_BYTES);
        st = read_bytes(t, at, n, block);
        if (checks)
            LKS__THEN(st, check_ids(t, at, n, block));
        if (st == LKS_OK)
            XXH3_64bits_update(hash, block, n);
    }
    if (st == LKS_OK)
        *hash_p = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(block);
    return st;
}

/* Read the whole file once: check every id and compute the digest, which includes a header. */
static lks_status check_whole(lks__tokens *t)
{
    LKS__TRY(hash_from(t, 0, true, &t->whole_digest));
    t->is_whole = true;
    return LKS_OK;
}

/* Hash the size and pages spread evenly from the first byte to the last: enough to distinguish two
 * datasets, or two states of one, without reading a hundred gigabytes. */
static lks_status hash_pages(const lks__tokens *t, uint64_t *digest_p)
{
    uint8_t page[DIGEST_PAGE];
    XXH3_state_t *hash = XXH3_createState();
    if (!hash || XXH3_64bits_reset(hash) != XXH_OK)
        return lks__no_memory("to hash %s", t->name);
    XXH3_64bits_update(hash, &t->bytes, sizeof t->bytes);
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

/* Open the file at t->path and check that it is regular and readable. `what` (the expected form)
 * and `make` (a way to create it) are for messages. */
static lks_status open_path(lks__tokens *t, const char *what, const char *make)
{
    struct stat info;
    LKS__MEMORY(t->path, "to open %s", t->name);
    /* O_NONBLOCK: opening a pipe without a writer must not block. */
    t->fd = lks__sys_open(t->path, O_RDONLY | O_NONBLOCK, 0);
    if (t->fd < 0 && errno == ENOENT)
        return lks__fail(LKS_ERR_IO,
                         "there is no token file %s; make one with `lockstep prep %s "
                         "--input=TEXT --out=DIR`",
                         t->name, make);
    if (t->fd < 0)
        return lks__sys_fail("cannot open", t->path);
    if (fstat(t->fd, &info) < 0)
        return lks__sys_fail("cannot read", t->path);
    if (!S_ISREG(info.st_mode))
        return lks__fail(LKS_ERR_IO, "%s is %s, but %s is expected", t->name,
                         S_ISDIR(info.st_mode) ? "a folder" : "not a regular file", what);
    t->bytes = (uint64_t)info.st_size;
    return LKS_OK;
}

/* Give the caller a file that was opened and checked; close it after a failure. */
static lks_status hand_over(lks_status st, lks__tokens *t, lks__tokens **tokens_p)
{
    if (st == LKS_OK)
        *tokens_p = t;
    else
        lks__tokens_close(t);
    return st;
}

static lks_status open_file(const char *path, uint32_t vocab_size, const char *what,
                            const char *make, lks__tokens **tokens_p)
{
    lks__tokens *t = calloc(1, sizeof *t);
    LKS__MEMORY(t, "to open a token file");
    t->fd = -1;
    t->vocab_size = vocab_size;
    lks__escape(t->name, sizeof t->name, path, strlen(path));
    t->path = strdup(path);
    return hand_over(open_path(t, what, make), t, tokens_p);
}

/* True for UTF-8 without control characters; it may end within a character. */
static bool is_text(const char *head, size_t bytes)
{
    uint32_t cp;
    size_t i = 0;
    for (size_t len = 1; i < bytes && len > 0; i += len) {
        const unsigned char c = (unsigned char)head[i];
        len = c >= ' ' || (c >= '\t' && c <= '\r') ? lks__utf8_decode(head + i, bytes - i, &cp) : 0;
    }
    return bytes - i < 4;
}

/* Refuse a text: pairs of its bytes are valid ids of a large vocabulary. */
static lks_status check_text(const lks__tokens *t)
{
    char head[TEXT_BYTES];
    const size_t n = t->bytes < sizeof head ? (size_t)t->bytes : sizeof head;
    LKS__TRY(read_bytes(t, 0, n, head));
    if (n < TEXT_LEAST || !is_text(head, n))
        return LKS_OK;
    return lks__fail(LKS_ERR_FORMAT,
                     "%s is a text, and not a file of tokens: prepare it with `lockstep prep`, and "
                     "give that folder as --dataset",
                     t->name);
}

/* Check a file without a header. */
static lks_status check_raw(lks__tokens *t)
{
    if (t->bytes == 0)
        return lks__fail(LKS_ERR_FORMAT, "%s is empty: it contains no tokens", t->name);
    LKS__TRY(check_text(t));
    if (t->bytes % t->id_bytes != 0)
        return lks__fail(
            LKS_ERR_FORMAT,
            "%s has %llu bytes, an odd number: uint16 token ids have two bytes each, so "
            "the file is cut off or not a token file",
            t->name, (unsigned long long)t->bytes);
    return t->bytes <= LKS__TOKENS_WHOLE ? check_whole(t) : LKS_OK;
}

lks_status lks__tokens_open(const char *path, uint32_t vocab_size, lks__tokens **tokens_p)
{
    lks__tokens *t;
    LKS__TRY(open_file(path, vocab_size, "a file of uint16 token ids", "char", &t));
    t->id_bytes = 2;
    return hand_over(check_raw(t), t, tokens_p);
}

/* Check the first 12 bytes, and that the file has the size that they state. */
static lks_status check_header(lks__tokens *t)
{
    uint32_t head[3];
    if (t->bytes < HEADER_BYTES)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %llu bytes: a token shard begins with a header of %d bytes, so "
                         "the file is cut off or not a shard",
                         t->name, (unsigned long long)t->bytes, HEADER_BYTES);
    LKS__TRY(read_bytes(t, 0, sizeof head, head));
    const uint32_t magic = head[0], version = head[1], count = head[2];
    const struct format *f = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].magic == magic)
            f = &formats[i];
    if (!f)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: the magic number at byte offset 0 is %u; a token shard has %u "
                         "(uint16 ids) or %u (uint32 ids)",
                         t->name, magic, formats[0].magic, formats[1].magic);
    if (version != f->version)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: the version at byte offset 4 is %u; a token shard with magic number "
                         "%u has version %u",
                         t->name, version, magic, f->version);
    if (count > INT32_MAX)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: the number of tokens at byte offset 8 is %lld; 0 to %d are expected",
                         t->name, (long long)count - (INT64_C(1) << 32), INT32_MAX);
    uint64_t want = HEADER_BYTES + (uint64_t)count * (uint64_t)f->id_bytes;
    if (t->bytes != want)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s has %llu bytes, but its header says %u tokens at byte offset 8: %llu "
                         "bytes are expected, so the file is %s",
                         t->name, (unsigned long long)t->bytes, count, (unsigned long long)want,
                         t->bytes < want ? "cut off" : "different from its header");
    t->start = HEADER_BYTES;
    t->id_bytes = (uint64_t)f->id_bytes;
    return LKS_OK;
}

bool lks__tokens_is_shard(const char *path)
{
    lks__tokens *t = NULL;
    const bool is =
        open_file(path, 1, "a token shard", "", &t) == LKS_OK && check_header(t) == LKS_OK;
    lks__tokens_close(t);
    return is;
}

lks_status lks__tokens_open_shard(const char *path, uint32_t vocab_size, bool whole,
                                  lks__tokens **tokens_p)
{
    lks__tokens *t;
    LKS__TRY(open_file(path, vocab_size, "a token shard", "sentencepiece", &t));
    lks_status st = check_header(t);
    /* A digest of pages needs a file with that many pages. */
    if (st == LKS_OK && (whole || t->bytes <= DIGEST_PAGE * DIGEST_PAGES))
        st = check_whole(t);
    return hand_over(st, t, tokens_p);
}

void lks__tokens_close(lks__tokens *t)
{
    if (!t)
        return;
    lks__sys_close(t->fd);
    free(t->path);
    free(t);
}

uint64_t lks__tokens_count(const lks__tokens *t)
{
    return (t->bytes - t->start) / t->id_bytes;
}

uint64_t lks__tokens_offset(const lks__tokens *t, uint64_t index)
{
    return t->start + index * t->id_bytes;
}

lks_status lks__tokens_digest(const lks__tokens *t, uint64_t *digest_p)
{
    if (!t->is_whole)
        return hash_pages(t, digest_p);
    *digest_p = t->whole_digest;
    return LKS_OK;
}

bool lks__tokens_whole(const lks__tokens *t)
{
    return t->is_whole;
}

lks_status lks__tokens_hash(const lks__tokens *t, uint64_t *hash_p)
{
    return hash_from(t, t->start, false, hash_p);
}

lks_status lks__tokens_read(const lks__tokens *t, uint64_t first, size_t n, int32_t *out)
{
    uint64_t count = lks__tokens_count(t);
    if (first > count || n > count - first)
        return lks__fail(LKS_ERR_ARG, "%s: tokens %llu to %llu were requested, but it has %llu",
                         t->name, (unsigned long long)first, (unsigned long long)(first + n),
                         (unsigned long long)count);
    /* Read into the upper end of the output, then widen in place: no buffer, one system call. */
    uint8_t *raw = (uint8_t *)out + n * (sizeof *out - t->id_bytes);
    LKS__TRY(read_bytes(t, t->start + first * t->id_bytes, n * t->id_bytes, raw));
    return widen(t, first, n, raw, out);
}
