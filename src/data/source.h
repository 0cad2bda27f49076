/* data/source.h - the forms in which a split of tokens lies in a folder, behind one interface: for
 * who reads a whole split in order, or makes one. */
#ifndef LKS_DATA_SOURCE_H
#define LKS_DATA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct lks__source_ops {
    const char *files[2]; /* by split (data/sampler.h): the names of the smallest dataset's files */
    bool pieces;          /* the ids are a SentencePiece model's, so that bytes can be counted */
    /* A split of the folder `dir`; errors as lks__tokens_open() and lks__shards_open(). */
    lks_status (*open)(const char *dir, int split, uint32_t vocab_size, void **source_p);
    void (*close)(void *source);             /* NULL does nothing */
    const char *(*path)(const void *source); /* of its first file, for messages */
    uint64_t (*count)(const void *source);
    lks_status (*read)(const void *source, uint64_t first, size_t n, int32_t *out);
    /* One file of n ids. */
    lks_status (*write)(const char *path, const uint16_t *ids, size_t n);
};

/* train.bin and val.bin, as nanoGPT's scripts write them; and shards, as parameter-golf's do. */
extern const struct lks__source_ops lks__source_tokens, lks__source_shards;

#endif
