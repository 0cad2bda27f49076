#include "data/text/meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/units.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"
#include "data/text/byte_tokens.h"

enum {
    REPLACEMENT_CHAR = 0xfffd,
};

/* Format as "U+00E9 "é"", safe on a terminal. */
static const char *show_char(uint32_t cp, char out[32])
{
    char raw[4], safe[20];
    size_t n = lks__utf8_encode(cp, raw);
    lks__escape(safe, sizeof safe, raw, n);
    snprintf(out, 32, "U+%04X \"%s\"", cp, safe);
    return out;
}

static lks_status fill_table(const json_t *chars, uint32_t vocab_size, const char *where,
                             uint32_t *table, bool *seen)
{
    const char *text = json_string_value(chars);
    const size_t bytes = json_string_length(chars);
    uint32_t n = 0, cp;
    char shown[32];
    for (size_t i = 0, len; i < bytes; i += len) {
        if ((len = lks__utf8_decode(text + i, bytes - i, &cp)) == 0)
            return lks__fail(LKS_ERR_FORMAT, "%s: \"chars\" is not valid UTF-8", where);
        if (n == vocab_size)
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: \"chars\" has more characters than \"vocab_size\", which is %u",
                             where, vocab_size);
        if (seen[cp])
            return lks__fail(LKS_ERR_FORMAT, "%s: \"chars\" has %s twice", where,
                             show_char(cp, shown));
        seen[cp] = true;
        table[n++] = cp;
    }
    if (n != vocab_size)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: \"chars\" has %u characters, but \"vocab_size\" is %u", where, n,
                         vocab_size);
    return LKS_OK;
}

static lks_status read_chars(const json_t *chars, uint32_t vocab_size, const char *where,
                             lks__meta *meta)
{
    uint32_t *table = malloc((size_t)vocab_size * sizeof *table);
    bool *seen = calloc(LKS__CODE_POINTS, sizeof *seen);
    const lks_status st =
        table != NULL && seen != NULL
            ? fill_table(chars, vocab_size, where, table, seen)
            : lks__fail(LKS_ERR_NOMEM, "%s: no memory for %u characters", where, vocab_size);
    free(seen);
    if (st == LKS_OK)
        *meta = (lks__meta){.vocab_size = vocab_size, .chars = table};
    else
        free(table);
    return st;
}

/* Compare with a JSON string, which may contain U+0000. */
static bool is_text(const json_t *json, const char *text)
{
    size_t n = strlen(text);
    return json_is_string(json) && json_string_length(json) == n &&
           memcmp(json_string_value(json), text, n) == 0;
}

static lks_status read_model(const json_t *json, const char *file, const char *where,
                             uint64_t *hash_p)
{
    if (!is_text(json_object_get(json, "file"), file))
        return lks__fail(LKS_ERR_FORMAT, "%s: \"file\" must be \"%s\", in the same folder", where,
                         file);
    if (!lks__json_hash(json, "hash", hash_p))
        return lks__fail(LKS_ERR_FORMAT, "%s: \"hash\" must be 16 hex digits", where);
    return LKS_OK;
}

