#include "spm_model.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

void spm_put(spm_bytes *b, const void *data, size_t n)
{
    if (n > sizeof b->data - b->n)
        abort();
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

/* ---- messages ---------------------------------------------------------------------------- */

static void put_varint(spm_bytes *b, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        spm_put(b, &(unsigned char){(unsigned char)(x | 0x80)}, 1);
    spm_put(b, &(unsigned char){(unsigned char)x}, 1);
}

void spm_put_number(spm_bytes *b, unsigned field, uint64_t x)
{
    put_varint(b, field << 3);
    put_varint(b, x);
}

void spm_put_bytes(spm_bytes *b, unsigned field, const void *data, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    spm_put(b, data, n);
}

void spm_put_piece(spm_bytes *b, const char *text, size_t n, unsigned kind)
{
    static const unsigned char score[] = {2 << 3 | 5, 0, 0, 0x80, 0xbf}; /* -1 as a float */
    spm_bytes piece = {.n = 0};
    spm_put_bytes(&piece, 1, text, n);
    spm_put(&piece, score, sizeof score);
    spm_put_number(&piece, 3, kind);
    spm_put_bytes(b, SPM_PIECE, piece.data, piece.n);
}

void spm_put_type(spm_bytes *b, unsigned type)
{
    spm_bytes trainer = {.n = 0};
    spm_put_number(&trainer, 3, type);
    spm_put_bytes(b, SPM_TRAINER, trainer.data, trainer.n);
}

void spm_put_normalizer(spm_bytes *b, unsigned field, const spm_bytes *map)
{
    spm_bytes normalizer = {.n = 0};
    spm_put_bytes(&normalizer, 2, map->data, map->n);
    for (unsigned setting = 3; setting <= 5; setting++) /* three settings about spaces */
        spm_put_number(&normalizer, setting, 0);
    spm_put_bytes(b, field, normalizer.data, normalizer.n);
}

void spm_put_sample(spm_bytes *b, const char *text, const char *expected)
{
    spm_bytes sample = {.n = 0}, samples = {.n = 0};
    spm_put_bytes(&sample, 1, text, strlen(text));
    spm_put_bytes(&sample, 2, expected, strlen(expected));
    spm_put_bytes(&samples, 1, sample.data, sample.n);
    spm_put_bytes(b, SPM_SAMPLES, samples.data, samples.n);
}

/* ---- tries ------------------------------------------------------------------------------- */

static const uint32_t value_bit = 1u << 31, rule_bit = 1u << 8, wide_bit = 1u << 9;

/* The bits that lead from a unit on by `offset`, which is shifted by eight if it doesn't fit
 * otherwise. */
static uint32_t led_by(uint32_t offset)
{
    return offset < 1u << 21 ? offset << 10 : offset >> 8 << 10 | wide_bit;
}

void spm_trie_begin(spm_trie *t, size_t n_units, uint32_t base)
{
    t->n_units = n_units;
    for (size_t i = 0; i < n_units; i++)
        t->units[i] = value_bit; /* no label */
    t->units[0] = led_by(base);
}

void spm_trie_step(spm_trie *t, uint32_t from, unsigned char c, uint32_t to, bool ends_rule)
{
    uint32_t at = from ^ c;
    t->units[at] = led_by(at ^ to) | c | (ends_rule ? rule_bit : 0);
}

void spm_trie_value(spm_trie *t, uint32_t base, uint32_t text_at)
{
    t->units[base] = value_bit | text_at;
}

void spm_put_map(spm_bytes *b, const spm_trie *t, const char *texts, size_t n)
{
    uint32_t bytes = htole32((uint32_t)(4 * t->n_units));
    spm_put(b, &bytes, sizeof bytes);
    for (size_t i = 0; i < t->n_units; i++)
        spm_put(b, &(uint32_t){htole32(t->units[i])}, sizeof(uint32_t));
    spm_put(b, texts, n);
}

/* ---- both -------------------------------------------------------------------------------- */

void spm_put_small_map(spm_bytes *b)
{
    spm_trie t;
    spm_trie_begin(&t, 256, 1);
    spm_trie_step(&t, 1, 'a', 4, true);
    spm_trie_value(&t, 4, 0);
    spm_trie_step(&t, 4, 'b', 8, true);
    spm_trie_value(&t, 8, 2);
    spm_put_map(b, &t, "x\0yz", 5);
}

void spm_put_small_model(spm_bytes *b, unsigned type)
{
    static const struct {
        const char *text;
        unsigned kind;
    } pieces[] = {{"<unk>", SPM_UNKNOWN},  {"x", SPM_NORMAL},  {"y", SPM_NORMAL},
                  {"z", SPM_NORMAL},       {"yz", SPM_NORMAL}, {"xy", SPM_UNUSED},
                  {"--", SPM_USER_DEFINED}};
    spm_bytes map = {.n = 0};
    spm_put_small_map(&map);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        spm_put_piece(b, pieces[i].text, strlen(pieces[i].text), pieces[i].kind);
    spm_put_type(b, type);
    spm_put_normalizer(b, SPM_NORMALIZER, &map);
    spm_put_normalizer(b, SPM_DENORMALIZER, &map);
    spm_put_sample(b, "a", "x");
}
