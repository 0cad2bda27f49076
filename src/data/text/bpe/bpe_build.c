#include "data/text/bpe/bpe_build.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/list.h"
#include "base/text/jsontext.h"
#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"

/* --- bytes as GPT-2 spells them -------------------------------------------------------------- */

static bool stands_for_itself(unsigned c)
{
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
}

static void make_spellings(lks__bpe_spellings *s)
{
    uint16_t other = 0x100;
    memset(s->byte, -1, sizeof s->byte);
    for (unsigned c = 0; c < 256; c++) {
        s->of[c] = stands_for_itself(c) ? (uint16_t)c : other++;
        s->byte[s->of[c]] = (int16_t)c;
    }
}

size_t lks__bpe_unspell(const lks__bpe_spellings *s, const char *text, size_t n, char *out)
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

enum { HASH_BITS = 21 }; /* twice LKS__BPE_MAX_IDS slots */

const char *lks__bpe_show(const char *bytes, size_t n, char out[80])
{
    return lks__escape(out, 80, bytes, n < 32 ? n : 32);
}

/* --- tokens ---------------------------------------------------------------------------------- */

uint32_t lks__bpe_token_length(const char *token)
{
    uint32_t n;
    memcpy(&n, token, sizeof n);
    return n;
}

const char *lks__bpe_token_bytes(const char *token)
{
    return token + sizeof(uint32_t);
}

/* The slot of these bytes: taken by their id, or free. */
static uint32_t *slot_of(const lks__bpe_build *l, const char *bytes, size_t n)
{
    const size_t mask = ((size_t)1 << HASH_BITS) - 1;
    for (size_t i = XXH3_64bits(bytes, n) & mask;; i = (i + 1) & mask) {
        uint32_t *slot = &l->by_bytes[i];
        const char *token = *slot == 0 ? NULL : l->token[*slot - 1];
        if (token == NULL || (lks__bpe_token_length(token) == n &&
                              memcmp(lks__bpe_token_bytes(token), bytes, n) == 0))
            return slot;
    }
}

int32_t lks__bpe_build_id(const lks__bpe_build *l, const char *bytes, size_t n)
{
    return (int32_t)*slot_of(l, bytes, n) - 1;
}

lks_status lks__bpe_build_begin(lks__bpe_build *l, const char *where)
{
    *l = (lks__bpe_build){.where = where};
    make_spellings(&l->spellings);
    l->token = calloc(LKS__BPE_MAX_IDS, sizeof *l->token);
    l->special = calloc(LKS__BPE_MAX_IDS, sizeof *l->special);
    l->by_bytes = calloc((size_t)1 << HASH_BITS, sizeof *l->by_bytes);
    if (l->token == NULL || l->special == NULL || l->by_bytes == NULL)
        return lks__no_memory("to read the vocabulary %s", where);
    return LKS_OK;
}

void lks__bpe_build_end(lks__bpe_build *l)
{
    for (uint32_t i = 0; l->token != NULL && i < l->n_ids; i++)
        free(l->token[i]);
    free(l->token);
    free(l->special);
    free(l->by_bytes);
    free(l->merges);
}

lks_status lks__bpe_build_token(lks__bpe_build *l, const char *bytes, size_t n, json_int_t id)
{
    char shown[80];
    if (id < 0 || id >= LKS__BPE_MAX_IDS)
        return lks__fail(LKS_ERR_FORMAT, "%s: token \"%s\" has id %lld; ids are 0 to %d", l->where,
                         lks__bpe_show(bytes, n, shown), (long long)id, LKS__BPE_MAX_IDS - 1);
    if (n == 0 || n > LKS__BPE_MAX_TOKEN)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: the token of id %lld has %zu bytes; 1 to %d are possible", l->where,
                         (long long)id, n, LKS__BPE_MAX_TOKEN);
    if (l->token[id] != NULL)
        return lks__fail(LKS_ERR_FORMAT, "%s: token \"%s\" has id %lld, which another token has",
                         l->where, lks__bpe_show(bytes, n, shown), (long long)id);
    uint32_t *slot = slot_of(l, bytes, n);
    if (*slot != 0)
        return lks__fail(LKS_ERR_FORMAT,
                         "%s: token \"%s\" occurs twice, as id %" PRIu32 " and %lld", l->where,
                         lks__bpe_show(bytes, n, shown), *slot - 1, (long long)id);
    char *token = malloc(sizeof(uint32_t) + n);
    LKS__MEMORY(token, "for the tokens of %s", l->where);
    const uint32_t length = (uint32_t)n;
    memcpy(token, &length, sizeof length);
    memcpy(token + sizeof length, bytes, n);
    l->token[id] = token;
    *slot = (uint32_t)id + 1;
    if ((uint32_t)id >= l->n_ids)
        l->n_ids = (uint32_t)id + 1;
    return LKS_OK;
}

