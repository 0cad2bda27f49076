/* data/read/source.h - the two forms of tokens in a folder, train.bin and val.bin, or shards: the
 * form that a family prefers, and a function to write a dataset of it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/read/shards.h"

struct lks__source_ops {
    const char *files[2]; /* by split (read/sampler.h): the file names of the smallest dataset */
    bool is_shards;
    /* Write a file of n ids. */
    lks_status (*write)(const char *path, const uint16_t *ids, size_t n);
};

/* train.bin and val.bin, as nanoGPT's scripts write them, and shards, as parameter-golf's do. */
extern const struct lks__source_ops lks__source_tokens, lks__source_shards;
