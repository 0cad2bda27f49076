/* data/meta.h - meta.json: what the ids of a token folder stand for; encoding and decoding.
 *
 * {"kind":"char","vocab_size":65,"chars":"…"}: id i is the i-th code point of `chars`, which
 * ascend. {"kind":"sentencepiece","vocab_size":1024,"file":"sp.model","hash":"16 hex digits"}: the
 * ids of the model that lies beside, with the XXH3-64 of its bytes; the name is always this one.
 * {"kind":"ids","vocab_size":50304}: ids without a tokenizer (a folder that has no meta.json; a
 * checkpoint still keeps the size). */
#ifndef LKS_DATA_META_H
#define LKS_DATA_META_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__META_MODEL "sp.model"

typedef struct lks__meta {
    uint32_t vocab_size;
    uint32_t *chars; /* [vocab_size] code points, ascending; NULL: of another kind */
    bool is_sentencepiece;
    uint64_t model_hash; /* sentencepiece: of the model file's bytes */
} lks__meta;

/* DIR/meta.json. Sets *found_p = false, and returns OK, where the file doesn't exist. What is wrong
 * with it is an ERR_FORMAT that names the file. `meta` and *found_p are set only on success. */
lks_status lks__meta_load(const char *dir, bool *found_p, lks__meta *meta);
/* `where` starts the error sentence: a file's name, already escaped. */
lks_status lks__meta_from_json(const json_t *json, const char *where, lks__meta *meta);
json_t *lks__meta_to_json(const lks__meta *meta); /* new reference; NULL: out of memory */
void lks__meta_free(lks__meta *meta);

/* UTF-8 text to ids (malloc'd, the caller frees; CRLF and CR are read as LF). ERR_FORMAT names the
 * offset and the character that has no id or the byte that isn't UTF-8. For other kinds than char
 * the text is decimal ids with white space between; white space alone is no tokens. */
lks_status lks__meta_encode(const lks__meta *meta, const char *text, size_t bytes, int32_t **ids_p,
                            size_t *n_p);
/* One id as UTF-8 (no 0 at the end); returns its length, at most 4; U+FFFD for an id beyond the
 * vocabulary. For other kinds than char: the decimal id and a space, at most 12. */
size_t lks__meta_decode(const lks__meta *meta, int32_t id, char out[16]);

#endif
