#include "compute/cpu/layers.h"

#include <stdbool.h>
#include <string.h>

#include "base/number/checked.h"
#include "compute/cpu/layers/epilogue.h"

enum { COLSUM_COLS = 64 };

/* If an operand is read down its columns and its rows lie a multiple of 2 KB apart, they share few
 * sets of the cache, and oneDNN drops to half its speed (measured with 2.6.3). With such a GEMM
 * (slow_columns) a panel of the operand is copied so that its rows lie PANEL_LD floats apart, for
 * as much of the inner dimension as fits into a thread's scratch. */
enum { PANEL_COLS = 128, PANEL_LD = PANEL_COLS + 16, PANEL_ROWS = 1792, PACKED_TILE_ROWS = 512 };

_Static_assert(PANEL_LD *PANEL_ROWS * sizeof(float) <= LKS__LAYER_SCRATCH_BYTES,
               "a panel is the scratch of one thread");

/* packed_tile() copies the rows of such a tile, which are columns of A. */
_Static_assert((int)LKS__TILE_ROWS <= (int)PANEL_COLS, "a tile of A fits in a panel");

static size_t tiles(size_t n, size_t tile)
{
    return (n + tile - 1) / tile;
}

/* A product of few tiles is cut into smaller ones, as many as 2 and 4 threads can share evenly.
 * Otherwise one of two threads computes a whole small product alone. oneDNN keeps its speed with
 * such tiles if the inner dimension is long. That is so for gradients of weights, which have few
 * tiles. */
enum { FEW_TILES = 16, ENOUGH_TILES = 8, EVEN = 4, CUT = 16, LEAST_ROWS = 32, LEAST_COLS = 64 };

/* Square tiles, if they are few, are halved along their longer side until 4 threads can share
 * them. */
enum { SQUARE_TILES = 4, SQUARE_LEAST = 64 };

typedef enum packing { PACK_NONE, PACK_A, PACK_B } packing;

struct product {
    const lks__exec *ex;
    char ta, tb;
    size_t m, n, k; /* of the whole product */
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
    float beta;
    const lks__epilogue *epilogue; /* or NULL */
    packing pack;
    size_t tile_rows, tile_cols;
};

/* One tile. */
struct tile {
    size_t r0, r1, c0, c1;
    const float *a, *b;
    float *c;
};

static void plain_tile(const struct product *p, const struct tile *t, int thread)
{
    lks__gemm(p->ex, thread, p->ta, p->tb, t->r1 - t->r0, t->c1 - t->c0, p->k, 1.0f, t->a, p->lda,
              t->b, p->ldb, p->beta, t->c, p->ldc);
}

static void copy_panel(float *panel, const float *x, size_t ld, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        memcpy(panel + i * PANEL_LD, x + i * ld, cols * sizeof *panel);
}

/* A (transposed) or B has k rows of at most PANEL_COLS columns. */
static void packed_tile(const struct product *p, const struct tile *t, float *panel)
{
    const size_t rows = t->r1 - t->r0, cols = t->c1 - t->c0;
    for (size_t k0 = 0; k0 < p->k; k0 += PANEL_ROWS) {
        size_t k = lks__min(PANEL_ROWS, p->k - k0);
        float beta = k0 == 0 ? p->beta : 1.0f;
        if (p->pack == PACK_A) {
            copy_panel(panel, t->a + k0 * p->lda, p->lda, k, rows);
            p->ex->k->gemm('T', 'N', rows, cols, k, 1.0f, panel, PANEL_LD, t->b + k0 * p->ldb,
                           p->ldb, beta, t->c, p->ldc);
        } else {
            copy_panel(panel, t->b + k0 * p->ldb, p->ldb, k, cols);
            p->ex->k->gemm('N', 'N', rows, cols, k, 1.0f, t->a + k0, p->lda, panel, PANEL_LD, beta,
                           t->c, p->ldc);
        }
    }
}

static void product_tile(void *ctx, size_t task, int thread)
{
    const struct product *p = ctx;
    size_t n_cols = tiles(p->n, p->tile_cols);
    struct tile t = {.r0 = task / n_cols * p->tile_rows, .c0 = task % n_cols * p->tile_cols};
    t.r1 = lks__min(t.r0 + p->tile_rows, p->m);
    t.c1 = lks__min(t.c0 + p->tile_cols, p->n);
    t.a = p->ta == 'N' ? p->a + t.r0 * p->lda : p->a + t.r0;
    t.b = p->tb == 'N' ? p->b + t.c0 : p->b + t.c0 * p->ldb;
    t.c = p->c + t.r0 * p->ldc + t.c0;
    if (p->pack == PACK_NONE)
        plain_tile(p, &t, thread);
    else
        packed_tile(p, &t, lks__pool_scratch(p->ex->pool, thread));
    if (p->epilogue != NULL)
        lks__epilogue_tile(p->ex->k, p->epilogue, p->c, p->ldc, t.r0, t.r1, t.c0, t.c1);
}

/* A copy pays if a panel is used for enough columns (A) or rows (B). */
static packing packing_of(const struct product *p)
{
    if (!lks__exec_tiles(p->ex)->slow_columns)
        return PACK_NONE;
    bool room = lks__pool_scratch_bytes(p->ex->pool) >= PANEL_LD * PANEL_ROWS * sizeof(float);
    if (room && p->ta == 'T' && p->lda % 128 == 0 && p->n >= 256)
        return PACK_A;
    if (room && p->ta == 'N' && p->tb == 'N' && p->ldb % 512 == 0 && p->m >= 256)
        return PACK_B;
    return PACK_NONE;
}

