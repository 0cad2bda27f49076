/* compute/peak/peak_plain.c - multiply-adds at the full speed of baseline instructions. */

/* Enough independent chains to hide the latency. */
enum { CHAINS = 32, ROUNDS = 1 << 16 };

double lks__peak_plain(void)
{
    float x[CHAINS] = {0};
    volatile float one = 1.0f; /* the compiler must not know its value */
    const float a = one, b = one;
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CHAINS; c++)
            x[c] = x[c] * a + b;

    double done = 0.0;
    for (int c = 0; c < CHAINS; c++)
        done += (double)x[c];
    return 2.0 * done;
}

double lks__peak_bf16_plain(void)
{
    return lks__peak_plain(); /* operands are rounded and then multiplied as floats */
}