lks_status lks__bpe_build_merge(lks__bpe_build *l, uint32_t left, uint32_t right, uint32_t id,
                                uint32_t priority)
{
    if (!lks__list_grow(&l->merges, l->n_merges, &l->room, sizeof *l->merges))
        return lks__no_memory("for the merges of %s", l->where);
    l->merges[l->n_merges++] = (lks__bpe_merge){left, right, id, priority};
    return LKS_OK;
}

lks_status lks__bpe_build_pair(lks__bpe_build *l, const char *a, size_t na, const char *b,
                               size_t nb, size_t line)
{
    char whole[2 * 1024], shown_a[80], shown_b[80];
    const int32_t left = lks__bpe_build_id(l, a, na), right = lks__bpe_build_id(l, b, nb);
    int32_t id = -1;
    if (na + nb <= sizeof whole) {
        memcpy(whole, a, na);
        memcpy(whole + na, b, nb);
        id = lks__bpe_build_id(l, whole, na + nb);
    }
    if (left >= 0 && right >= 0 && id >= 0)
        return lks__bpe_build_merge(l, (uint32_t)left, (uint32_t)right, (uint32_t)id,
                                    (uint32_t)line);
    return lks__fail(LKS_ERR_FORMAT,
                     "%s: merge %zu, of \"%s\" and \"%s\": %s is not in the vocabulary", l->where,
                     line + 1, lks__bpe_show(a, na, shown_a), lks__bpe_show(b, nb, shown_b),
                     left < 0    ? "the first"
                     : right < 0 ? "the second"
                                 : "their combination");
}

/* --- common to all forms --------------------------------------------------------------------- */

static int by_priority(const void *a, const void *b)
{
    const lks__bpe_merge *x = a, *y = b;
    return x->priority < y->priority ? -1 : x->priority > y->priority;
}

static int by_pair(const void *a, const void *b)
{
    const lks__bpe_merge *x = a, *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

static lks_status check_merges(lks__bpe_build *l)
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

static lks_status copy_tokens(const lks__bpe_build *l, lks__bpe *bpe)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->n_ids; i++)
        bytes += l->token[i] == NULL ? 0 : lks__bpe_token_length(l->token[i]);
    bpe->n_ids = l->n_ids;
    bpe->loose = (uint32_t)l->loose;
    bpe->start = calloc((size_t)l->n_ids + 1, sizeof *bpe->start);
    bpe->at = malloc(bytes + 1);
    bpe->special = calloc((size_t)l->n_ids + 1, sizeof *bpe->special);
    if (bpe->start == NULL || bpe->at == NULL || bpe->special == NULL)
        return lks__no_memory("for the tokens of %s", l->where);
    uint32_t at = 0;
    for (uint32_t i = 0; i < l->n_ids; i++) {
        bpe->start[i] = at;
        if (l->token[i] != NULL) {
            memcpy(bpe->at + at, lks__bpe_token_bytes(l->token[i]),
                   lks__bpe_token_length(l->token[i]));
            at += lks__bpe_token_length(l->token[i]);
        }
        bpe->special[i] = l->special[i];
    }
    bpe->start[l->n_ids] = at;
    return LKS_OK;
}

lks_status lks__bpe_build_finish(lks__bpe_build *l, lks__bpe **bpe_p)
{
    lks__bpe *bpe = calloc(1, sizeof *bpe);
    LKS__MEMORY(bpe, "for the vocabulary %s", l->where);
    lks_status st = check_merges(l);
    for (unsigned c = 0; c < 256 && st == LKS_OK; c++) {
        const char byte = (char)c;
        bpe->byte[c] = lks__bpe_build_id(l, &byte, 1);
        if (bpe->byte[c] < 0)
            st = lks__fail(
                LKS_ERR_FORMAT,
                "%s: byte 0x%02x is not among its tokens; a byte-level vocabulary has all "
                "256",
                l->where, c);
    }
    bpe->end_of_text = lks__bpe_build_id(l, LKS__BPE_END_OF_TEXT, sizeof LKS__BPE_END_OF_TEXT - 1);
    if (bpe->end_of_text >= 0)
        l->special[bpe->end_of_text] = true;
    LKS__THEN(st, copy_tokens(l, bpe));
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

/* --- writing --------------------------------------------------------------------------------- */

static char *spell(const lks__bpe *bpe, const lks__bpe_spellings *s, uint32_t id, char *out)
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
    lks__bpe_spellings s;
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
    return *text_p != NULL ? LKS_OK : lks__no_memory("for the vocabulary's text");
}
