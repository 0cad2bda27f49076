#include "data/read/numpy_order.h"

#include <stdbool.h>

/* --- SeedSequence: 32 bits of seed to 256 bits of state --------------------------------------- */

enum { POOL = 4, STATE_WORDS = 8 };

static uint32_t hash_mix(uint32_t value, uint32_t *constant)
{
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    const uint32_t mixed = 0xca01f9ddu * x - 0x4973f715u * y;
    return mixed ^ mixed >> 16;
}

static void seed_state(uint32_t seed, uint32_t state[STATE_WORDS])
{
    uint32_t pool[POOL], constant = 0x43b0d7e5u;
    for (int i = 0; i < POOL; i++)
        pool[i] = hash_mix(i == 0 ? seed : 0, &constant);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to)
                pool[to] = mix(pool[to], hash_mix(pool[from], &constant));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < STATE_WORDS; i++) {
        uint32_t value = pool[i % POOL] ^ constant;
        constant *= 0x58f38dedu;
        value *= constant;
        state[i] = value ^ value >> 16;
    }
}

/* --- PCG64 ------------------------------------------------------------------------------------ */

typedef unsigned __int128 u128;

struct generator {
    u128 state, increment;
    uint32_t kept; /* the unused half of the last output */
    bool has_kept;
};

static void step(struct generator *g)
{
    const u128 multiplier = (u128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    g->state = g->state * multiplier + g->increment;
}

static u128 pair(const uint32_t *words)
{
    const uint64_t high = (uint64_t)words[1] << 32 | words[0],
                   low = (uint64_t)words[3] << 32 | words[2];
    return (u128)high << 64 | low;
}

static void seed(struct generator *g, uint32_t number)
{
    uint32_t words[STATE_WORDS];
    seed_state(number, words);
    *g = (struct generator){.increment = pair(words + 4) << 1 | 1};
    step(g);
    g->state += pair(words);
    step(g);
}

static uint32_t next(struct generator *g)
{
    if (g->has_kept) {
        g->has_kept = false;
        return g->kept;
    }
    step(g);
    const uint64_t folded = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    const int turn = (int)(g->state >> 122);
    const uint64_t out = folded >> turn | folded << (-turn & 63);
    g->kept = (uint32_t)(out >> 32);
    g->has_kept = true;
    return (uint32_t)out;
}

/* Draw uniformly from 0 .. most: repeat until a draw of bits is in range. */
static uint32_t draw(struct generator *g, uint32_t most)
{
    uint32_t mask = most, value;
    for (int bits = 1; bits < 32; bits *= 2)
        mask |= mask >> bits;
    do
        value = next(g) & mask;
    while (value > most);
    return value;
}

void lks__numpy_permutation(uint32_t number, uint32_t *order, uint32_t n)
{
    struct generator g;
    seed(&g, number);
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t j = draw(&g, i), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}
