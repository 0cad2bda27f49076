/* cuda/linear.c - products of layers (layers.h), by lks__cuda_gemm() and the operations after
 * it. */
#include "compute/cuda/cuda.h"

void lks__cuda_linear_fwd(const lks__exec *ex, lks__act *y, size_t ldy, const lks__act *x,
                          const float *w, size_t rows, size_t out, size_t in,
                          const lks__epilogue *epilogue)
{
    const lks__cuda_product p = {.ta = 'N',
                                 .tb = 'T',
                                 .m = rows,
                                 .n = out,
                                 .k = in,
                                 .a = {x, in, LKS__CUDA_ACTS},
                                 .b = {w, in, LKS__CUDA_PARAMS},
                                 .c = {y, ldy, LKS__CUDA_ACTS}};
    lks__cuda_gemm(ex, &p);
    if (epilogue != NULL)
        lks__cuda_epilogue(ex, y, ldy, rows, out, epilogue);
}

/* dx = dy w + beta dx. */
static void multiply_by_w(const lks__exec *ex, lks__act *dx, const lks__act *dy, size_t lddy,
                          const float *w, size_t rows, size_t out, size_t in, float beta)
{
    const lks__cuda_product p = {.ta = 'N',
                                 .tb = 'N',
                                 .m = rows,
                                 .n = in,
                                 .k = out,
                                 .a = {dy, lddy, LKS__CUDA_ACTS},
                                 .b = {w, in, LKS__CUDA_PARAMS},
                                 .beta = beta,
                                 .c = {dx, in, LKS__CUDA_ACTS}};
    lks__cuda_gemm(ex, &p);
}

void lks__cuda_linear_bwd_x(const lks__exec *ex, lks__act *dx, const lks__act *dy, size_t lddy,
                            const float *w, size_t rows, size_t out, size_t in,
                            const lks__epilogue *epilogue)
{
    multiply_by_w(ex, dx, dy, lddy, w, rows, out, in, 0.0f);
    if (epilogue != NULL)
        lks__cuda_epilogue(ex, dx, in, rows, in, epilogue);
}

void lks__cuda_linear_bwd_x_add(const lks__exec *ex, lks__act *dx, const lks__act *dy, size_t lddy,
                                const float *w, size_t rows, size_t out, size_t in)
{
    multiply_by_w(ex, dx, dy, lddy, w, rows, out, in, 1.0f);
}

void lks__cuda_linear_bwd_w(const lks__exec *ex, float *dw, float *db, const lks__act *dy,
                            size_t lddy, const lks__act *x, size_t rows, size_t out, size_t in)
{
    const lks__cuda_product p = {.ta = 'T',
                                 .tb = 'N',
                                 .m = out,
                                 .n = in,
                                 .k = rows,
                                 .a = {dy, lddy, LKS__CUDA_ACTS},
                                 .b = {x, in, LKS__CUDA_ACTS},
                                 .beta = 1,
                                 .c = {dw, in, LKS__CUDA_FLOATS}};
    if (dw != NULL)
        lks__cuda_gemm(ex, &p);
    if (db != NULL)
        lks__cuda_act_sums(ex, db, dy, lddy, rows, out);
}
