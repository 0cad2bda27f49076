/* data/shards.h - token shards as one stream.
 *
 * parameter-golf's script reads its shards one after the other and starts over at the end. Here the
 * stream is a function of an absolute position, so that nobody keeps a place in it: token p of the
 * endless stream is token p mod (number of tokens) of the files one behind the other. */
#ifndef LKS_DATA_SHARDS_H
#define LKS_DATA_SHARDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__shards lks__shards; /* opaque; close with lks__shards_close() */

#define LKS__SHARDS_TRAIN "fineweb_train_*.bin"
#define LKS__SHARDS_VAL   "fineweb_val_*.bin"

/* Open all files of a pattern "DIR/NAME" in the order of their names' bytes, as Python sorts them:
 * NAME is a pattern of the shell's (* ? [a-z]), DIR is taken as it stands, without it the current
 * folder is meant. All headers are checked; all ids too, where the files have no more than 256 MiB
 * together (else those of files over 16 MiB as they are read). ERR_IO where none matches;
 * ERR_FORMAT where there is no token in them. */
lks_status lks__shards_open(const char *pattern, uint32_t vocab_size, lks__shards **shards_p);
void lks__shards_close(lks__shards *shards); /* NULL is fine */

uint64_t lks__shards_count(const lks__shards *shards); /* tokens of all files, at least 1 */
int lks__shards_n_files(const lks__shards *shards);
const char *lks__shards_path(const lks__shards *shards, int file);

/* XXH3-64 of the files' digests (data/tokens.h) in order. */
lks_status lks__shards_digest(const lks__shards *shards, uint64_t *digest_p);

/* Tokens [position, position + n) of the endless stream. Errors as lks__tokens_read(). */
lks_status lks__shards_read(const lks__shards *shards, uint64_t position, size_t n, int32_t *out);

/* How many tokens validation takes: whole sequences of `seq_len`, and one more for the last target,
 * as the script's load_validation_tokens() has it. ERR_CONFIG where there is no whole one. */
lks_status lks__shards_usable(const lks__shards *shards, uint64_t seq_len, uint64_t *usable_p);

#endif
