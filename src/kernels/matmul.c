#include "kernels/matmul.h"

/* 128 rows keep oneDNN at 95 % of a core's peak, and one tile's operands in the second-level cache.
 */
enum { TILE_ROWS = 128, TILE_COLS = 512, COLSUM_COLS = 64 };

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t tiles(size_t n, size_t tile)
{
    return (n + tile - 1) / tile;
}

struct product {
    const lks__exec *ex;
    char ta, tb;
    size_t m, n, k; /* of the whole product */
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
    float beta;
    lks__epilogue epilogue;
};

static void product_tile(void *ctx, size_t task, int thread)
{
    const struct product *p = ctx;
    size_t n_cols = tiles(p->n, TILE_COLS);
    size_t r0 = task / n_cols * TILE_ROWS, c0 = task % n_cols * TILE_COLS;
    size_t r1 = min(r0 + TILE_ROWS, p->m), c1 = min(c0 + TILE_COLS, p->n);
    const float *a = p->ta == 'N' ? p->a + r0 * p->lda : p->a + r0;
    const float *b = p->tb == 'N' ? p->b + c0 : p->b + c0 * p->ldb;
    p->ex->k->gemm(p->ta, p->tb, r1 - r0, c1 - c0, p->k, 1.0f, a, p->lda, b, p->ldb, p->beta,
                   p->c + r0 * p->ldc + c0, p->ldc);
    if (p->epilogue.fn != NULL)
        p->epilogue.fn(p->ex, p->epilogue.ctx, r0, r1, c0, c1);
}

static void run(const struct product *p)
{
    lks__pool_run(p->ex->pool, tiles(p->m, TILE_ROWS) * tiles(p->n, TILE_COLS), product_tile,
                  (void *)p);
}

void lks__linear_fwd(const lks__exec *ex, float *y, size_t ldy, const float *x, const float *w,
                     size_t rows, size_t out, size_t in, lks__epilogue epilogue)
{
    run(&(struct product){ex, 'N', 'T', rows, out, in, x, w, y, in, in, ldy, 0.0f, epilogue});
}

void lks__linear_bwd_x(const lks__exec *ex, float *dx, const float *dy, size_t lddy, const float *w,
                       size_t rows, size_t out, size_t in, lks__epilogue epilogue)
{
    run(&(struct product){ex, 'N', 'N', rows, in, out, dy, w, dx, lddy, in, in, 0.0f, epilogue});
}

void lks__linear_bwd_x_add(const lks__exec *ex, float *dx, const float *dy, size_t lddy,
                           const float *w, size_t rows, size_t out, size_t in)
{
    run(&(struct product){
        ex, 'N', 'N', rows, in, out, dy, w, dx, lddy, in, in, 1.0f, {NULL, NULL}});
}

struct colsum {
    const lks__exec *ex;
    float *out;
    const float *x;
    size_t ld, rows, n;
};

static void colsum_tile(void *ctx, size_t task, int thread)
{
    const struct colsum *s = ctx;
    size_t c0 = task * COLSUM_COLS, c1 = min(c0 + COLSUM_COLS, s->n);
    s->ex->k->colsum(s->out + c0, s->x + c0, s->ld, s->rows, c1 - c0);
}

void lks__linear_bwd_w(const lks__exec *ex, float *dw, float *db, const float *dy, size_t lddy,
                       const float *x, size_t rows, size_t out, size_t in)
{
    run(&(struct product){
        ex, 'T', 'N', out, in, rows, dy, x, dw, lddy, in, in, 1.0f, {NULL, NULL}});
    if (db != NULL)
        lks__pool_run(ex->pool, tiles(out, COLSUM_COLS), colsum_tile,
                      &(struct colsum){ex, db, dy, lddy, rows, out});
}
