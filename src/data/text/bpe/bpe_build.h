/* data/text/bpe/bpe_build.h - a vocabulary while it is loaded. All files are converted to one form:
 * the bytes of each id, and merges of two ids into a third. */
#pragma once

#include <jansson.h>

#include "data/text/bpe/bpe_table.h"

#define LKS__BPE_END_OF_TEXT "<|endoftext|>"

/* Bytes as GPT-2 spells them: printable bytes of Latin-1 as themselves, the others as the
 * characters from U+0100 on, in order. */
typedef struct lks__bpe_spellings {
    int16_t byte[0x200]; /* byte of a code point; -1: none */
    uint16_t of[256];    /* the code point of a byte */
} lks__bpe_spellings;

/* A vocabulary while it is loaded. */
typedef struct lks__bpe_build {
    const char *where; /* the file, escaped */
    char **token;      /* [LKS__BPE_MAX_IDS], length (uint32_t) and then bytes; NULL: no token */
    bool *special;
    json_int_t loose; /* as in lks__bpe */
    uint32_t n_ids;
    uint32_t *by_bytes; /* [1 << hash_bits] ids + 1; 0: free */
    lks__bpe_merge *merges;
    size_t n_merges, room;
    lks__bpe_spellings spellings;
} lks__bpe_build;

/* `where`: the file, escaped; it must stay valid. Call lks__bpe_build_end() in any case. */
lks_status lks__bpe_build_begin(lks__bpe_build *l, const char *where);
void lks__bpe_build_end(lks__bpe_build *l);
lks_status lks__bpe_build_token(lks__bpe_build *l, const char *bytes, size_t n, json_int_t id);
/* Merges with a lower priority value come first. */
lks_status lks__bpe_build_merge(lks__bpe_build *l, uint32_t left, uint32_t right, uint32_t id,
                                uint32_t priority);
/* Add the merge of two tokens, given by their bytes, as number `line` of the list. */
lks_status lks__bpe_build_pair(lks__bpe_build *l, const char *a, size_t na, const char *b,
                               size_t nb, size_t line);
/* The id of these bytes, or -1. */
int32_t lks__bpe_build_id(const lks__bpe_build *l, const char *bytes, size_t n);
/* Check that all bytes are tokens and no merge occurs twice, and make the vocabulary. */
lks_status lks__bpe_build_finish(lks__bpe_build *l, lks__bpe **bpe_p);
/* Of an element of `token`. */
uint32_t lks__bpe_token_length(const char *token);
const char *lks__bpe_token_bytes(const char *token);
/* Convert spelled text to bytes, at most `n` of them. Returns their number; 0: not such text. */
size_t lks__bpe_unspell(const lks__bpe_spellings *s, const char *text, size_t n, char *out);
/* The beginning of a token, for messages. */
const char *lks__bpe_show(const char *bytes, size_t n, char out[80]);
