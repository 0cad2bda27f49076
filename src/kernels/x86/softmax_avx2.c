/* kernels/x86/softmax_avx2.c - online softmax by blocks; formulas in kernels/ref_softmax.c. */
#include <math.h>

#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

/* Columns that row i sees, of `cols`. */
static size_t seen(size_t i, size_t cols, ptrdiff_t diag)
{
    ptrdiff_t n = (ptrdiff_t)i + diag + 1;
    return n < 0 ? 0 : (size_t)n < cols ? (size_t)n : cols;
}

/* max(m, s_0 .. s_{n-1}); a NaN counts as -inf */
static float row_max(const float *s, size_t n, float m)
{
    __m256 lo = _mm256_set1_ps(m), hi = lo;
    size_t j = 0;

    for (; j + 16 <= n; j += 16) {
        lo = _mm256_max_ps(_mm256_loadu_ps(s + j), lo); /* of a NaN and m: the second, m */
        hi = _mm256_max_ps(_mm256_loadu_ps(s + j + 8), hi);
    }
    for (; j < n; j += 8) {
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 v = _mm256_maskload_ps(s + j, mask);
        v = _mm256_blendv_ps(lo, v, _mm256_castsi256_ps(mask));
        lo = _mm256_max_ps(v, lo);
    }
    return lks__hmax_avx2(_mm256_max_ps(lo, hi));
}

/* s_j <- exp(s_j - m) for j < n, 0 for n <= j < cols; returns their sum. */
static float row_exp(float *s, size_t n, size_t cols, float m)
{
    const __m256 vm = _mm256_set1_ps(m);
    __m256 sum0 = _mm256_setzero_ps(), sum1 = sum0;
    size_t j = 0;

    for (; j + 16 <= n; j += 16) {
        __m256 a = lks__exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + j), vm));
        __m256 b = lks__exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + j + 8), vm));
        _mm256_storeu_ps(s + j, a);
        _mm256_storeu_ps(s + j + 8, b);
        sum0 = _mm256_add_ps(sum0, a);
        sum1 = _mm256_add_ps(sum1, b);
    }
    for (; j < n; j += 8) {
        __m256i mask = lks__mask_avx2(n - j < 8 ? n - j : 8);
        __m256 a = lks__exp_avx2(_mm256_sub_ps(_mm256_maskload_ps(s + j, mask), vm));
        a = _mm256_and_ps(a, _mm256_castsi256_ps(mask));
        _mm256_maskstore_ps(s + j, lks__mask_avx2(cols - j < 8 ? cols - j : 8), a);
        sum0 = _mm256_add_ps(sum0, a);
    }
    for (; j < cols; j += 8)
        _mm256_maskstore_ps(s + j, lks__mask_avx2(cols - j < 8 ? cols - j : 8),
                            _mm256_setzero_ps());
    return lks__hsum_avx2(_mm256_add_ps(sum0, sum1));
}

void lks__softmax_block_avx2(float *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag,
                             float *max, float *sum, float *factor)
{
    /* Eight rows at a time, so that their factors are one exp. */
    for (size_t i0 = 0; i0 < rows; i0 += 8) {
        size_t n_rows = rows - i0 < 8 ? rows - i0 : 8;
        float new_max[8] = {0}, total[8] = {0};
        for (size_t r = 0; r < n_rows; r++) {
            float *row = s + (i0 + r) * lds;
            size_t n = seen(i0 + r, cols, diag);
            new_max[r] = row_max(row, n, max[i0 + r]);
            total[r] = row_exp(row, n, cols, new_max[r]);
        }

        __m256i mask = lks__mask_avx2(n_rows);
        __m256 old = _mm256_maskload_ps(max + i0, mask), m = _mm256_loadu_ps(new_max);
        __m256 f = lks__exp_avx2(_mm256_sub_ps(old, m));
        __m256 same = _mm256_cmp_ps(old, m, _CMP_EQ_OQ); /* both may be -inf */
        f = _mm256_blendv_ps(f, _mm256_set1_ps(1.0f), same);
        __m256 l = _mm256_maskload_ps(sum + i0, mask);
        l = _mm256_fmadd_ps(l, f, _mm256_loadu_ps(total));
        _mm256_maskstore_ps(max + i0, mask, m);
        _mm256_maskstore_ps(sum + i0, mask, l);
        _mm256_maskstore_ps(factor + i0, mask, f);
    }
}

void lks__softmax_again_avx2(float *s, size_t lds, size_t rows, size_t cols, ptrdiff_t diag,
                             const float *lse)
{
    for (size_t i = 0; i < rows; i++)
        row_exp(s + i * lds, seen(i, cols, diag), cols, lse[i]);
}
