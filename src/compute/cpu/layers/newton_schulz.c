#include "compute/cpu/layers/newton_schulz.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/number/checked.h"

/* Sizes of parts. A symmetric product is cut into panels of rows, each computed in steps of STEP
 * rows of its lower triangle, which costs (1 + STEP/n)/2 of the whole. Other products are cut into
 * tiles. The GEMM gives the size of panels and tiles (lks__tiles). NORM_BLOCK elements make one sum
 * of squares. */
enum {
    STEP = 64,
    NORM_BLOCK = 4096,
    COPY_ROWS = 16,
    MIRROR = 8,
};

static const float QUINTIC[3] = {3.4445f, -4.7750f, 2.0315f};
static const double EPS = 1e-7;

/* A matrix with its leading dimension, in floats. */
struct matrix {
    float *at;
    size_t ld;
};

/* One matrix during its iterations. With rows <= cols the Gram matrix is XXᵀ and multiplies from
 * the left; otherwise it is XᵀX and multiplies from the right, which equals iterating on Xᵀ. */
struct iteration {
    const lks__exec *ex;
    size_t rows, cols, n;     /* n: the shorter side */
    bool tall;                /* rows > cols */
    float *in_out;            /* [rows, cols], contiguous */
    struct matrix x, y;       /* [rows, cols]: X, and the next X */
    struct matrix gram, poly; /* [n, n]: A, and aI + bA + cA² */
    double *sums;             /* sums of squares of the blocks */
    float inverse_norm;
    size_t panel, tile_rows, tile_cols;
};

static size_t cuts(size_t n, size_t size)
{
    return (n + size - 1) / size;
}

/* --- the norm -------------------------------------------------------------------------------- */

static void sum_block(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t at = task * NORM_BLOCK;
    it->sums[task] =
        it->ex->k->sumsq(it->in_out + at, lks__min(NORM_BLOCK, it->rows * it->cols - at));
}

static void normalize_rows(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t r0 = task * COPY_ROWS, r1 = lks__min(r0 + COPY_ROWS, it->rows);
    for (size_t r = r0; r < r1; r++) {
        float *row = it->x.at + r * it->x.ld;
        if (row != it->in_out + r * it->cols)
            memcpy(row, it->in_out + r * it->cols, it->cols * sizeof *row);
        it->ex->k->scale(row, it->inverse_norm, it->cols);
    }
}

/* X <- in_out / its norm. */
static void normalize(const lks__exec *ex, struct iteration *it)
{
    size_t n_blocks = cuts(it->rows * it->cols, NORM_BLOCK);
    lks__pool_run(ex->pool, n_blocks, sum_block, it);
    double sum = 0.0;
    for (size_t b = 0; b < n_blocks; b++)
        sum += it->sums[b];
    it->inverse_norm = (float)(1.0 / (sqrt(sum) + EPS));
    lks__pool_run(ex->pool, cuts(it->rows, COPY_ROWS), normalize_rows, it);
}

/* --- symmetric products ---------------------------------------------------------------------- */

/* Mirror the part of rows [r0, r1) left of the diagonal to above it, in squares that stay in the
 * first-level cache. The upper halves of the squares on the diagonal are overwritten, too: a GEMM
 * may round (i, j) and (j, i) differently. */
static void mirror(struct matrix s, size_t r0, size_t r1)
{
    for (size_t i0 = r0; i0 < r1; i0 += MIRROR) {
        size_t i1 = lks__min(i0 + MIRROR, r1), j0 = 0;
        for (; j0 + MIRROR <= i0 && i1 - i0 == MIRROR; j0 += MIRROR) {
            float square[MIRROR][MIRROR];
            for (size_t i = 0; i < MIRROR; i++)
                for (size_t j = 0; j < MIRROR; j++)
                    square[j][i] = s.at[(i0 + i) * s.ld + j0 + j];
            for (size_t j = 0; j < MIRROR; j++)
                memcpy(s.at + (j0 + j) * s.ld + i0, square[j], sizeof square[j]);
        }
        for (size_t i = i0; i < i1; i++)
            for (size_t j = j0; j < i; j++)
                s.at[j * s.ld + i] = s.at[i * s.ld + j];
    }
}

/* Panels grow downwards: the long ones run first, so that threads end together. */
static size_t panel_rows(const struct iteration *it, size_t task, size_t *r1_p)
{
    size_t r0 = (cuts(it->n, it->panel) - 1 - task) * it->panel;
    *r1_p = lks__min(r0 + it->panel, it->n);
    return r0;
}

/* Rows [r0, r1) of out = alpha op(X) op(X) + beta out, up to the diagonal and slightly beyond. */
static void lower_rows(const struct iteration *it, int thread, char ta, char tb, struct matrix x,
                       size_t k, float alpha, float beta, struct matrix out, size_t r0, size_t r1)
{
    for (size_t r = r0, c0 = 0; r < r1; r += STEP) {
        size_t c1 = lks__min(r + STEP, r1);
        lks__gemm(it->ex, thread, ta, tb, r1 - r, c1 - c0, k, alpha,
                  ta == 'N' ? x.at + r * x.ld : x.at + r, x.ld,
                  tb == 'N' ? x.at + c0 : x.at + c0 * x.ld, x.ld, beta, out.at + r * out.ld + c0,
                  out.ld);
        c0 = c1;
    }
}

