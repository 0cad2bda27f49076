/* compute/cpu/vector/rows/round_bf16.c - the steps of ref_round_bf16.c. */
#include "compute/cpu/vector/each.h"
#include "compute/cpu/vector/levels.h"

void VERSION(round_bf16)(float *y, const float *x, size_t n)
{
    each(y, x, n, v_round_bf16);
}
