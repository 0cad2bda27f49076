/* data/text/bpe/bpe_load.c - reads vocabularies from files of all forms. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"
#include "data/text/bpe/bpe_build.h"

/* --- JSON ------------------------------------------------------------------------------------ */

/* {"spelled token": id, …} */
static lks_status add_vocabulary(lks__bpe_build *l, json_t *vocab)
{
    const char *key;
    json_t *id;
    if (!json_is_object(vocab))
        return lks__fail(LKS_ERR_FORMAT, "%s: an object of tokens and ids is expected", l->where);
    json_object_foreach(vocab, key, id)
    {
        const size_t n = strlen(key);
        char *bytes = malloc(n + 1);
        LKS__MEMORY(bytes, "for the tokens of %s", l->where);
        const size_t made = lks__bpe_unspell(&l->spellings, key, n, bytes);
        lks_status st = LKS_OK;
        if (!json_is_integer(id) || made == 0) {
            char shown[80];
            st = lks__fail(LKS_ERR_FORMAT, "%s: token \"%s\" %s", l->where,
                           lks__bpe_show(key, n, shown),
                           made == 0 ? "doesn't use byte-level BPE's spelling of bytes"
                                     : "has an id that is not a whole number");
        } else {
            st = lks__bpe_build_token(l, bytes, made, json_integer_value(id));
        }
        free(bytes);
        LKS__TRY(st);
    }
    return LKS_OK;
}

/* "a b", spelled, as merge number `line`. */
static lks_status add_spelled_pair(lks__bpe_build *l, const char *a, size_t na, const char *b,
                                   size_t nb, size_t line)
{
    char left[1024], right[1024];
    const size_t made_a = na < sizeof left ? lks__bpe_unspell(&l->spellings, a, na, left) : 0;
    const size_t made_b = nb < sizeof right ? lks__bpe_unspell(&l->spellings, b, nb, right) : 0;
    if (made_a == 0 || made_b == 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: merge %zu is not two tokens with a blank between them", l->where,
                         line + 1);
    return lks__bpe_build_pair(l, left, made_a, right, made_b, line);
}

static lks_status add_pair_text(lks__bpe_build *l, const char *text, size_t n, size_t line)
{
    const char *blank = memchr(text, ' ', n);
    const size_t na = blank == NULL ? 0 : (size_t)(blank - text);
    return add_spelled_pair(l, text, na, text + na + 1, blank == NULL ? 0 : n - na - 1, line);
}

/* --- vocab.bpe and encoder.json -------------------------------------------------------------- */

/* Parse lines of merges after a first line "#version: …". */
static lks_status add_merge_lines(lks__bpe_build *l, const char *text, size_t bytes)
{
    size_t line = 0;
    for (size_t i = 0, next; i < bytes; i = next) {
        const char *feed = memchr(text + i, '\n', bytes - i);
        size_t n = feed == NULL ? bytes - i : (size_t)(feed - (text + i));
        next = i + n + 1;
        if (n > 0 && text[i + n - 1] == '\r')
            n--;
        if (n == 0 || (i == 0 && n >= 9 && memcmp(text, "#version:", 9) == 0))
            continue;
        LKS__TRY(add_pair_text(l, text + i, n, line++));
    }
    return LKS_OK;
}

struct file {
    char path[LKS__SYS_PATH], name[1024]; /* escaped */
    char *text;
    size_t bytes;
};

static lks_status read_file(struct file *f, const char *dir, const char *name)
{
    f->text = NULL;
    if (snprintf(f->path, sizeof f->path, name == NULL ? "%s" : "%s/%s", dir, name) >=
        (int)sizeof f->path)
        return lks__fail(LKS_ERR_IO, "the name of a vocabulary's file is too long");
    lks__escape(f->name, sizeof f->name, f->path, strlen(f->path));
    return lks__sys_read_file(f->path, LKS__BPE_MAX_FILE, &f->text, &f->bytes);
}

