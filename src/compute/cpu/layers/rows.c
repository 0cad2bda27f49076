#include "compute/cpu/layers.h"

#include <stdbool.h>
#include <string.h>

#include "compute/cpu/layers/epilogue.h"
#include "compute/cpu/row_tasks.h"

/* Each operation works on some rows, or some columns, of [rows, C]. */

struct embedding_fwd {
    const lks__exec *ex;
    float *y;
    const int32_t *tokens;
    const float *wte, *wpe;
    size_t rows, T, C;
    const lks__dropout *drop;
};

static void embedding_fwd_task(void *ctx, size_t task, int thread)
{
    const struct embedding_fwd *o = ctx;
    const struct row_range range = rows_of(task, o->rows);
    for (size_t r = range.first; r < range.end; r++) {
        float *y = o->y + r * o->C;
        memcpy(y, o->wte + (size_t)o->tokens[r] * o->C, o->C * sizeof(float));
        o->ex->k->add(y, o->wpe + r % o->T * o->C, o->C);
        if (o->drop->threshold != 0)
            o->ex->k->dropout(y, y, o->C, r * o->C, o->drop);
    }
}

void lks__embedding_fwd(const lks__exec *ex, lks__act *x, const int32_t *tokens, const float *wte,
                        const float *wpe, size_t rows, size_t T, size_t C, const lks__dropout *drop)
{
    struct embedding_fwd o = {ex, lks__floats(x), tokens, wte, wpe, rows, T, C, drop};
    lks__pool_run(ex->pool, row_tasks(rows), embedding_fwd_task, &o);
}

struct embedding_bwd {
    const lks__exec *ex;
    float *dwte, *dwpe;
    const float *dx;
    const int32_t *tokens;
    size_t rows, T, C;
};

/* A task owns some columns of both tables (either may be NULL) and goes through all rows in order:
 * no two tasks write the same element, and the order of additions is fixed. */
static void embedding_bwd_task(void *ctx, size_t task, int thread)
{
    const struct embedding_bwd *o = ctx;
    size_t c0 = task * COLS_A_TASK, n = lks__min(COLS_A_TASK, o->C - c0);
    for (size_t r = 0; r < o->rows; r++) {
        const float *d = o->dx + r * o->C + c0;
        if (o->dwte != NULL)
            o->ex->k->add(o->dwte + (size_t)o->tokens[r] * o->C + c0, d, n);
        if (o->dwpe != NULL)
            o->ex->k->add(o->dwpe + r % o->T * o->C + c0, d, n);
    }
}

void lks__embedding_bwd(const lks__exec *ex, float *dwte, float *dwpe, const lks__act *dx,
                        const int32_t *tokens, size_t rows, size_t T, size_t C)
{
    struct embedding_bwd o = {ex, dwte, dwpe, lks__floats(dx), tokens, rows, T, C};
    if (dwte != NULL || dwpe != NULL)
        lks__pool_run(ex->pool, col_tasks(C), embedding_bwd_task, &o);
}

struct layernorm_fwd {
    const lks__exec *ex;
    float *y, *mean, *rstd;
    const float *x, *gain, *bias;
    size_t rows, C;
};

static void layernorm_fwd_task(void *ctx, size_t task, int thread)
{
    const struct layernorm_fwd *o = ctx;
    size_t r = task * ROWS_A_TASK, n = lks__min(ROWS_A_TASK, o->rows - r);
    o->ex->k->layernorm_fwd(o->y + r * o->C, o->mean + r, o->rstd + r, o->x + r * o->C, o->gain,
                            o->bias, n, o->C);
}

void lks__layernorm_rows_fwd(const lks__exec *ex, lks__act *y, float *mean, float *rstd,
                             const lks__act *x, const float *gain, const float *bias, size_t rows,
                             size_t C)
{
    struct layernorm_fwd o = {ex, lks__floats(y), mean, rstd, lks__floats(x), gain, bias, rows, C};
    lks__pool_run(ex->pool, row_tasks(rows), layernorm_fwd_task, &o);
}

