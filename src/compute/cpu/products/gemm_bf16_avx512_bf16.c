/* compute/cpu/products/gemm_bf16_avx512_bf16.c - products of operands rounded to bfloat16, by
 * VDPBF16PS.
 *
 * The instruction adds a pair's two products to each of 16 float sums (pairs_bf16.h). A block of A
 * becomes panels of MR rows; the kernel broadcasts one pair of it over a register. A block of B
 * becomes panels of up to NV vectors of columns, 16 pairs each. The copy also rounds. Panels are
 * filled up with zeros in both operands.
 *
 * 8 x 3 sums leave registers for three vectors of B, and need 11 loads for 24 products. A panel of
 * B (KC x 48) stays in the first-level cache, a block of A in the second. */
#include "compute/cpu/products/pairs_bf16.h"
#include "compute/cpu/vector/levels.h"

enum {
    MR = 8,
    NV = 3,
    MC = 256,
    KC = 256,
    NC = 10 * NV * LANES + 2 * LANES, /* 512 */
    PAIRS = KC / 2,
    GAP = LANES, /* after each panel: otherwise all begin at the same set of the cache */
    A_PANEL = MR * PAIRS + GAP,
    AHEAD = 16, /* rows from those being packed to those being prefetched */
    MAX_B_PANELS = NC / LANES / (NV - 1),
};

typedef struct packed_work {
    uint32_t a[MC / MR * A_PANEL], b[NC * PAIRS + MAX_B_PANELS * GAP];
} packed_work;

_Static_assert(sizeof(packed_work) <= LKS__GEMM_WORK_BYTES, "the blocks fit");

/* --- packing --------------------------------------------------------------------------------- */

static void ask_for(const operand *o, size_t i, size_t p)
{
    _mm_prefetch((const char *)at(o, i, p), _MM_HINT_T0);
}

static __m512i pairs_across_asking(const operand *o, size_t j, size_t n, size_t p, size_t k)
{
    ask_for(o, j, p + AHEAD);
    ask_for(o, j, p + AHEAD + 1);
    return pairs_across(o, j, n, p, k);
}

/* Pack a panel of A if k runs along its rows: y[row * PAIRS + pair]. */
static void pack_a_along(uint32_t *y, const operand *o, size_t i0, size_t rows, size_t p0,
                         size_t kc)
{
    for (size_t i = 0; i < MR; i++)
        for (size_t p = 0; p < kc; p += 2 * LANES)
            _mm512_store_si512(y + i * PAIRS + p / 2,
                               i < rows ? pairs_along(at(o, i0 + i, p0 + p), kc - p)
                                        : _mm512_setzero_si512());
}

/* Pack panels of A if its rows run along k: y[pair * MR + row], two panels from each vector. */
static void pack_a_across(uint32_t *y, const operand *o, size_t i0, size_t rows, size_t p0,
                          size_t kc)
{
    for (size_t p = 0; p < kc; p += 2) {
        uint32_t *to = y + p / 2 * MR;
        for (size_t i = 0; i < rows; i += LANES, to += 2 * A_PANEL) {
            __m512i pairs = pairs_across_asking(o, i0 + i, rows - i, p0 + p, kc - p);
            _mm256_store_si256((__m256i *)(void *)to, _mm512_castsi512_si256(pairs));
            _mm256_store_si256((__m256i *)(void *)(to + A_PANEL),
                               _mm512_extracti64x4_epi64(pairs, 1));
        }
    }
}

static void pack_a(uint32_t *y, const operand *o, size_t i0, size_t rows, size_t p0, size_t kc)
{
    if (!o->along)
        pack_a_across(y, o, i0, rows, p0, kc);
    else
        for (size_t i = 0; i < rows; i += MR)
            pack_a_along(y + i / MR * A_PANEL, o, i0 + i, lks__min(MR, rows - i), p0, kc);
}

/* Vectors of the panel at column j of n: three, but so that the last panel doesn't get only one. */
static size_t panel_vectors(size_t n, size_t j)
{
    size_t left = (n - j + LANES - 1) / LANES;
    return left == NV + 1 ? 2 : lks__min(left, NV);
}

/* Pack one vector's columns of a panel of B: y[pair * stride + lane]. */
static void pack_b_along(uint32_t *y, size_t stride, const operand *o, size_t j, size_t cols,
                         size_t p0, size_t kc)
{
    for (size_t p = 0; p < kc; p += 2 * LANES) {
        __m512i r[LANES];
        for (size_t l = 0; l < LANES; l++) {
            ask_for(o, j + l + AHEAD, p0 + p);
            ask_for(o, j + l + AHEAD, p0 + p + LANES);
        }
#pragma GCC unroll 16
        for (size_t l = 0; l < LANES; l++)
            r[l] = l < cols ? pairs_along(at(o, j + l, p0 + p), kc - p) : _mm512_setzero_si512();
        transpose(r);
        size_t pairs = lks__min(LANES, (kc - p + 1) / 2);
        for (size_t l = 0; l < pairs; l++)
            _mm512_store_si512(y + (p / 2 + l) * stride, r[l]);
    }
}

/* Panels are consecutive, PAIRS * vectors * LANES each. Rows are read from end to end, which suits
 * prefetchers and TLBs better than one panel at a time. */
