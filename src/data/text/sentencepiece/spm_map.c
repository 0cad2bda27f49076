/* data/text/sentencepiece/spm_map.c - the table of characters in a SentencePiece model.
 *
 * Layout, little-endian: uint32 number of bytes of the trie | the trie, a double array of uint32
 * units | the replacement texts, each with a 0 byte at its end.
 *
 * A lookup has a current position in the trie, its base. It reads byte c and looks at the unit at
 * base ^ c. If that unit's label is c, the lookup continues at the unit's base. If the unit says
 * that a rule ends here, the rule's value is at (new base) ^ 0. SentencePiece checks none of these
 * indices, so this file visits every unit that a text can reach, each once. */
#include "data/text/sentencepiece/spm_check.h"

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* SentencePiece has room for this many rules in one lookup, and writes fewer. */
    MAX_RULES = 32,
    /* Length of a replacement text: Unicode's own forms have up to 33 bytes. Without a limit a few
     * characters could become any amount of text. */
    MAX_TEXT_BYTES = 4096
};

enum mark { UNSEEN, ON_THE_WAY, DONE };

struct trie {
    const unsigned char *units;
    uint32_t n_units;
    size_t text_bytes;
    /* Indexed by base: the first unit that continues from this base, plus 1. Once the walk has
     * reached the base: the unit that led to it, plus 1. */
    uint32_t *first;
    uint32_t *next; /* indexed by unit: the next unit that continues from the same base, plus 1 */
    unsigned char *mark; /* indexed by base */
    unsigned char *most; /* indexed by base: most rules on any path from there */
};

/* An error in the trie: the index of the unit that causes it, and the message. */
struct fault {
    uint32_t unit;
    const char *why;
};

static uint32_t get32(const unsigned char *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return le32toh(x);
}

static uint32_t unit_at(const struct trie *t, uint32_t i)
{
    return get32(t->units + 4 * (size_t)i);
}

static bool is_value(uint32_t unit)
{
    return unit >> 31;
}

static bool ends_rule(uint32_t unit)
{
    return unit >> 8 & 1;
}

/* The base from which unit i continues, unless the unit is a value. */
static uint32_t base_before(const struct trie *t, uint32_t i)
{
    return i ^ (unit_at(t, i) & 0xff);
}

static uint32_t base_behind(const struct trie *t, uint32_t i)
{
    uint32_t unit = unit_at(t, i);
    return i ^ (unit >> 10) << ((unit >> 9 & 1) * 8);
}

/* Why a lookup that has reached unit i can't continue, or NULL. */
static const char *check_unit(const struct trie *t, uint32_t i)
{
    uint32_t base = base_behind(t, i);
    if ((base | 0xff) >= t->n_units)
        return "the table of characters leads beyond its end";
    if (!ends_rule(unit_at(t, i)))
        return NULL;
    uint32_t value = unit_at(t, base);
    if (!is_value(value))
        return "a rule of the table of characters has no value";
    if ((value & INT32_MAX) >= t->text_bytes)
        return "a rule of the table of characters names a text beyond its end";
    return NULL;
}

/* Put every unit into the list of the base from which it continues. */
static void list_units(struct trie *t)
{
    for (uint32_t i = t->n_units; i-- > 0;) {
        if (is_value(unit_at(t, i)))
            continue;
        uint32_t base = base_before(t, i);
        if (base >= t->n_units)
            continue; /* no lookup reaches it */
        t->next[i] = t->first[base];
        t->first[base] = i + 1;
    }
}

/* Record that unit i leads from `base` to `rules` more rules; true if those are too many. */
static bool too_many(struct trie *t, uint32_t base, unsigned rules)
{
    if (t->most[base] < rules)
        t->most[base] = (unsigned char)rules;
    return rules > MAX_RULES;
}

/* Depth first, without recursion. */
static struct fault walk(struct trie *t)
{
    static const char many[] = "more rules begin alike than SentencePiece has room for";
    const uint32_t root = base_behind(t, 0);
    uint32_t base = root, at = t->first[root];
    t->first[root] = 0;
    t->mark[root] = ON_THE_WAY;
    for (;;) {
        if (at != 0) { /* one more unit that continues from this base */
            const uint32_t i = at - 1, behind = base_behind(t, i);
            const char *why = check_unit(t, i);
            if (why)
                return (struct fault){i, why};
            if (t->mark[behind] == ON_THE_WAY)
                return (struct fault){i, "the table of characters contains a loop"};
            if (t->mark[behind] == DONE) {
                if (too_many(t, base, t->most[behind] + ends_rule(unit_at(t, i))))
                    return (struct fault){i, many};
                at = t->next[i];
                continue;
            }
            at = t->first[behind];
            t->first[behind] = i + 1;
            t->mark[behind] = ON_THE_WAY;
            base = behind;
        } else { /* go back to the unit that led here */
            t->mark[base] = DONE;
            if (base == root)
                return (struct fault){0, NULL};
            const uint32_t i = t->first[base] - 1, before = base_before(t, i);
            if (too_many(t, before, t->most[base] + ends_rule(unit_at(t, i))))
                return (struct fault){i, many};
            at = t->next[i];
            base = before;
        }
    }
}

static lks_status check_trie(struct trie *t, struct fault *fault)
{
    const size_t n = t->n_units;
    if (is_value(unit_at(t, 0)) || (base_behind(t, 0) | 0xff) >= n) {
        *fault = (struct fault){0, "the table of characters has no beginning"};
        return LKS_OK;
    }
    t->first = calloc(n, 2 * sizeof *t->first + 2);
    if (!t->first)
        return LKS_ERR_NOMEM;
    t->next = t->first + n;
    t->mark = (unsigned char *)(t->next + n);
    t->most = t->mark + n;
    list_units(t);
    *fault = walk(t);
    free(t->first);
    return LKS_OK;
}

/* Check that each text ends with a 0 byte and none is too long. Returns NULL or the error. */
static const char *check_texts(const char *texts, size_t bytes, size_t *at_p)
{
    for (size_t at = 0, end; at < bytes; at = end + 1) {
        end = at + strnlen(texts + at, bytes - at);
        *at_p = at;
        if (end == bytes)
            return "the last text of the table of characters doesn't end";
        if (end - at > MAX_TEXT_BYTES)
            return "a text of the table of characters is too long for one";
    }
    return NULL;
}

lks_status lks__spm_map_check(const void *map, size_t bytes, size_t *at_p, const char **why_p)
{
    enum { HEAD = 4 };
    const unsigned char *m = map;
    struct fault fault = {0, NULL};
    *at_p = 0;
    *why_p = "the table of characters gives a wrong size";
    if (bytes <= HEAD)
        return LKS_ERR_FORMAT;
    const size_t trie_bytes = get32(m);
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= bytes - HEAD)
        return LKS_ERR_FORMAT;

    const size_t text_bytes = bytes - HEAD - trie_bytes;
    *why_p = check_texts((const char *)m + HEAD + trie_bytes, text_bytes, at_p);
    if (*why_p) {
        *at_p += HEAD + trie_bytes;
        return LKS_ERR_FORMAT;
    }
    struct trie t = {
        .units = m + HEAD, .n_units = (uint32_t)(trie_bytes / 4), .text_bytes = text_bytes};
    LKS__TRY(check_trie(&t, &fault));
    *at_p = HEAD + 4 * (size_t)fault.unit;
    *why_p = fault.why;
    return fault.why ? LKS_ERR_FORMAT : LKS_OK;
}
