/* kernels/x86/round_bf16.c - the steps of ref_round_bf16.c. */
#include "kernels/x86/vec.h"
#include "kernels/x86/x86.h"

static inline vf round_bf16(vf x)
{
    const vi bits = v_bits(x);
    vi odd = vi_and(V(srli_epi32)(bits, 16), V(set1_epi32)(1));
    vi up = V(add_epi32)(bits, V(add_epi32)(odd, V(set1_epi32)(0x7fff)));
    vi quiet = vi_or(bits, V(set1_epi32)(0x00400000));
    vf y = v_select(v_is_nan(x), v_of_bits(quiet), v_of_bits(up));
    return v_of_bits(vi_and(v_bits(y), V(set1_epi32)(-0x10000)));
}

void VERSION(round_bf16)(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, round_bf16(v_load(x + i)));
    if (i < n) {
        vmask mask = v_mask(n - i);
        v_store_mask(y + i, mask, round_bf16(v_load_mask(x + i, mask)));
    }
}
