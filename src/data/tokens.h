/* data/tokens.h - files of token ids.
 *
 * Read by pread, a sample at a time, rather than by mapping: a file that shrinks under a mapping is
 * a SIGBUS, here it is an error with a name; and a micro-batch is only B small copies out of the
 * page cache. */
#ifndef LKS_DATA_TOKENS_H
#define LKS_DATA_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__tokens lks__tokens; /* opaque; close with lks__tokens_close() */

/* Open nanoGPT's raw little-endian uint16 file. Checks: it exists, is a regular file, is not empty,
 * has an even size, and every id is below `vocab_size` (>= 1). A file of up to 256 MiB is checked
 * whole here, a larger one as it is read. Errors (ERR_IO, ERR_FORMAT) name file, offset in bytes,
 * what was found and what was expected. */
lks_status lks__tokens_open(const char *path, uint32_t vocab_size, lks__tokens **tokens_p);
void lks__tokens_close(lks__tokens *tokens); /* NULL is fine */

uint64_t lks__tokens_count(const lks__tokens *tokens);
const char *lks__tokens_path(const lks__tokens *tokens);

/* XXH3-64 of contents: of the whole file, as it was at opening, up to 256 MiB; else of its size
 * (little-endian u64) and 4,096 pages of 4,096 bytes spread evenly over it. Ranks compare it at the
 * start; checkpoints keep it. */
lks_status lks__tokens_digest(const lks__tokens *tokens, uint64_t *digest_p);

/* Tokens [first, first + n) as int32. ERR_FORMAT for an id beyond the vocabulary, ERR_IO where the
 * file has shrunk since it was opened, ERR_ARG where the range leaves the file. May be called by
 * several threads at once. */
lks_status lks__tokens_read(const lks__tokens *tokens, uint64_t first, size_t n, int32_t *out);

#endif
