/* kernels/x86/dropout_avx2.c - dropout; the mask's definition is in kernels.h.
 *
 * Philox4x32-10 (Salmon et al. 2011) on four blocks at once: each state word sits in the low half
 * of a 64-bit lane, where the 32 x 32 -> 64 bit multiplication wants it. High halves are never
 * cleared, since nothing reads them. */
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

enum { ROUNDS = 10 };

/* What all blocks share. Keys stand in memory, from where broadcasting them costs least. */
typedef struct philox {
    __m256i step, vm, site;
    uint64_t k0[ROUNDS], k1[ROUNDS];
} philox;

static inline void philox_init(philox *p, const lks__dropout *d)
{
    uint32_t k0 = d->key.k[0], k1 = d->key.k[1];

    p->step = _mm256_set1_epi64x(d->step);
    p->vm = _mm256_set1_epi64x(d->vm);
    p->site = _mm256_set1_epi64x(d->site);
    for (int r = 0; r < ROUNDS; r++) {
        p->k0[r] = k0;
        p->k1[r] = k1;
        k0 += 0x9E3779B9; /* golden ratio, sqrt(3) - 1: the paper's key schedule */
        k1 += 0xBB67AE85;
    }
}

/* Words of blocks `block` .. `block + 3`: out[0] those of the first two, out[1] of the last two. */
static inline void philox_4_blocks(__m256i out[2], const philox *p, uint32_t block)
{
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
    __m256i c0 = p->step, c1 = p->vm, c2 = p->site;
    __m256i c3 = _mm256_add_epi64(_mm256_set1_epi64x(block), _mm256_setr_epi64x(0, 1, 2, 3));

    for (int r = 0; r < ROUNDS; r++) {
        __m256i p0 = _mm256_mul_epu32(c0, m0), p1 = _mm256_mul_epu32(c2, m1);
        __m256i k0 = _mm256_set1_epi64x((long long)p->k0[r]);
        __m256i k1 = _mm256_set1_epi64x((long long)p->k1[r]);
        c0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1, k0));
        c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3, k1));
        c1 = p1;
        c3 = p0;
    }
    __m256i w01 = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
    __m256i w23 = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
    __m256i even = _mm256_unpacklo_epi64(w01, w23), odd = _mm256_unpackhi_epi64(w01, w23);
    out[0] = _mm256_permute2x128_si256(even, odd, 0x20);
    out[1] = _mm256_permute2x128_si256(even, odd, 0x31);
}

/* Eight words' factors: scale where the mask keeps, 0 elsewhere. */
static inline __m256 factors(__m256i words, __m256i threshold, __m256 scale)
{
    __m256i keep = _mm256_cmpeq_epi32(_mm256_max_epu32(words, threshold), words);
    return _mm256_and_ps(scale, _mm256_castsi256_ps(keep));
}

void lks__dropout_avx2(float *y, const float *x, size_t n, uint64_t first, const lks__dropout *d)
{
    const __m256i threshold = _mm256_set1_epi32((int)d->threshold);
    const __m256 scale = _mm256_set1_ps(d->scale);
    size_t head = (4 - first % 4) % 4; /* up to the next whole block */
    size_t i = head < n ? head : n;
    __m256i words[2];
    philox p;

    philox_init(&p, d);
    lks__dropout_ref(y, x, i, first, d);
    for (; i + 16 <= n; i += 16) {
        philox_4_blocks(words, &p, (uint32_t)((first + i) / 4));
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(a, factors(words[0], threshold, scale)));
        _mm256_storeu_ps(y + i + 8, _mm256_mul_ps(b, factors(words[1], threshold, scale)));
    }
    if (i == n)
        return;
    philox_4_blocks(words, &p, (uint32_t)((first + i) / 4));
    for (int half = 0; half < 2 && i < n; half++, i += 8) {
        __m256i mask = lks__mask_avx2(n - i < 8 ? n - i : 8);
        __m256 v = _mm256_maskload_ps(x + i, mask);
        v = _mm256_mul_ps(v, factors(words[half], threshold, scale));
        _mm256_maskstore_ps(y + i, mask, v);
    }
}
