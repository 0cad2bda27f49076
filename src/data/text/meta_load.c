/* data/text/meta_load.c - reads a folder's meta.json, meta.pkl or tokenizer.json. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"
#include "data/text/meta.h"
#include "files/pickle/pickle.h"

enum {
    MAX_META_BYTES =
        4 << 20, /* enough: 65,536 characters as escaped pairs of surrogates take 786 KiB */
};

/* --- meta.pkl of nanoGPT's prepare.py: {"vocab_size": n, "stoi": {character: id}, "itos": {id:
 * character}} (or a list), the last two together, or neither ----------------------------------- */

static lks_status bad(const char *where, const char *why)
{
    return lks__fail(LKS_ERR_FORMAT, "%s: %s", where, why);
}

/* The text of an id, or NULL if stoi doesn't map that text back to the id. */
static const char *text_of(const lks__pickle_value *stoi, const lks__pickle_value *itos,
                           uint32_t id, size_t *bytes_p)
{
    const lks__pickle_value *text = lks__pickle_kind_of(itos) == LKS__PICKLE_LIST
                                        ? lks__pickle_item(itos, id)
                                        : lks__pickle_find_int(itos, id);
    if (lks__pickle_kind_of(text) != LKS__PICKLE_TEXT)
        return NULL;
    const char *at = lks__pickle_text(text, bytes_p);
    const lks__pickle_value *back = lks__pickle_find_text(stoi, at, *bytes_p);
    bool same = lks__pickle_kind_of(back) == LKS__PICKLE_INT && lks__pickle_int(back) == id;
    return same ? at : NULL;
}

/* *is_char_p: the texts are single characters. */
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
        *is_char_p = *is_char_p && length > 0 && length == bytes;
        chars[id] = cp;
    }
    return LKS_OK;
}

static lks_status read_both(const char *where, const lks__pickle_value *stoi,
                            const lks__pickle_value *itos, uint32_t n, lks__meta *meta)
{
    bool is_char;
    const lks__pickle_kind kind = lks__pickle_kind_of(itos);
    const bool are_maps = lks__pickle_kind_of(stoi) == LKS__PICKLE_DICT &&
                          (kind == LKS__PICKLE_DICT || kind == LKS__PICKLE_LIST);
    if (are_maps && (lks__pickle_count(stoi) > n ||
                     lks__pickle_count(itos) != lks__pickle_count(stoi) || n > LKS__META_MAX_CHARS))
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: \"stoi\" and \"itos\" must have equally many items, at most "
                         "\"vocab_size\" = %u, and that at most %d",
                         where, n, LKS__META_MAX_CHARS);
    if (!are_maps || lks__pickle_count(stoi) < n) { /* not prepare.py's, or rounded up */
        *meta = (lks__meta){.vocab_size = n, .has_other_texts = true};
        return LKS_OK;
    }
    uint32_t *chars = malloc((size_t)n * sizeof *chars);
    if (!chars)
        return lks__fail(LKS_ERR_NOMEM, "%s: no memory for %u characters", where, n);
    lks_status st = read_chars(where, stoi, itos, n, chars, &is_char);
    if (st != LKS_OK || !is_char) {
        free(chars);
        chars = NULL;
    }
    if (st == LKS_OK)
        *meta = (lks__meta){.vocab_size = n, .chars = chars, .has_other_texts = chars == NULL};
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
        lks__pickle_int(size) > LKS__META_MAX_IDS)
        return bad(where, "\"vocab_size\" must be a whole number from 1 to 16777216");
    uint32_t n = (uint32_t)lks__pickle_int(size);
    if (stoi || itos)
        return read_both(where, stoi, itos, n, meta);
    *meta = (lks__meta){.vocab_size = n};
    return LKS_OK;
}

/* Single characters, as from prepare.py, give the kind char. Anything else has only a size, as
 * train.py uses it: the kind ids. */
static lks_status load_pickle(const char *path, lks__meta *meta)
{
    lks__pickle *pickle;
    LKS__TRY(lks__pickle_open(path, &pickle));
    const char *where = lks__shown(path, 256);
    lks_status st = read_root(where, lks__pickle_root(pickle), meta);
    lks__pickle_close(pickle);
    return st;
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* `name` gets the path for messages. Release *json_p with json_decref(). */
static lks_status read_json(const char *path, size_t flags, char name[256], json_t **json_p)
{
    char *text = NULL;
    size_t bytes;
    lks__escape(name, 256, path, strlen(path));
    LKS__TRY(lks__sys_read_file(path, MAX_META_BYTES, &text, &bytes));
    lks_status st = lks__json_parse(text, bytes, flags | JSON_REJECT_DUPLICATES, name, json_p);
    free(text);
    return st;
}

static lks_status load_json(const char *path, lks__meta *meta)
{
    char name[256];
    json_t *json;
    LKS__TRY(read_json(path, JSON_ALLOW_NUL, name, &json));
    lks_status st = lks__meta_from_json(json, name, meta);
    json_decref(json);
    return st;
}

/* Read DIR/NAME with `load`; *found_p = false if it doesn't exist. */
static lks_status load_file(const char *dir, const char *name,
                            lks_status (*load)(const char *path, lks__meta *meta), bool *found_p,
                            lks__meta *meta)
{
    char *path = NULL;
    struct stat info;
    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return lks__no_memory("to read %s", name);
    bool is_there = stat(path, &info) == 0 || errno != ENOENT;
    lks_status st = is_there ? load(path, meta) : LKS_OK;
    free(path);
    if (st == LKS_OK)
        *found_p = is_there;
    return st;
}

/* Compare a meta.pkl next to meta.json: prepare.py may have written other tokens since. One that
 * can't be read says nothing. */
static lks_status check_other(const char *dir, const lks__meta *meta)
{
    lks__meta other;
    bool found = false;
    const lks_status st = load_file(dir, "meta.pkl", load_pickle, &found, &other);
    if (st != LKS_OK || !found)
        return st == LKS_ERR_NOMEM ? st : LKS_OK;
    const bool same = other.vocab_size == meta->vocab_size && !lks__meta_differ(meta, &other);
    const uint32_t size = other.vocab_size;
    lks__meta_free(&other);
    if (same)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "meta.json (vocab_size = %u) and meta.pkl (%u) in %s contradict each other: "
                     "delete the one that isn't about the tokens there",
                     meta->vocab_size, size, lks__shown(dir, 256));
}