static void pack_b(uint32_t *y, const operand *o, size_t j0, size_t nc, size_t p0, size_t kc)
{
    if (o->along) {
        for (size_t j = 0, nv = 0; j < nc; y += nv * LANES * PAIRS + GAP) {
            nv = panel_vectors(nc, j);
            for (size_t v = 0; v < nv; v++, j += LANES)
                pack_b_along(y + v * LANES, nv * LANES, o, j0 + j, nc - j, p0, kc);
        }
        return;
    }
    for (size_t p = 0; p < kc; p += 2) {
        uint32_t *panel = y;
        for (size_t j = 0, nv = 0; j < nc; panel += nv * LANES * PAIRS + GAP) {
            nv = panel_vectors(nc, j);
            uint32_t *to = panel + p / 2 * nv * LANES;
            for (size_t v = 0; v < nv; v++, j += LANES)
                _mm512_store_si512(to + v * LANES,
                                   pairs_across_asking(o, j0 + j, nc - j, p0 + p, kc - p));
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------ */

typedef struct sums {
    float alpha, beta;
    float *c;
    size_t ldc, rows, cols;
} sums;

/* `nv` vectors of columns; rs, ps: distances of rows and of pairs in a panel of A. */
static inline __attribute__((always_inline)) void kernel(int nv, size_t rs, size_t ps,
                                                         const uint32_t *a, const uint32_t *b,
                                                         size_t pairs, const sums *s)
{
    __m512 acc[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++)
            acc[i][v] = _mm512_setzero_ps();

    for (size_t i = 0; i < MR && i < s->rows; i++)
        for (int v = 0; v < nv; v++)
            _mm_prefetch((const char *)(s->c + i * s->ldc + (size_t)v * LANES), _MM_HINT_T0);

    for (size_t p = 0; p < pairs; p++) {
        __m512bh col[NV];
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++)
            col[v] = (__m512bh)_mm512_load_si512(b + (p * (size_t)nv + (size_t)v) * LANES);
#pragma GCC unroll 8
        for (size_t i = 0; i < MR; i++) {
            __m512bh row = (__m512bh)_mm512_set1_epi32((int)a[i * rs + p * ps]);
#pragma GCC unroll 3
            for (int v = 0; v < nv; v++)
                acc[i][v] = _mm512_dpbf16_ps(acc[i][v], row, col[v]);
        }
    }

    const __m512 alpha = _mm512_set1_ps(s->alpha), beta = _mm512_set1_ps(s->beta);
#pragma GCC unroll 8
    for (size_t i = 0; i < MR; i++) {
        if (i >= s->rows)
            break;
#pragma GCC unroll 3
        for (int v = 0; v < nv; v++) {
            float *c = s->c + i * s->ldc + (size_t)v * LANES;
            const __mmask16 mask = first(s->cols - (size_t)v * LANES);
            __m512 y = _mm512_mul_ps(alpha, acc[i][v]);
            if (s->beta != 0)
                y = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, c), y);
            _mm512_mask_storeu_ps(c, mask, y);
        }
    }
}

#define KERNEL(name, nv, rs, ps)                                                                   \
    static __attribute__((noinline)) void name(const uint32_t *a, const uint32_t *b, size_t pairs, \
                                               const sums *s)                                      \
    {                                                                                              \
        kernel(nv, rs, ps, a, b, pairs, s);                                                        \
    }
KERNEL(along_1, 1, PAIRS, 1)
KERNEL(along_2, 2, PAIRS, 1)
KERNEL(along_3, 3, PAIRS, 1)
KERNEL(across_1, 1, 1, MR)
KERNEL(across_2, 2, 1, MR)
KERNEL(across_3, 3, 1, MR)
typedef void kernel_fn(const uint32_t *a, const uint32_t *b, size_t pairs, const sums *s);
static kernel_fn *const kernels[2][NV] = {{across_1, across_2, across_3},
                                          {along_1, along_2, along_3}};

/* --- the whole ------------------------------------------------------------------------------- */

static void multiply(const packed_work *w, bool along, size_t mc, size_t nc, size_t kc, sums s)
{
    const uint32_t *b = w->b;
    const size_t n = s.cols, pairs = (kc + 1) / 2;
    float *c = s.c;
    for (size_t j = 0; j < nc;) {
        const size_t nv = panel_vectors(nc, j);
        for (size_t i = 0; i < mc; i += MR) {
            s.c = c + i * s.ldc + j;
            s.rows = mc - i;
            s.cols = n - j;
            kernels[along][nv - 1](w->a + i / MR * A_PANEL, b, pairs, &s);
        }
        b += nv * LANES * PAIRS + GAP;
        j += nv * LANES;
    }
}

void lks__gemm_bf16_avx512_bf16(char ta, char tb, size_t m, size_t n, size_t k, float alpha,
                                const float *a, size_t lda, const float *b, size_t ldb, float beta,
                                float *c, size_t ldc, void *work)
{
    packed_work *w = work;
    const operand left = {a, lda, ta == 'N'}, right = {b, ldb, tb == 'T'};
    if (k == 0) {
        lks__gemm_bf16_plain(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, work);
        return;
    }
    for (size_t j = 0; j < n; j += NC) {
        const size_t nc = lks__min(NC, n - j);
        for (size_t p = 0; p < k; p += KC) {
            const size_t kc = lks__min(KC, k - p);
            pack_b(w->b, &right, j, nc, p, kc);
            for (size_t i = 0; i < m; i += MC) {
                const size_t mc = lks__min(MC, m - i);
                pack_a(w->a, &left, i, mc, p, kc);
                multiply(w, left.along, mc, nc, kc,
                         (sums){alpha, p == 0 ? beta : 1, c + i * ldc + j, ldc, 0, nc});
            }
        }
    }
}