static lks_status open_pair(const char *dir, const char *merges_name, const char *vocab_name,
                            lks__bpe **bpe_p)
{
    struct file merges, vocab;
    lks__bpe_build l = {0};
    json_t *json = NULL;
    lks_status st = read_file(&vocab, dir, vocab_name);
    if (st != LKS_OK)
        return st;
    st = read_file(&merges, dir, merges_name);
    LKS__THEN(st,
              lks__json_parse(vocab.text, vocab.bytes, JSON_REJECT_DUPLICATES, vocab.name, &json));
    LKS__THEN(st, lks__bpe_build_begin(&l, vocab.name));
    LKS__THEN(st, add_vocabulary(&l, json));
    if (st == LKS_OK) {
        l.where = merges.name;
        st = add_merge_lines(&l, merges.text, merges.bytes);
    }
    LKS__THEN(st, lks__bpe_build_finish(&l, bpe_p));
    lks__bpe_build_end(&l);
    json_decref(json);
    free(merges.text);
    free(vocab.text);
    return st;
}

/* --- tiktoken's files ------------------------------------------------------------------------ */

/* Bytes of a token; OpenAI's have up to 128. A token's merge is found in quadratic time, so the
 * squares of all lengths are limited, too. */
enum { MAX_RANKED = 1023, MAX_SQUARES = 1 << 30 };

#define END_OF_TEXT_BYTES LKS__BPE_END_OF_TEXT, sizeof LKS__BPE_END_OF_TEXT - 1

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Returns the number of bytes; 0: not base64. */
static size_t unbase64(const char *text, size_t n, char *out)
{
    uint32_t bits = 0;
    int have = 0;
    size_t made = 0;
    while (n > 0 && text[n - 1] == '=')
        n--;
    for (size_t i = 0; i < n; i++) {
        const int digit = base64_digit(text[i]);
        if (digit < 0)
            return 0;
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[made++] = (char)(bits >> have);
        }
    }
    return made;
}

static lks_status add_rank_line(lks__bpe_build *l, const char *text, size_t n, size_t line)
{
    char bytes[MAX_RANKED], *number_end;
    const char *blank = memchr(text, ' ', n);
    const size_t na = blank == NULL ? 0 : (size_t)(blank - text);
    char number[24] = "";
    if (na > 0 && n - na - 1 < sizeof number)
        memcpy(number, blank + 1, n - na - 1);
    const long long id = strtoll(number, &number_end, 10);
    const size_t made = na > 0 && na <= MAX_RANKED / 3 * 4 ? unbase64(text, na, bytes) : 0;
    if (made == 0 || number[0] < '0' || number[0] > '9' || *number_end != '\0')
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: line %zu is not a token of at most %d bytes in base64, a blank and a "
                         "rank",
                         l->where, line, MAX_RANKED);
    return lks__bpe_build_token(l, bytes, made, id);
}

/* A token while it is encoded with the tokens of lower ranks. */
struct parts {
    const char *bytes;
    uint32_t start[MAX_RANKED + 1];
    uint32_t rank[MAX_RANKED]; /* of a part and the next one together; UINT32_MAX: they stay two */
    size_t n;
};

static void look_up_rank(const lks__bpe_build *l, struct parts *p, size_t i, uint32_t below)
{
    const uint32_t at = p->start[i];
    const int32_t id =
        i + 1 < p->n ? lks__bpe_build_id(l, p->bytes + at, p->start[i + 2] - at) : -1;
    p->rank[i] = id >= 0 && (uint32_t)id < below ? (uint32_t)id : UINT32_MAX;
}

static void encode_below(const lks__bpe_build *l, uint32_t below, struct parts *p)
{
    for (uint32_t i = 0; i <= p->n; i++)
        p->start[i] = i;
    for (size_t i = 0; i < p->n; i++)
        look_up_rank(l, p, i, below);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < p->n; i++)
            best = p->rank[i] < p->rank[best] ? i : best;
        if (p->rank[best] == UINT32_MAX)
            return;
        const size_t after = p->n - best - 1;
        memmove(p->start + best + 1, p->start + best + 2, after * sizeof *p->start);
        memmove(p->rank + best, p->rank + best + 1, after * sizeof *p->rank);
        p->n--;
        look_up_rank(l, p, best, below);
        if (best > 0)
            look_up_rank(l, p, best - 1, below);
    }
}

