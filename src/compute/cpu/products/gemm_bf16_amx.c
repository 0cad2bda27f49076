/* compute/cpu/products/gemm_bf16_amx.c - products of operands rounded to bfloat16, by TDPBF16PS.
 *
 * The instruction adds the product of two *tiles* to a third: 16 rows of 16 pairs (pairs_bf16.h),
 * 16 rows of pairs of 16 columns, and 16 x 16 sums. So a tile of A holds the pairs of a row side by
 * side, and a tile of B those of a column one below the other, which is the transposed layout. If k
 * runs in the other direction in an operand, it is transposed in registers while it is rounded and
 * copied. Tiles are filled up with zeros in both operands.
 *
 * Operands are cut into panels of SIDE rows of A or columns of B. Of the eight tile registers four
 * hold sums, and two each hold tiles of a panel: four loads for four products. Rounding and copying
 * take longer than multiplying, unless a copy is used often. So a block of B is as wide as the
 * second-level cache allows, and each panel of A is multiplied with all of it from the first-level
 * cache, right after it was copied.
 *
 * Sums leave through memory, where alpha and beta are applied. Each call sets up the tile registers
 * and releases them, so a thread's state stays small between calls. */
#include "compute/cpu/products/pairs_bf16.h"
#include "compute/cpu/products/tiles_amx.h"
#include "compute/cpu/vector/levels.h"

enum {
    SIDE = 2 * LANES,
    DEPTH = 2 * LANES,    /* of a tile, in k */
    TILE = LANES * LANES, /* pairs or sums */
    NC = 512,
    KC = 512,
    PANEL = 2 * TILE * (KC / DEPTH), /* tile t of half h at (2 * t + h) * TILE */
};

/* A copy takes as long as its use in some 200 sums. So tiles are as large as the blocks, and blocks
 * of attention, whose k and v are copied, are tall. */
const lks__tiles lks__gemm_bf16_tiles_amx = {.rows = NC,
                                             .tall_rows = NC,
                                             .cols = NC,
                                             .square = true,
                                             .panel = 256,
                                             .queries = 64,
                                             .far_queries = 128};

typedef struct packed_work {
    uint32_t a[PANEL], b[NC / SIDE * PANEL];
    float sums[SIDE * SIDE];
} packed_work;

_Static_assert(sizeof(packed_work) <= LKS__GEMM_WORK_BYTES, "the blocks fit");

/* --- packing --------------------------------------------------------------------------------- */

static inline void ask_for(const operand *o, size_t i, size_t p)
{
    _mm_prefetch((const char *)at(o, i, p), _MM_HINT_T1);
}

/* Pack the tile whose first row of A (or column of B) is i and whose k begins at p; `rows` rows and
 * `k` elements of k are left. full: the tile is complete. turned: rows become columns. Meanwhile
 * prefetch the tile one panel further into the second-level cache. */
static inline __attribute__((always_inline)) void pack_tile(uint32_t *y, const operand *o, size_t i,
                                                            size_t rows, size_t p, size_t k,
                                                            bool full, bool turned)
{
    __m512i r[LANES];
#pragma GCC unroll 16
    for (size_t l = 0; l < LANES; l++) {
        if (o->along) {
            ask_for(o, i + SIDE + l, p);
            ask_for(o, i + SIDE + l, p + LANES);
            r[l] = full || l < rows ? pairs_along(at(o, i + l, p), full ? DEPTH : k)
                                    : _mm512_setzero_si512();
        } else {
            ask_for(o, i + SIDE, p + 2 * l);
            ask_for(o, i + SIDE, p + 2 * l + 1);
            r[l] = full || 2 * l < k
                       ? pairs_across(o, i, full ? LANES : rows, p + 2 * l, full ? 2 : k - 2 * l)
                       : _mm512_setzero_si512();
        }
    }
    if (turned)
        transpose(r);
#pragma GCC unroll 16
    for (size_t l = 0; l < LANES; l++)
        _mm512_store_si512(y + l * LANES, r[l]);
}

/* Pack rows of A, or columns of B, from i0 on as panels. If they run along k, the tiles of a panel
 * are packed one after the other; otherwise all panels at one depth. Either way the source is read
 * along its rows. */
static inline __attribute__((always_inline)) void pack(uint32_t *y, const operand *o, size_t i0,
                                                       size_t rows, size_t p0, size_t kc,
                                                       bool along, bool turned)
{
    const operand from = {o->x, o->ld, along};
    const size_t n_rows = (rows + LANES - 1) / LANES, n_k = (kc + DEPTH - 1) / DEPTH;
    for (size_t tile = 0; tile < n_rows * n_k; tile++) {
        const size_t r = along ? tile / n_k : tile % n_rows;
        const size_t t = along ? tile % n_k : tile / n_rows;
        const size_t i = r * LANES, p = t * DEPTH;
        uint32_t *to = y + r / 2 * PANEL + (2 * t + r % 2) * TILE;
        if (rows - i >= LANES && kc - p >= DEPTH)
            pack_tile(to, &from, i0 + i, rows - i, p0 + p, kc - p, true, turned);
        else
            pack_tile(to, &from, i0 + i, rows - i, p0 + p, kc - p, false, turned);
    }
}

static void pack_a(uint32_t *y, const operand *o, size_t i0, size_t rows, size_t p0, size_t kc)
{
    if (o->along)
        pack(y, o, i0, rows, p0, kc, true, false);
    else
        pack(y, o, i0, rows, p0, kc, false, true);
}

