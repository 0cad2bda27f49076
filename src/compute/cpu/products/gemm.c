/* compute/cpu/products/gemm.c - C[m,n] = alpha * op(A) op(B) + beta * C in the order that
 * tests/kernels/reference/ref_gemm.c defines, for levels with vectors.
 *
 * op(B) is copied in panels of DEPTH x COLS, whose rows are whole vectors. Each element has one
 * accumulator per block of DEPTH terms. Tiles only determine which elements share loads, so they
 * change no bit. ROWS * WIDTH accumulators, a row of the panel and one value of A fit in the
 * registers of the level. */
#include <stdbool.h>
#include <string.h>

#include "compute/cpu/vector/levels.h"
#include "compute/cpu/vector/version.h"
#if defined(LKS__NEON) /* one register, not vec.h's four: gcc keeps arrays of those in memory */
#include <arm_neon.h>
typedef float32x4_t vf;
enum { LANES = 4 };
#define WIDTH          3
#define ROWS           8
#define v_load         vld1q_f32
#define v_store        vst1q_f32
#define v_set1         vdupq_n_f32
#define v_zero()       vdupq_n_f32(0.0f)
#define v_add          vaddq_f32
#define v_mul          vmulq_f32
#define v_fma(x, y, z) vfmaq_f32(z, x, y)
#else
#include "compute/cpu/vector/vec_register.h"
#if defined(__AVX512F__)
#define WIDTH 3
#define ROWS  8
#else
#define WIDTH 2
#define ROWS  6
#endif
#endif
enum { COLS = WIDTH * LANES, DEPTH = LKS__GEMM_DEPTH, LINE = 16 /* floats of the cache */ };

#define INLINE static inline __attribute__((always_inline))
#define APART  static __attribute__((noinline))

/* Part of op(B) that the next panel copies: `lines` of the cache, in rows of `length` floats, `ld`
 * apart, the first at `row`. Each tile fetches `share` of them, so that the copy doesn't wait for
 * memory. */
struct ahead {
    const float *row;
    size_t ld, length, at, lines, share;
};

/* Shared by all tiles of one panel. */
struct panel {
    const float *b; /* [depth, width], followed by zeros after the last column */
    size_t depth, cols;
    float alpha, beta;
    struct ahead *next; /* NULL: nothing is fetched */
};

/* Transpose four rows and columns. */
INLINE void turn(float *to, size_t width, const float *from, size_t ld)
{
#if defined(LKS__NEON)
    const float32x4x2_t ab = vtrnq_f32(vld1q_f32(from), vld1q_f32(from + ld));
    const float32x4x2_t cd = vtrnq_f32(vld1q_f32(from + 2 * ld), vld1q_f32(from + 3 * ld));
    for (int i = 0; i < 2; i++) {
        const float32x2_t low = vget_low_f32(ab.val[i]), high = vget_high_f32(ab.val[i]);
        vst1q_f32(to + i * width, vcombine_f32(low, vget_low_f32(cd.val[i])));
        vst1q_f32(to + (i + 2) * width, vcombine_f32(high, vget_high_f32(cd.val[i])));
    }
#else
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + ld), c = _mm_loadu_ps(from + 2 * ld),
           d = _mm_loadu_ps(from + 3 * ld);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + width, b);
    _mm_storeu_ps(to + 2 * width, c);
    _mm_storeu_ps(to + 3 * width, d);
#endif
}

/* to[p][j] = op(x)[p][j] for j < cols, 0 for other j < width; called with a constant width. */
INLINE void copy(float *to, bool turned, const float *x, size_t ld, size_t depth, size_t cols,
                 const size_t width)
{
    size_t j = 0, p = 0;
    for (; turned && j + 4 <= cols; j += 4) {
        for (p = 0; p + 4 <= depth; p += 4)
            turn(to + p * width + j, width, x + j * ld + p, ld);
        for (; p < depth; p++)
            for (size_t i = j; i < j + 4; i++)
                to[p * width + i] = x[i * ld + p];
    }
    if (!turned && cols == width)
        for (p = 0; p < depth; p++)
            memcpy(to + p * width, x + p * ld, width * sizeof *to);
    else
        for (p = 0; p < depth; p++)
            for (size_t i = j; i < width; i++)
                to[p * width + i] = i >= cols ? 0.0f : turned ? x[i * ld + p] : x[p * ld + i];
}

