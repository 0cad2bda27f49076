#include "compute/cpu/layers/epilogue.h"
#include "compute/cpu/layers.h"

lks__activate_fwd_fn *lks__activation(const lks__kernels *k, lks__epilogue_kind kind)
{
    switch (kind) {
    case LKS__EPILOGUE_GELU:
        return k->gelu_erf_fwd;
    case LKS__EPILOGUE_GELU_TANH:
        return k->gelu_tanh_fwd;
    case LKS__EPILOGUE_RELU2:
        return k->relu2_fwd;
    case LKS__EPILOGUE_NONE:
    case LKS__EPILOGUE_GELU_BWD:
    case LKS__EPILOGUE_GELU_TANH_BWD:
    case LKS__EPILOGUE_RELU2_BWD:
    case LKS__EPILOGUE_RESIDUAL:
    case LKS__EPILOGUE_BRANCH:
        break;
    }
    return NULL;
}

/* Finish n elements from `at` on: columns [c0, c0 + n) of one row. */
static void finish_row(const lks__kernels *k, const lks__epilogue *e, float *y, size_t at,
                       size_t c0, size_t n)
{
    y += at;
    switch (e->kind) {
    case LKS__EPILOGUE_NONE:
        break;
    case LKS__EPILOGUE_GELU:
    case LKS__EPILOGUE_GELU_TANH:
    case LKS__EPILOGUE_RELU2:
        lks__activation(k, e->kind)(lks__floats(e->out) + at, y, n);
        break;
    case LKS__EPILOGUE_GELU_BWD:
        k->gelu_erf_bwd(y, y, lks__floats(e->in) + at, n);
        break;
    case LKS__EPILOGUE_GELU_TANH_BWD:
        k->gelu_tanh_bwd(y, y, lks__floats(e->in) + at, n);
        break;
    case LKS__EPILOGUE_RELU2_BWD:
        k->relu2_bwd(y, y, lks__floats(e->in) + at, n);
        break;
    case LKS__EPILOGUE_RESIDUAL:
        if (e->drop != NULL && e->drop->threshold != 0)
            k->dropout(y, y, n, at, e->drop);
        k->add(y, lks__floats(e->in) + at, n);
        break;
    case LKS__EPILOGUE_BRANCH:
        k->mul(lks__floats(e->out) + at, e->scale + c0, y, n);
        k->add(lks__floats(e->out) + at, lks__floats(e->in) + at, n);
        break;
    }
}

void lks__epilogue_tile(const lks__kernels *k, const lks__epilogue *e, float *y, size_t ld,
                        size_t r0, size_t r1, size_t c0, size_t c1)
{
    if (e->bias != NULL)
        k->add_bias(y + r0 * ld + c0, ld, e->bias + c0, r1 - r0, c1 - c0);
    if (e->kind == LKS__EPILOGUE_NONE)
        return;
    for (size_t r = r0; r < r1; r++)
        finish_row(k, e, y, r * ld + c0, c0, c1 - c0);
}
