#include "optim/newton_schulz.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/checked.h"

/* The cuts. A panel is that many rows of a product; the lower triangle costs (1 + PANEL/n)/2 of the
 * whole. NORM_BLOCK elements make one sum of squares. */
enum { PANEL = 128, TILE_COLS = 512, NORM_BLOCK = 4096, MIRROR = 8 };

static const float QUINTIC[3] = {3.4445f, -4.7750f, 2.0315f};
static const double EPS = 1e-7;

/* One matrix on its way. With rows <= cols the Gram matrix is XXᵀ and multiplies from the left;
 * otherwise it is XᵀX and multiplies from the right, which is the same as iterating on Xᵀ. */
struct iteration {
    const lks__kernels *k;
    size_t rows, cols, n; /* n: the shorter side */
    bool tall;            /* rows > cols */
    float *x, *y;         /* [rows, cols]: X, and the next X */
    float *gram, *poly;   /* [n, n]: A, and aI + bA + cA² */
    double *sums;         /* sums of squares of the blocks */
    float inverse_norm;
};

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t cuts(size_t n, size_t size)
{
    return (n + size - 1) / size;
}

static void each(const lks__exec *ex, size_t n_tasks, lks__task_fn *fn, struct iteration *it)
{
    if (ex->pool != NULL) {
        lks__pool_run(ex->pool, n_tasks, fn, it);
        return;
    }
    for (size_t task = 0; task < n_tasks; task++)
        fn(it, task, 0);
}

/* --- the norm -------------------------------------------------------------------------------- */

static void sum_block(void *ctx, size_t task, int thread)
{
    struct iteration *it = ctx;
    size_t at = task * NORM_BLOCK;
    it->sums[task] = it->k->sumsq(it->x + at, min(NORM_BLOCK, it->rows * it->cols - at));
}

static void scale_block(void *ctx, size_t task, int thread)
{
    struct iteration *it = ctx;
    size_t at = task * NORM_BLOCK;
    it->k->scale(it->x + at, it->inverse_norm, min(NORM_BLOCK, it->rows * it->cols - at));
}

static void normalize(const lks__exec *ex, struct iteration *it)
{
    size_t n_blocks = cuts(it->rows * it->cols, NORM_BLOCK);
    each(ex, n_blocks, sum_block, it);
    double sum = 0.0;
    for (size_t b = 0; b < n_blocks; b++)
        sum += it->sums[b];
    it->inverse_norm = (float)(1.0 / (sqrt(sum) + EPS));
    each(ex, n_blocks, scale_block, it);
}

/* --- symmetric products ---------------------------------------------------------------------- */

/* What stands left of the diagonal in rows [r0, r1) of s[n, n] goes above it, in squares that stay
 * in the first-level cache. The upper halves of the squares on the diagonal are overwritten too: a
 * GEMM may round (i, j) and (j, i) differently. */
static void mirror(float *s, size_t n, size_t r0, size_t r1)
{
    for (size_t i0 = r0; i0 < r1; i0 += MIRROR) {
        size_t i1 = min(i0 + MIRROR, r1), j0 = 0;
        for (; j0 + MIRROR <= i0 && i1 - i0 == MIRROR; j0 += MIRROR) {
            float square[MIRROR][MIRROR];
            for (size_t i = 0; i < MIRROR; i++)
                for (size_t j = 0; j < MIRROR; j++)
                    square[j][i] = s[(i0 + i) * n + j0 + j];
            for (size_t j = 0; j < MIRROR; j++)
                memcpy(s + (j0 + j) * n + i0, square[j], sizeof square[j]);
        }
        for (size_t i = i0; i < i1; i++)
            for (size_t j = j0; j < i; j++)
                s[j * n + i] = s[i * n + j];
    }
}

/* Panels grow downwards: the long ones first, so that threads end together. */
static size_t panel_rows(const struct iteration *it, size_t task, size_t *r1_p)
{
    size_t r0 = (cuts(it->n, PANEL) - 1 - task) * PANEL;
    *r1_p = min(r0 + PANEL, it->n);
    return r0;
}

