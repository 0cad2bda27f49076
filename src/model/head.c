#include "model/head.h"

#include "base/number/checked.h"
#include "base/trace.h"

enum { SUM_ROWS_UNIT = 128, MOST_ROWS = 256 };

size_t lks__head_sum_rows(const lks__layers *layers, size_t V)
{
    const size_t fit = layers->head_bytes() / (lks__round_up(V, 16) * sizeof(float));
    return fit < SUM_ROWS_UNIT ? SUM_ROWS_UNIT : fit / SUM_ROWS_UNIT * SUM_ROWS_UNIT;
}

size_t lks__head_chunk_rows(const lks__layers *layers, size_t rows, size_t V, size_t C)
{
    const size_t sum = lks__head_sum_rows(layers, V);
    const size_t wanted = lks__min(C / 3, MOST_ROWS) / sum * sum;
    return lks__min(wanted > sum ? wanted : sum, rows);
}

/* dw += the gradients of the weights from a chunk of n rows, in products of head->sum_rows rows. */
static void add_dw(const lks__layers *layers, const lks__exec *ex, const lks__head *head, float *dw,
                   const lks__act *x, size_t n, size_t V, size_t C, bool fresh)
{
    for (size_t i = 0; i < n; i += head->sum_rows)
        layers->linear_bwd_w(ex, dw, NULL, lks__act_at(head->logits, i * head->ld, head->act_bytes),
                             head->ld, lks__act_at(x, i * C, head->act_bytes),
                             lks__min(head->sum_rows, n - i), V, C, fresh && i == 0);
}

void lks__head_loss(const lks__layers *layers, const lks__exec *ex, const lks__head *head,
                    float *loss, lks__act *dx, float *dw, const lks__act *x, const float *w,
                    const int32_t *targets, size_t rows, size_t V, size_t C)
{
    lks__trace_begin(LKS__SPAN_HEAD, -1);
    for (size_t r0 = 0; r0 < rows; r0 += head->chunk_rows) {
        const size_t n = lks__min(head->chunk_rows, rows - r0);
        const lks__act *xn = lks__act_at(x, r0 * C, head->act_bytes);
        layers->linear_fwd(ex, head->logits, head->ld, xn, w, n, V, C, NULL);
        const lks__xent xent = {.rows = n,
                                .V = V,
                                .ld = head->ld,
                                .scale = (float)(1.0 / (double)rows),
                                .softcap = head->softcap,
                                .grad = dx != NULL || dw != NULL};
        layers->xent_rows(ex, &xent, head->logits, targets + r0, head->row_loss + r0);
        if (dx != NULL)
            layers->linear_bwd_x(ex, lks__act_at(dx, r0 * C, head->act_bytes), head->logits,
                                 head->ld, w, n, V, C, NULL);
        if (dw != NULL)
            add_dw(layers, ex, head, dw, xn, n, V, C, head->fresh && r0 == 0);
    }
    if (loss != NULL)
        layers->mean_loss(ex, loss, head->row_loss, rows);
    lks__trace_end();
}

void lks__head_logits(const lks__layers *layers, const lks__exec *ex, const lks__head *head,
                      lks__linear_fwd_fn *linear, float *logits, const lks__act *x, const float *w,
                      size_t rows, size_t V, size_t C)
{
    for (size_t r0 = 0; r0 < rows; r0 += head->chunk_rows) {
        const size_t n = lks__min(head->chunk_rows, rows - r0);
        linear(ex, head->logits, V, lks__act_at(x, r0 * C, head->act_bytes), w, n, V, C, NULL);
        layers->cap_logits(ex, logits + r0 * V, head->logits, n * V, head->softcap);
    }
}