lks_status lks__meta_from_json(const json_t *json, const char *where, lks__meta *meta)
{
    if (!json_is_object(json))
        return lks__fail(LKS_ERR_FORMAT, "%s: a JSON object is expected", where);
    const json_t *kind = json_object_get(json, "kind");
    const json_t *size = json_object_get(json, "vocab_size");
    const json_t *chars = json_object_get(json, "chars");
    if (!json_is_string(kind))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: \"kind\" must be a string: \"char\", \"gpt2\", \"sentencepiece\", "
                         "\"bytes\" or \"ids\"",
                         where);
    bool is_char = is_text(kind, "char"), is_sentencepiece = is_text(kind, "sentencepiece");
    bool is_bpe = is_text(kind, "gpt2"), is_bytes = is_text(kind, "bytes");
    if (!is_char && !is_sentencepiece && !is_bpe && !is_bytes && !is_text(kind, "ids")) {
        char safe[64];
        lks__escape(safe, sizeof safe, json_string_value(kind), json_string_length(kind));
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: tokens of kind \"%s\" are not supported by this version; it supports "
                         "\"char\", \"gpt2\", \"sentencepiece\", \"bytes\" and \"ids\"",
                         where, safe);
    }
    json_int_t most = is_char ? LKS__META_MAX_CHARS : LKS__META_MAX_IDS;
    if (!json_is_integer(size) || json_integer_value(size) < 1 || json_integer_value(size) > most)
        return lks__fail(LKS_ERR_FORMAT, "%s: \"vocab_size\" must be a whole number from 1 to %lld",
                         where, (long long)most);
    if (is_bytes && json_integer_value(size) != LKS__BYTE_TOKENS)
        return lks__fail(LKS_ERR_FORMAT, "%s: \"vocab_size\" of bytes must be %d", where,
                         LKS__BYTE_TOKENS);
    if (!is_char) {
        uint64_t hash = 0;
        if (is_sentencepiece || is_bpe)
            LKS__TRY(read_model(json, is_bpe ? LKS__BPE_FILE : LKS__META_MODEL, where, &hash));
        *meta = (lks__meta){.vocab_size = (uint32_t)json_integer_value(size),
                            .is_sentencepiece = is_sentencepiece,
                            .is_bpe = is_bpe,
                            .is_bytes = is_bytes,
                            .model_hash = hash};
        return LKS_OK;
    }
    if (!json_is_string(chars))
        return lks__fail(LKS_ERR_FORMAT, "%s: \"chars\" must be a string of all characters", where);
    return read_chars(chars, (uint32_t)json_integer_value(size), where, meta);
}

json_t *lks__meta_to_json(const lks__meta *meta)
{
    if (meta->is_sentencepiece || meta->is_bpe)
        return json_pack("{s:s, s:I, s:s, s:s}", "kind", meta->is_bpe ? "gpt2" : "sentencepiece",
                         "vocab_size", (json_int_t)meta->vocab_size, "file",
                         meta->is_bpe ? LKS__BPE_FILE : LKS__META_MODEL, "hash",
                         lks__hex(meta->model_hash));
    if (!meta->chars)
        return json_pack("{s:s, s:I}", "kind", meta->is_bytes ? "bytes" : "ids", "vocab_size",
                         (json_int_t)meta->vocab_size);
    char *text = malloc((size_t)meta->vocab_size * 4 + 1);
    if (!text)
        return NULL;
    size_t bytes = 0;
    for (uint32_t i = 0; i < meta->vocab_size; i++)
        bytes += lks__utf8_encode(meta->chars[i], text + bytes);
    json_t *chars = json_stringn(text, bytes); /* the text may contain U+0000 */
    free(text);
    if (!chars)
        return NULL;
    return json_pack("{s:s, s:I, s:o}", "kind", "char", "vocab_size", (json_int_t)meta->vocab_size,
                     "chars", chars);
}

void lks__meta_free(lks__meta *meta)
{
    free(meta->chars);
    *meta = (lks__meta){0};
}

/* ---- encoding and decoding --------------------------------------------------------------- */

/* A binary search finds a character of `prep`, whose characters ascend. Other vocabularies need a
 * linear search. */
int32_t lks__meta_find_char(const lks__meta *meta, uint32_t cp)
{
    uint32_t lo = 0, hi = meta->vocab_size;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (meta->chars[mid] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < meta->vocab_size && meta->chars[lo] == cp)
        return (int32_t)lo;
    for (lo = 0; lo < meta->vocab_size; lo++)
        if (meta->chars[lo] == cp)
            return (int32_t)lo;
    return -1;
}

static lks_status encode_chars(const lks__meta *meta, const char *text, size_t bytes, int32_t *ids,
                               size_t *n_p)
{
    size_t n = 0, i = 0;
    while (i < bytes) {
        uint32_t cp;
        size_t len = lks__utf8_decode(text + i, bytes - i, &cp);
        if (len == 0)
            return lks__fail(LKS_ERR_FORMAT, "byte 0x%02x at offset %zu is not valid UTF-8",
                             (unsigned char)text[i], i);
        if (cp == '\r') {
            cp = '\n';
            if (i + 1 < bytes && text[i + 1] == '\n')
                len = 2;
        }
        ids[n] = lks__meta_find_char(meta, cp);
        if (ids[n] < 0) {
            char shown[32];
            return lks__fail(LKS_ERR_FORMAT,
                             "character %s at offset %zu is not in the vocabulary of %u characters",
                             show_char(cp, shown), i, meta->vocab_size);
        }
        n++;
        i += len;
    }
    *n_p = n;
    return LKS_OK;
}

