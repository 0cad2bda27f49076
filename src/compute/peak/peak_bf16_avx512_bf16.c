/* compute/peak/peak_bf16_avx512_bf16.c - multiply-adds of bfloat16 at the core's full speed. */
#include <immintrin.h>

#include "compute/cpu/vector/levels.h"

enum { CHAINS = 16, ROUNDS = 1 << 14 };

double lks__peak_bf16_avx512_bf16(void)
{
    volatile int ones = 0x3f803f80; /* two bf16 ones; volatile hides the value from the compiler */
    const __m512bh a = (__m512bh)_mm512_set1_epi32(ones), b = (__m512bh)_mm512_set1_epi32(ones);
    __m512 x[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        x[c] = _mm512_setzero_ps();
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CHAINS; c++)
            x[c] = _mm512_dpbf16_ps(x[c], a, b); /* adds 1 * 1 + 1 * 1 */

    double done = 0.0;
    for (int c = 0; c < CHAINS; c++)
        done += (double)_mm512_reduce_add_ps(x[c]); /* whole numbers below 2^24, so exact */
    return 2.0 * done;
}
