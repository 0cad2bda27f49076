#include "data/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "data/sampler.h"
#include "data/shards.h"
#include "data/tokens.h"

/* --- train.bin, val.bin ----------------------------------------------------------------------- */

static lks_status open_tokens(const char *dir, int split, uint32_t vocab_size, void **source_p)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, lks__source_tokens.files[split]);
    lks__tokens *tokens = NULL;
    lks_status st = lks__tokens_open(path, vocab_size, &tokens);
    *source_p = tokens;
    return st;
}

static void close_tokens(void *source)
{
    lks__tokens_close(source);
}

static const char *tokens_path(const void *source)
{
    return lks__tokens_path(source);
}

static uint64_t count_tokens(const void *source)
{
    return lks__tokens_count(source);
}

static lks_status read_tokens(const void *source, uint64_t first, size_t n, int32_t *out)
{
    return lks__tokens_read(source, first, n, out);
}

static lks_status write_tokens(const char *path, const uint16_t *ids, size_t n)
{
    return lks__sys_write_file(path, ids, n * sizeof *ids);
}

const struct lks__source_ops lks__source_tokens = {
    .files = {"train.bin", "val.bin"},
    .open = open_tokens,
    .close = close_tokens,
    .path = tokens_path,
    .count = count_tokens,
    .read = read_tokens,
    .write = write_tokens,
};

/* --- shards ----------------------------------------------------------------------------------- */

static lks_status open_shards(const char *dir, int split, uint32_t vocab_size, void **source_p)
{
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/%s", dir,
             split == LKS__SPLIT_VAL ? LKS__SHARDS_VAL : LKS__SHARDS_TRAIN);
    lks__shards *shards = NULL;
    lks_status st = lks__shards_open(pattern, vocab_size, &shards);
    *source_p = shards;
    return st;
}

static void close_shards(void *source)
{
    lks__shards_close(source);
}

static const char *shards_path(const void *source)
{
    return lks__shards_path(source, 0);
}

static uint64_t count_shards(const void *source)
{
    return lks__shards_count(source);
}

static lks_status read_shards(const void *source, uint64_t first, size_t n, int32_t *out)
{
    return lks__shards_read(source, first, n, out);
}

/* lks__tokens_open_shard() has the form of the head. */
static lks_status write_shard(const char *path, const uint16_t *ids, size_t n)
{
    enum { HEAD = 512 }; /* uint16 */
    uint16_t *words = calloc(HEAD + n, sizeof *words);
    if (words == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for %zu tokens", n);
    memcpy(words, (int32_t[3]){20240520, 1, (int32_t)n}, 3 * sizeof(int32_t));
    memcpy(words + HEAD, ids, n * sizeof *ids);
    lks_status st = lks__sys_write_file(path, words, (HEAD + n) * sizeof *words);
    free(words);
    return st;
}

const struct lks__source_ops lks__source_shards = {
    .files = {"fineweb_train_000000.bin", "fineweb_val_000000.bin"},
    .pieces = true,
    .open = open_shards,
    .close = close_shards,
    .path = shards_path,
    .count = count_shards,
    .read = read_shards,
    .write = write_shard,
};
