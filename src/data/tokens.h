/* data/tokens.h - files of token ids.
 *
 * They are read by pread, one sample per call, and not mapped: if a mapped file shrinks, the
 * process gets SIGBUS; here it is an error that names the file. A micro-batch needs only B small
 * copies out of the page cache. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__tokens lks__tokens; /* opaque; close with lks__tokens_close() */

/* A file up to this size is read and checked at the start, which takes a fraction of a second. */
#define LKS__TOKENS_WHOLE (UINT64_C(256) << 20)

/* Open nanoGPT's raw little-endian uint16 file. Checks: it exists, is a regular file, is not empty,
 * isn't a text, has an even size, and every id is below `vocab_size` (>= 1). Ids of a file of up to
 * 256 MiB are checked here, those of a larger one as they are read. Errors (ERR_IO, ERR_FORMAT)
 * name the file, the offset in bytes, and the found and expected values. */
lks_status lks__tokens_open(const char *path, uint32_t vocab_size, lks__tokens **tokens_p);

/* Open a shard: 256 little-endian int32 (magic, version, number of tokens, the rest unused), then
 * the ids: uint16 for magic 20240520 with version 1, uint32 for 20240801 with version 7. The file
 * must have exactly the size that its header states; it may contain no tokens. A raw file can begin
 * with any bytes, so the kind isn't guessed: the caller knows it. `whole`: check every id here;
 * files of up to 16 MiB always are. Otherwise ids are checked as they are read. Errors as above. */
lks_status lks__tokens_open_shard(const char *path, uint32_t vocab_size, bool whole,
                                  lks__tokens **tokens_p);
/* True if the file begins with a shard's header and has the size stated there. */
bool lks__tokens_is_shard(const char *path);
void lks__tokens_close(lks__tokens *tokens); /* NULL does nothing */

/* The header of a shard of n_tokens <= INT32_MAX ids of 2 or 4 bytes. */
enum { LKS__SHARD_HEADER = 1024 };
void lks__shard_header(int id_bytes, uint32_t n_tokens, uint8_t header[LKS__SHARD_HEADER]);

uint64_t lks__tokens_count(const lks__tokens *tokens);
uint64_t lks__tokens_offset(const lks__tokens *tokens, uint64_t index); /* of a token, in bytes */

/* XXH3-64 of the contents. If the file was checked completely at opening: of all its bytes at that
 * time. Otherwise: of its size (little-endian u64) and 4,096 pages of 4,096 bytes spread evenly
 * over it. Ranks compare it at the start; checkpoints store it. */
lks_status lks__tokens_digest(const lks__tokens *tokens, uint64_t *digest_p);

/* True if the digest is of the whole file. */
bool lks__tokens_whole(const lks__tokens *tokens);
/* XXH3-64 of the file's ids, without a shard's header, read from beginning to end. */
lks_status lks__tokens_hash(const lks__tokens *tokens, uint64_t *hash_p);

/* Read tokens [first, first + n) as int32. ERR_FORMAT for an id beyond the vocabulary, ERR_IO if
 * the file has shrunk since it was opened, ERR_ARG if the range leaves the file. Several threads
 * may call it at the same time. */
lks_status lks__tokens_read(const lks__tokens *tokens, uint64_t first, size_t n, int32_t *out);
