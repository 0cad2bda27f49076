/* The instructions of the bfloat16 products of AVX-512-BF16 and AMX, in C. Tests build those files
 * with this header in place of the compiler's, so they run on every processor. Vectors are gcc's,
 * lanes are loops. It checks the alignment of addresses that need it, and that tiles are set up
 * before use.
 *
 * The arithmetic follows Intel's manual: denormal operands and results count as 0, sums are rounded
 * to nearest even after each fused multiply-add. On a processor that has the instructions,
 * kernels_gemm_LEVEL compares both. */
#pragma once

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float __m512 __attribute__((vector_size(64)));
typedef long long __m512i __attribute__((vector_size(64)));
typedef short __m512bh __attribute__((vector_size(64)));
typedef long long __m256i __attribute__((vector_size(32)));
typedef uint16_t __mmask16;

enum { _MM_HINT_T0 = 3, _MM_HINT_T1 = 2 };

#define _mm_prefetch(p, hint) ((void)(p))

static inline void must_be(int is)
{
    if (!is)
        abort();
}

static inline void must_be_aligned(const void *p, uintptr_t to)
{
    must_be((uintptr_t)p % to == 0);
}

/* --- loads, stores, constants ------------------------------------------------------------- */

static inline __m512 _mm512_loadu_ps(const void *p)
{
    __m512 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline __m512 _mm512_load_ps(const void *p)
{
    must_be_aligned(p, 64);
    return _mm512_loadu_ps(p);
}

static inline __m512i _mm512_loadu_si512(const void *p)
{
    __m512i v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline __m512i _mm512_load_si512(const void *p)
{
    must_be_aligned(p, 64);
    return _mm512_loadu_si512(p);
}

static inline void _mm512_store_si512(void *p, __m512i v)
{
    must_be_aligned(p, 64);
    memcpy(p, &v, sizeof v);
}

static inline void _mm256_store_si256(__m256i *p, __m256i v)
{
    must_be_aligned(p, 32);
    memcpy(p, &v, sizeof v);
}

static inline __m512 _mm512_setzero_ps(void)
{
    return (__m512){0};
}

static inline __m512i _mm512_setzero_si512(void)
{
    return (__m512i){0};
}

static inline __m512 _mm512_set1_ps(float x)
{
    return (__m512){0} + x;
}

static inline __m512i _mm512_set1_epi32(int x)
{
    int v[16];
    for (int i = 0; i < 16; i++)
        v[i] = x;
    return _mm512_loadu_si512(v);
}

/* Lanes outside the mask aren't touched. */
static inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float *p)
{
    __m512 v = {0};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            v[i] = p[i];
    return v;
}

static inline void _mm512_mask_storeu_ps(float *p, __mmask16 mask, __m512 v)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            p[i] = v[i];
}

/* --- arithmetic --------------------------------------------------------------------------- */

static inline __m512 _mm512_mul_ps(__m512 a, __m512 b)
{
    return a * b;
}

static inline float _mm512_reduce_add_ps(__m512 v)
{
    float sum = 0;
    for (int i = 0; i < 16; i++)
        sum += v[i];
    return sum;
}

static inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    for (int i = 0; i < 16; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

static inline float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static inline float float_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

/* One step of a sum. */
static inline float add_product(float sum, uint16_t a, uint16_t b)
{
    float x = float_of(a), y = float_of(b), product = x * y; /* exact, unless out of range */
    sum = flushed(sum);
    if (fabsf(product) >= FLT_MIN && fabsf(product) <= FLT_MAX)
        return flushed(product + sum);
    return flushed(fmaf(x, y, sum));
}

static inline uint16_t rounded_to_bf16(float x)
{
    uint32_t bits;
    x = flushed(x);
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low)
{
    __m512bh v;
    for (int i = 0; i < 16; i++) {
        v[i] = (short)rounded_to_bf16(low[i]);
        v[i + 16] = (short)rounded_to_bf16(high[i]);
    }
    return v;
}

/* The later element of a pair is added first. */
static inline __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    for (int i = 0; i < 16; i++) {
        sum[i] = add_product(sum[i], (uint16_t)a[2 * i + 1], (uint16_t)b[2 * i + 1]);
        sum[i] = add_product(sum[i], (uint16_t)a[2 * i], (uint16_t)b[2 * i]);
    }
    return sum;
}

/* --- places ------------------------------------------------------------------------------- */

