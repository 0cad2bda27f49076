#include "data/prep/output/split_writer.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/units.h"
#include "base/system/sys.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/tokens.h"

enum { BUFFER_BYTES = 1 << 18, FILE_IDS = 1 << 16 };

static const char *const names[2] = {[LKS__SPLIT_TRAIN] = "train", [LKS__SPLIT_VAL] = "val"};

lks_status lks__split_writer_open(lks__staged *staged, uint64_t shard_tokens, uint32_t vocab_size,
                                  lks__split_writer *w)
{
    *w = (lks__split_writer){.staged = staged, .shard_tokens = shard_tokens, .fd = -1};
    w->id_bytes = vocab_size > FILE_IDS ? 4 : 2;
    if (w->id_bytes == 4 && shard_tokens == 0)
        return lks__fail(
            LKS_ERR_CONFIG,
            "this vocabulary has %u ids; train.bin holds at most %d: --shards=100000000 "
            "writes shards, whose ids may have 32 bits",
            vocab_size, FILE_IDS);
    if (shard_tokens > INT32_MAX)
        return lks__fail(LKS_ERR_CONFIG, "a shard of %llu tokens; 1 to %d are possible",
                         (unsigned long long)shard_tokens, INT32_MAX);
    w->buffer = malloc(BUFFER_BYTES);
    w->hash = XXH3_createState();
    w->hashes = json_object();
    return w->buffer != NULL && w->hash != NULL && w->hashes != NULL
               ? LKS_OK
               : lks__no_memory("to write tokens");
}

void lks__split_writer_close(lks__split_writer *w)
{
    lks__sys_close(w->fd);
    free(w->buffer);
    XXH3_freeState(w->hash);
    json_decref(w->hashes);
    *w = (lks__split_writer){.fd = -1};
}

static lks_status fail_write(const lks__split_writer *w)
{
    return lks__sys_fail("cannot write tokens to", w->staged->dir);
}

static lks_status flush(lks__split_writer *w)
{
    if (lks__sys_write_all(w->fd, w->buffer, w->n_buffered) < 0)
        return fail_write(w);
    w->n_buffered = 0;
    return LKS_OK;
}

lks_status lks__split_too_many(uint64_t shard_tokens)
{
    return lks__fail(LKS_ERR_CONFIG,
                     "--shards=%llu makes over %d files of a split, with that many tokens each: "
                     "give a larger number; 100000000 is usual",
                     (unsigned long long)shard_tokens, LKS__SPLIT_SHARDS);
}

static lks_status begin_file(lks__split_writer *w)
{
    if (w->shard_tokens == 0) {
        snprintf(w->name, sizeof w->name, "%s.bin", names[w->split]);
    } else {
        if (w->n_shards == LKS__SPLIT_SHARDS)
            return lks__split_too_many(w->shard_tokens);
        snprintf(w->name, sizeof w->name, LKS__SHARD_NAME, names[w->split], w->n_shards++);
        memset(w->buffer, 0, LKS__SHARD_HEADER); /* reserved: the count isn't known yet */
        w->n_buffered = LKS__SHARD_HEADER;
    }
    w->n_in_shard = 0;
    XXH3_64bits_reset(w->hash);
    return lks__staged_open(w->staged, w->name, &w->fd);
}

static lks_status write_header(lks__split_writer *w)
{
    uint8_t header[LKS__SHARD_HEADER];
    lks__shard_header(w->id_bytes, (uint32_t)w->n_in_shard, header);
    if (w->n_buffered == LKS__SHARD_HEADER + w->n_in_shard * (size_t)w->id_bytes) {
        memcpy(w->buffer, header, sizeof header); /* the buffer still contains the header */
        return flush(w);
    }
    LKS__TRY(flush(w));
    if (lseek(w->fd, 0, SEEK_SET) < 0 || lks__sys_write_all(w->fd, header, sizeof header) < 0)
        return fail_write(w);
    return LKS_OK;
}

static lks_status record_hash(const lks__split_writer *w)
{
    const char *hash = lks__hex(XXH3_64bits_digest(w->hash));
    return json_object_set_new(w->hashes, w->name, json_string(hash)) == 0
               ? LKS_OK
               : lks__no_memory("for the hash of a token file");
}

static lks_status end_file(lks__split_writer *w)
{
    LKS__TRY(w->shard_tokens == 0 ? flush(w) : write_header(w));
    if (lks__sys_fsync(w->fd) < 0)
        return fail_write(w);
    lks__sys_close(w->fd);
    w->fd = -1;
    return record_hash(w);
}

lks_status lks__split_begin(lks__split_writer *w, int split)
{
    w->split = split;
    w->n_tokens = 0;
    w->n_shards = 0;
    return begin_file(w);
}

/* Convert ids to a file's form, little-endian, and hash them. */
static void encode(lks__split_writer *w, const int32_t *ids, size_t n)
{
    uint8_t *const first = w->buffer + w->n_buffered, *out = first;
    for (size_t i = 0; i < n; i++)
        for (int byte = 0; byte < w->id_bytes; byte++)
            *out++ = (uint8_t)((uint32_t)ids[i] >> (8 * byte));
    XXH3_64bits_update(w->hash, first, n * (size_t)w->id_bytes);
    w->n_buffered += n * (size_t)w->id_bytes;
}

lks_status lks__split_put(lks__split_writer *w, const int32_t *ids, size_t n)
{
    w->n_tokens += n;
    while (n > 0) {
        if (w->shard_tokens != 0 && w->n_in_shard == w->shard_tokens) {
            LKS__TRY(end_file(w));
            LKS__TRY(begin_file(w));
        }
        size_t take = (BUFFER_BYTES - w->n_buffered) / (size_t)w->id_bytes;
        if (take == 0) {
            LKS__TRY(flush(w));
            continue;
        }
        take = take < n ? take : n;
        if (w->shard_tokens != 0 && take > w->shard_tokens - w->n_in_shard)
            take = (size_t)(w->shard_tokens - w->n_in_shard);
        encode(w, ids, take);
        w->n_in_shard += take;
        ids += take;
        n -= take;
    }
    return LKS_OK;
}

lks_status lks__split_end(lks__split_writer *w, uint64_t *n_tokens_p)
{
    *n_tokens_p = w->n_tokens;
    return end_file(w);
}

/* --- files of an earlier preparation --------------------------------------------------------- */

static bool is_token_file(const char *name)
{
    return strcmp(name, LKS__TRAIN_FILE) == 0 || strcmp(name, LKS__VAL_FILE) == 0 ||
           strcmp(name, "meta.pkl") == 0 || /* of nanoGPT's prepare.py */
           fnmatch(LKS__SHARDS_TRAIN, name, FNM_PERIOD) == 0 ||
           fnmatch(LKS__SHARDS_VAL, name, FNM_PERIOD) == 0;
}

static bool is_other(const char *name, const void *tokenizer)
{
    return is_token_file(name) || strcmp(name, tokenizer) == 0;
}

lks_status lks__split_remove_others(lks__staged *staged, const char *tokenizer)
{
    return lks__staged_others(staged, is_other, tokenizer);
}
