/* cuda/products.c - products of layers (layers.h) and of updates, in float32 without TF32, or of
 * operands in bfloat16 with sums in float32. plans.c multiplies. */
#include <string.h>

#include "compute/cuda/plans.h"

/* --- operands in bfloat16 -------------------------------------------------------------------- */

/* The leading dimension of rows that are rounded. */
static size_t padded(size_t width)
{
    return (width + 7) / 8 * 8;
}

/* Operand 0 or 1, of which `count` matrices [rows, width] are stored, rounded; *ld and *stride
 * become those of the result. scale: as in lks__cuda_rounding. NULL: the device has failed. */
static const void *rounded(const lks__exec *ex, int operand, const float *x, const float *scale,
                           size_t rows, size_t width, size_t *ld, size_t count, size_t *stride)
{
    lks__cuda_rounding r = {.x = x,
                            .scale = scale,
                            .rows = rows,
                            .width = width,
                            .ldy = padded(width),
                            .ldx = *ld,
                            .count = count,
                            .stride_x = *stride};
    r.stride_y = rows * r.ldy;
    r.y = lks__cuda_operand(ex, operand, count * r.stride_y * sizeof *r.y);
    if (r.y != NULL)
        lks__cuda_round(ex, &r);
    *ld = r.ldy;
    *stride = r.stride_y;
    return r.y;
}

/* A stored matrix that products can use unchanged, if there is one: activations are stored in
 * bfloat16, and parameters are rounded once for all products until they change. */
static const void *stored(const lks__exec *ex, const struct lks__cuda_factor *x)
{
    if (x->kind == LKS__CUDA_ACTS)
        return x->at;
    return x->kind == LKS__CUDA_PARAMS ? lks__cuda_rounded(ex, x->at) : NULL;
}

/* Both operands of a product, *x and *y; key->lda … are those of a and b, and become those of the
 * operands. scale: as in lks__cuda_product. */
static bool find_both(const lks__exec *ex, lks__cuda_key *key, const struct lks__cuda_factor *a,
                      const struct lks__cuda_factor *b, const float *scale, const void **x,
                      const void **y)
{
    const bool ta = key->ta == 'T', tb = key->tb == 'T';
    const size_t rows_a = ta ? key->k : key->m, width_a = ta ? key->m : key->k;
    const size_t rows_b = tb ? key->n : key->k, width_b = tb ? key->k : key->n;
    const size_t count = key->count == 0 ? 1 : key->count;
    const bool same = a->at == b->at && rows_a == rows_b && width_a == width_b &&
                      key->lda == key->ldb && key->stride_a == key->stride_b;
    key->bf16 = true;
    *x = stored(ex, a);
    *y = scale == NULL ? stored(ex, b) : NULL;
    if (*x == NULL)
        *x = rounded(ex, 0, a->at, NULL, rows_a, width_a, &key->lda, count, &key->stride_a);
    if (*y == NULL && same) {
        *y = *x;
        key->ldb = key->lda;
        key->stride_b = key->stride_a;
    } else if (*y == NULL) {
        *y = rounded(ex, 1, b->at, scale, rows_b, width_b, &key->ldb, count, &key->stride_b);
    }
    if (key->count == 0)
        key->stride_a = key->stride_b = 0;
    return *x != NULL && *y != NULL;
}

/* --- products -------------------------------------------------------------------------------- */

/* Matrices without gaps between rows. */
static lks__cuda_key key_of(char ta, char tb, size_t m, size_t n, size_t k)
{
    lks__cuda_key key;
    memset(&key, 0, sizeof key);
    key.ta = ta;
    key.tb = tb;
    key.m = m;
    key.n = n;
    key.k = k;
    key.lda = ta == 'T' ? m : k;
    key.ldb = tb == 'T' ? k : n;
    key.ldc = n;
    return key;
}

