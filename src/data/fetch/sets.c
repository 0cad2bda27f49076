#include "data/fetch/sets.h"

#include <stdio.h>
#include <string.h>

#define HUGGING_FACE "https://huggingface.co/"

/* Sizes without a known exact value are limits, with room for another edition of the file. */
#define KB *UINT64_C(1000)
#define MB *UINT64_C(1000000)

#define GPT2(model, weights)                                                                       \
    {                                                                                              \
        .name = model, .about = "OpenAI's weights and vocabulary", .licence = "MIT",               \
        .address = HUGGING_FACE "openai-community/" model "/resolve/main",                         \
        .next = "lockstep sample --init_from=%s --start=Hello --num_samples=1", .files = {         \
            {"config.json", LKS__FETCH_JSON, .most = 100 KB},                                      \
            {"tokenizer.json", LKS__FETCH_JSON, .most = 10 MB},                                    \
            {"model.safetensors", LKS__FETCH_SAFETENSORS, .most = (weights)MB}                     \
        }                                                                                          \
    }

static const lks__fetch_set sets[] = {
    {.name = "shakespeare",
     .about = "tinyshakespeare, nanoGPT's first text",
     .licence = "public domain",
     .address = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare",
     .out = "data/shakespeare",
     .next = "lockstep train %s/input.txt",
     .files = {{"input.txt", LKS__FETCH_TEXT, .bytes = 1115394, .most = 2 MB}}},
    {.name = "openwebtext",
     .about = "OpenWebText, GPT-2's kind of text",
     .licence = "CC0, which doesn't cover the texts themselves",
     .out = "data/openwebtext",
     .next = "lockstep prep openwebtext --input=%s/openwebtext.jsonl --tokenizer=data/gpt2-vocab "
             "--out=data/openwebtext-gpt2",
     .instead = "openwebtext is published as parquet files, which lockstep doesn't read. Convert "
                "them with `python3 -c \"from datasets import load_dataset as l; "
                "l('openwebtext', split='train').to_json('openwebtext.jsonl')\"` (54 GB), or give "
                "--from=URL|DIR of a server or folder that contains openwebtext.jsonl",
     .files = {{"openwebtext.jsonl", LKS__FETCH_JSON, .most = 200000 MB}}},
    {.name = "fineweb-sp1024",
     .about = "parameter-golf's shards of FineWeb and their tokenizer",
     .licence = "ODC-By 1.0",
     .address = HUGGING_FACE "datasets/willdepueoai/parameter-golf/resolve/main/datasets",
     .out = "data",
     .next = "lockstep train config/golf_baseline.conf --dataset=%s/datasets/fineweb10B_sp1024 "
             "--tokenizer_path=%s/tokenizers/fineweb_1024_bpe.model",
     .files = {{"tokenizers/fineweb_1024_bpe.model", LKS__FETCH_SENTENCEPIECE, .most = 10 MB},
               {"datasets/fineweb10B_sp1024/fineweb_val_000000.bin", LKS__FETCH_SHARD,
                .most = 200001024},
               {"datasets/fineweb10B_sp1024/fineweb_train_", LKS__FETCH_SHARD, .shards = true,
                .most = 200001024}}},
    {.name = "gpt2-vocab",
     .about = "GPT-2's vocabulary",
     .licence = "MIT",
     .address = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main",
     .out = "data/gpt2-vocab",
     .next = "lockstep prep gpt2 --input=TEXT --out=data/my --tokenizer=%s",
     .files = {{"vocab.bpe", LKS__FETCH_TEXT, .bytes = 456318, .most = 1 MB},
               {"encoder.json", LKS__FETCH_JSON, .bytes = 1042301, .most = 2 MB}}},
    GPT2("gpt2", 1000),
    GPT2("gpt2-medium", 2000),
    GPT2("gpt2-large", 4000),
    GPT2("gpt2-xl", 8000),
};

enum { N_SETS = sizeof sets / sizeof sets[0] };

const char *lks__fetch_set_name(int i)
{
    return i < N_SETS ? sets[i].name : NULL;
}

const lks__fetch_set *lks__fetch_set_of(const char *name)
{
    for (int i = 0; i < N_SETS; i++)
        if (strcmp(sets[i].name, name) == 0)
            return &sets[i];
    return NULL;
}

bool lks__fetch_has_shards(const lks__fetch_set *set)
{
    bool shards = false;
    for (int i = 0; i < LKS__FETCH_FILES; i++)
        shards |= set->files[i].shards;
    return shards;
}

const lks__fetch_file *lks__fetch_file_at(const lks__fetch_set *set, int shards, int i,
                                          char name[LKS__FETCH_NAME])
{
    for (int at = 0; at < LKS__FETCH_FILES && set->files[at].name != NULL; at++) {
        const lks__fetch_file *file = &set->files[at];
        const int n = file->shards ? shards : 1;
        if (i < n) {
            snprintf(name, LKS__FETCH_NAME, file->shards ? "%s%06d.bin" : "%s", file->name, i);
            return file;
        }
        i -= n;
    }
    return NULL;
}
