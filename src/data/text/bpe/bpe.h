/* data/text/bpe/bpe.h - GPT-2's tokens: byte-level byte-pair encoding (Sennrich et al., 2016;
 * Radford et al., 2019), with the ids of tiktoken's encode_ordinary() and Hugging Face's
 * tokenizers.
 *
 * Text is split into pieces (words with the space before them, numbers, marks, white space); the
 * bytes of a piece are merged, pair by pair, in the order of the vocabulary's merges. */
#ifndef LKS_DATA_TEXT_BPE_BPE_H
#define LKS_DATA_TEXT_BPE_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__BPE_FILE "tokenizer.json"
enum { LKS__BPE_MAX_FILE = 64 << 20 }; /* bytes of a vocabulary's file */

typedef struct lks__bpe lks__bpe; /* opaque; close with lks__bpe_close() */

/* Read a vocabulary: a folder with tokenizer.json, with vocab.bpe and encoder.json, or with
 * merges.txt and vocab.json; or a file of the form of tokenizer.json (NAME.json) or of tiktoken
 * (NAME.tiktoken: bytes in base64 and rank, a line each). ERR_FORMAT names file and place of what
 * is wrong: not all 256 bytes, two tokens with one id or with the same bytes, a merge of or into
 * tokens that aren't there, a tokenizer.json that asks for anything but byte-level BPE. */
lks_status lks__bpe_open(const char *path, lks__bpe **bpe_p);
/* The same of the text of a tokenizer.json; `where` starts the error sentence. */
lks_status lks__bpe_parse(const char *text, size_t bytes, const char *where, lks__bpe **bpe_p);
/* Does the path look like one of those? A tokenizer.json of words ("WordLevel") does not. */
bool lks__bpe_is_at(const char *path);
void lks__bpe_close(lks__bpe *bpe); /* NULL does nothing */

uint32_t lks__bpe_size(const lks__bpe *bpe);       /* the largest id + 1 */
int32_t lks__bpe_end_of_text(const lks__bpe *bpe); /* the id of <|endoftext|>; -1: there is none */

/* The vocabulary as text of a tokenizer.json (malloc'd, the caller frees), which other programs
 * read too, and its XXH3-64. Equal vocabularies give equal text, whatever files they came from.
 * ERR_NOMEM. */
lks_status lks__bpe_text(const lks__bpe *bpe, char **text_p, size_t *bytes_p, uint64_t *hash_p);
/* The hash alone. */
lks_status lks__bpe_hash(const lks__bpe *bpe, uint64_t *hash_p);

/* What one thread needs to encode. NULL if there is no memory. */
typedef struct lks__bpe_work lks__bpe_work;
lks__bpe_work *lks__bpe_work_open(void);
void lks__bpe_work_close(lks__bpe_work *work); /* NULL does nothing */

/* Text to ids; `ids` has room for `bytes` of them. The spelling of special tokens is ordinary text.
 * Bytes that aren't UTF-8 are taken one by one, as marks, and come back from their ids. ERR_NOMEM
 * for a single piece of very many bytes. */
lks_status lks__bpe_encode(const lks__bpe *bpe, lks__bpe_work *work, const char *text, size_t bytes,
                           int32_t *ids, size_t *n_p);

/* The same, but the spelling of a special token is that token, the longest one that begins there.
 */
lks_status lks__bpe_encode_special(const lks__bpe *bpe, lks__bpe_work *work, const char *text,
                                   size_t bytes, int32_t *ids, size_t *n_p);

/* The largest n, from < n < bytes, at which `text` can be cut, so that its parts encoded one after
 * the other give the ids of the whole, whatever follows; 0: nowhere. `special`: NULL, or the
 * vocabulary, if lks__bpe_encode_special() encodes the parts. */
size_t lks__bpe_cut(const lks__bpe *special, const char *text, size_t from, size_t bytes);

/* The bytes of an id: valid as long as `bpe`, any bytes, not only whole characters. NULL, *bytes_p
 * = 0: no token has this id. */
const char *lks__bpe_bytes(const lks__bpe *bpe, int32_t id, size_t *bytes_p);

#endif
