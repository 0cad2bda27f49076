/* data/text/bpe/bpe_load.c - vocabularies from files. All are converted to one form: the bytes of
 * each id, and merges of two ids into a third. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/system/sys.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"
#include "data/text/bpe/bpe_table.h"

static const char END_OF_TEXT[] = "<|endoftext|>";

/* --- bytes as GPT-2 spells them -------------------------------------------------------------- */

/* Printable bytes of Latin-1 are spelled as themselves; the others as the characters from U+0100
 * on, in order. */
static bool stands_for_itself(unsigned c)
{
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
}

struct spellings {
    int16_t byte[0x200]; /* byte of a code point; -1: none */
    uint16_t of[256];    /* the code point of a byte */
};

static void make_spellings(struct spellings *s)
{
    uint16_t other = 0x100;
    memset(s->byte, -1, sizeof s->byte);
    for (unsigned c = 0; c < 256; c++) {
        s->of[c] = stands_for_itself(c) ? (uint16_t)c : other++;
        s->byte[s->of[c]] = (int16_t)c;
    }
}

/* Convert spelled text to bytes, at most `n` of them. Returns their number; 0: not such text. */
static size_t unspell(const struct spellings *s, const char *text, size_t n, char *out)
{
    size_t made = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = lks__utf8_decode(text + i, n - i, &cp);
        if (len == 0 || cp >= 0x200 || s->byte[cp] < 0)
            return 0;
        out[made++] = (char)s->byte[cp];
    }
    return made;
}

/* A vocabulary while it is loaded. */
struct loader {
    const char *where; /* the file, escaped */
    char **token;      /* [LKS__BPE_MAX_IDS], length (uint32_t) and then bytes; NULL: no token */
    bool *special;
    uint32_t n_ids;
    uint32_t *by_bytes; /* [1 << hash_bits] ids + 1; 0: free */
    lks__bpe_merge *merges;
    size_t n_merges, room;
    struct spellings spellings;
};

enum { HASH_BITS = 21 }; /* twice LKS__BPE_MAX_IDS slots */

/* The beginning of a token, for messages. */
static const char *show(const char *bytes, size_t n, char out[80])
{
    return lks__escape(out, 80, bytes, n < 32 ? n : 32);
}

/* --- tokens ---------------------------------------------------------------------------------- */

static uint32_t length_of(const char *token)
{
    uint32_t n;
    memcpy(&n, token, sizeof n);
    return n;
}

static const char *bytes_of(const char *token)
{
    return token + sizeof(uint32_t);
}

/* The slot of these bytes: taken by their id, or free. */
static uint32_t *slot_of(const struct loader *l, const char *bytes, size_t n)
{
    const size_t mask = ((size_t)1 << HASH_BITS) - 1;
    for (size_t i = XXH3_64bits(bytes, n) & mask;; i = (i + 1) & mask) {
        uint32_t *slot = &l->by_bytes[i];
        const char *token = *slot == 0 ? NULL : l->token[*slot - 1];
        if (token == NULL || (length_of(token) == n && memcmp(bytes_of(token), bytes, n) == 0))
            return slot;
    }
}

/* The id of these bytes, or -1. */
static int32_t id_of(const struct loader *l, const char *bytes, size_t n)
{
    return (int32_t)*slot_of(l, bytes, n) - 1;
}

