#include "mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEPT = 4096, PLACES = 2003 /* no multiple of 7919 */, WAYS = 5 };

static struct input {
    uint8_t *data;
    size_t bytes;
} kept[MAX_KEPT];
static size_t n_kept, n_seeds;

void mutate_keep(const uint8_t *data, size_t bytes)
{
    if (n_kept == MAX_KEPT || bytes > FUZZ_MAX_INPUT)
        return;
    struct input *in = &kept[n_kept++];
    in->data = malloc(bytes + 1);
    FUZZ_HOLDS(in->data != NULL);
    memcpy(in->data, data, bytes);
    in->bytes = bytes;
}

void fuzz_seed(const void *data, size_t bytes)
{
    FUZZ_HOLDS(n_kept == n_seeds && bytes <= FUZZ_MAX_INPUT);
    mutate_keep(data, bytes);
    n_seeds = n_kept;
}

size_t mutate_count(void)
{
    return n_kept;
}

const uint8_t *mutate_get(size_t i, size_t *bytes_p)
{
    *bytes_p = kept[i].bytes;
    return kept[i].data;
}

/* ---- chance -------------------------------------------------------------------------------- */

static uint64_t chance;

static uint64_t draw(void) /* splitmix64 */
{
    uint64_t x = chance += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static size_t below(size_t n) /* 0 .. n - 1; 0 for n = 0 */
{
    return n == 0 ? 0 : (size_t)(draw() % n);
}

/* ---- one mutation -------------------------------------------------------------------------- */

/* Limits of every integer type that a format may hold. */
static const uint64_t borders[] = {
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x10000,
    0x10001,
    (1u << 20),
    0x7fffffff,
    0x80000000,
    0x80000001,
    0xffffffff,
    0x100000000,
    1ull << 53,
    1ull << 62,
    INT64_MAX,
    1ull << 63,
    (1ull << 63) + 1,
    UINT64_MAX,
    20240520,
    20240801,
    UINT64_MAX - 1,
};
enum { N_BORDERS = sizeof borders / sizeof borders[0] };

/* Replace [at, at + old) by `with`; nothing if it doesn't fit. */
static size_t splice(uint8_t *d, size_t n, size_t at, size_t old, const void *with, size_t bytes)
{
    if (at > n || old > n - at || n - old + bytes > FUZZ_MAX_INPUT)
        return n;
    memmove(d + at + bytes, d + at + old, n - at - old);
    memcpy(d + at, with, bytes);
    return n - old + bytes;
}

static size_t put_integer(uint8_t *d, size_t n)
{
    size_t width = (size_t)1 << below(4), at = below(n);
    uint64_t x = borders[below(N_BORDERS)];
    if (at + width > n)
        return n;
    if (below(3) == 0) { /* close to the present value */
        memcpy(&x, d + at, width);
        x += below(17) - 8u;
    }
    memcpy(d + at, &x, width);
    return n;
}

/* Replace a decimal number by another. */
static size_t put_decimal(uint8_t *d, size_t n)
{
    char text[32];
    size_t at = below(n), end;
    while (at < n && (d[at] < '0' || d[at] > '9'))
        at++;
    for (end = at; end < n && d[end] >= '0' && d[end] <= '9'; end++)
        ;
    if (at == n)
        return n;
    uint64_t x = borders[below(N_BORDERS)];
    if (below(3) == 0 && end - at < 18)
        x = strtoull((memcpy(text, d + at, end - at), text[end - at] = '\0', text), NULL, 10) +
            below(5) - 2u;
    int bytes =
        snprintf(text, sizeof text, below(4) == 0 ? "-%llu" : "%llu", (unsigned long long)x);
    return splice(d, n, at, end - at, text, (size_t)bytes);
}

static size_t put_word(uint8_t *d, size_t n)
{
    size_t words = 0, at = below(n + 1);
    while (fuzz_words[words] != NULL)
        words++;
    if (words == 0)
        return n;
    const char *word = fuzz_words[below(words)];
    size_t old = below(2) * below(strlen(word) + 1);
    return splice(d, n, at, old < n - at ? old : n - at, word, strlen(word));
}

/* Replace a part by a part of another input, or of this one. */
static size_t put_part(uint8_t *d, size_t n)
{
    static uint8_t part[FUZZ_MAX_INPUT];
    const struct input *from = &kept[below(n_kept)];
    size_t start = below(from->bytes), at = below(n + 1);
    size_t bytes = below(from->bytes - start + 1);
    memcpy(part, from->data + start, bytes);
    size_t old = below(3) == 0 ? 0 : bytes < n - at ? bytes : n - at;
    return splice(d, n, at, old, part, bytes);
}

static size_t mutate(uint8_t *d, size_t n)
{
    uint8_t bytes[8];
    uint64_t x = draw();
    memcpy(bytes, &x, sizeof bytes);
    switch (below(10)) {
    case 0:
        if (n > 0)
            d[below(n)] ^= (uint8_t)(1 << below(8));
        return n;
    case 1:
        if (n > 0)
            d[below(n)] = bytes[0];
        return n;
    case 2:
    case 3:
        return put_integer(d, n);
    case 4:
        return put_decimal(d, n);
    case 5:
        return put_word(d, n);
    case 6:
        return put_part(d, n);
    case 7:
        return below(n + 1);
    case 8: { /* remove a part */
        size_t at = below(n + 1);
        return splice(d, n, at, below(below(2) ? 9 : n - at + 1) % (n - at + 1), "", 0);
    }
    default:
        return splice(d, n, below(n + 1), 0, bytes, 1 + below(8));
    }
}

/* ---- inputs -------------------------------------------------------------------------------- */

static size_t places_of(size_t s)
{
    return kept[s].bytes < PLACES ? kept[s].bytes : PLACES;
}

/* Change number `way` at place `place` of seed s. */
static size_t systematic(size_t s, size_t place, int way, uint8_t *out)
{
    size_t n = kept[s].bytes, at = n <= PLACES ? place : place * n / PLACES;
    memcpy(out, kept[s].data, n);
    switch (way) {
    case 0:
        return at; /* cut there */
    case 1:
        out[at] = 0;
        break;
    case 2:
        out[at] = 0xff;
        break;
    case 3:
        out[at] = (uint8_t)(out[at] + 1);
        break;
    default:
        out[at] ^= 0x80;
    }
    return n;
}

size_t mutate_input(uint64_t seed, uint64_t i, uint8_t *out)
{
    FUZZ_HOLDS(n_seeds > 0);
    if (i < n_seeds) {
        memcpy(out, kept[i].data, kept[i].bytes);
        return kept[i].bytes;
    }
    uint64_t at = i / 2;
    for (size_t s = 0; s < n_seeds && i % 2 == 0; s++) {
        if (at < WAYS * places_of(s)) {
            /* Go through all places in a scattered order, so that even a short run reaches all
             * parts. */
            size_t place = (size_t)(at / WAYS * 7919 % places_of(s));
            return systematic(s, place, (int)(at % WAYS), out);
        }
        at -= WAYS * places_of(s);
    }
    chance = seed * 0xD1342543DE82EF95u ^ i;
    const struct input *from = &kept[below(n_kept)];
    size_t n = from->bytes;
    memcpy(out, from->data, n);
    for (size_t k = 1 + below(below(3) == 0 ? 16 : 4); k > 0; k--)
        n = mutate(out, n);
    return n;
}
