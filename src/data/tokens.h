/* data/tokens.h - files of token ids.
 *
 * Read by pread, a sample at a time, rather than by mapping: a file that shrinks under a mapping is
 * a SIGBUS, here it is an error with a name; and a micro-batch is only B small copies out of the
 * page cache. */
#ifndef LKS_DATA_TOKENS_H
#define LKS_DATA_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__tokens lks__tokens; /* opaque; close with lks__tokens_close() */

/* Up to this many bytes are read and checked at the start: a fraction of a second. */
#define LKS__TOKENS_WHOLE (UINT64_C(256) << 20)

/* Open nanoGPT's raw little-endian uint16 file. Checks: it exists, is a regular file, is not empty,
 * has an even size, and every id is below `vocab_size` (>= 1). A file of up to 256 MiB is checked
 * whole here, a larger one as it is read. Errors (ERR_IO, ERR_FORMAT) name file, offset in bytes,
 * what was found and what was expected. */
lks_status lks__tokens_open(const char *path, uint32_t vocab_size, lks__tokens **tokens_p);

/* Open a shard: 256 little-endian int32 (magic, version, number of tokens, the rest unused), then
 * the ids, uint16 for magic 20240520 with version 1, uint32 for 20240801 with version 7. The file
 * must be just as long as its header says; no tokens are fine. A raw file could begin with any
 * bytes, so nothing is guessed: the caller says which kind it is. `whole`: check every id here, as
 * is done anyway up to 16 MiB; else as they are read. Errors as above. */
lks_status lks__tokens_open_shard(const char *path, uint32_t vocab_size, bool whole,
                                  lks__tokens **tokens_p);
void lks__tokens_close(lks__tokens *tokens); /* NULL is fine */

uint64_t lks__tokens_count(const lks__tokens *tokens);
const char *lks__tokens_path(const lks__tokens *tokens);

/* XXH3-64 of contents: of the file as it was at opening, where it was checked whole; else of its
 * size (little-endian u64) and 4,096 pages of 4,096 bytes spread evenly over it. Ranks compare it
 * at the start; checkpoints keep it. */
lks_status lks__tokens_digest(const lks__tokens *tokens, uint64_t *digest_p);

/* Tokens [first, first + n) as int32. ERR_FORMAT for an id beyond the vocabulary, ERR_IO where the
 * file has shrunk since it was opened, ERR_ARG where the range leaves the file. May be called by
 * several threads at once. */
lks_status lks__tokens_read(const lks__tokens *tokens, uint64_t first, size_t n, int32_t *out);

#endif