static lks_status start(struct loader *l, const char *where)
{
    *l = (struct loader){.where = where};
    make_spellings(&l->spellings);
    l->token = calloc(LKS__BPE_MAX_IDS, sizeof *l->token);
    l->special = calloc(LKS__BPE_MAX_IDS, sizeof *l->special);
    l->by_bytes = calloc((size_t)1 << HASH_BITS, sizeof *l->by_bytes);
    if (l->token == NULL || l->special == NULL || l->by_bytes == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory to read the vocabulary %s", where);
    return LKS_OK;
}

static void end(struct loader *l)
{
    for (uint32_t i = 0; l->token != NULL && i < l->n_ids; i++)
        free(l->token[i]);
    free(l->token);
    free(l->special);
    free(l->by_bytes);
    free(l->merges);
}

static lks_status add_token(struct loader *l, const char *bytes, size_t n, json_int_t id)
{
    char shown[80];
    if (id < 0 || id >= LKS__BPE_MAX_IDS)
        return lks__fail(LKS_ERR_FORMAT, "%s: token \"%s\" has id %lld; ids are 0 to %d", l->where,
                         show(bytes, n, shown), (long long)id, LKS__BPE_MAX_IDS - 1);
    if (n == 0 || n > LKS__BPE_MAX_TOKEN)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: the token of id %lld has %zu bytes; 1 to %d are possible", l->where,
                         (long long)id, n, LKS__BPE_MAX_TOKEN);
    if (l->token[id] != NULL)
        return lks__fail(LKS_ERR_FORMAT, "%s: token \"%s\" has id %lld, which another token has",
                         l->where, show(bytes, n, shown), (long long)id);
    uint32_t *slot = slot_of(l, bytes, n);
    if (*slot != 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: token \"%s\" occurs twice, as id %" PRIu32 " and %lld", l->where,
                         show(bytes, n, shown), *slot - 1, (long long)id);
    char *token = malloc(sizeof(uint32_t) + n);
    if (token == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the tokens of %s", l->where);
    const uint32_t length = (uint32_t)n;
    memcpy(token, &length, sizeof length);
    memcpy(token + sizeof length, bytes, n);
    l->token[id] = token;
    *slot = (uint32_t)id + 1;
    if ((uint32_t)id >= l->n_ids)
        l->n_ids = (uint32_t)id + 1;
    return LKS_OK;
}

static lks_status add_merge(struct loader *l, uint32_t left, uint32_t right, uint32_t id,
                            uint32_t priority)
{
    if (l->n_merges == l->room) {
        const size_t room = l->room == 0 ? 1 << 16 : 2 * l->room;
        lks__bpe_merge *grown = realloc(l->merges, room * sizeof *grown);
        if (grown == NULL)
            return lks__fail(LKS_ERR_NOMEM, "no memory for the merges of %s", l->where);
        l->merges = grown;
        l->room = room;
    }
    l->merges[l->n_merges++] = (lks__bpe_merge){left, right, id, priority};
    return LKS_OK;
}

/* Add the merge of two tokens, given by their bytes, as number `line` of the list. */
static lks_status add_pair(struct loader *l, const char *a, size_t na, const char *b, size_t nb,
                           size_t line)
{
    char whole[2 * 1024], shown_a[80], shown_b[80];
    const int32_t left = id_of(l, a, na), right = id_of(l, b, nb);
    int32_t id = -1;
    if (na + nb <= sizeof whole) {
        memcpy(whole, a, na);
        memcpy(whole + na, b, nb);
        id = id_of(l, whole, na + nb);
    }
    if (left >= 0 && right >= 0 && id >= 0)
        return add_merge(l, (uint32_t)left, (uint32_t)right, (uint32_t)id, (uint32_t)line);
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: merge %zu, of \"%s\" and \"%s\": %s is not in the vocabulary", l->where,
                     line + 1, show(a, na, shown_a), show(b, nb, shown_b),
                     left < 0    ? "the first"
                     : right < 0 ? "the second"
                                 : "their combination");
}

/* --- common to all forms --------------------------------------------------------------------- */

