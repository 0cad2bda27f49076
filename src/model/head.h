/* model/head.h - the classifier fused with cross-entropy.
 *
 * Logits exist for only one chunk of rows at a time. If gradients are needed, they replace the
 * logits in place, so forward and backward of the head are one pass. */
#pragma once

#include <stdint.h>

#include "compute/layers.h"

typedef struct lks__head {
    size_t chunk_rows, ld; /* logits: [chunk_rows, ld] */
    size_t sum_rows;       /* of one product for the weights' gradient */
    lks__act *logits;
    size_t act_bytes; /* bytes per element of activations */
    double *row_loss; /* [rows] */
    float softcap;    /* logits are cap * tanh(logit / cap); 0: unchanged */
    bool fresh;       /* dw replaces the contents of its memory */
} lks__head;

/* Rows of one product for the gradient of the weights: as many as the device's head_bytes allows,
 * at least 128. Their number decides bits. */
size_t lks__head_sum_rows(const lks__layers *layers, size_t V);

/* Rows per chunk, at most `rows`. With a large vocabulary a chunk reads all its weights, which are
 * larger than a cache. So it has as many rows as one product or several, up to 256, for which the
 * logits need at most a third of the weights' memory. Measured: 256 rows are faster than 128 with
 * 768 columns, but not with 384, and 512 are no faster. */
size_t lks__head_chunk_rows(const lks__layers *layers, size_t rows, size_t V, size_t C);

/* *loss = mean loss of x[rows, C] w[V, C]^T against targets (not computed if loss is NULL).
 * Gradients, each computed if its pointer isn't NULL: dx[rows, C] is set, dw[V, C] += gradient. All
 * arrays are memory of the device. */
void lks__head_loss(const lks__layers *layers, const lks__exec *ex, const lks__head *head,
                    float *loss, lks__act *dx, float *dw, const lks__act *x, const float *w,
                    const int32_t *targets, size_t rows, size_t V, size_t C);

/* logits[rows, V] = x[rows, C] w[V, C]^T, capped, for callers that want floats. `linear` is the
 * table's product. */
void lks__head_logits(const lks__layers *layers, const lks__exec *ex, const lks__head *head,
                      lks__linear_fwd_fn *linear, float *logits, const lks__act *x, const float *w,
                      size_t rows, size_t V, size_t C);
