/* kernels/ref_peak.c - how fast this core multiplies and adds with baseline instructions. */
#include "base/sys.h"
#include "kernels/kernels.h"

enum { CHAINS = 32, ROUNDS = 1 << 16 };

double lks__peak_ref(double seconds)
{
    /* Enough independent chains to hide the latency; x -> x * a + b stays near 1. */
    float x[CHAINS];
    volatile float keep = 0.999f; /* the compiler must not know its value */
    float a = keep, b = 1 - keep;
    double start = lks__sys_now(), elapsed, flops = 0;

    for (int c = 0; c < CHAINS; c++)
        x[c] = 1 + 0.01f * c;
    do {
        for (int r = 0; r < ROUNDS; r++)
            for (int c = 0; c < CHAINS; c++)
                x[c] = x[c] * a + b;
        flops += 2.0 * CHAINS * ROUNDS;
        elapsed = lks__sys_now() - start;
    } while (elapsed < seconds);

    for (int c = 0; c < CHAINS; c++)
        keep = x[c]; /* keeps the results from being optimized away */
    return flops / elapsed;
}

double lks__peak_bf16_ref(double seconds)
{
    return lks__peak_ref(seconds); /* operands are rounded and then multiplied as floats */
}
