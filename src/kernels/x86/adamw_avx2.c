/* kernels/x86/adamw_avx2.c - one AdamW step; formulas in kernels/ref_adamw.c. */
#include "kernels/x86/math_avx2.h"
#include "kernels/x86/x86.h"

typedef struct factors {
    __m256 decay, one_m_b1, b2, one_m_b2, step_size, inv_sqrt_bc2, eps, clip;
} factors;

static inline void step(const factors *f, __m256 *p, __m256 *m, __m256 *v, __m256 g)
{
    g = _mm256_mul_ps(g, f->clip);
    *m = _mm256_fmadd_ps(_mm256_sub_ps(g, *m), f->one_m_b1, *m);
    *v = _mm256_fmadd_ps(_mm256_mul_ps(f->one_m_b2, g), g, _mm256_mul_ps(*v, f->b2));
    __m256 denom = _mm256_fmadd_ps(_mm256_sqrt_ps(*v), f->inv_sqrt_bc2, f->eps);
    *p = _mm256_fnmadd_ps(f->step_size, _mm256_div_ps(*m, denom), _mm256_mul_ps(*p, f->decay));
}

void lks__adamw_avx2(float *p, float *m, float *v, const float *g, size_t n, const lks__adamw *a)
{
    const factors f = {
        .decay = _mm256_set1_ps(a->decay),
        .one_m_b1 = _mm256_set1_ps(a->one_m_b1),
        .b2 = _mm256_set1_ps(a->b2),
        .one_m_b2 = _mm256_set1_ps(a->one_m_b2),
        .step_size = _mm256_set1_ps(a->step_size),
        .inv_sqrt_bc2 = _mm256_set1_ps(a->inv_sqrt_bc2),
        .eps = _mm256_set1_ps(a->eps),
        .clip = _mm256_set1_ps(a->clip),
    };
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        __m256 vp = _mm256_loadu_ps(p + i), vm = _mm256_loadu_ps(m + i);
        __m256 vv = _mm256_loadu_ps(v + i);
        step(&f, &vp, &vm, &vv, _mm256_loadu_ps(g + i));
        _mm256_storeu_ps(p + i, vp);
        _mm256_storeu_ps(m + i, vm);
        _mm256_storeu_ps(v + i, vv);
    }
    if (i < n) {
        __m256i mask = lks__mask_avx2(n - i);
        __m256 vp = _mm256_maskload_ps(p + i, mask), vm = _mm256_maskload_ps(m + i, mask);
        __m256 vv = _mm256_maskload_ps(v + i, mask);
        step(&f, &vp, &vm, &vv, _mm256_maskload_ps(g + i, mask));
        _mm256_maskstore_ps(p + i, mask, vp);
        _mm256_maskstore_ps(m + i, mask, vm);
        _mm256_maskstore_ps(v + i, mask, vv);
    }
}
