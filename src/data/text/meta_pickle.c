#include "data/text/meta_pickle.h"

#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"
#include "files/pickle/pickle.h"

enum { MAX_CHARS = 1 << 16, MAX_IDS = 1 << 24 }; /* as in meta.json */

static lks_status bad(const char *where, const char *why)
{
    return lks__fail(LKS_ERR_FORMAT, "%s: %s", where, why);
}

/* The text of an id, or NULL if stoi doesn't map that text back to the id. */
static const char *text_of(const lks__pickle_value *stoi, const lks__pickle_value *itos,
                           uint32_t id, size_t *bytes_p)
{
    const lks__pickle_value *text = lks__pickle_find_int(itos, id);
    if (lks__pickle_kind_of(text) != LKS__PICKLE_TEXT)
        return NULL;
    const char *at = lks__pickle_text(text, bytes_p);
    const lks__pickle_value *back = lks__pickle_find_text(stoi, at, *bytes_p);
    bool same = lks__pickle_kind_of(back) == LKS__PICKLE_INT && lks__pickle_int(back) == id;
    return same ? at : NULL;
}

/* *is_char_p: the texts are single characters in ascending order. */
static lks_status read_chars(const char *where, const lks__pickle_value *stoi,
                             const lks__pickle_value *itos, uint32_t n, uint32_t *chars,
                             bool *is_char_p)
{
    *is_char_p = true;
    for (uint32_t id = 0; id < n; id++) {
        size_t bytes;
        const char *text = text_of(stoi, itos, id, &bytes);
        if (!text)
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: \"stoi\" and \"itos\" don't give each other's texts and ids: id "
                             "%u has no text whose id it is",
                             where, id);
        uint32_t cp = 0;
        size_t length = lks__utf8_decode(text, bytes, &cp);
        if (length == 0 || length != bytes || (id > 0 && cp <= chars[id - 1]))
            *is_char_p = false;
        chars[id] = cp;
    }
    return LKS_OK;
}

static lks_status read_both(const char *where, const lks__pickle_value *stoi,
                            const lks__pickle_value *itos, uint32_t n, lks__meta *meta)
{
    bool is_char;
    if (lks__pickle_kind_of(stoi) != LKS__PICKLE_DICT ||
        lks__pickle_kind_of(itos) != LKS__PICKLE_DICT || lks__pickle_count(stoi) != n ||
        lks__pickle_count(itos) != n || n > MAX_CHARS)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: \"stoi\" and \"itos\" must be dicts with \"vocab_size\" items each, "
                         "%u, and at most %d",
                         where, n, MAX_CHARS);
    uint32_t *chars = malloc((size_t)n * sizeof *chars);
    if (!chars)
        return lks__fail(LKS_ERR_NOMEM, "%s: no memory for %u characters", where, n);
    lks_status st = read_chars(where, stoi, itos, n, chars, &is_char);
    if (st != LKS_OK || !is_char) {
        free(chars);
        chars = NULL;
    }
    if (st == LKS_OK)
        *meta = (lks__meta){.vocab_size = n, .chars = chars};
    return st;
}

static lks_status read_root(const char *where, const lks__pickle_value *root, lks__meta *meta)
{
    if (lks__pickle_kind_of(root) != LKS__PICKLE_DICT)
        return bad(where, "a dict with \"vocab_size\", \"stoi\" and \"itos\" is expected");
    const lks__pickle_value *size = lks__pickle_find(root, "vocab_size");
    const lks__pickle_value *stoi = lks__pickle_find(root, "stoi");
    const lks__pickle_value *itos = lks__pickle_find(root, "itos");
    if (lks__pickle_kind_of(size) != LKS__PICKLE_INT || lks__pickle_int(size) < 1 ||
        lks__pickle_int(size) > MAX_IDS)
        return bad(where, "\"vocab_size\" must be a whole number from 1 to 16777216");
    uint32_t n = (uint32_t)lks__pickle_int(size);
    if (stoi || itos)
        return read_both(where, stoi, itos, n, meta);
    *meta = (lks__meta){.vocab_size = n};
    return LKS_OK;
}

lks_status lks__meta_from_pickle(const char *path, lks__meta *meta)
{
    char where[256];
    lks__pickle *pickle;
    LKS__TRY(lks__pickle_open(path, &pickle));
    lks__escape(where, sizeof where, path, strlen(path));
    lks_status st = read_root(where, lks__pickle_root(pickle), meta);
    lks__pickle_close(pickle);
    return st;
}
