/* data/text/meta.h - meta.json: the meaning of a token folder's ids; encoding and decoding.
 *
 * {"kind":"char","vocab_size":65,"chars":"…"}: id i is the i-th code point of `chars`.
 *
 * {"kind":"sentencepiece","vocab_size":1024,"file":"sp.model","hash":"16 hex digits"}: ids of the
 * model in the same folder, which always has this name; `hash` is the XXH3-64 of its bytes.
 *
 * {"kind":"gpt2","vocab_size":50257,"file":"tokenizer.json","hash":"16 hex digits"}: ids of the
 * byte-level BPE vocabulary in the same folder; `hash` is that of lks__bpe_hash().
 *
 * {"kind":"bytes","vocab_size":260}: parameter-golf's single-byte tokens (data/text/byte_tokens.h).
 *
 * {"kind":"ids","vocab_size":50304}: ids without a tokenizer, for a folder without meta.json. A
 * checkpoint still stores the size.
 *
 * `lockstep prep` adds "hashes":{"train.bin":"16 hex digits",…}: the XXH3-64 of the ids in each
 * token file, without a shard's header.
 *
 * A folder that nanoGPT's prepare.py wrote contains meta.pkl instead. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LKS__META_MODEL  "sp.model"
#define LKS__META_HASHES "hashes"

enum {
    LKS__META_MAX_CHARS = 1 << 16, /* ids are uint16 in token files */
    LKS__META_MAX_IDS = 1 << 24,   /* without a tokenizer: far above any vocabulary */
};

typedef struct lks__meta {
    uint32_t vocab_size;
    uint32_t *chars; /* [vocab_size] code points, each once; NULL for other kinds */
    bool is_sentencepiece, is_bpe, is_bytes;
    bool has_other_texts; /* a meta.pkl has texts that aren't such characters; they are left out */
    uint64_t model_hash;  /* for the first two: hash of the model file's bytes */
} lks__meta;

/* Read DIR/meta.json, or DIR/meta.pkl if meta.json doesn't exist. Sets *found_p = false, and
 * returns OK, if neither exists. ERR_FORMAT names an invalid file, ERR_CONFIG two files that
 * contradict each other. `meta` and *found_p are set only on success. */
lks_status lks__meta_load(const char *dir, bool *found_p, lks__meta *meta);
/* Read the hashes of token files from DIR/meta.json: an object that the caller releases, or NULL if
 * there are none. */
lks_status lks__meta_hashes(const char *dir, json_t **hashes_p);
/* As lks__meta_load(), but if neither file exists read DIR/tokenizer.json if it is a vocabulary of
 * words (WordLevel), as `lockstep export --format=hf` writes for characters. Also sets *found_p =
 * false if `path` is not a folder. ERR_SUPPORT if the words aren't characters. */
lks_status lks__meta_load_any(const char *path, bool *found_p, lks__meta *meta);
/* As lks__meta_load_any(), but if that finds neither characters nor the name of a tokenizer, or
 * fails, use the GPT-2 vocabulary at `path`, if it has one (data/text/bpe/bpe.h). */
lks_status lks__meta_find(const char *path, bool *found_p, lks__meta *meta);
/* The file that lks__meta_load() reads: "meta.json" or "meta.pkl". */
const char *lks__meta_file(const char *dir);
/* `where` starts the error message: a file's name, already escaped. */
lks_status lks__meta_from_json(const json_t *json, const char *where, lks__meta *meta);
json_t *lks__meta_to_json(const lks__meta *meta); /* a new reference; NULL if out of memory */
/* For the GPT-2 vocabulary at `path` (data/text/bpe/bpe.h). */
lks_status lks__meta_of_vocabulary(const char *path, lks__meta *meta);
void lks__meta_free(lks__meta *meta);

/* True if it describes its ids: characters, bytes, or the name of a tokenizer. */
bool lks__meta_describes(const lks__meta *meta);
/* The id of a code point; -1: it isn't one of `chars`. */
int32_t lks__meta_find_char(const lks__meta *meta, uint32_t cp);
/* True if the meaning of ids is known for both and differs: other characters, another
 * vocabulary. */
bool lks__meta_differ(const lks__meta *a, const lks__meta *b);

/* Encode UTF-8 text (ids malloc'd, the caller frees). CRLF and CR are read as LF. ERR_FORMAT names
 * the offset, and the byte that isn't UTF-8 or the character without an id. The kind bytes accepts
 * any bytes and keeps them unchanged. For other kinds the text is decimal ids separated by white
 * space; only white space gives no ids. */
lks_status lks__meta_encode(const lks__meta *meta, const char *text, size_t bytes, int32_t **ids_p,
                            size_t *n_p);
/* One id as UTF-8 (no 0 byte at the end). Returns its length, at most 4; U+FFFD for an id beyond
 * the vocabulary. For the kind bytes: the byte; nothing for an id without one. For other kinds: the
 * decimal id and a space, at most 12 bytes. */
size_t lks__meta_decode(const lks__meta *meta, int32_t id, char out[16]);