static int by_priority(const void *a, const void *b)
{
    const lks__bpe_merge *x = a, *y = b;
    if (x->priority != y->priority)
        return x->priority < y->priority ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static int by_pair(const void *a, const void *b)
{
    const lks__bpe_merge *x = a, *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static lks_status check_merges(struct loader *l)
{
    if (l->n_merges == 0) /* only single bytes */
        return LKS_OK;
    qsort(l->merges, l->n_merges, sizeof *l->merges, by_pair);
    for (size_t i = 1; i < l->n_merges; i++)
        if (by_pair(&l->merges[i - 1], &l->merges[i]) == 0)
            return lks__fail(LKS_ERR_FORMAT, "%s: merges %" PRIu32 " and %" PRIu32 " are the same",
                             l->where, l->merges[i - 1].priority + 1, l->merges[i].priority + 1);
    qsort(l->merges, l->n_merges, sizeof *l->merges, by_priority);
    return LKS_OK;
}

static lks_status copy_tokens(const struct loader *l, lks__bpe *bpe)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->n_ids; i++)
        bytes += l->token[i] == NULL ? 0 : length_of(l->token[i]);
    bpe->n_ids = l->n_ids;
    bpe->start = calloc((size_t)l->n_ids + 1, sizeof *bpe->start);
    bpe->at = malloc(bytes + 1);
    bpe->special = calloc((size_t)l->n_ids + 1, sizeof *bpe->special);
    if (bpe->start == NULL || bpe->at == NULL || bpe->special == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the tokens of %s", l->where);
    uint32_t at = 0;
    for (uint32_t i = 0; i < l->n_ids; i++) {
        bpe->start[i] = at;
        if (l->token[i] != NULL) {
            memcpy(bpe->at + at, bytes_of(l->token[i]), length_of(l->token[i]));
            at += length_of(l->token[i]);
        }
        bpe->special[i] = l->special[i];
    }
    bpe->start[l->n_ids] = at;
    return LKS_OK;
}

static lks_status finish(struct loader *l, lks__bpe **bpe_p)
{
    lks__bpe *bpe = calloc(1, sizeof *bpe);
    if (bpe == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the vocabulary %s", l->where);
    lks_status st = check_merges(l);
    for (unsigned c = 0; c < 256 && st == LKS_OK; c++) {
        const char byte = (char)c;
        bpe->byte[c] = id_of(l, &byte, 1);
        if (bpe->byte[c] < 0)
            st = lks__fail(
                LKS_ERR_FORMAT,
                "%s: byte 0x%02x is not among its tokens; a byte-level vocabulary has all "
                "256",
                l->where, c);
    }
    bpe->end_of_text = id_of(l, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    if (bpe->end_of_text >= 0)
        l->special[bpe->end_of_text] = true;
    if (st == LKS_OK)
        st = copy_tokens(l, bpe);
    if (st == LKS_OK) {
        bpe->merges = l->merges;
        bpe->n_merges = l->n_merges;
        l->merges = NULL;
        st = lks__bpe_index(bpe);
    }
    if (st != LKS_OK) {
        lks__bpe_close(bpe);
        return st;
    }
    *bpe_p = bpe;
    return LKS_OK;
}

/* --- JSON ------------------------------------------------------------------------------------ */

/* {"spelled token": id, …} */
static lks_status add_vocabulary(struct loader *l, json_t *vocab)
{
    const char *key;
    json_t *id;
    if (!json_is_object(vocab))
        return lks__fail(LKS_ERR_FORMAT, "%s: an object of tokens and ids is expected", l->where);
    json_object_foreach(vocab, key, id)
    {
        const size_t n = strlen(key);
        char *bytes = malloc(n + 1);
        if (bytes == NULL)
            return lks__fail(LKS_ERR_NOMEM, "no memory for the tokens of %s", l->where);
        const size_t made = unspell(&l->spellings, key, n, bytes);
        lks_status st = LKS_OK;
        if (!json_is_integer(id) || made == 0) {
            char shown[80];
            st = lks__fail(LKS_ERR_FORMAT, "%s: token \"%s\" %s", l->where, show(key, n, shown),
                           made == 0 ? "doesn't use byte-level BPE's spelling of bytes"
                                     : "has an id that is not a whole number");
        } else {
            st = add_token(l, bytes, made, json_integer_value(id));
        }
        free(bytes);
        LKS__TRY(st);
    }
    return LKS_OK;
}

/* "a b", spelled, as merge number `line`. */
static lks_status add_spelled_pair(struct loader *l, const char *a, size_t na, const char *b,
                                   size_t nb, size_t line)
{
    char left[1024], right[1024];
    const size_t made_a = na < sizeof left ? unspell(&l->spellings, a, na, left) : 0;
    const size_t made_b = nb < sizeof right ? unspell(&l->spellings, b, nb, right) : 0;
    if (made_a == 0 || made_b == 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: merge %zu is not two tokens with a blank between them", l->where,
                         line + 1);
    return add_pair(l, left, made_a, right, made_b, line);
}

static lks_status add_pair_text(struct loader *l, const char *text, size_t n, size_t line)
{
    const char *blank = memchr(text, ' ', n);
    const size_t na = blank == NULL ? 0 : (size_t)(blank - text);
    return add_spelled_pair(l, text, na, text + na + 1, blank == NULL ? 0 : n - na - 1, line);
}

/* --- vocab.bpe and encoder.json -------------------------------------------------------------- */

/* Parse lines of merges after a first line "#version: …". */
static lks_status add_merge_lines(struct loader *l, const char *text, size_t bytes)
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
    char path[4200], name[1024]; /* escaped */
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
    struct loader l = {0};
    json_t *json = NULL;
    lks_status st = read_file(&vocab, dir, vocab_name);
    if (st != LKS_OK)
        return st;
    st = read_file(&merges, dir, merges_name);
    if (st == LKS_OK)
        st = lks__json_parse(vocab.text, vocab.bytes, JSON_REJECT_DUPLICATES, vocab.name, &json);
    if (st == LKS_OK)
        st = start(&l, vocab.name);
    if (st == LKS_OK)
        st = add_vocabulary(&l, json);
    if (st == LKS_OK) {
        l.where = merges.name;
        st = add_merge_lines(&l, merges.text, merges.bytes);
    }
    if (st == LKS_OK)
        st = finish(&l, bpe_p);
    end(&l);
    json_decref(json);
    free(merges.text);
    free(vocab.text);
    return st;
}

/* --- tiktoken's files ------------------------------------------------------------------------ */

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

static lks_status add_rank_line(struct loader *l, const char *text, size_t n, size_t line)
{
    char bytes[3 * 1024], *number_end;
    const char *blank = memchr(text, ' ', n);
    const size_t na = blank == NULL ? 0 : (size_t)(blank - text);
    char number[24] = "";
    if (na > 0 && n - na - 1 < sizeof number)
        memcpy(number, blank + 1, n - na - 1);
    const long long id = strtoll(number, &number_end, 10);
    const size_t made = na > 0 && na < 4096 ? unbase64(text, na, bytes) : 0;
    if (made == 0 || number[0] < '0' || number[0] > '9' || *number_end != '\0')
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: line %zu is not a token in base64, a blank and a rank", l->where,
                         line);
    return add_token(l, bytes, made, id);
}

/* tiktoken merges any two neighbours whose bytes together are a token, lowest rank first. */
static lks_status add_all_splits(struct loader *l)
{
    for (uint32_t id = 0; id < l->n_ids; id++) {
        const char *token = l->token[id];
        const size_t n = token == NULL ? 0 : length_of(token);
        for (size_t cut = 1; cut < n; cut++) {
            const int32_t left = id_of(l, bytes_of(token), cut);
            const int32_t right = id_of(l, bytes_of(token) + cut, n - cut);
            if (left >= 0 && right >= 0)
                LKS__TRY(add_merge(l, (uint32_t)left, (uint32_t)right, id, id));
        }
    }
    return LKS_OK;
}

static lks_status open_tiktoken(const char *path, lks__bpe **bpe_p)
{
    struct file f;
    struct loader l = {0};
    lks_status st = read_file(&f, path, NULL);
    if (st != LKS_OK)
        return st;
    st = start(&l, f.name);
    size_t line = 1;
    for (size_t i = 0, next; i < f.bytes && st == LKS_OK; i = next, line++) {
        const char *feed = memchr(f.text + i, '\n', f.bytes - i);
        const size_t n = feed == NULL ? f.bytes - i : (size_t)(feed - (f.text + i));
        next = i + n + 1;
        if (n > 0)
            st = add_rank_line(&l, f.text + i, n, line);
    }
    if (st == LKS_OK)
        st = add_all_splits(&l);
    /* such a file has no special tokens; GPT-2's has the id after the last rank */
    if (st == LKS_OK && id_of(&l, END_OF_TEXT, sizeof END_OF_TEXT - 1) < 0)
        st = add_token(&l, END_OF_TEXT, sizeof END_OF_TEXT - 1, l.n_ids);
    if (st == LKS_OK)
        st = finish(&l, bpe_p);
    end(&l);
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
    if (!json_is_object(model) || !is_text(json_object_get(model, "type"), "BPE"))
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

static lks_status add_merge_list(struct loader *l, const json_t *merges)
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
static lks_status add_specials(struct loader *l, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
        const char *text = json_string_value(json_object_get(token, "content"));
        if (text == NULL || !json_is_integer(id))
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: entry %zu of \"added_tokens\" lacks its id or content", l->where,
                             i + 1);
        const int32_t known = id_of(l, text, strlen(text));
        if (known < 0)
            LKS__TRY(add_token(l, text, strlen(text), json_integer_value(id)));
        else if (known != json_integer_value(id))
            return lks__fail(
                LKS_ERR_FORMAT,
                "%s: entry %zu of \"added_tokens\" has id %lld, but its text is token %d", l->where,
                i + 1, (long long)json_integer_value(id), known);
        l->special[json_integer_value(id)] = true;
    }
    return LKS_OK;
}

