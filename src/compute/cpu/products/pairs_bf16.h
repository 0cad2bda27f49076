/* compute/cpu/products/pairs_bf16.h - operands of bfloat16 products, cut into pairs while they are
 * rounded.
 *
 * The processor's instructions for bfloat16 add two products at a time to a float, so an operand is
 * read in *pairs*: neighbours in k, the earlier one in the lower half of 32 bits. If a pair's
 * second neighbour, or its row, lies beyond the end of the operand, zero takes its place: 0 * 0
 * adds nothing.
 *
 * In a training step operands come from beyond the second-level cache, in pieces of rows too short
 * for the processor to predict the next one. So they should be prefetched. (Prefetching an address
 * beyond an operand's end is no fault.)
 *
 * Only for files built with AVX-512-BF16. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/number/checked.h"

enum { LANES = 16 };

/* Element (i, p) of a source is x[i * ld + p] if `along` is set (k runs along its rows), otherwise
 * x[p * ld + i]. */
typedef struct operand {
    const float *x;
    size_t ld;
    bool along;
} operand;

static inline const float *at(const operand *o, size_t i, size_t p)
{
    return o->along ? o->x + i * o->ld + p : o->x + p * o->ld + i;
}

static inline __mmask16 first(size_t n)
{
    return n >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* 32 bfloat16 from two vectors of floats, `low` in the lower half. */
static inline __m512i rounded(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* 32 values along k, at most n: 16 pairs. */
static inline __m512i pairs_along(const float *x, size_t n)
{
    if (n >= 2 * LANES)
        return rounded(_mm512_loadu_ps(x), _mm512_loadu_ps(x + LANES));
    __m512 low = _mm512_maskz_loadu_ps(first(n), x);
    __m512 high =
        n <= LANES ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(first(n - LANES), x + LANES);
    return rounded(low, high);
}

/* The pairs at p and p + 1 (zero in place of p + 1 at the end of k) of 16 columns, at most n. */
static inline __m512i pairs_across(const operand *o, size_t j, size_t n, size_t p, size_t k)
{
    static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __mmask16 mask = first(n);
    __m512 even = _mm512_maskz_loadu_ps(mask, at(o, j, p));
    __m512 odd = k > 1 ? _mm512_maskz_loadu_ps(mask, at(o, j, p + 1)) : _mm512_setzero_ps();
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), rounded(even, odd));
}

/* Transpose 16 x 16 elements of 32 bits. */
static inline void transpose(__m512i r[LANES])
{
    __m512i t[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* lanes of 4: rows 4q + … at lane l are column 4l + i */
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