static void gram_panel(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t r1, r0 = panel_rows(it, task, &r1);
    if (it->tall)
        lower_rows(it, thread, 'T', 'N', it->x, it->rows, 1.0f, 0.0f, it->gram, r0, r1);
    else
        lower_rows(it, thread, 'N', 'T', it->x, it->cols, 1.0f, 0.0f, it->gram, r0, r1);
    mirror(it->gram, r0, r1);
}

/* a on the diagonal adds aX to the product without another pass over X. */
static void poly_panel(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t r1, r0 = panel_rows(it, task, &r1);
    struct matrix s = it->gram, p = it->poly;
    for (size_t i = r0; i < r1; i++)
        memcpy(p.at + i * p.ld, s.at + i * s.ld, r1 * sizeof *p.at);
    lower_rows(it, thread, 'N', 'N', s, it->n, QUINTIC[2], QUINTIC[1], p, r0, r1);
    for (size_t i = r0; i < r1; i++)
        p.at[i * p.ld + i] += QUINTIC[0];
    mirror(p, r0, r1);
}

static void apply_tile(void *ctx, size_t task, int thread)
{
    const struct iteration *it = ctx;
    size_t n_cols = cuts(it->cols, it->tile_cols);
    size_t r0 = task / n_cols * it->tile_rows, r1 = lks__min(r0 + it->tile_rows, it->rows);
    size_t c0 = task % n_cols * it->tile_cols, c1 = lks__min(c0 + it->tile_cols, it->cols);
    struct matrix left = it->tall ? it->x : it->poly, right = it->tall ? it->poly : it->x;
    lks__gemm(it->ex, thread, 'N', 'N', r1 - r0, c1 - c0, it->n, 1.0f, left.at + r0 * left.ld,
              left.ld, right.at + c0, right.ld, 0.0f, it->y.at + r0 * it->y.ld + c0, it->y.ld);
}

/* --- the whole ------------------------------------------------------------------------------- */

/* If rows lie a large power of two apart, they share a few sets of a cache, and use many pages:
 * with a leading dimension of 512, products without transpose take 1.6 times as long. */
static size_t padded(size_t cols)
{
    size_t ld = lks__round_up(cols, 16);
    return ld % 64 == 0 ? ld + 16 : ld;
}

static size_t matrix_bytes(size_t rows, size_t cols)
{
    return lks__round_up(rows * padded(cols) * sizeof(float), 64);
}

static size_t sums_bytes(size_t rows, size_t cols)
{
    return lks__round_up(cuts(rows * cols, NORM_BLOCK) * sizeof(double), 64);
}

/* sums, X, next X, A, polynomial */
size_t lks__newton_schulz_bytes(size_t rows, size_t cols)
{
    size_t n = lks__min(rows, cols);
    return sums_bytes(rows, cols) + 2 * matrix_bytes(rows, cols) + 2 * matrix_bytes(n, n);
}

void lks__newton_schulz(const lks__exec *ex, float *x, size_t rows, size_t cols, int steps,
                        const lks__beat *beat, void *work)
{
    size_t n = lks__min(rows, cols), bytes = matrix_bytes(rows, cols);
    const struct matrix out = {x, cols};
    char *at = work;
    const lks__tiles *size = lks__exec_tiles(ex);
    struct iteration it = {.ex = ex,
                           .rows = rows,
                           .cols = cols,
                           .n = n,
                           .tall = rows > cols,
                           .panel = size->panel,
                           .tile_rows = size->tall_rows,
                           .tile_cols = size->cols};
    it.in_out = x;
    it.sums = (double *)at;
    at += sums_bytes(rows, cols);
    it.x = (struct matrix){(float *)at, padded(cols)};
    it.y = (struct matrix){(float *)(at + bytes), padded(cols)};
    at += 2 * bytes;
    it.gram = (struct matrix){(float *)at, padded(n)};
    it.poly = (struct matrix){(float *)(at + matrix_bytes(n, n)), padded(n)};

    if (steps == 0)
        it.x = out;
    normalize(ex, &it);
    for (int step = 0; step < steps; step++) {
        lks__pool_run(ex->pool, cuts(n, it.panel), gram_panel, &it);
        lks__pool_run(ex->pool, cuts(n, it.panel), poly_panel, &it);
        if (step == steps - 1)
            it.y = out;
        lks__pool_run(ex->pool, cuts(rows, it.tile_rows) * cuts(cols, it.tile_cols), apply_tile,
                      &it);
        struct matrix next = it.y;
        it.y = it.x;
        it.x = next;
        lks__beat_now(beat);
    }
}