/* Such a file lists no merges. A token's merge joins the two parts that remain after encoding its
 * bytes with the tokens of lower ranks. */
static lks_status add_rank_merges(lks__bpe_build *l)
{
    struct parts p;
    char shown[80];
    uint64_t squares = 0;
    for (uint32_t id = 0; id < l->n_ids; id++) {
        const uint64_t n = l->token[id] == NULL ? 0 : lks__bpe_token_length(l->token[id]);
        squares += n * n;
    }
    if (squares > MAX_SQUARES)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: it has too many long tokens: the squares of their lengths in bytes "
                         "add up to more than %d",
                         l->where, MAX_SQUARES);
    for (uint32_t id = 0; id < l->n_ids; id++) {
        p.n = l->token[id] == NULL ? 0 : lks__bpe_token_length(l->token[id]);
        p.bytes = l->token[id] == NULL ? NULL : lks__bpe_token_bytes(l->token[id]);
        if (p.n < 2 || id == (uint32_t)lks__bpe_build_id(l, END_OF_TEXT_BYTES))
            continue;
        encode_below(l, id, &p);
        if (p.n != 2)
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: token \"%s\" of rank %" PRIu32
                             " is not made of two tokens of lower ranks: if it is a special token, "
                             "remove its line",
                             l->where, lks__bpe_show(p.bytes, p.start[p.n], shown), id);
        const int32_t left = lks__bpe_build_id(l, p.bytes, p.start[1]);
        const int32_t right = lks__bpe_build_id(l, p.bytes + p.start[1], p.start[2] - p.start[1]);
        if (left >= 0 && right >= 0) /* otherwise bytes are missing, which the end reports */
            LKS__TRY(lks__bpe_build_merge(l, (uint32_t)left, (uint32_t)right, id, id));
    }
    return LKS_OK;
}

/* The file doesn't say how text is split. Newer vocabularies split it in other ways than GPT-2. */
static lks_status check_split(const lks__bpe_build *l)
{
    const char *name = l->n_ids == 100256   ? "cl100k_base"
                       : l->n_ids == 199998 ? "o200k_base"
                                            : NULL;
    if (name == NULL)
        return LKS_OK;
    return lks__fail(
        LKS_ERR_SUPPORT,
        "%s has as many ranks as %s, which splits text in another way than GPT-2: give "
        "a vocabulary like r50k_base or p50k_base",
        l->where, name);
}

/* Such a file has no special tokens: GPT-2's gets the lowest free id. */
static lks_status add_end_of_text(lks__bpe_build *l)
{
    uint32_t id = 0;
    if (lks__bpe_build_id(l, END_OF_TEXT_BYTES) >= 0)
        return LKS_OK;
    while (id < l->n_ids && l->token[id] != NULL)
        id++;
    return lks__bpe_build_token(l, END_OF_TEXT_BYTES, id);
}

static lks_status open_tiktoken(const char *path, lks__bpe **bpe_p)
{
    struct file f;
    lks__bpe_build l = {0};
    lks_status st = read_file(&f, path, NULL);
    if (st != LKS_OK)
        return st;
    st = lks__bpe_build_begin(&l, f.name);
    size_t line = 1;
    for (size_t i = 0, next; i < f.bytes && st == LKS_OK; i = next, line++) {
        const char *feed = memchr(f.text + i, '\n', f.bytes - i);
        const size_t n = feed == NULL ? f.bytes - i : (size_t)(feed - (f.text + i));
        next = i + n + 1;
        if (n > 0)
            st = add_rank_line(&l, f.text + i, n, line);
    }
    LKS__THEN(st, check_split(&l));
    LKS__THEN(st, add_rank_merges(&l));
    LKS__THEN(st, add_end_of_text(&l));
    LKS__THEN(st, lks__bpe_build_finish(&l, bpe_p));
    lks__bpe_build_end(&l);
    free(f.text);
    return st;
}

