/* compute/cpu/vector/rows/softmax.c - online softmax by blocks; formulas in
 * tests/kernels/reference/ref_softmax.c. */

#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/vec_math.h"

/* Number of columns, of `cols`, that row i sees. */
static size_t seen(size_t i, size_t cols, ptrdiff_t diag)
{
    ptrdiff_t n = (ptrdiff_t)i + diag + 1;
    return n < 0 ? 0 : (size_t)n < cols ? (size_t)n : cols;
}

/* max(m, s_0 .. s_{n-1}), ignoring NaN */
static float row_max(const float *s, size_t n, float m)
{
    vf lo = v_set1(m), hi = lo;
    size_t j = 0;

    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        lo = v_max(v_load(s + j), lo); /* if one is NaN, v_max gives the second, m */
        hi = v_max(v_load(s + j + LANES), hi);
    }
    for (; j < n; j += LANES) {
        vmask mask = v_mask(n - j);
        vf v = v_load_mask(s + j, mask);
        v = v_select(mask, v, lo);
        lo = v_max(v, lo);
    }
    return v_hmax(v_max(lo, hi));
}

/* s_j <- exp(s_j - m) for j < n, 0 for n <= j < cols; returns their sum. */
static float row_exp(float *s, size_t n, size_t cols, float m)
{
    const vf vm = v_set1(m);
    vf sum0 = v_zero(), sum1 = sum0;
    size_t j = 0;

    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        vf a = v_exp(v_sub(v_load(s + j), vm));
        vf b = v_exp(v_sub(v_load(s + j + LANES), vm));
        v_store(s + j, a);
        v_store(s + j + LANES, b);
        sum0 = v_add(sum0, a);
        sum1 = v_add(sum1, b);
    }
    for (; j < n; j += LANES) {
        vmask mask = v_mask(n - j);
        vf a = v_exp(v_sub(v_load_mask(s + j, mask), vm));
        a = v_keep(mask, a);
        v_store_mask(s + j, v_mask(cols - j), a);
        sum0 = v_add(sum0, a);
    }
    for (; j < cols; j += LANES)
        v_store_mask(s + j, v_mask(cols - j), v_zero());
    return v_hsum(v_add(sum0, sum1));
}

void VERSION(softmax_block)(float *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag,
                            float *max, float *sum, float *factor)
{
    /* LANES rows at a time, so that one exp computes their factors. */
    for (size_t i0 = 0; i0 < rows; i0 += LANES) {
        size_t n_rows = rows - i0 < LANES ? rows - i0 : LANES;
        float new_max[LANES] = {0}, total[LANES] = {0};
        for (size_t r = 0; r < n_rows; r++) {
            float *row = s + (i0 + r) * lds;
            size_t n = seen(i0 + r, cols, diag);
            new_max[r] = row_max(row, n, max[i0 + r]);
            total[r] = row_exp(row, n, cols, new_max[r]);
        }

        vmask mask = v_mask(n_rows);
        vf old = v_load_mask(max + i0, mask), m = v_load(new_max);
        vf f = v_exp(v_sub(old, m));
        f = v_select(v_equal(old, m), v_set1(1.0f), f); /* both may be -inf */
        vf l = v_load_mask(sum + i0, mask);
        l = v_fma(l, f, v_load(total));
        v_store_mask(max + i0, mask, m);
        v_store_mask(sum + i0, mask, l);
        v_store_mask(factor + i0, mask, f);
    }
}

void VERSION(softmax_again)(float *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag,
                            const float *lse)
{
    for (size_t i = 0; i < rows; i++)
        row_exp(s + i * lds, seen(i, cols, diag), cols, lse[i]);
}