static void gram_panel(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t r1, r0 = panel_rows(it, task, &r1), ld = it->cols;
    if (it->tall)
        it->k->gemm('T', 'N', r1 - r0, r1, it->rows, 1.0f, it->x + r0, ld, it->x, ld, 0.0f,
                    it->gram + r0 * it->n, it->n);
    else
        it->k->gemm('N', 'T', r1 - r0, r1, it->cols, 1.0f, it->x + r0 * ld, ld, it->x, ld, 0.0f,
                    it->gram + r0 * it->n, it->n);
    mirror(it->gram, it->n, r0, r1);
}

/* aX joins the product by a on the diagonal: no pass of its own over X. */
static void poly_panel(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t r1, r0 = panel_rows(it, task, &r1), n = it->n;
    for (size_t i = r0; i < r1; i++)
        memcpy(it->poly + i * n, it->gram + i * n, r1 * sizeof *it->poly);
    it->k->gemm('N', 'N', r1 - r0, r1, n, QUINTIC[2], it->gram + r0 * n, n, it->gram, n, QUINTIC[1],
                it->poly + r0 * n, n);
    for (size_t i = r0; i < r1; i++)
        it->poly[i * n + i] += QUINTIC[0];
    mirror(it->poly, n, r0, r1);
}

static void apply_tile(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t n_cols = cuts(it->cols, TILE_COLS), n = it->n, ld = it->cols;
    size_t r0 = task / n_cols * PANEL, r1 = min(r0 + PANEL, it->rows);
    size_t c0 = task % n_cols * TILE_COLS, c1 = min(c0 + TILE_COLS, it->cols);
    const float *left = it->tall ? it->x + r0 * ld : it->poly + r0 * n;
    const float *right = it->tall ? it->poly + c0 : it->x + c0;
    it->k->gemm('N', 'N', r1 - r0, c1 - c0, n, 1.0f, left, n, right, ld, 0.0f, it->y + r0 * ld + c0,
                ld);
}

/* --- the whole ------------------------------------------------------------------------------- */

/* Bytes of the parts of the work space: sums, next X, A, polynomial. */
static size_t sums_bytes(size_t rows, size_t cols)
{
    return lks__round_up(cuts(rows * cols, NORM_BLOCK) * sizeof(double), 64);
}

static size_t floats_bytes(size_t rows, size_t cols)
{
    return lks__round_up(rows * cols * sizeof(float), 64);
}

size_t lks__newton_schulz_bytes(size_t rows, size_t cols)
{
    size_t n = min(rows, cols);
    return sums_bytes(rows, cols) + floats_bytes(rows, cols) + 2 * floats_bytes(n, n);
}

float *lks__newton_schulz(const lks__exec *ex, float *x, size_t rows, size_t cols, int steps,
                          void *work)
{
    size_t n = min(rows, cols);
    char *at = work;
    struct iteration it = {.k = ex->k, .rows = rows, .cols = cols, .n = n, .tall = rows > cols};
    it.x = x;
    it.sums = (double *)at;
    it.y = (float *)(at += sums_bytes(rows, cols));
    it.gram = (float *)(at += floats_bytes(rows, cols));
    it.poly = (float *)(at += floats_bytes(n, n));

    normalize(ex, &it);
    for (int step = 0; step < steps; step++) {
        each(ex, cuts(n, PANEL), gram_panel, &it);
        each(ex, cuts(n, PANEL), poly_panel, &it);
        each(ex, cuts(rows, PANEL) * cuts(cols, TILE_COLS), apply_tile, &it);
        float *next = it.y;
        it.y = it.x;
        it.x = next;
    }
    return it.x;
}

double lks__newton_schulz_flops(size_t rows, size_t cols, int steps)
{
    double n = (double)min(rows, cols), size = (double)rows * (double)cols;
    return steps * (3.0 * n * size + n * n * n);
}
