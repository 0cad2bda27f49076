#include "kernels/layers.h"

#include <string.h>

void lks__clear(const lks__exec *ex, float *x, size_t n)
{
    memset(x, 0, n * sizeof *x);
}

void lks__accumulate(const lks__exec *ex, float *y, const float *x, size_t n)
{
    ex->k->add(y, x, n);
}

void lks__mean_loss(const lks__exec *ex, float *loss, const double *row_loss, size_t rows)
{
    double sum = 0.0;
    for (size_t r = 0; r < rows; r++)
        sum += row_loss[r];
    *loss = (float)(sum / (double)rows);
}

void lks__cap_logits(const lks__exec *ex, float *logits, size_t V, float cap)
{
    ex->k->softcap(logits, logits, V, cap);
}

const lks__layers lks__layers_cpu = {
#define X(name) .name = lks__##name,
    LKS__LAYER_MAP(X)
#undef X
};
