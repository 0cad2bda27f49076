/* kernels/x86/peak_avx2.c - how fast this core multiplies and adds with AVX2. */
#include "base/sys.h"
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

/* Two units of latency 4 or 5 need 10 chains; 12 fit in the 16 registers beside a and b. */
enum { CHAINS = 12, ROUNDS = 1 << 14 };

double lks__peak_avx2(double seconds)
{
    volatile float keep = 0.999f; /* unknown to the compiler */
    const __m256 a = _mm256_set1_ps(keep), b = _mm256_set1_ps(1 - keep);
    double start = lks__sys_now(), elapsed, flops = 0;
    __m256 x[CHAINS];

    for (int c = 0; c < CHAINS; c++)
        x[c] = _mm256_set1_ps(1 + 0.01f * c);
    do {
        for (int r = 0; r < ROUNDS; r++) {
            for (int c = 0; c < CHAINS; c++)
                x[c] = _mm256_fmadd_ps(x[c], a, b); /* stays near 1 */
        }
        flops += 2.0 * 8 * CHAINS * ROUNDS;
        elapsed = lks__sys_now() - start;
    } while (elapsed < seconds);

    for (int c = 0; c < CHAINS; c++)
        keep = lks__hsum_avx2(x[c]); /* the results are used */
    return flops / elapsed;
}
