/* kernels/x86/peak_bf16_avx512_bf16.c - how fast this core multiplies and adds bfloat16. */
#include <immintrin.h>

#include "base/sys.h"
#include "kernels/x86/x86.h"

enum { CHAINS = 16, LANES = 16, ROUNDS = 1 << 14 };

double lks__peak_bf16_avx512_bf16(double seconds)
{
    volatile int keep = 0x33800000; /* pairs of 0 and 2^-24; the compiler must not know the value */
    const __m512bh a = (__m512bh)_mm512_set1_epi32(keep), b = (__m512bh)_mm512_set1_epi32(keep);
    double start = lks__sys_now(), elapsed, flops = 0;
    __m512 x[CHAINS];

    for (int c = 0; c < CHAINS; c++)
        x[c] = _mm512_set1_ps(1 + 0.01f * c);
    do {
        for (int r = 0; r < ROUNDS; r++) {
            for (int c = 0; c < CHAINS; c++)
                x[c] = _mm512_dpbf16_ps(x[c], a, b); /* stays near 1 */
        }
        flops += 4.0 * LANES * CHAINS * ROUNDS;
        elapsed = lks__sys_now() - start;
    } while (elapsed < seconds);

    for (int c = 0; c < CHAINS; c++)
        keep = (int)_mm512_reduce_add_ps(x[c]); /* keeps the results from being optimized away */
    return flops / elapsed;
}
