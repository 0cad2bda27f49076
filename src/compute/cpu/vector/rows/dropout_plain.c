/* compute/cpu/vector/rows/dropout_plain.c - dropout in C; compute/dropout.h defines the mask. */
#include "compute/cpu/kernels.h"

void lks__dropout_plain(float *y, const float *x, size_t n, uint64_t first, const lks__dropout *d)
{
    uint32_t words[4];

    for (size_t i = 0; i < n; i++) {
        uint64_t element = first + i;
        if (i == 0 || element % 4 == 0) {
            uint32_t counter[4] = {d->step, d->vm, d->site, (uint32_t)(element / 4)};
            lks__philox4x32(d->key, counter, words);
        }
        y[i] = x[i] * (words[element % 4] >= d->threshold ? d->scale : 0.0f);
    }
}