/* --- tokenizer.json -------------------------------------------------------------------------- */

static bool is_text(const json_t *json, const char *text)
{
    return json_is_string(json) && strcmp(json_string_value(json), text) == 0;
}

static bool is_absent(const json_t *json)
{
    return json == NULL || json_is_null(json) || json_is_false(json) || is_text(json, "");
}

/* Refuse, by name, settings that give other ids than encode_ordinary() of this vocabulary. */
static lks_status check_kind(const json_t *json, const char *where)
{
    const json_t *model = json_object_get(json, "model"),
                 *pre = json_object_get(json, "pre_tokenizer");
    static const char *const absent[] = {"dropout",
                                         "continuing_subword_prefix",
                                         "end_of_word_suffix",
                                         "ignore_merges",
                                         "byte_fallback",
                                         "fuse_unk"};
    const json_t *type = json_object_get(model, "type"); /* GPT-2's published file has none */
    if (!json_is_object(model) || (type != NULL && !is_text(type, "BPE")))
        return lks__fail(LKS_ERR_SUPPORT, "%s: \"model\" must be of \"type\" \"BPE\"", where);
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (!is_absent(json_object_get(model, absent[i])))
            return lks__fail(LKS_ERR_SUPPORT, "%s: a \"model\" with \"%s\" is not supported", where,
                             absent[i]);
    if (!is_absent(json_object_get(json, "normalizer")))
        return lks__fail(LKS_ERR_SUPPORT, "%s: a \"normalizer\" is not supported", where);
    const json_t *regex = json_object_get(pre, "use_regex");
    if (!is_text(json_object_get(pre, "type"), "ByteLevel") ||
        json_is_true(json_object_get(pre, "add_prefix_space")) || json_is_false(regex))
        return lks__fail(LKS_ERR_SUPPORT,
                         "%s: \"pre_tokenizer\" must be GPT-2's: \"ByteLevel\", with its regular "
                         "expression and without \"add_prefix_space\"",
                         where);
    return LKS_OK;
}

static lks_status add_merge_list(lks__bpe_build *l, const json_t *merges)
{
    if (!json_is_array(merges))
        return lks__fail(LKS_ERR_FORMAT, "%s: \"merges\" must be a list", l->where);
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *a = json_string_value(json_array_get(merge, 0));
        const char *b = json_string_value(json_array_get(merge, 1));
        if (json_is_string(merge))
            LKS__TRY(add_pair_text(l, json_string_value(merge), json_string_length(merge), i));
        else if (json_array_size(merge) == 2 && a != NULL && b != NULL)
            LKS__TRY(add_spelled_pair(l, a, strlen(a), b, strlen(b), i));
        else
            return lks__fail(LKS_ERR_FORMAT, "%s: merge %zu is not two tokens", l->where, i + 1);
    }
    return LKS_OK;
}

/* [{"id": 50256, "content": "<|endoftext|>", …}]: added as written, if the vocabulary lacks
 * them. */
static lks_status add_specials(lks__bpe_build *l, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
        const char *text = json_string_value(json_object_get(token, "content"));
        if (text == NULL || !json_is_integer(id))
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: entry %zu of \"added_tokens\" lacks its id or content", l->where,
                             i + 1);
        const int32_t known = lks__bpe_build_id(l, text, strlen(text));
        if (known < 0)
            LKS__TRY(lks__bpe_build_token(l, text, strlen(text), json_integer_value(id)));
        else if (known != json_integer_value(id))
            return lks__fail(
                LKS_ERR_FORMAT,
                "%s: entry %zu of \"added_tokens\" has id %lld, but its text is token %d", l->where,
                i + 1, (long long)json_integer_value(id), known);
        l->special[json_integer_value(id)] = true;
        if (json_is_true(json_object_get(token, "lstrip")) ||
            json_is_true(json_object_get(token, "rstrip")) ||
            json_is_true(json_object_get(token, "single_word")))
            l->loose = json_integer_value(id) + 1;
    }
    return LKS_OK;
}

