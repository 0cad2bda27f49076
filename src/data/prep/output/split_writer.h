/* data/prep/output/split_writer.h - writes a split's token files as tokens arrive: train.bin and
 * val.bin, or shards of a given size. */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <xxhash.h>

#include "files/staged.h"

typedef struct lks__split_writer {
    lks__staged *staged;
    uint64_t shard_tokens; /* tokens per full shard; 0: one file without a header */
    int id_bytes;          /* 2; 4: shards with 32-bit ids */
    json_t *hashes;        /* of the files that were written (data/text/meta.h) */
    /* The writer's internal fields: */
    int split, fd, n_shards;
    uint64_t n_tokens, n_in_shard;
    uint8_t *buffer; /* bytes not written yet */
    size_t n_buffered;
    char name[64]; /* of the current file */
    XXH3_state_t *hash;
} lks__split_writer;

/* The files are added to `staged`. ERR_CONFIG if the ids don't fit into files of this form. */
lks_status lks__split_writer_open(lks__staged *staged, uint64_t shard_tokens, uint32_t vocab_size,
                                  lks__split_writer *writer);
void lks__split_writer_close(lks__split_writer *writer); /* also {.fd = -1} */

/* Write one split after the other, in any order; `split` as in data/read/sampler.h. An empty split
 * becomes an empty file, or a shard without tokens. */
lks_status lks__split_begin(lks__split_writer *writer, int split);
lks_status lks__split_put(lks__split_writer *writer, const int32_t *ids, size_t n);
lks_status lks__split_end(lks__split_writer *writer, uint64_t *n_tokens_p);

/* Largest number of shards of a split. A run opens all of them at once. */
enum { LKS__SPLIT_SHARDS = 10000 };
/* The error for exceeding it: ERR_CONFIG. */
lks_status lks__split_too_many(uint64_t shard_tokens);

/* Let the commit remove token files of an earlier preparation, of either form, and its tokenizer's
 * file (`tokenizer` is its name, or ""), unless `staged` replaces them: a run would read them
 * together with the new ones. */
lks_status lks__split_remove_others(lks__staged *staged, const char *tokenizer);
