/* Token files: nanoGPT's raw ids, and shards with a header, alone and as a stream. */
#include "data/tokens.h"
#include "data/read/shards.h"
#include "fuzz.h"

const char *const fuzz_words[] = {"\x48\xdb\x34\x01\x01", "\xa1\xdc\x34\x01\x07", NULL};

static void seed_shard(uint32_t magic, uint32_t version, uint32_t n, uint32_t id_bytes)
{
    static uint8_t data[1024 + 64 * 4];
    const uint32_t head[3] = {magic, version, n};
    for (int i = 0; i < 12; i++)
        data[i] = (uint8_t)(head[i / 4] >> (8 * (i % 4)));
    for (uint32_t i = 0; i < n * id_bytes; i++)
        data[1024 + i] = i % id_bytes == 0 ? (uint8_t)(i * 7) : 0;
    fuzz_seed(data, 1024 + n * id_bytes);
}

void fuzz_seeds(void)
{
    seed_shard(20240520, 1, 40, 2);
    seed_shard(20240801, 7, 30, 4);
    seed_shard(20240520, 1, 0, 2);
    fuzz_seed("\1\0\2\0\3\0\4\0\5\0\6\0", 12);
}

enum { VOCAB = 1024 };

static void use(lks__tokens *tokens)
{
    int32_t ids[64];
    uint64_t digest, n = lks__tokens_count(tokens);
    FUZZ_HOLDS(lks__tokens_digest(tokens, &digest) == LKS_OK);
    for (uint64_t at = 0; at < n; at += 64) {
        size_t count = n - at < 64 ? (size_t)(n - at) : 64;
        FUZZ_HOLDS(lks__tokens_read(tokens, at, count, ids) == LKS_OK);
        for (size_t i = 0; i < count; i++)
            FUZZ_HOLDS(ids[i] >= 0 && ids[i] < VOCAB);
    }
    FUZZ_HOLDS(lks__tokens_read(tokens, n, 1, ids) != LKS_OK);
    FUZZ_HOLDS(lks__tokens_read(tokens, UINT64_MAX, 1, ids) != LKS_OK);
    lks__tokens_close(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_file("fineweb_train_000000.bin", data, bytes);
    lks__tokens *tokens = NULL;
    lks__shards *shards = NULL;
    if (lks__tokens_open(path, VOCAB, &tokens) == LKS_OK)
        use(tokens);
    if (lks__tokens_open_shard(path, VOCAB, true, &tokens) == LKS_OK)
        use(tokens);
    if (lks__shards_open(fuzz_path(LKS__SHARDS_TRAIN), VOCAB, &shards) == LKS_OK) {
        int32_t ids[100];
        uint64_t usable;
        FUZZ_HOLDS(lks__shards_count(shards) >= 1 && lks__shards_n_files(shards) == 1);
        FUZZ_HOLDS(lks__shards_read(shards, 12345678901u, 100, ids) == LKS_OK);
        lks__shards_usable(shards, 8, &usable);
        lks__shards_close(shards);
    }
    return 0;
}
