/* tests/spm_model.h - write small SentencePiece models and tables of characters by hand, with any
 * error that a test needs. The formats: src/data/text/sentencepiece/spm_check.c,
 * src/data/text/sentencepiece/spm_map.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct spm_bytes {
    unsigned char data[32 << 10];
    size_t n;
} spm_bytes;

void spm_put(spm_bytes *b, const void *data, size_t n);
/* Fields of a message: a number, and bytes (a text, or a message of its own). */
void spm_put_number(spm_bytes *b, unsigned field, uint64_t x);
void spm_put_bytes(spm_bytes *b, unsigned field, const void *data, size_t n);

/* Fields of a model. */
enum { SPM_PIECE = 1, SPM_TRAINER = 2, SPM_NORMALIZER = 3, SPM_SAMPLES = 4, SPM_DENORMALIZER = 5 };
enum { SPM_NORMAL = 1, SPM_UNKNOWN = 2, SPM_CONTROL = 3, SPM_USER_DEFINED = 4, SPM_UNUSED = 5 };
enum { SPM_UNIGRAM = 1, SPM_BPE = 2, SPM_WORD = 3, SPM_CHAR = 4 };

void spm_put_piece(spm_bytes *b, const char *text, size_t n, unsigned kind);
void spm_put_type(spm_bytes *b, unsigned type);
/* `field`: which of the two; spaces are not changed. */
void spm_put_normalizer(spm_bytes *b, unsigned field, const spm_bytes *map);
/* A text for self-testing the model, and its expected pieces, separated by spaces. */
void spm_put_sample(spm_bytes *b, const char *text, const char *expected);

/* A trie: a step leads from one base to the next; a step with a value ends a rule. */
typedef struct spm_trie {
    uint32_t units[512];
    size_t n_units;
} spm_trie;

void spm_trie_begin(spm_trie *t, size_t n_units, uint32_t base);
void spm_trie_step(spm_trie *t, uint32_t from, unsigned char c, uint32_t to, bool ends_rule);
void spm_trie_value(spm_trie *t, uint32_t base, uint32_t text_at);
void spm_put_map(spm_bytes *b, const spm_trie *t, const char *texts, size_t n);

/* "a" becomes "x", and "ab" becomes "yz". */
void spm_put_small_map(spm_bytes *b);
/* Pieces <unk>, x, y, z, yz, xy (unused), "--" (user-defined), the small map, a sample. */
void spm_put_small_model(spm_bytes *b, unsigned type);