static void pack_b(uint32_t *y, const operand *o, size_t j0, size_t cols, size_t p0, size_t kc)
{
    if (o->along)
        pack(y, o, j0, cols, p0, kc, true, true);
    else
        pack(y, o, j0, cols, p0, kc, false, false);
}

/* --- the kernel ------------------------------------------------------------------------------ */

typedef struct sums {
    float alpha, beta;
    float *c;
    size_t ldc, rows, cols;
} sums;

/* The compiler doesn't know that loading a tile reads memory. */
static inline void packed_by_now(void)
{
    __asm__ volatile("" ::: "memory");
}

/* C = alpha * sums + beta * C. `last`: columns of a row's last vector. */
static inline __attribute__((always_inline)) void
write_sums(const float *y, const sums *s, size_t rows, size_t cols, __mmask16 last)
{
    const __m512 alpha = _mm512_set1_ps(s->alpha), beta = _mm512_set1_ps(s->beta);
    const bool add = s->beta != 0;
    for (size_t i = 0; i < rows; i++) {
        float *c = s->c + i * s->ldc;
#pragma GCC unroll 2
        for (size_t j = 0; j < cols; j += LANES) {
            const __mmask16 mask = j + LANES < cols ? (__mmask16)0xffff : last;
            __m512 sum = _mm512_mul_ps(alpha, _mm512_load_ps(y + i * SIDE + j));
            if (add)
                sum = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, c + j), sum);
            _mm512_mask_storeu_ps(c + j, mask, sum);
        }
    }
}

/* Compute mt x nt tiles of sums over `depth` tiles. */
static inline __attribute__((always_inline)) void
kernel(int mt, int nt, const uint32_t *a, const uint32_t *b, size_t depth, float *y, const sums *s)
{
    enum { ROW = LANES * sizeof(uint32_t), SUMS_ROW = SIDE * sizeof(float) };
    const size_t rows = s->rows, cols = lks__min(s->cols, SIDE);

    for (size_t i = 0; i < rows; i++) {
        _mm_prefetch((const char *)(s->c + i * s->ldc), _MM_HINT_T1);
        _mm_prefetch((const char *)(s->c + i * s->ldc + cols - 1), _MM_HINT_T1);
    }
    packed_by_now();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t t = 0; t < depth; t++, a += 2 * TILE, b += 2 * TILE) {
        _tile_loadd(4, a, ROW);
        _tile_stream_loadd(6, b, ROW);
        _tile_dpbf16ps(0, 4, 6);
        if (nt > 1) {
            _tile_stream_loadd(7, b + TILE, ROW);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (mt > 1) {
            _tile_loadd(5, a + TILE, ROW);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (mt > 1 && nt > 1)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, y, SUMS_ROW);
    _tile_stored(1, y + LANES, SUMS_ROW);
    _tile_stored(2, y + LANES * SIDE, SUMS_ROW);
    _tile_stored(3, y + LANES * SIDE + LANES, SUMS_ROW);

    if (cols == SIDE)
        write_sums(y, s, rows, SIDE, (__mmask16)0xffff);
    else
        write_sums(y, s, rows, cols, first(cols % LANES == 0 ? LANES : cols % LANES));
}

#define KERNEL(name, mt, nt)                                                                       \
    static __attribute__((noinline)) void name(const uint32_t *a, const uint32_t *b, size_t depth, \
                                               float *y, const sums *s)                            \
    {                                                                                              \
        kernel(mt, nt, a, b, depth, y, s);                                                         \
    }
KERNEL(one_by_one, 1, 1)
KERNEL(one_by_two, 1, 2)
KERNEL(two_by_one, 2, 1)
KERNEL(two_by_two, 2, 2)
typedef void kernel_fn(const uint32_t *a, const uint32_t *b, size_t depth, float *y, const sums *s);
static kernel_fn *const kernels[2][2] = {{one_by_one, one_by_two}, {two_by_one, two_by_two}};

/* --- the whole ------------------------------------------------------------------------------- */

/* Multiply a panel of A with all panels of B. */
static void multiply(packed_work *w, size_t nc, size_t kc, sums s)
{
    float *c = s.c;
    for (size_t j = 0; j < nc; j += SIDE) {
        s.c = c + j;
        s.cols = nc - j;
        kernels[s.rows > LANES][s.cols > LANES](w->a, w->b + j / SIDE * PANEL,
                                                (kc + DEPTH - 1) / DEPTH, w->sums, &s);
    }
}

void lks__gemm_bf16_amx(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                        size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc,
                        void *work)
{
    packed_work *w = work;
    const operand left = {a, lda, ta == 'N'}, right = {b, ldb, tb == 'T'};
    if (k == 0) {
        lks__gemm_bf16_plain(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, work);
        return;
    }
    tiles_open();
    for (size_t j = 0; j < n; j += NC) {
        const size_t nc = lks__min(NC, n - j);
        for (size_t p = 0; p < k; p += KC) {
            const size_t kc = lks__min(KC, k - p);
            pack_b(w->b, &right, j, nc, p, kc);
            for (size_t i = 0; i < m; i += SIDE) {
                const size_t rows = lks__min(SIDE, m - i);
                pack_a(w->a, &left, i, rows, p, kc);
                multiply(w, nc, kc,
                         (sums){alpha, p == 0 ? beta : 1, c + i * ldc + j, ldc, rows, 0});
            }
        }
    }
    tiles_close();
}
