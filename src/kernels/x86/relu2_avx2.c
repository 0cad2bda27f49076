/* kernels/x86/relu2_avx2.c - squared ReLU; formulas in kernels/ref_relu2.c. */
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

static inline __m256 relu(__m256 x)
{
    return _mm256_max_ps(_mm256_setzero_ps(), x); /* of 0 and a NaN: the second, the NaN */
}

static inline __m256 gradient(__m256 dy, __m256 x)
{
    __m256 r = relu(x);
    return _mm256_mul_ps(dy, _mm256_add_ps(r, r));
}

void lks__relu2_fwd_avx2(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 r = relu(_mm256_loadu_ps(x + i));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(r, r));
    }
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        __m256 r = relu(_mm256_maskload_ps(x + i, mask));
        _mm256_maskstore_ps(y + i, mask, _mm256_mul_ps(r, r));
    }
}

void lks__relu2_bwd_avx2(float *dx, const float *dy, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dx + i, gradient(_mm256_loadu_ps(dy + i), _mm256_loadu_ps(x + i)));
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        __m256 v = gradient(_mm256_maskload_ps(dy + i, mask), _mm256_maskload_ps(x + i, mask));
        _mm256_maskstore_ps(dx + i, mask, v);
    }
}
