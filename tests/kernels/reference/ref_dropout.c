/* tests/kernels/reference/ref_dropout.c - y = x * scale if the mask keeps an element, else x * 0,
 * as in torch.nn.functional.dropout: a NaN stays NaN even if the mask drops it.
 *
 * The mask is a pure function of (seed, step, virtual rank, micro-step, place, element), defined in
 * compute/dropout.h. So backward computes it again, and no mask is stored. */
#include "kernels/reference/reference.h"

void lks__dropout_ref(lks__real *y, const lks__real *x, size_t n, uint64_t first,
                      const lks__dropout *d)
{
    uint32_t words[4];

    for (size_t i = 0; i < n; i++) {
        uint64_t element = first + i;
        if (i == 0 || element % 4 == 0) {
            uint32_t counter[4] = {d->step, d->vm, d->site, (uint32_t)(element / 4)};
            lks__philox4x32(d->key, counter, words);
        }
        y[i] = x[i] * (words[element % 4] >= d->threshold ? d->scale : 0);
    }
}
