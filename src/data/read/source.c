#include "data/read/source.h"

#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "data/tokens.h"

static lks_status write_tokens(const char *path, const uint16_t *ids, size_t n)
{
    return lks__sys_write_file(path, ids, n * sizeof *ids);
}

const struct lks__source_ops lks__source_tokens = {
    .files = {LKS__TRAIN_FILE, LKS__VAL_FILE},
    .write = write_tokens,
};

static lks_status write_shard(const char *path, const uint16_t *ids, size_t n)
{
    uint8_t *shard = malloc(LKS__SHARD_HEADER + n * sizeof *ids);
    LKS__MEMORY(shard, "for %zu tokens", n);
    lks__shard_header(2, (uint32_t)n, shard);
    memcpy(shard + LKS__SHARD_HEADER, ids, n * sizeof *ids);
    lks_status st = lks__sys_write_file(path, shard, LKS__SHARD_HEADER + n * sizeof *ids);
    free(shard);
    return st;
}

const struct lks__source_ops lks__source_shards = {
    .files = {"fineweb_train_000000.bin", "fineweb_val_000000.bin"},
    .is_shards = true,
    .write = write_shard,
};
