/* data/text/bpe/bpe.h - GPT-2's tokens: byte-level byte-pair encoding (Sennrich et al., 2016;
 * Radford et al., 2019), with the ids of tiktoken's encode_ordinary() and Hugging Face's
 * tokenizers.
 *
 * Text is split into pieces (words with the space before them, numbers, marks, white space). The
 * bytes of a piece are merged, pair by pair, in the order of the vocabulary's merges. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__BPE_FILE "tokenizer.json"
enum { LKS__BPE_MAX_FILE = 64 << 20 }; /* size limit of a vocabulary file */

typedef struct lks__bpe lks__bpe; /* opaque; close with lks__bpe_close() */

/* Read a vocabulary from a folder with tokenizer.json, with vocab.bpe and encoder.json, or with
 * merges.txt and vocab.json; or from a file like tokenizer.json (NAME.json) or of tiktoken
 * (NAME.tiktoken: bytes in base64 and rank, one per line). ERR_FORMAT names the file and the
 * position of the error: not all 256 bytes, two tokens with one id or with the same bytes, a merge
 * with an unknown token, a tokenizer.json that needs anything but byte-level BPE. */
lks_status lks__bpe_open(const char *path, lks__bpe **bpe_p);
/* Parse the text of a tokenizer.json; `where` starts the error message. */
lks_status lks__bpe_parse(const char *text, size_t bytes, const char *where, lks__bpe **bpe_p);
/* True if the path looks like one of these forms. A tokenizer.json of words ("WordLevel")
 * doesn't. */
bool lks__bpe_is_at(const char *path);
void lks__bpe_close(lks__bpe *bpe); /* NULL does nothing */

uint32_t lks__bpe_size(const lks__bpe *bpe);       /* the largest id + 1 */
int32_t lks__bpe_end_of_text(const lks__bpe *bpe); /* the id of <|endoftext|>, or -1 */

/* The vocabulary as the text of a tokenizer.json (malloc'd, the caller frees), which other programs
 * can read, too, and its XXH3-64. Equal vocabularies give equal text, whatever files they came
 * from. ERR_NOMEM. */
lks_status lks__bpe_text(const lks__bpe *bpe, char **text_p, size_t *bytes_p, uint64_t *hash_p);
/* Compute only the hash. */
lks_status lks__bpe_hash(const lks__bpe *bpe, uint64_t *hash_p);

/* Memory that one thread needs to encode. NULL if out of memory. */
typedef struct lks__bpe_work lks__bpe_work;
lks__bpe_work *lks__bpe_work_open(void);
void lks__bpe_work_close(lks__bpe_work *work); /* NULL does nothing */

/* Encode text; `ids` has room for `bytes` ids. The spelling of special tokens is ordinary text.
 * Bytes that aren't UTF-8 are encoded one by one, as marks, and decoding their ids restores them.
 * ERR_NOMEM for an extremely long piece. */
lks_status lks__bpe_encode(const lks__bpe *bpe, lks__bpe_work *work, const char *text, size_t bytes,
                           int32_t *ids, size_t *n_p);

/* Like lks__bpe_encode(), but a special token's spelling becomes that token; the longest match
 * wins. */
lks_status lks__bpe_encode_special(const lks__bpe *bpe, lks__bpe_work *work, const char *text,
                                   size_t bytes, int32_t *ids, size_t *n_p);

/* Refuse a vocabulary with a special token that other programs match together with the spaces next
 * to it, or only as a whole word: lks__bpe_encode_special() doesn't. */
lks_status lks__bpe_check_special(const lks__bpe *bpe);

/* The largest n, from < n < bytes, at which `text` can be cut so that its separately encoded parts
 * give the ids of the whole, whatever follows; 0: none. `special`: NULL, or the vocabulary if
 * lks__bpe_encode_special() encodes the parts. */
size_t lks__bpe_cut(const lks__bpe *special, const char *text, size_t from, size_t bytes);

/* The bytes of an id: valid as long as `bpe`, any bytes, not only whole characters. NULL, and
 * *bytes_p = 0, if the id is unused. */
const char *lks__bpe_bytes(const lks__bpe *bpe, int32_t id, size_t *bytes_p);
