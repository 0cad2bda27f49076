/* model/rows.h - the layers that work row by row, cut over a rank's threads. */
#ifndef LKS_MODEL_ROWS_H
#define LKS_MODEL_ROWS_H

#include <stdint.h>

#include "kernels/exec.h"

/* x[rows, C] = dropout(wte[token] + wpe[position]); rows are B sequences of T. */
void lks__embedding_fwd(const lks__exec *ex, float *x, const int32_t *tokens, const float *wte,
                        const float *wpe, size_t rows, size_t T, size_t C,
                        const lks__dropout *drop);
/* dwte, dwpe += ; rows in order for every element. */
void lks__embedding_bwd(const lks__exec *ex, float *dwte, float *dwpe, const float *dx,
                        const int32_t *tokens, size_t rows, size_t T, size_t C);

void lks__layernorm_rows_fwd(const lks__exec *ex, float *y, float *mean, float *rstd,
                             const float *x, const float *gain, const float *bias, size_t rows,
                             size_t C);
/* dx += ; dgain, dbias += (dbias may be NULL) through `partial`, which holds each block's sums. */
void lks__layernorm_rows_bwd(const lks__exec *ex, float *dx, float *dgain, float *dbias,
                             const float *dy, const float *x, const float *gain, const float *mean,
                             const float *rstd, size_t rows, size_t C, float *partial);
size_t lks__layernorm_partial_floats(size_t rows, size_t C);

void lks__dropout_rows(const lks__exec *ex, float *y, const float *x, size_t rows, size_t C,
                       const lks__dropout *drop);

#endif