/* Read decimal ids separated by white space, as lks__meta_decode() writes them. */
static lks_status encode_numbers(const lks__meta *meta, const char *text, size_t bytes,
                                 int32_t *ids, size_t *n_p)
{
    size_t n = 0, i = 0;
    while (i < bytes) {
        if (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r')) {
            i++;
            continue;
        }
        size_t start = i;
        uint64_t id = 0;
        while (i < bytes && text[i] >= '0' && text[i] <= '9' && id < meta->vocab_size)
            id = id * 10 + (uint64_t)(text[i++] - '0');
        bool ended = i == bytes || text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        if (i == start || !ended || id >= meta->vocab_size)
            return lks__fail(LKS_ERR_FORMAT,
                             "offset %zu: these tokens have no text, so ids from 0 to %u, "
                             "separated by spaces, are expected",
                             start, meta->vocab_size - 1);
        ids[n++] = (int32_t)id;
    }
    *n_p = n;
    return LKS_OK;
}

lks_status lks__meta_encode(const lks__meta *meta, const char *text, size_t bytes, int32_t **ids_p,
                            size_t *n_p)
{
    if (bytes >= SIZE_MAX / sizeof(int32_t))
        return lks__fail(LKS_ERR_ARG, "a text of %zu bytes is too long", bytes);
    int32_t *ids = malloc((bytes + 1) * sizeof *ids); /* an id needs at least one byte */
    LKS__MEMORY(ids, "for the ids of %zu bytes of text", bytes);
    lks_status st = LKS_OK;
    if (meta->is_bytes)
        lks__byte_tokens(text, *n_p = bytes, ids);
    else
        st = meta->chars ? encode_chars(meta, text, bytes, ids, n_p)
                         : encode_numbers(meta, text, bytes, ids, n_p);
    if (st != LKS_OK) {
        free(ids);
        return st;
    }
    *ids_p = ids;
    return LKS_OK;
}

size_t lks__meta_decode(const lks__meta *meta, int32_t id, char out[16])
{
    if (meta->is_bytes) {
        const bool has = id >= LKS__BYTE_FIRST && id < LKS__BYTE_TOKENS;
        *out = has ? (char)(id - LKS__BYTE_FIRST) : '\0';
        return has;
    }
    if (!meta->chars)
        return (size_t)snprintf(out, 16, "%d ", id);
    bool known = id >= 0 && (uint32_t)id < meta->vocab_size;
    return lks__utf8_encode(known ? meta->chars[id] : REPLACEMENT_CHAR, out);
}

lks_status lks__meta_of_vocabulary(const char *path, lks__meta *meta)
{
    lks__bpe *bpe;
    LKS__TRY(lks__bpe_open(path, &bpe));
    *meta = (lks__meta){.vocab_size = lks__bpe_size(bpe), .is_bpe = true};
    lks_status st = lks__bpe_hash(bpe, &meta->model_hash);
    lks__bpe_close(bpe);
    return st;
}

bool lks__meta_describes(const lks__meta *meta)
{
    return meta->chars != NULL || meta->is_bytes || meta->is_bpe || meta->is_sentencepiece;
}

static bool has_meaning(const lks__meta *m)
{
    return m->chars != NULL || m->is_bytes ||
           ((m->is_sentencepiece || m->is_bpe) && m->model_hash != 0);
}

bool lks__meta_differ(const lks__meta *a, const lks__meta *b)
{
    if (!has_meaning(a) || !has_meaning(b))
        return false;
    if ((a->chars != NULL) != (b->chars != NULL))
        return true;
    if (a->chars == NULL)
        return a->is_bpe != b->is_bpe || a->model_hash != b->model_hash; /* bytes: 0 */
    const uint32_t n = a->vocab_size < b->vocab_size ? a->vocab_size : b->vocab_size;
    return memcmp(a->chars, b->chars, n * sizeof *a->chars) != 0;
}
