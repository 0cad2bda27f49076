/* compute/peak/peak.c - multiply-adds at the core's full speed. */
#include "compute/cpu/vector/levels.h"
#if defined(LKS__NEON)
#include "compute/cpu/vector/vec.h"
/* Four units of latency 4 need 16 registers. */
enum { CHAINS = 5, ROUNDS = 1 << 14 };
#else
#include "compute/cpu/vector/vec_register.h"
/* Two units of latency 4 or 5 need 10 chains; 12 fit in 16 registers together with a and b. */
enum { CHAINS = 12, ROUNDS = 1 << 14 };
#endif

double VERSION(peak)(void)
{
    volatile float one = 1.0f; /* the compiler must not know its value */
    const vf a = v_set1(one), b = v_set1(one);
    vf x[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        x[c] = v_set1(0.0f);
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CHAINS; c++)
            x[c] = v_fma(a, b, x[c]);

    double done = 0.0;
    for (int c = 0; c < CHAINS; c++)
        done += (double)v_hsum(x[c]); /* whole numbers below 2^24, so exact */
    return 2.0 * done;
}
