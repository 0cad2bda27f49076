/* compute/cpu/vector/rows/elementwise.c - sums, products, rows and columns; formulas in kernels.h.
 */
#include <stdbool.h>

#include "compute/cpu/vector/vec.h"
#include "compute/cpu/vector/x86.h"

void VERSION(add)(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_add(v_load(y + i), v_load(x + i)));
    if (i < n) {
        vmask mask = v_mask(n - i);
        vf v = v_add(v_load_mask(y + i, mask), v_load_mask(x + i, mask));
        v_store_mask(y + i, mask, v);
    }
}

void VERSION(mul)(float *y, const float *a, const float *b, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v_store(y + i, v_mul(v_load(a + i), v_load(b + i)));
    if (i < n) {
        vmask mask = v_mask(n - i);
        vf v = v_mul(v_load_mask(a + i, mask), v_load_mask(b + i, mask));
        v_store_mask(y + i, mask, v);
    }
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
    size_t j = 0;

    for (; j + 8 * LANES <= n; j += 8 * LANES) {
        vf sum[8];
        for (int l = 0; l < 8; l++)
            sum[l] = v_zero();
        for (size_t i = 0; i < rows; i++)
            for (int l = 0; l < 8; l++)
                sum[l] = v_add(sum[l], v_load(x + i * ld + j + LANES * l));
        for (int l = 0; l < 8; l++)
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

/* A float's square is exact in double, so a fused multiply-add rounds as the reference does. If a
 * vector holds all eight lanes, both halves of the floats go to the same one. */
double VERSION(sumsq)(const float *x, size_t n)
{
    vd sum[2] = {V(setzero_pd)(), V(setzero_pd)()};
    const int second = LANES == 8;

    for (size_t i = 0; i < n; i += LANES) {
        vf v = n - i >= LANES ? v_load(x + i) : v_load_mask(x + i, v_mask(n - i));
        vd a = v_widen(v, 0), b = v_widen(v, 1);
        sum[0] = V(fmadd_pd)(a, a, sum[0]);
        sum[second] = V(fmadd_pd)(b, b, sum[second]);
    }
    return vd_hsum(V(add_pd)(sum[0], sum[1]));
}

/* One accumulator for each lane is enough, because the sum waits for memory. */
void VERSION(sum_scaled)(float *y, const float *a, const float *b, float scale, double lanes[8],
                         size_t n)
{
    const vf by = V(set1_ps)(scale);
    const int second = LANES == 8;
    double none[8] = {0};
    if (lanes == NULL)
        lanes = none;
    vd sum[2] = {V(loadu_pd)(lanes), V(loadu_pd)(lanes + 4 * second)};

    for (size_t i = 0; i < n; i += LANES) {
        const bool whole = n - i >= LANES;
        const vmask mask = v_mask(n - i);
        vf v = whole ? v_load(a + i) : v_load_mask(a + i, mask);
        if (b != NULL)
            v = V(add_ps)(v, whole ? v_load(b + i) : v_load_mask(b + i, mask));
        v = V(mul_ps)(v, by);
        if (whole)
            v_store(y + i, v);
        else
            v_store_mask(y + i, mask, v = v_select(mask, v, V(setzero_ps)()));
        vd low = v_widen(v, 0), high = v_widen(v, 1);
        sum[0] = V(fmadd_pd)(low, low, sum[0]);
        sum[second] = V(fmadd_pd)(high, high, sum[second]);
    }
    V(storeu_pd)(lanes + 4 * second, sum[second]);
    V(storeu_pd)(lanes, sum[0]);
}
