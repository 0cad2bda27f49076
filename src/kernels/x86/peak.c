/* kernels/x86/peak.c - how fast this core multiplies and adds. */
#include "base/sys.h"
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

/* Two units of latency 4 or 5 need 10 chains; 12 fit in 16 registers together with a and b. */
enum { CHAINS = 12, ROUNDS = 1 << 14 };

double VERSION(peak)(double seconds)
{
    volatile float keep = 0.999f; /* the compiler must not know its value */
    const vf a = v_set1(keep), b = v_set1(1 - keep);
    double start = lks__sys_now(), elapsed, flops = 0;
    vf x[CHAINS];

    for (int c = 0; c < CHAINS; c++)
        x[c] = v_set1(1 + 0.01f * c);
    do {
        for (int r = 0; r < ROUNDS; r++) {
            for (int c = 0; c < CHAINS; c++)
                x[c] = v_fma(x[c], a, b); /* stays near 1 */
        }
        flops += 2.0 * LANES * CHAINS * ROUNDS;
        elapsed = lks__sys_now() - start;
    } while (elapsed < seconds);

    for (int c = 0; c < CHAINS; c++)
        keep = v_hsum(x[c]); /* keeps the results from being optimized away */
    return flops / elapsed;
}