/* The end of a block: op(A) op(B) is in `sum`. With beta == 0, C isn't read: it may hold anything.
 */
INLINE void store(const struct panel *panel, vf sum[ROWS][WIDTH], float *c, size_t ldc,
                  const size_t rows, const size_t width)
{
    const vf alpha = v_set1(panel->alpha), beta = v_set1(panel->beta);
    if (panel->beta == 0.0f)
        for (size_t r = 0; r < rows; r++)
            for (size_t v = 0; v < width; v++)
                v_store(c + r * ldc + v * LANES, v_mul(alpha, sum[r][v]));
    else
        for (size_t r = 0; r < rows; r++)
            for (size_t v = 0; v < width; v++) {
                float *to = c + r * ldc + v * LANES;
                const vf kept = v_mul(beta, v_load(to));
                v_store(to, v_add(kept, v_mul(alpha, sum[r][v])));
            }
}

/* The same if the panel's last columns aren't columns of C. */
INLINE void store_part(const struct panel *panel, vf sum[ROWS][WIDTH], float *c, size_t ldc,
                       const size_t rows, const size_t width)
{
    float part[ROWS][COLS] = {0};
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < width; v++)
            v_store(part[r] + v * LANES, sum[r][v]);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < panel->cols; j++) {
            const float kept = panel->beta == 0.0f ? 0.0f : panel->beta * c[r * ldc + j];
            const float scaled = panel->alpha * part[r][j];
            c[r * ldc + j] = panel->beta == 0.0f ? scaled : kept + scaled;
        }
}

/* rows x panel->cols elements of C; called with constant numbers of rows and vectors. A's element
 * [r][p] is a[r * row_step + p * step]. */
INLINE void tile(const struct panel *panel, const float *a, size_t row_step, size_t step, float *c,
                 size_t ldc, const size_t rows, const size_t width)
{
    vf sum[ROWS][WIDTH];
    const float *row = panel->b;
    for (size_t r = 0; r < rows; r++) {
        __builtin_prefetch(c + r * ldc, 1);
        __builtin_prefetch(c + r * ldc + width * LANES - 1, 1);
        for (size_t v = 0; v < width; v++)
            sum[r][v] = v_zero();
    }
    for (size_t p = 0; p < panel->depth; p++, a += step, row += width * LANES) {
        vf b[WIDTH];
        for (size_t v = 0; v < width; v++)
            b[v] = v_load(row + v * LANES);
        for (size_t r = 0; r < rows; r++) {
            const vf x = v_set1(a[r * row_step]);
            for (size_t v = 0; v < width; v++)
                sum[r][v] = v_fma(x, b[v], sum[r][v]);
        }
    }
    if (panel->cols == width * LANES)
        store(panel, sum, c, ldc, rows, width);
    else
        store_part(panel, sum, c, ldc, rows, width);
}

INLINE void fetch(struct ahead *next)
{
    for (size_t i = 0; i < next->share && next->lines > 0; i++, next->lines--) {
        __builtin_prefetch(next->row + next->at, 0, 2);
        next->at += LINE;
        if (next->at >= next->length && next->lines > 1) {
            next->at = 0;
            next->row += next->ld;
        }
    }
}

/* m rows of C's columns under a panel. Eight rows at the end are cut into four and four: fewer than
 * four would wait for their additions. */
INLINE void rows_of(const struct panel *panel, const float *a, size_t row_step, size_t step,
                    size_t m, float *c, size_t ldc, const size_t width)
{
    for (size_t n; m > 0; m -= n, a += n * row_step, c += n * ldc) {
        if (panel->next != NULL)
            fetch(panel->next);
        if (m >= ROWS && (ROWS == 8 || m != 8))
            tile(panel, a, row_step, step, c, ldc, n = ROWS, width);
        else if (m >= 4)
            tile(panel, a, row_step, step, c, ldc, n = 4, width);
        else if (m >= 2)
            tile(panel, a, row_step, step, c, ldc, n = 2, width);
        else
            tile(panel, a, row_step, step, c, ldc, n = 1, width);
    }
}

