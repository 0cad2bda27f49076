/* data/read/shards.h - token shards as one stream; a file without a header (train.bin) is one
 * shard.
 *
 * parameter-golf's script reads its shards in order and starts again after the last one. Here the
 * stream is a function of an absolute position, so no reading position has to be stored: token p of
 * the endless stream is token p mod (number of tokens) of the concatenated files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__shards lks__shards; /* opaque; close with lks__shards_close() */

#define LKS__SHARDS_TRAIN "fineweb_train_*.bin"
#define LKS__SHARDS_VAL   "fineweb_val_*.bin"
#define LKS__TRAIN_FILE   "train.bin"
#define LKS__VAL_FILE     "val.bin"
#define LKS__SHARD_NAME   "fineweb_%s_%06d.bin" /* "train" or "val", and a number from 0 */

/* Open all files that match "DIR/NAME", in the byte order of their names, as Python sorts them.
 * NAME is a shell pattern (* ? [a-z]). DIR is literal; by default it is the current folder. All
 * headers are checked. If the files have at most 256 MiB together, all ids are checked here;
 * otherwise ids of files over 16 MiB are checked as they are read. ERR_IO if no file matches,
 * ERR_FORMAT if the files contain no token. */
lks_status lks__shards_open(const char *pattern, uint32_t vocab_size, lks__shards **shards_p);

/* Open all files that match a pattern, as above, or one file: a shard if it begins with a shard's
 * header and has the size stated there, else a file without a header, with errors as of
 * lks__tokens_open(). */
lks_status lks__shards_open_any(const char *path, uint32_t vocab_size, lks__shards **shards_p);

/* Open a split (read/sampler.h) of a folder: DIR/train.bin or DIR/fineweb_train_*.bin, DIR/val.bin
 * or DIR/fineweb_val_*.bin. If both forms exist, `shards_first` chooses the shards; otherwise the
 * file is used, which may be a shard, too. If neither exists, all shards DIR/PREFIX_train*.bin (or
 * DIR/PREFIX_val*.bin) are read, as llm.c names them. ERR_CONFIG if there are several prefixes. */
lks_status lks__split_open(const char *dir, int split, bool shards_first, uint32_t vocab_size,
                           lks__shards **shards_p);
/* True if the folder contains the split, in either form. */
bool lks__split_exists(const char *dir, int split);

void lks__shards_close(lks__shards *shards); /* NULL does nothing */

uint64_t lks__shards_count(const lks__shards *shards); /* tokens of all files, at least 1 */
/* Of a split: its file's name, or the pattern of its shards. */
const char *lks__shards_split_name(const lks__shards *shards);
int lks__shards_n_files(const lks__shards *shards);
const char *lks__shards_path(const lks__shards *shards, int file);

/* The file and offset in bytes of the token at a position below the count. */
const char *lks__shards_place(const lks__shards *shards, uint64_t position, uint64_t *offset_p);

/* XXH3-64 of the files' digests (data/tokens.h) in order; for a file without a header its
 * digest. */
lks_status lks__shards_digest(const lks__shards *shards, uint64_t *digest_p);

bool lks__shards_whole(const lks__shards *shards); /* the digest covers every byte of all files */
lks_status lks__shards_hash(const lks__shards *shards, int file, uint64_t *hash_p); /* tokens.h */

/* Read tokens [position, position + n) of the endless stream. Errors as lks__tokens_read(). */
lks_status lks__shards_read(const lks__shards *shards, uint64_t position, size_t n, int32_t *out);

/* Read B samples: tokens[b*T + i] = data[offsets[b] + i], targets one token further. `tokens` has
 * room for B*T + 1 (each sample is one read of T + 1). */
lks_status lks__shards_samples(const lks__shards *data, const uint64_t *offsets, size_t B, size_t T,
                               int32_t *tokens, int32_t *targets);

/* The number of tokens that validation uses: whole sequences of `seq_len`, and one more token for
 * the last target, as in the script's load_validation_tokens(). ERR_CONFIG if no sequence fits. */
lks_status lks__shards_usable(const lks__shards *shards, uint64_t seq_len, uint64_t *usable_p);