/* Length of each piece if `size` is divided into n pieces. */
static size_t piece(size_t size, size_t n, size_t least)
{
    size_t length = lks__round_up(tiles(size, n), CUT);
    return length > least ? length : least;
}

/* Cut into tiles of at most rows x cols, as equal as possible. */
static void cut(struct product *p, size_t rows, size_t cols)
{
    size_t n_rows = tiles(p->m, rows), n_cols = tiles(p->n, cols);
    if (n_rows * n_cols < ENOUGH_TILES)
        n_rows = tiles(ENOUGH_TILES, n_cols);
    if (n_rows * n_cols < FEW_TILES)
        n_rows = lks__round_up(n_rows, EVEN);
    p->tile_rows = piece(p->m, n_rows, LEAST_ROWS);
    n_rows = tiles(p->m, p->tile_rows);
    if (n_rows * n_cols < ENOUGH_TILES)
        n_cols = tiles(ENOUGH_TILES, n_rows);
    p->tile_cols = piece(p->n, n_cols, LEAST_COLS);
}

static void cut_square(struct product *p, size_t side)
{
    size_t rows = lks__min(side, p->m), cols = lks__min(side, p->n);
    while (tiles(p->m, rows) * tiles(p->n, cols) < SQUARE_TILES &&
           (rows > SQUARE_LEAST || cols > SQUARE_LEAST)) {
        size_t *longer = rows >= cols ? &rows : &cols;
        *longer = lks__round_up(tiles(*longer, 2), CUT);
    }
    p->tile_rows = rows;
    p->tile_cols = cols;
}

static void run(struct product p)
{
    const lks__tiles *size = lks__exec_tiles(p.ex);
    p.pack = packing_of(&p);
    if (size->square)
        cut_square(&p, size->rows);
    else if (p.pack == PACK_B)
        cut(&p, PACKED_TILE_ROWS, PANEL_COLS);
    else
        cut(&p, p.m >= size->tall_from ? size->tall_rows : size->rows, size->cols);
    lks__pool_run(p.ex->pool, tiles(p.m, p.tile_rows) * tiles(p.n, p.tile_cols), product_tile, &p);
}

void lks__linear_fwd(const lks__exec *ex, lks__act *y, size_t ldy, const lks__act *x,
                     const float *w, size_t rows, size_t out, size_t in,
                     const lks__epilogue *epilogue)
{
    run((struct product){.ex = ex,
                         .ta = 'N',
                         .tb = 'T',
                         .m = rows,
                         .n = out,
                         .k = in,
                         .a = lks__floats(x),
                         .b = w,
                         .c = lks__floats(y),
                         .lda = in,
                         .ldb = in,
                         .ldc = ldy,
                         .beta = 0.0f,
                         .epilogue = epilogue});
}

static void bwd_x(const lks__exec *ex, float *dx, const float *dy, size_t lddy, const float *w,
                  size_t rows, size_t out, size_t in, float beta, const lks__epilogue *epilogue)
{
    run((struct product){.ex = ex,
                         .ta = 'N',
                         .tb = 'N',
                         .m = rows,
                         .n = in,
                         .k = out,
                         .a = dy,
                         .b = w,
                         .c = dx,
                         .lda = lddy,
                         .ldb = in,
                         .ldc = in,
                         .beta = beta,
                         .epilogue = epilogue});
}

void lks__linear_bwd_x(const lks__exec *ex, lks__act *dx, const lks__act *dy, size_t lddy,
                       const float *w, size_t rows, size_t out, size_t in,
                       const lks__epilogue *epilogue)
{
    bwd_x(ex, lks__floats(dx), lks__floats(dy), lddy, w, rows, out, in, 0.0f, epilogue);
}

void lks__linear_bwd_x_add(const lks__exec *ex, lks__act *dx, const lks__act *dy, size_t lddy,
                           const float *w, size_t rows, size_t out, size_t in)
{
    bwd_x(ex, lks__floats(dx), lks__floats(dy), lddy, w, rows, out, in, 1.0f, NULL);
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
    size_t c0 = task * COLSUM_COLS, c1 = lks__min(c0 + COLSUM_COLS, s->n);
    s->ex->k->colsum(s->out + c0, s->x + c0, s->ld, s->rows, c1 - c0);
}

/* A fresh dw becomes 0 + the product, not the product: a sum of -0 is +0 then, as in recorded
 * runs. */
void lks__linear_bwd_w(const lks__exec *ex, float *dw, float *db, const lks__act *dy, size_t lddy,
                       const lks__act *x, size_t rows, size_t out, size_t in, bool fresh)
{
    if (dw != NULL && fresh)
        lks__clear(ex, dw, out * in);
    if (dw != NULL)
        run((struct product){.ex = ex,
                             .ta = 'T',
                             .tb = 'N',
                             .m = out,
                             .n = in,
                             .k = rows,
                             .a = lks__floats(dy),
                             .b = lks__floats(x),
                             .c = dw,
                             .lda = lddy,
                             .ldb = in,
                             .ldc = in,
                             .beta = 1.0f});
    if (db != NULL)
        lks__pool_run(ex->pool, tiles(out, COLSUM_COLS), colsum_tile,
                      &(struct colsum){ex, db, lks__floats(dy), lddy, rows, out});
}
