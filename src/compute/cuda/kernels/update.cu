/* compute/cuda/kernels/update.cu - updates of lists of pieces, element by element, with the bits of
 * the CPU's levels that have fused multiply-adds (compute/cpu/layers/update.c,
 * compute/cpu/vector/rows/adamw.c). */
#include <float.h>
#include <math.h>

#include "compute/cuda/common/launch.h"
#include "compute/cuda/cuda.h"

static const unsigned THREADS = 256;
static const size_t A_BLOCK = 4096; /* elements, of one piece */

/* Which blocks have which piece: piece i has blocks [first[i], first[i + 1]). */
struct dealt {
    uint32_t first[LKS__UPDATE_PIECES + 1];
};

/* Elements [at, end) of a piece. */
struct part {
    unsigned piece;
    size_t at, end;
};

template <class List> static dealt deal(const List *list)
{
    dealt d = {};
    for (size_t i = 0; i < list->n_pieces; i++)
        d.first[i + 1] = d.first[i] + (uint32_t)((list->piece[i].n + A_BLOCK - 1) / A_BLOCK);
    return d;
}

template <class List> static double elements(const List *list)
{
    double n = 0.0;
    for (size_t i = 0; i < list->n_pieces; i++)
        n += (double)list->piece[i].n;
    return n;
}

template <class List> static __device__ inline part part_of_block(const List &list, const dealt &d)
{
    unsigned i = 0;
    while (d.first[i + 1] <= blockIdx.x)
        i++;
    const size_t at = (blockIdx.x - d.first[i]) * A_BLOCK, n = list.piece[i].n;
    return {i, at, n - at < A_BLOCK ? n : at + A_BLOCK};
}

/* --- y = a y + b x, or y = 0 ------------------------------------------------------------------ */

static __global__ void __launch_bounds__(THREADS) blend_part(const lks__blend list, const dealt d)
{
    const part p = part_of_block(list, d);
    float *y = list.piece[p.piece].y;
    const float *x = list.piece[p.piece].x;
#pragma unroll 4
    for (size_t i = p.at + threadIdx.x; i < p.end; i += THREADS)
        y[i] = x == NULL ? 0.0f : list.a * y[i] + list.b * x[i];
}

extern "C" void lks__cuda_update_blend(const lks__exec *ex, const lks__blend *blend)
{
    const dealt d = deal(blend);
    const uint32_t blocks = d.first[blend->n_pieces];
    double zeros = 0.0;
    for (size_t i = 0; i < blend->n_pieces; i++) {
        lks__cuda_written(ex, blend->piece[i].y, blend->piece[i].n * sizeof(float));
        zeros += blend->piece[i].x == NULL ? (double)blend->piece[i].n : 0.0;
    }
    if (blocks == 0)
        return;
    const double n = elements(blend) - zeros;
    lks__cuda_count(ex, 12 * n + 4 * zeros, 3 * n);
    LKS_LAUNCH(blend_part, dim3(blocks), dim3(THREADS), lks__cuda_stream(ex), *blend, d);
}

/* --- AdamW ------------------------------------------------------------------------------------ */

/* Factors that depend only on the step. */
struct adamw_factors {
    float decay, one_m_b1, b2, one_m_b2, step_size, inv_sqrt_bc2, eps, clip;
};

static adamw_factors adamw_factors_of(const lks__adamw_list *s)
{
    adamw_factors f;
    f.decay = (float)(1.0 - s->lr * s->weight_decay);
    f.one_m_b1 = (float)(1.0 - s->beta1);
    f.b2 = (float)s->beta2;
    f.one_m_b2 = (float)(1.0 - s->beta2);
    f.step_size = (float)(s->lr / (1.0 - pow(s->beta1, (double)s->t)));
    f.inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(s->beta2, (double)s->t)));
    f.eps = (float)s->eps;
    f.clip = (float)s->clip;
    return f;
}

/* 0 instead of a subnormal number; NaN stays. */
static __device__ inline float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? 0.0f : x;
}

static __global__ void __launch_bounds__(THREADS)
    adamw_part(const lks__adamw_list list, const adamw_factors f, const dealt d)
{
    const part q = part_of_block(list, d);
    float *params = list.piece[q.piece].params;
    float *exp_avg = list.piece[q.piece].exp_avg, *exp_avg_sq = list.piece[q.piece].exp_avg_sq;
    const float *grads = list.piece[q.piece].grads;
#pragma unroll 4
    for (size_t i = q.at + threadIdx.x; i < q.end; i += THREADS) {
        const float g = grads[i] * f.clip;
        const float m = flushed(fmaf(g - exp_avg[i], f.one_m_b1, exp_avg[i]));
        const float v = flushed(fmaf(f.one_m_b2 * g, g, exp_avg_sq[i] * f.b2));
        const float denominator = fmaf(sqrtf(v), f.inv_sqrt_bc2, f.eps);
        params[i] = fmaf(-f.step_size, m / denominator, params[i] * f.decay);
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
    }
}

extern "C" void lks__cuda_update_adamw(const lks__exec *ex, const lks__adamw_list *list)
{
    const dealt d = deal(list);
    const uint32_t blocks = d.first[list->n_pieces];
    for (size_t i = 0; i < list->n_pieces; i++)
        lks__cuda_written(ex, list->piece[i].params, list->piece[i].n * sizeof(float));
    if (blocks == 0)
        return;
    const double n = elements(list);
    lks__cuda_count(ex, 28 * n, 14 * n);
    LKS_LAUNCH(adamw_part, dim3(blocks), dim3(THREADS), lks__cuda_stream(ex), *list,
               adamw_factors_of(list), d);
}