void lks__cuda_gemm(const lks__exec *ex, const lks__cuda_product *s)
{
    lks__cuda_factors of = {1.0f,    s->beta, s->a.at, s->b.at, s->add != NULL ? s->add : s->c.at,
                            s->c.at, s->bias};
    const bool bf16 = lks__cuda_halves(ex);
    lks__cuda_key key = key_of(s->ta, s->tb, s->m, s->n, s->k);
    key.lda = s->a.ld;
    key.ldb = s->b.ld;
    key.ldc = s->c.ld;
    key.half = s->c.kind == LKS__CUDA_ACTS && bf16;
    if (bf16 && !find_both(ex, &key, &s->a, &s->b, s->scale, &of.a, &of.b))
        return;
    key.bias = s->bias != NULL;
    lks__cuda_multiply(ex, &key, &of);
}

void lks__cuda_gemm_batch(const lks__exec *ex, const lks__cuda_batch *s)
{
    lks__cuda_factors of = {s->alpha, s->beta, s->a, s->b, s->c, s->d, NULL};
    lks__cuda_key key = key_of(s->ta, s->tb, s->m, s->n, s->k);
    key.count = s->count;
    key.stride_a = s->stride_a;
    key.stride_b = s->stride_b;
    key.stride_c = s->stride_d;
    const struct lks__cuda_factor x = {s->a, key.lda, LKS__CUDA_FLOATS},
                                  y = {s->b, key.ldb, LKS__CUDA_FLOATS};
    if (!lks__cuda_halves(ex) || find_both(ex, &key, &x, &y, NULL, &of.a, &of.b))
        lks__cuda_multiply(ex, &key, &of);
}

/* --- layers ---------------------------------------------------------------------------------- */

/* Move those parts of the epilogue into the product that cost no pass over its result there. */
static void merge(const lks__exec *ex, lks__cuda_product *p, lks__epilogue *e)
{
    const bool drops = e->drop != NULL && e->drop->threshold != 0;
    p->bias = e->bias != NULL ? lks__cuda_rounded(ex, e->bias) : NULL;
    if (p->bias != NULL)
        e->bias = NULL;
    if (e->kind == LKS__EPILOGUE_BRANCH) {
        p->scale = e->scale;
        p->c.at = e->out;
    }
    if (e->kind == LKS__EPILOGUE_BRANCH ||
        (e->kind == LKS__EPILOGUE_RESIDUAL && !drops && e->bias == NULL)) {
        p->add = e->in;
        p->beta = 1;
        e->kind = LKS__EPILOGUE_NONE;
    }
}

void lks__cuda_linear_fwd(const lks__exec *ex, lks__act *y, size_t ldy, const lks__act *x,
                          const float *w, size_t rows, size_t out, size_t in,
                          const lks__epilogue *epilogue)
{
    lks__cuda_product p = {.ta = 'N',
                           .tb = 'T',
                           .m = rows,
                           .n = out,
                           .k = in,
                           .a = {x, in, LKS__CUDA_ACTS},
                           .b = {w, in, LKS__CUDA_PARAMS},
                           .c = {y, ldy, LKS__CUDA_ACTS}};
    lks__epilogue rest = epilogue != NULL ? *epilogue : (lks__epilogue){LKS__EPILOGUE_NONE};
    if (lks__cuda_halves(ex))
        merge(ex, &p, &rest);
    lks__cuda_gemm(ex, &p);
    lks__cuda_epilogue(ex, y, ldy, rows, out, &rest);
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
                            size_t lddy, const lks__act *x, size_t rows, size_t out, size_t in,
                            bool fresh)
{
    const lks__cuda_product p = {.ta = 'T',
                                 .tb = 'N',
                                 .m = out,
                                 .n = in,
                                 .k = rows,
                                 .a = {dy, lddy, LKS__CUDA_ACTS},
                                 .b = {x, in, LKS__CUDA_ACTS},
                                 .beta = fresh ? 0 : 1,
                                 .c = {dw, in, LKS__CUDA_FLOATS}};
    if (dw != NULL)
        lks__cuda_gemm(ex, &p);
    if (db != NULL)
        lks__cuda_act_sums(ex, db, dy, lddy, rows, out);
}
