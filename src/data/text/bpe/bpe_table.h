/* data/text/bpe/bpe_table.h - a vocabulary in memory: bpe_build.c fills it, and bpe.c encodes with
 * it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lks__bpe lks__bpe;

enum {
    LKS__BPE_MAX_IDS = 1 << 20,
    LKS__BPE_MAX_TOKEN = 1 << 16, /* bytes of one token */
};

/* Two neighbours that are merged into one token, lowest priority first. */
typedef struct lks__bpe_merge {
    uint32_t left, right; /* ids */
    uint32_t id, priority;
} lks__bpe_merge;

struct lks__bpe {
    uint32_t n_ids;  /* the largest id + 1 */
    uint32_t *start; /* [n_ids + 1]: bytes of id i are at[start[i]] up to at[start[i + 1]] */
    char *at;
    bool *special;      /* [n_ids]: not made by merges */
    uint32_t *specials; /* [n_specials]: their ids, long spellings first */
    size_t n_specials;
    bool begins_special[256];
    int32_t end_of_text;
    uint32_t loose;    /* id + 1 of a token with "lstrip", "rstrip" or "single_word"; 0: none */
    int32_t byte[256]; /* ids */
    lks__bpe_merge *merges;
    size_t n_merges;
    lks__bpe_merge *slots; /* [1 << slot_bits], by the hash of the pair; left == UINT32_MAX: free */
    int slot_bits;
    uint8_t *classes; /* [LKS__CODE_POINTS] by code point: LKS__CLASS_... */
};

/* Classes by which the splitter (bpe_split.c) tells characters apart. */
enum { LKS__CLASS_MARK, LKS__CLASS_LETTER, LKS__CLASS_NUMBER, LKS__CLASS_SPACE };

/* The end of the piece that begins at text[i]. */
size_t lks__bpe_piece_end(const lks__bpe *bpe, const char *text, size_t i, size_t bytes);

/* True if a cut of text[0 .. bytes) at `cut` would divide a special token's spelling, or could,
 * depending on the following text. */
bool lks__bpe_in_special(const lks__bpe *bpe, const char *text, size_t bytes, size_t cut);

/* Fill specials and the fields after them, for lks__bpe_index(). ERR_NOMEM. */
lks_status lks__bpe_index_specials(lks__bpe *bpe);
/* Fill slots and classes; call it last. ERR_NOMEM. */
lks_status lks__bpe_index(lks__bpe *bpe);