lks_status lks__bpe_parse(const char *text, size_t bytes, const char *where, lks__bpe **bpe_p)
{
    lks__bpe_build l = {0};
    json_t *json = NULL;
    lks_status st = lks__json_parse(text, bytes, JSON_REJECT_DUPLICATES, where, &json);
    LKS__THEN(st, check_kind(json, where));
    LKS__THEN(st, lks__bpe_build_begin(&l, where));
    const json_t *model = json_object_get(json, "model");
    LKS__THEN(st, add_vocabulary(&l, json_object_get(model, "vocab")));
    LKS__THEN(st, add_specials(&l, json_object_get(json, "added_tokens")));
    LKS__THEN(st, add_merge_list(&l, json_object_get(model, "merges")));
    LKS__THEN(st, lks__bpe_build_finish(&l, bpe_p));
    lks__bpe_build_end(&l);
    json_decref(json);
    return st;
}

static lks_status open_json(const char *path, lks__bpe **bpe_p)
{
    struct file f;
    lks_status st = read_file(&f, path, NULL);
    LKS__THEN(st, lks__bpe_parse(f.text, f.bytes, f.name, bpe_p));
    free(f.text);
    return st;
}

/* --- all forms ------------------------------------------------------------------------------- */

static bool has(const char *dir, const char *name)
{
    char path[LKS__SYS_PATH];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

/* True for words of one character, as `lockstep export --format=hf` writes for character data.
 * False for unreadable files: opening them reports the reason. */
static bool has_words(const char *dir)
{
    struct file f;
    json_t *json = NULL;
    lks_status st = read_file(&f, dir, LKS__BPE_FILE);
    LKS__THEN(st, lks__json_parse(f.text, f.bytes, JSON_REJECT_DUPLICATES, f.name, &json));
    const char *type = json_string_value(json_object_get(json_object_get(json, "model"), "type"));
    const bool words = st == LKS_OK && type != NULL && strcmp(type, "WordLevel") == 0;
    json_decref(json);
    free(f.text);
    return words;
}

bool lks__bpe_is_at(const char *path)
{
    if (lks__ends_with(path, ".tiktoken") || lks__ends_with(path, ".json"))
        return true;
    if (has(path, LKS__BPE_FILE))
        return !has_words(path);
    return has(path, "vocab.bpe") || has(path, "merges.txt");
}

lks_status lks__bpe_open(const char *path, lks__bpe **bpe_p)
{
    struct stat info;
    const char *shown = lks__shown(path, 256);
    if (stat(path, &info) < 0)
        return lks__fail(LKS_ERR_IO,
                         "cannot read the vocabulary %s: %s; `lockstep fetch gpt2-vocab` "
                         "downloads GPT-2's to data/gpt2-vocab",
                         shown, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        if (has(path, LKS__BPE_FILE)) {
            char file[LKS__SYS_PATH];
            snprintf(file, sizeof file, "%s/" LKS__BPE_FILE, path);
            return open_json(file, bpe_p);
        }
        if (has(path, "vocab.bpe"))
            return open_pair(path, "vocab.bpe", "encoder.json", bpe_p);
        if (has(path, "merges.txt"))
            return open_pair(path, "merges.txt", "vocab.json", bpe_p);
    } else if (lks__ends_with(path, ".tiktoken")) {
        return open_tiktoken(path, bpe_p);
    } else if (lks__ends_with(path, ".json")) {
        return open_json(path, bpe_p);
    }
    return lks__fail(
        LKS_ERR_IO,
        "%s is not a byte-level BPE vocabulary: give a folder with vocab.bpe and "
        "encoder.json (GPT-2's), with merges.txt and vocab.json, or with " LKS__BPE_FILE
        ", or a file NAME.json or NAME.tiktoken",
        shown);
}