lks_status lks__meta_load(const char *dir, bool *found_p, lks__meta *meta)
{
    lks__meta loaded = {0};
    bool found = false;
    lks_status st = load_file(dir, "meta.json", load_json, &found, &loaded);
    if (st == LKS_OK && found)
        st = check_other(dir, &loaded);
    else if (st == LKS_OK)
        st = load_file(dir, "meta.pkl", load_pickle, &found, &loaded);
    if (st != LKS_OK) {
        lks__meta_free(&loaded);
        return st;
    }
    if (found)
        *meta = loaded;
    *found_p = found;
    return LKS_OK;
}

lks_status lks__meta_hashes(const char *dir, json_t **hashes_p)
{
    char path[LKS__SYS_PATH], name[256];
    json_t *json;
    *hashes_p = NULL;
    snprintf(path, sizeof path, "%s/meta.json", dir);
    if (access(path, F_OK) != 0)
        return LKS_OK;
    LKS__TRY(read_json(path, JSON_ALLOW_NUL, name, &json));
    *hashes_p = json_incref(json_object_get(json, LKS__META_HASHES));
    json_decref(json);
    return LKS_OK;
}

/* The code points of a vocabulary of `n` words, by id. False if they aren't the characters of a
 * dataset. */
static bool read_words(json_t *vocabulary, size_t n, uint32_t *chars)
{
    const char *word;
    json_t *id;
    json_object_foreach(vocabulary, word, id)
    {
        const size_t bytes = strlen(word);
        uint32_t cp;
        const json_int_t at = json_is_integer(id) ? json_integer_value(id) : -1;
        if (bytes == 0 || lks__utf8_decode(word, bytes, &cp) != bytes || at < 0 ||
            at >= (json_int_t)n)
            return false;
        chars[at] = cp;
    }
    bool complete = n > 0;
    for (size_t i = 0; i < n; i++)
        complete = complete && chars[i] != 0; /* 0: this id has no word */
    return complete;
}

static lks_status load_words(const char *path, lks__meta *meta)
{
    char name[256];
    json_t *json;
    lks_status st = LKS_OK;
    LKS__TRY(read_json(path, 0, name, &json));
    json_t *vocabulary = json_object_get(json_object_get(json, "model"), "vocab");
    const size_t n = json_object_size(vocabulary);
    uint32_t *chars = calloc(n + 1, sizeof *chars);
    if (chars == NULL)
        st = lks__no_memory("for %zu characters", n);
    else if (n > LKS__META_MAX_CHARS || !read_words(vocabulary, n, chars))
        st =
            lks__fail(LKS_ERR_SUPPORT,
                      "%s contains words (WordLevel), and lockstep reads such a file only if "
                      "they are single characters, as `lockstep export` writes them: give the data "
                      "that the model was trained on, for example --tokenizer=data/my",
                      name);
    if (st == LKS_OK)
        *meta = (lks__meta){.vocab_size = (uint32_t)n, .chars = chars};
    else
        free(chars);
    json_decref(json);
    return st;
}

lks_status lks__meta_load_any(const char *path, bool *found_p, lks__meta *meta)
{
    *found_p = false;
    if (!lks__sys_is_folder(path))
        return LKS_OK;
    LKS__TRY(lks__meta_load(path, found_p, meta));
    if (*found_p || lks__bpe_is_at(path))
        return LKS_OK;
    return load_file(path, LKS__BPE_FILE, load_words, found_p, meta);
}

lks_status lks__meta_find(const char *path, bool *found_p, lks__meta *meta)
{
    const lks_status st = lks__meta_load_any(path, found_p, meta);
    if ((st == LKS_OK && *found_p && lks__meta_describes(meta)) || st == LKS_ERR_NOMEM ||
        !lks__bpe_is_at(path))
        return st;
    lks__meta_free(meta);
    *found_p = true;
    return lks__meta_of_vocabulary(path, meta);
}

const char *lks__meta_file(const char *dir)
{
    char path[LKS__SYS_PATH];
    struct stat info;
    snprintf(path, sizeof path, "%s/meta.json", dir);
    return stat(path, &info) == 0 ? "meta.json" : "meta.pkl";
}
