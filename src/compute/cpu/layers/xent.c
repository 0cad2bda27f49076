#include "compute/cpu/layers.h"

enum { ROWS_A_TASK = 4 }; /* a chunk has only 128 rows of a large vocabulary */

struct xent_op {
    const lks__kernels *k;
    const lks__xent *x;
    float *logits;
    const int32_t *targets;
    double *row_loss;
};

static void xent_task(void *ctx, size_t task, int thread)
{
    const struct xent_op *o = ctx;
    const lks__xent *x = o->x;
    size_t end = (task + 1) * ROWS_A_TASK;
    for (size_t r = task * ROWS_A_TASK; r < end && r < x->rows; r++) {
        float *row = o->logits + r * x->ld;
        float *grad = x->grad ? row : NULL;
        size_t target = (size_t)o->targets[r];
        o->row_loss[r] = x->softcap == 0.0f
                             ? o->k->xent_row(grad, row, x->V, target, x->scale)
                             : o->k->xent_cap_row(grad, row, x->V, target, x->scale, x->softcap);
    }
}

void lks__xent_rows(const lks__exec *ex, const lks__xent *xent, lks__act *logits,
                    const int32_t *targets, double *row_loss)
{
    struct xent_op o = {ex->k, xent, lks__floats(logits), targets, row_loss};
    lks__pool_run(ex->pool, (xent->rows + ROWS_A_TASK - 1) / ROWS_A_TASK, xent_task, &o);
}

/* A chunk's logits stay in a cache from their product to those of their gradient. */
size_t lks__head_bytes(void)
{
    return 8 << 20;
}