typedef int lanes_of_32 __attribute__((vector_size(64)));

static inline __m512i _mm512_permutexvar_epi16(__m512i index, __m512i v)
{
    __m512bh from = (__m512bh)v, to, at = (__m512bh)index;
    for (int i = 0; i < 32; i++)
        to[i] = from[at[i] & 31];
    return (__m512i)to;
}

static inline __m512i unpack_32(__m512i a, __m512i b, int first)
{
    lanes_of_32 x = (lanes_of_32)a, y = (lanes_of_32)b, to;
    for (int i = 0; i < 16; i += 4) {
        to[i] = x[i + first], to[i + 1] = y[i + first];
        to[i + 2] = x[i + first + 1], to[i + 3] = y[i + first + 1];
    }
    return (__m512i)to;
}

static inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b)
{
    return unpack_32(a, b, 0);
}

static inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b)
{
    return unpack_32(a, b, 2);
}

static inline __m512i unpack_64(__m512i a, __m512i b, int which)
{
    __m512i to;
    for (int i = 0; i < 8; i += 2)
        to[i] = a[i + which], to[i + 1] = b[i + which];
    return to;
}

static inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b)
{
    return unpack_64(a, b, 0);
}

static inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b)
{
    return unpack_64(a, b, 1);
}

/* Four lanes of 128 bits: two of a, then two of b. */
static inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int which)
{
    __m512i to;
    for (int lane = 0; lane < 4; lane++) {
        int from = which >> (2 * lane) & 3;
        for (int i = 0; i < 2; i++)
            to[2 * lane + i] = (lane < 2 ? a : b)[2 * from + i];
    }
    return to;
}

static inline __m256i _mm512_extracti64x4_epi64(__m512i v, int half)
{
    return (__m256i){v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]};
}

static inline __m256i _mm512_castsi512_si256(__m512i v)
{
    return _mm512_extracti64x4_epi64(v, 0);
}

/* --- tiles -------------------------------------------------------------------------------- */

/* One thread's tiles: eight of 16 rows of 64 bytes, the only layout that the program sets up. */
static _Thread_local struct emulated_tiles {
    int open;
    uint32_t at[8][16][16]; /* tile, row, place */
} emulated_tiles;

static inline void _tile_loadconfig(const void *config)
{
    const uint8_t *bytes = config;
    must_be(bytes[0] == 1 && bytes[1] == 0); /* palette, first row */
    for (int t = 0; t < 8; t++) {
        must_be(bytes[16 + 2 * t] == 64 && bytes[17 + 2 * t] == 0); /* bytes of a row */
        must_be(bytes[48 + t] == 16);                               /* rows */
    }
    memset(&emulated_tiles, 0, sizeof emulated_tiles);
    emulated_tiles.open = 1;
}

static inline void _tile_release(void)
{
    emulated_tiles.open = 0;
}

static inline uint32_t (*tile(int t))[16]
{
    must_be(emulated_tiles.open && t >= 0 && t < 8);
    return emulated_tiles.at[t];
}

static inline void _tile_zero(int t)
{
    memset(tile(t), 0, 16 * 64);
}

static inline void _tile_loadd(int t, const void *p, long stride)
{
    for (int row = 0; row < 16; row++)
        memcpy(tile(t)[row], (const char *)p + row * stride, 64);
}

static inline void _tile_stream_loadd(int t, const void *p, long stride)
{
    _tile_loadd(t, p, stride);
}

static inline void _tile_stored(int t, void *p, long stride)
{
    for (int row = 0; row < 16; row++)
        memcpy((char *)p + row * stride, tile(t)[row], 64);
}

/* Two sums of 16 products each, one of the pairs' first elements and one of their second, which are
 * then added to the old value. */
static inline void _tile_dpbf16ps(int sums, int left, int right)
{
    uint32_t(*c)[16] = tile(sums), (*a)[16] = tile(left), (*b)[16] = tile(right);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float low = 0, high = 0, old;
            for (int k = 0; k < 16; k++) {
                low = add_product(low, (uint16_t)a[m][k], (uint16_t)b[k][n]);
                high = add_product(high, (uint16_t)(a[m][k] >> 16), (uint16_t)(b[k][n] >> 16));
            }
            memcpy(&old, &c[m][n], sizeof old);
            old = flushed(flushed(old) + flushed(low + high));
            memcpy(&c[m][n], &old, sizeof old);
        }
}