typedef void rows_fn(const struct panel *panel, const float *a, size_t row_step, size_t step,
                     size_t m, float *c, size_t ldc);
typedef void copy_fn(float *to, bool turned, const float *x, size_t ld, size_t depth, size_t cols);

/* One version for each number of vectors in a panel's row. */
#define VERSION_OF(width)                                                                          \
    APART void rows_##width(const struct panel *panel, const float *a, size_t row_step,            \
                            size_t step, size_t m, float *c, size_t ldc)                           \
    {                                                                                              \
        rows_of(panel, a, row_step, step, m, c, ldc, width);                                       \
    }                                                                                              \
    APART void copy_##width(float *to, bool turned, const float *x, size_t ld, size_t depth,       \
                            size_t cols)                                                           \
    {                                                                                              \
        copy(to, turned, x, ld, depth, cols, (width)*LANES);                                       \
    }
VERSION_OF(1)
VERSION_OF(2)
#if WIDTH == 3
VERSION_OF(3)
static rows_fn *const rows_fns[] = {rows_1, rows_2, rows_3};
static copy_fn *const copy_fns[] = {copy_1, copy_2, copy_3};
#else
static rows_fn *const rows_fns[] = {rows_1, rows_2};
static copy_fn *const copy_fns[] = {copy_1, copy_2};
#endif

/* With fewer rows of C or floats of B, which fit into a core's caches, fetching only costs. */
enum { FETCH_ROWS = 8 * ROWS, FETCH_FLOATS = 1 << 16 };

/* The part of op(B) that a panel copies, and its address in B. */
struct part {
    const float *at;
    size_t depth, cols;
};

INLINE struct part part_of(bool turned, const float *b, size_t ld, size_t n, size_t k, size_t p,
                           size_t j)
{
    return (struct part){.at = turned ? b + j * ld + p : b + p * ld + j,
                         .depth = k - p < DEPTH ? k - p : DEPTH,
                         .cols = n - j < COLS ? n - j : COLS};
}

/* The part after that at term p and column j, shared by the tiles of m rows. */
APART struct ahead ahead_of(bool turned, const float *b, size_t ld, size_t m, size_t n, size_t k,
                            size_t p, size_t j)
{
    j += COLS;
    if (j >= n) {
        j = 0;
        p += DEPTH;
    }
    if (p >= k)
        return (struct ahead){0};
    const struct part next = part_of(turned, b, ld, n, k, p, j);
    const size_t length = turned ? next.depth : next.cols, rows = turned ? next.cols : next.depth;
    const size_t lines = rows * ((length + LINE - 1) / LINE);
    return (struct ahead){.row = next.at,
                          .ld = ld,
                          .length = length,
                          .lines = lines,
                          .share = lines / (m / ROWS) + 1};
}

void VERSION(gemm)(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                   size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    _Alignas(64) float copied[DEPTH * COLS];
    const size_t row_step = ta == 'T' ? 1 : lda, step = ta == 'T' ? lda : 1;
    const bool turned = tb == 'T', fetches = m >= FETCH_ROWS && n * k > FETCH_FLOATS;
    for (size_t p = 0; p == 0 || p < k; p += DEPTH)
        for (size_t j = 0; j < n; j += COLS) {
            const struct part part = part_of(turned, b, ldb, n, k, p, j);
            struct ahead next;
            const struct panel panel = {
                .b = copied,
                .depth = part.depth,
                .cols = part.cols,
                .alpha = alpha,
                .beta = p == 0 ? beta : 1.0f,
                .next = fetches ? &next : NULL,
            };
            const size_t vectors = (part.cols - 1) / LANES;
            if (fetches)
                next = ahead_of(turned, b, ldb, m, n, k, p, j);
            copy_fns[vectors](copied, turned, part.at, ldb, part.depth, part.cols);
            rows_fns[vectors](&panel, a + p * step, row_step, step, m, c + j, ldc);
        }
}