lks_status lks__bpe_parse(const char *text, size_t bytes, const char *where, lks__bpe **bpe_p)
{
    struct loader l = {0};
    json_t *json = NULL;
    lks_status st = lks__json_parse(text, bytes, JSON_REJECT_DUPLICATES, where, &json);
    if (st == LKS_OK)
        st = check_kind(json, where);
    if (st == LKS_OK)
        st = start(&l, where);
    const json_t *model = json_object_get(json, "model");
    if (st == LKS_OK)
        st = add_vocabulary(&l, json_object_get(model, "vocab"));
    if (st == LKS_OK)
        st = add_specials(&l, json_object_get(json, "added_tokens"));
    if (st == LKS_OK)
        st = add_merge_list(&l, json_object_get(model, "merges"));
    if (st == LKS_OK)
        st = finish(&l, bpe_p);
    end(&l);
    json_decref(json);
    return st;
}

static lks_status open_json(const char *path, lks__bpe **bpe_p)
{
    struct file f;
    lks_status st = read_file(&f, path, NULL);
    if (st == LKS_OK)
        st = lks__bpe_parse(f.text, f.bytes, f.name, bpe_p);
    free(f.text);
    return st;
}

/* --- all forms ------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *suffix)
{
    const size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

static bool has(const char *dir, const char *name)
{
    char path[4200];
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
    if (st == LKS_OK)
        st = lks__json_parse(f.text, f.bytes, JSON_REJECT_DUPLICATES, f.name, &json);
    const char *type = json_string_value(json_object_get(json_object_get(json, "model"), "type"));
    const bool words = st == LKS_OK && type != NULL && strcmp(type, "WordLevel") == 0;
    json_decref(json);
    free(f.text);
    return words;
}

bool lks__bpe_is_at(const char *path)
{
    if (ends_in(path, ".tiktoken") || ends_in(path, ".json"))
        return true;
    if (has(path, LKS__BPE_FILE))
        return !has_words(path);
    return has(path, "vocab.bpe") || has(path, "merges.txt");
}

lks_status lks__bpe_open(const char *path, lks__bpe **bpe_p)
{
    struct stat info;
    char shown[256];
    lks__escape(shown, sizeof shown, path, strlen(path));
    if (stat(path, &info) < 0)
        return lks__sys_fail("cannot read the vocabulary", path);
    if (S_ISDIR(info.st_mode)) {
        if (has(path, LKS__BPE_FILE)) {
            char file[4200];
            snprintf(file, sizeof file, "%s/" LKS__BPE_FILE, path);
            return open_json(file, bpe_p);
        }
        if (has(path, "vocab.bpe"))
            return open_pair(path, "vocab.bpe", "encoder.json", bpe_p);
        if (has(path, "merges.txt"))
            return open_pair(path, "merges.txt", "vocab.json", bpe_p);
    } else if (ends_in(path, ".tiktoken")) {
        return open_tiktoken(path, bpe_p);
    } else if (ends_in(path, ".json")) {
        return open_json(path, bpe_p);
    }
    return lks__fail(
        LKS_ERR_IO,
        "%s is not a byte-level BPE vocabulary: give a folder with vocab.bpe and "
        "encoder.json (GPT-2's), with merges.txt and vocab.json, or with " LKS__BPE_FILE
        ", or a file NAME.json or NAME.tiktoken",
        shown);
}

/* --- writing --------------------------------------------------------------------------------- */

