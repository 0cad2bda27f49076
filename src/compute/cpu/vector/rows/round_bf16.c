/* compute/cpu/vector/rows/round_bf16.c - the steps of ref_round_bf16.c. */
#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec.h"

void VERSION(round_bf16)(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_round_bf16(v_load(x + i)));
    if (i < n) {
        vmask mask = v_mask(n - i);
        v_store_mask(y + i, mask, v_round_bf16(v_load_mask(x + i, mask)));
    }
}
