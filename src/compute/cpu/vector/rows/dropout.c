/* compute/cpu/vector/rows/dropout.c - dropout; compute/dropout.h defines the mask.
 *
 * Philox4x32-10 (Salmon et al. 2011) on as many blocks at once as there are 64-bit lanes. Each
 * state word is in the low half of a lane, as the 32 x 32 -> 64 bit multiplication needs it. High
 * halves are never cleared, because they aren't read. An element's mask doesn't depend on lanes. */
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec_register.h"

enum { ROUNDS = 10 };

/* Shared by all blocks. Keys are in memory, because broadcasting from memory costs least. */
typedef struct philox {
    vi step, vm, site;
    uint64_t k0[ROUNDS], k1[ROUNDS];
} philox;

static inline void philox_init(philox *p, const lks__dropout *d)
{
    uint32_t k0 = d->key.k[0], k1 = d->key.k[1];

    p->step = vi_set1_64(d->step);
    p->vm = vi_set1_64(d->vm);
    p->site = vi_set1_64(d->site);
    for (int r = 0; r < ROUNDS; r++) {
        p->k0[r] = k0;
        p->k1[r] = k1;
        k0 += 0x9E3779B9; /* the paper's key schedule: golden ratio, sqrt(3) - 1 */
        k1 += 0xBB67AE85;
    }
}

/* The words of LANES / 2 blocks from `block` on, in order. */
static inline void philox_blocks(vi out[2], const philox *p, uint32_t block)
{
    const vi m0 = vi_set1_64(0xD2511F53), m1 = vi_set1_64(0xCD9E8D57);
    vi c0 = p->step, c1 = p->vm, c2 = p->site;
    vi c3 = V(add_epi64)(vi_set1_64(block), vi_count64());

    for (int r = 0; r < ROUNDS; r++) {
        vi p0 = V(mul_epu32)(c0, m0), p1 = V(mul_epu32)(c2, m1);
        vi k0 = vi_set1_64(p->k0[r]);
        vi k1 = vi_set1_64(p->k1[r]);
        c0 = vi_xor(V(srli_epi64)(p1, 32), vi_xor(c1, k0));
        c2 = vi_xor(V(srli_epi64)(p0, 32), vi_xor(c3, k1));
        c1 = p1;
        c3 = p0;
    }
    vi w01 = vi_odd32(c0, V(slli_epi64)(c1, 32));
    vi w23 = vi_odd32(c2, V(slli_epi64)(c3, 32));
    vi even = V(unpacklo_epi64)(w01, w23), odd = V(unpackhi_epi64)(w01, w23);
    vi_interleave128(out, even, odd);
}

/* The factors for LANES words: scale if the mask keeps the element, else 0. */
static inline vf factors(vi words, vi threshold, vf scale)
{
    return v_keep(vi_at_least(words, threshold), scale);
}

void VERSION(dropout)(float *y, const float *x, size_t n, uint64_t first, const lks__dropout *d)
{
    const vi threshold = V(set1_epi32)((int)d->threshold);
    const vf scale = v_set1(d->scale);
    size_t head = (4 - first % 4) % 4; /* up to the next whole block */
    size_t i = head < n ? head : n;
    vi words[2];
    philox p;

    philox_init(&p, d);
    lks__dropout_plain(y, x, i, first, d);
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        philox_blocks(words, &p, (uint32_t)((first + i) / 4));
        vf a = v_load(x + i), b = v_load(x + i + LANES);
        v_store(y + i, v_mul(a, factors(words[0], threshold, scale)));
        v_store(y + i + LANES, v_mul(b, factors(words[1], threshold, scale)));
    }
    if (i == n)
        return;
    philox_blocks(words, &p, (uint32_t)((first + i) / 4));
    for (int half = 0; half < 2 && i < n; half++, i += LANES) {
        vmask mask = v_mask(n - i);
        vf v = v_load_mask(x + i, mask);
        v = v_mul(v, factors(words[half], threshold, scale));
        v_store_mask(y + i, mask, v);
    }
}