static char *spell(const lks__bpe *bpe, const struct spellings *s, uint32_t id, char *out)
{
    size_t bytes, n = 0;
    const char *text = lks__bpe_bytes(bpe, (int32_t)id, &bytes);
    for (size_t i = 0; i < bytes; i++)
        n += lks__utf8_encode(s->of[(unsigned char)text[i]], out + n);
    out[n] = '\0';
    return out;
}

lks_status lks__bpe_text(const lks__bpe *bpe, char **text_p, size_t *bytes_p, uint64_t *hash_p)
{
    char *a = malloc(2 * LKS__BPE_MAX_TOKEN + 1), *b = malloc(2 * LKS__BPE_MAX_TOKEN + 1);
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array(), *all = NULL;
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", 1);
    bool ok = a != NULL && b != NULL;
    struct spellings s;
    make_spellings(&s);
    for (uint32_t id = 0; id < bpe->n_ids && ok; id++) {
        size_t bytes;
        const char *text = lks__bpe_bytes(bpe, (int32_t)id, &bytes);
        if (text == NULL)
            continue;
        if (bpe->special[id])
            ok = json_array_append_new(
                     added, json_pack("{s:I, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id,
                                      "content", text, bytes, "single_word", 0, "lstrip", 0,
                                      "rstrip", 0, "normalized", 0, "special", 1)) == 0;
        if (ok)
            ok = json_object_set_new(vocab, spell(bpe, &s, id, a), json_integer(id)) == 0;
    }
    for (size_t i = 0; i < bpe->n_merges && ok; i++)
        ok = json_array_append_new(merges,
                                   json_pack("[s, s]", spell(bpe, &s, bpe->merges[i].left, a),
                                             spell(bpe, &s, bpe->merges[i].right, b))) == 0;
    if (ok)
        all = json_pack("{s:s, s:O, s:n, s:O, s:O, s:{s:s, s:O, s:O}}", "version", "1.0",
                        "added_tokens", added, "normalizer", "pre_tokenizer", level, "decoder",
                        level, "model", "type", "BPE", "vocab", vocab, "merges", merges);
    *text_p = all == NULL ? NULL : lks__json_dump(all, JSON_COMPACT);
    *bytes_p = *text_p == NULL ? 0 : strlen(*text_p);
    *hash_p = *text_p == NULL ? 0 : XXH3_64bits(*text_p, *bytes_p);
    json_decref(all);
    json_decref(vocab);
    json_decref(merges);
    json_decref(added);
    json_decref(level);
    free(a);
    free(b);
    return *text_p != NULL ? LKS_OK
                           : lks__fail(LKS_ERR_NOMEM, "no memory for the vocabulary's text");
}
