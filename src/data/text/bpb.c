#include "data/text/bpb.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/text/byte_tokens.h"

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581, the form of a space in pieces */

enum { MARK_BYTES = sizeof space_mark - 1 };

static lks_status alloc(uint32_t size, lks__byte_table *t)
{
    *t = (lks__byte_table){.size = size};
    t->bytes = calloc(size, sizeof *t->bytes);
    t->leading_space = calloc(size, sizeof *t->leading_space);
    t->boundary = calloc(size, sizeof *t->boundary);
    if (t->bytes && t->leading_space && t->boundary)
        return LKS_OK;
    lks__byte_table_free(t);
    return lks__no_memory("for the bytes of %u tokens", size);
}

static lks_status table_of(const lks__spm *spm, const char *where, lks__byte_table *table)
{
    const unsigned no_text = LKS__SPM_CONTROL | LKS__SPM_UNKNOWN | LKS__SPM_UNUSED;
    lks__byte_table t;
    LKS__TRY(alloc(lks__spm_size(spm), &t));
    for (uint32_t id = 0; id < t.size; id++) {
        const unsigned kind = lks__spm_kind(spm, id);
        t.boundary[id] = (kind & no_text) != 0;
        if (t.boundary[id])
            continue;
        if (kind & LKS__SPM_BYTE) {
            t.bytes[id] = 1;
            continue;
        }
        size_t n;
        const char *piece = lks__spm_piece(spm, id, &n);
        if (n >= MARK_BYTES && memcmp(piece, space_mark, MARK_BYTES) == 0) {
            t.leading_space[id] = true;
            n -= MARK_BYTES;
        }
        if (n >= INT16_MAX) { /* the script's tables are int16, and the space counts, too */
            lks__byte_table_free(&t);
            return lks__fail(LKS_ERR_FORMAT, "%s: token %u has %zu bytes; %d are the most", where,
                             id, n, INT16_MAX - 1);
        }
        t.bytes[id] = (uint16_t)n;
    }
    t.model_hash = lks__spm_hash(spm);
    *table = t;
    return LKS_OK;
}

static lks_status table_of_bytes(const char *path, uint32_t vocab_size, lks__byte_table *table)
{
    const lks__meta meta = {.vocab_size = LKS__BYTE_TOKENS, .is_bytes = true};
    if (vocab_size != LKS__BYTE_TOKENS)
        return lks__fail(LKS_ERR_CONFIG,
                         "the single-byte tokens of %s are %d, but the vocabulary has %u: give "
                         "the tokenizer that the data was made with",
                         lks__shown(path, 256), LKS__BYTE_TOKENS, vocab_size);
    return lks__byte_table_chars(&meta, vocab_size, table);
}

/* `hash`: the hash that the model must have, or NULL. */
static lks_status open_table(const char *path, uint32_t vocab_size, const uint64_t *hash,
                             lks__byte_table *table)
{
    lks__spm *spm;
    LKS__TRY(lks__spm_open(path, &spm));
    const char *where = lks__shown(path, 256);
    lks_status st;
    if (lks__spm_size(spm) != vocab_size)
        st = lks__fail(LKS_ERR_CONFIG,
                       "the SentencePiece model %s has %u tokens, but the vocabulary has %u: give "
                       "the model that the data was made with",
                       where, lks__spm_size(spm), vocab_size);
    else if (hash && lks__spm_hash(spm) != *hash)
        st = lks__fail(
            LKS_ERR_FORMAT,
            "%s is not the model that meta.json in the same folder names: its hash is %016" PRIx64
            ", not %016" PRIx64,
            where, lks__spm_hash(spm), *hash);
    else
        st = table_of(spm, where, table);
    lks__spm_close(spm);
    return st;
}

lks_status lks__byte_table_open(const char *path, uint32_t vocab_size, lks__byte_table *table)
{
    bool is_bytes;
    LKS__TRY(lks__byte_tokens_at(path, &is_bytes));
    return is_bytes ? table_of_bytes(path, vocab_size, table)
                    : open_table(path, vocab_size, NULL, table);
}

lks_status lks__byte_table_in(const char *dir, uint32_t vocab_size, bool *found_p,
                              lks__byte_table *table)
{
    lks__meta meta = {0};
    char *path;
    bool found = false;
    LKS__TRY(lks__meta_load(dir, &found, &meta));
    uint64_t hash = meta.model_hash;
    const bool is_bytes = found && meta.is_bytes;
    *found_p = is_bytes;
    found = found && meta.is_sentencepiece;
    lks__meta_free(&meta);
    if (is_bytes)
        return table_of_bytes(dir, vocab_size, table);
    if (found) {
        if (asprintf(&path, "%s/%s", dir, LKS__META_MODEL) < 0)
            return lks__no_memory("to open a SentencePiece model");
        lks_status st = open_table(path, vocab_size, &hash, table);
        free(path);
        LKS__TRY(st);
    }
    *found_p = found;
    return LKS_OK;
}

lks_status lks__byte_table_chars(const lks__meta *meta, uint32_t vocab_size, lks__byte_table *table)
{
    char text[16];
    LKS__TRY(alloc(vocab_size, table));
    table->is_bytes = meta->is_bytes;
    for (uint32_t id = 0; id < vocab_size && id < meta->vocab_size; id++)
        table->bytes[id] = (uint16_t)lks__meta_decode(meta, (int32_t)id, text);
    return LKS_OK;
}

lks_status lks__byte_table_bpe(const lks__bpe *bpe, uint32_t vocab_size, lks__byte_table *table)
{
    LKS__TRY(alloc(vocab_size, table));
    for (uint32_t id = 0; id < vocab_size; id++) {
        size_t n;
        if ((int32_t)id == lks__bpe_end_of_text(bpe))
            continue;
        lks__bpe_bytes(bpe, (int32_t)id, &n);
        if (n > UINT16_MAX) {
            lks__byte_table_free(table);
            return lks__fail(LKS_ERR_FORMAT,
                             "token %u of the vocabulary has %zu bytes; %d are "
                             "the most",
                             id, n, UINT16_MAX);
        }
        table->bytes[id] = (uint16_t)n;
    }
    return LKS_OK;
}

void lks__byte_table_free(lks__byte_table *table)
{
    free(table->bytes);
    free(table->leading_space);
    free(table->boundary);
    *table = (lks__byte_table){0};
}

uint64_t lks__byte_count(const lks__byte_table *t, const int32_t *prev, const int32_t *target,
                         size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (uint64_t)t->bytes[target[i]] +
                 (uint64_t)(t->leading_space[target[i]] && !t->boundary[prev[i]]);
    return bytes;
}

double lks__bpb(double loss, uint64_t n_tokens, uint64_t n_bytes)
{
    if (n_bytes == 0)
        return INFINITY;
    return loss / M_LN2 * ((double)n_tokens / (double)n_bytes);
}
