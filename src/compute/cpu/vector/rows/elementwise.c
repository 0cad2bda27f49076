/* compute/cpu/vector/rows/elementwise.c - sums, products, rows and columns; formulas in kernels.h.
 */
#include <stdbool.h>

#include "compute/cpu/vector/each.h"
#include "compute/cpu/vector/levels.h"

void VERSION(add)(float *y, const float *x, size_t n)
{
    each_pair(y, y, x, n, v_add);
}

void VERSION(mul)(float *y, const float *a, const float *b, size_t n)
{
    each_pair(y, a, b, n, v_mul);
}

void VERSION(mul_add)(float *y, const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = v_mul(v_load(a + i), v_load(b + i));
        v_store(y + i, v_add(v_load(y + i), v));
    }
    if (i < n) {
        vmask mask = v_mask(n - i);
        vf v = v_mul(v_load_mask(a + i, mask), v_load_mask(b + i, mask));
        v_store_mask(y + i, mask, v_add(v_load_mask(y + i, mask), v));
    }
}

void VERSION(scale)(float *y, float a, size_t n)
{
    const vf va = v_set1(a);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_mul(v_load(y + i), va));
    if (i < n) {
        vmask mask = v_mask(n - i);
        v_store_mask(y + i, mask, v_mul(v_load_mask(y + i, mask), va));
    }
}

void VERSION(add_bias)(float *y, size_t ld, const float *bias, size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++)
        VERSION(add)(y + i * ld, bias, n);
}

void VERSION(colsum)(float *out, const float *x, size_t ld, size_t rows, size_t n)
{
    enum { STRIP = VECTORS == 32 ? 8 : 4 };
    size_t j = 0;

    for (; j + STRIP * LANES <= n; j += STRIP * LANES) {
        vf sum[STRIP];
        for (int l = 0; l < STRIP; l++)
            sum[l] = v_zero();
        for (size_t i = 0; i < rows; i++)
            for (int l = 0; l < STRIP; l++)
                sum[l] = v_add(sum[l], v_load(x + i * ld + j + LANES * l));
        for (int l = 0; l < STRIP; l++)
            v_store(out + j + LANES * l, v_add(v_load(out + j + LANES * l), sum[l]));
    }
    for (; j < n; j += LANES) {
        vmask mask = v_mask(n - j);
        vf sum = v_zero();
        for (size_t i = 0; i < rows; i++)
            sum = v_add(sum, v_load_mask(x + i * ld + j, mask));
        v_store_mask(out + j, mask, v_add(v_load_mask(out + j, mask), sum));
    }
}

float VERSION(dot)(const float *a, const float *b, size_t n)
{
    vf s[4];
    size_t i = 0;

    for (int l = 0; l < 4; l++)
        s[l] = v_zero();
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int l = 0; l < 4; l++)
            s[l] = v_fma(v_load(a + i + LANES * l), v_load(b + i + LANES * l), s[l]);
    for (; i < n; i += LANES) {
        vmask mask = v_mask(n - i);
        s[0] = v_fma(v_load_mask(a + i, mask), v_load_mask(b + i, mask), s[0]);
    }
    return v_hsum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* A float's square is exact in double, so a fused multiply-add rounds as the reference does. */
double VERSION(sumsq)(const float *x, size_t n)
{
    vd sum = vd_zero();
    for (size_t i = 0; i < n; i += LANES) {
        vf v = n - i >= LANES ? v_load(x + i) : v_load_mask(x + i, v_mask(n - i));
        sum = vd_add_square(v_widen(v, 0), sum);
        sum = vd_add_square(v_widen(v, 1), sum);
    }
    return vd_hsum(sum);
}

/* One accumulator for each lane is enough, because the sum waits for memory. */
void VERSION(sum_scaled)(float *y, const float *a, const float *b, float scale, double lanes[8],
                         size_t n)
{
    const vf by = v_set1(scale);
    double none[8] = {0};
    if (lanes == NULL)
        lanes = none;
    vd sum = vd_load(lanes);

    for (size_t i = 0; i < n; i += LANES) {
        const bool whole = n - i >= LANES;
        const vmask mask = v_mask(n - i);
        vf v = whole ? v_load(a + i) : v_load_mask(a + i, mask);
        if (b != NULL)
            v = v_add(v, whole ? v_load(b + i) : v_load_mask(b + i, mask));
        v = v_mul(v, by);
        if (whole)
            v_store(y + i, v);
        else
            v_store_mask(y + i, mask, v = v_keep(mask, v));
        sum = vd_add_square(v_widen(v, 0), sum);
        sum = vd_add_square(v_widen(v, 1), sum);
    }
    vd_store(lanes, sum);
}
