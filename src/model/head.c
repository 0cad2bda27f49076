#include "model/head.h"

#include "base/checked.h"
#include "base/trace.h"
#include "kernels/matmul.h"

enum { CHUNK_BYTES = 8 << 20, CHUNK_ROWS_UNIT = 128, ROWS_A_TASK = 16 };

size_t lks__head_chunk_rows(size_t rows, size_t V)
{
    size_t fit = CHUNK_BYTES / (lks__round_up(V, 16) * sizeof(float));
    fit = fit / CHUNK_ROWS_UNIT * CHUNK_ROWS_UNIT;
    if (fit < CHUNK_ROWS_UNIT)
        fit = CHUNK_ROWS_UNIT;
    return fit < rows ? fit : rows;
}

struct xent {
    const lks__exec *ex;
    float *logits;
    size_t ld, rows, V;
    const int32_t *targets;
    double *row_loss;
    float scale, softcap;
    int want_grad;
};

static void xent_rows(void *ctx, size_t task, int thread)
{
    const struct xent *x = ctx;
    size_t end = (task + 1) * ROWS_A_TASK;
    for (size_t r = task * ROWS_A_TASK; r < end && r < x->rows; r++) {
        float *row = x->logits + r * x->ld;
        float *grad = x->want_grad ? row : NULL;
        size_t target = (size_t)x->targets[r];
        x->row_loss[r] = x->softcap == 0.0f ? x->ex->k->xent_row(grad, row, x->V, target, x->scale)
                                            : x->ex->k->xent_cap_row(grad, row, x->V, target,
                                                                     x->scale, x->softcap);
    }
}

float lks__head_loss(const lks__exec *ex, const lks__head *head, float *dx, float *dw,
                     const float *x, const float *w, const int32_t *targets, size_t rows, size_t V,
                     size_t C)
{
    const lks__epilogue none = {NULL, NULL};
    lks__trace_begin(LKS__SPAN_HEAD, -1);
    for (size_t r0 = 0; r0 < rows; r0 += head->chunk_rows) {
        size_t n = rows - r0 < head->chunk_rows ? rows - r0 : head->chunk_rows;
        lks__linear_fwd(ex, head->logits, head->ld, x + r0 * C, w, n, V, C, none);
        struct xent xent = {ex,
                            head->logits,
                            head->ld,
                            n,
                            V,
                            targets + r0,
                            head->row_loss + r0,
                            (float)(1.0 / (double)rows),
                            head->softcap,
                            dx != NULL};
        lks__pool_run(ex->pool, (n + ROWS_A_TASK - 1) / ROWS_A_TASK, xent_rows, &xent);
        if (dx == NULL)
            continue;
        lks__linear_bwd_x(ex, dx + r0 * C, head->logits, head->ld, w, n, V, C, none);
        lks__linear_bwd_w(ex, dw, NULL, head->logits, head->ld, x + r0 * C, n, V, C);
    }
    double sum = 0.0;
    for (size_t r = 0; r < rows; r++)
        sum += head->row_loss[r];
    lks__trace_end();
    return (float)(sum / (double)rows);
}