struct layernorm_bwd {
    const lks__exec *ex;
    float *dx;
    const float *dy, *x, *gain, *mean, *rstd;
    size_t rows, C;
    float *partial;
    bool has_bias;
};

/* Sums of block b: dgain at row 2b of C elements, dbias after it. */
static void layernorm_bwd_task(void *ctx, size_t task, int thread)
{
    const struct layernorm_bwd *o = ctx;
    size_t r = task * ROWS_A_TASK, n = lks__min(ROWS_A_TASK, o->rows - r), C = o->C;
    float *dgain = o->partial + 2 * task * C, *dbias = dgain + C;
    memset(dgain, 0, 2 * C * sizeof(float));
    o->ex->k->layernorm_bwd(o->dx + r * C, dgain, o->has_bias ? dbias : NULL, o->dy + r * C,
                            o->x + r * C, o->gain, o->mean + r, o->rstd + r, n, C);
}

void lks__layernorm_rows_bwd(const lks__exec *ex, lks__act *dx, float *dgain, float *dbias,
                             const lks__act *dy, const lks__act *x, const float *gain,
                             const float *mean, const float *rstd, size_t rows, size_t C,
                             float *partial)
{
    struct layernorm_bwd o = {
        ex, lks__floats(dx), lks__floats(dy), lks__floats(x), gain, mean, rstd, rows,
        C,  partial,         dbias != NULL};
    size_t n = row_tasks(rows);
    lks__pool_run(ex->pool, n, layernorm_bwd_task, &o);
    if (dgain != NULL)
        ex->k->colsum(dgain, partial, 2 * C, n, C);
    if (dbias != NULL)
        ex->k->colsum(dbias, partial + C, 2 * C, n, C);
}

/* Products round copies of their operands. */
size_t lks__act_bytes(bool bf16)
{
    return sizeof(float);
}

/* Threads have separate scratch. */
size_t lks__work_bytes(const lks__work_use *use)
{
    return 0;
}

size_t lks__layernorm_partial_floats(size_t rows, size_t C)
{
    return row_tasks(rows) * 2 * C;
}

struct dropout_op {
    const lks__exec *ex;
    float *y;
    const float *x;
    size_t rows, C;
    const lks__dropout *drop;
};

static void dropout_task(void *ctx, size_t task, int thread)
{
    const struct dropout_op *o = ctx;
    size_t first = task * ROWS_A_TASK * o->C;
    size_t n = lks__min(ROWS_A_TASK * o->C, o->rows * o->C - first);
    o->ex->k->dropout(o->y + first, o->x + first, n, first, o->drop);
}

void lks__dropout_rows(const lks__exec *ex, lks__act *y, const lks__act *x, size_t rows, size_t C,
                       const lks__dropout *drop)
{
    struct dropout_op o = {ex, lks__floats(y), lks__floats(x), rows, C, drop};
    lks__pool_run(ex->pool, row_tasks(rows), dropout_task, &o);
}

struct activation_op {
    lks__activate_fwd_fn *fwd;
    float *y;
    const float *x;
    size_t rows, width;
};

static void activation_task(void *ctx, size_t task, int thread)
{
    const struct activation_op *o = ctx;
    const struct row_range range = rows_of(task, o->rows);
    const size_t at = range.first * o->width;
    o->fwd(o->y + at, o->x + at, (range.end - range.first) * o->width);
}

void lks__activation_fwd(const lks__exec *ex, lks__epilogue_kind kind, lks__act *y,
                         const lks__act *x, size_t rows, size_t width)
{
    struct activation_op o = {lks__activation(ex->k, kind), lks__floats(y), lks__floats(x), rows,
                              width};
    lks__pool_run(ex->pool, row_tasks(rows), activation_task, &o);
}
