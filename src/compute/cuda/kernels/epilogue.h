/* compute/cuda/kernels/epilogue.h - epilogues of products (layers.h) on single elements, for
 * kernels that finish their own products and for the one of epilogue.cu. Formulas:
 * tests/kernels/reference/ref_gelu.c, ref_relu2.c. */
#ifndef LKS_COMPUTE_CUDA_KERNELS_EPILOGUE_H
#define LKS_COMPUTE_CUDA_KERNELS_EPILOGUE_H

#include "compute/cuda/common/ptx.h"
#include "compute/cuda/common/rows.h"
#include "compute/layers.h"

/* lks__epilogue without a pointer to host memory, as a kernel's argument. E: as in rows.h. */
template <typename E> struct lks_epilogue {
    lks__epilogue_kind kind;
    const float *bias, *scale;
    const E *in;
    E *out;
    lks__dropout drop; /* threshold 0: none */
    bool unchanged;    /* y is stored already, and stays as it is */
};

/* True if y stays as the product has stored it: a kind with a second output changes no y. */
static inline bool lks_is_unchanged(const lks__epilogue *e)
{
    return e->bias == NULL && e->out != NULL;
}

/* e: NULL for none; stored: the product has stored y. */
template <typename E>
static inline lks_epilogue<E> lks_epilogue_of(const lks__epilogue *e, bool stored)
{
    lks_epilogue<E> of = {};
    if (e == NULL)
        return of;
    of.unchanged = stored && lks_is_unchanged(e);
    of.kind = e->kind;
    of.bias = e->bias;
    of.in = LKS_ACTS(E, e->in);
    of.scale = e->scale;
    of.out = LKS_ACTS(E, e->out);
    if (e->drop != NULL)
        of.drop = *e->drop;
    return of;
}

/* gelu(x) and its slope. E: as in rows.h. */
template <typename E> struct lks_gelu {
    static __device__ inline float of(float x)
    {
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    }
    static __device__ inline float slope(float x)
    {
        const float cdf = 0.5f * (1.0f + erff(x * 0.70710678118654752440f));
        return cdf + x * (expf(-0.5f * x * x) * 0.39894228040143267794f);
    }
};

/* For bfloat16, from exp(-x²/2) and a polynomial (Abramowitz and Stegun, Handbook of Mathematical
 * Functions, 7.1.26): the distribution function is off by less than 10^-7. */
template <> struct lks_gelu<lks_half> {
    /* *bell = exp(-x²/2); returns the distribution function. */
    static __device__ inline float cdf(float x, float *bell)
    {
        const float t = lks_reciprocal(fmaf(fabsf(x), 0.3275911f * 0.70710678118654752440f, 1.0f));
        *bell = lks_exp2(x * x * (-0.5f * LKS_LOG2_E));
        float p = fmaf(t, 1.061405429f, -1.453152027f);
        p = fmaf(t, p, 1.421413741f);
        p = fmaf(t, p, -0.284496736f);
        p = fmaf(t, p, 0.254829592f);
        const float tail = 0.5f * p * t * *bell;
        return x < 0.0f ? tail : 1.0f - tail;
    }
    static __device__ inline float of(float x)
    {
        float bell;
        return x * cdf(x, &bell);
    }
    static __device__ inline float slope(float x)
    {
        float bell;
        const float c = cdf(x, &bell);
        return fmaf(x * bell, 0.39894228040143267794f, c);
    }
};

/* tanh's argument in GPT-2's form: sqrt(2 / pi) (x + 0.044715 x^3) */
static __device__ inline float lks_gelu_tanh_of(float x)
{
    return tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x));
}

static __device__ inline float lks_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + lks_gelu_tanh_of(x));
}

static __device__ inline float lks_gelu_tanh_slope(float x)
{
    const float t = lks_gelu_tanh_of(x);
    const float du = 0.79788456080286535588f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

static __device__ inline float lks_relu(float x)
{
    return x <= 0.0f ? 0.0f : x; /* NaN stays */
}

/* gelu(x) or relu(x)^2: GELU, GELU_TANH, RELU2. */
template <typename E>
static __device__ inline float lks_activation(lks__epilogue_kind kind, float x)
{
    return kind == LKS__EPILOGUE_GELU        ? lks_gelu<E>::of(x)
           : kind == LKS__EPILOGUE_GELU_TANH ? lks_gelu_tanh(x)
                                             : lks_relu(x) * lks_relu(x);
}

/* Its slope: the kinds of backward. */
template <typename E>
static __device__ inline float lks_activation_slope(lks__epilogue_kind kind, float x)
{
    return kind == LKS__EPILOGUE_GELU_BWD        ? lks_gelu<E>::slope(x)
           : kind == LKS__EPILOGUE_GELU_TANH_BWD ? lks_gelu_tanh_slope(x)
                                                 : 2.0f * lks_relu(x);
}

/* Finish N elements of y, number `at` of the matrices and `column` of the vectors, whose value
 * without the bias is v; `in` is that of the input, if there is one. A second output is made of
 * what y keeps, so that it can be made again of y. */
template <int N, typename E>
static __device__ inline void lks_finish(const lks_epilogue<E> &e, E *y, size_t at, size_t column,
                                         lks_floats<N> v, const lks_floats<N> &in)
{
    if (e.bias != NULL) {
        const lks_floats<N> bias = lks_load<N>(e.bias + column);
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] += bias.at[k];
    }
    lks_floats<N> second;
#pragma unroll
    for (int k = 0; k < N; k++)
        second.at[k] = lks_as_stored(y, v.at[k]);
    switch (e.kind) {
    case LKS__EPILOGUE_NONE:
        break;
    case LKS__EPILOGUE_GELU:
    case LKS__EPILOGUE_GELU_TANH:
    case LKS__EPILOGUE_RELU2:
#pragma unroll
        for (int k = 0; k < N; k++)
            second.at[k] = lks_activation<E>(e.kind, second.at[k]);
        lks_store<N>(e.out + at, second);
        break;
    case LKS__EPILOGUE_GELU_BWD:
    case LKS__EPILOGUE_GELU_TANH_BWD:
    case LKS__EPILOGUE_RELU2_BWD:
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] *= lks_activation_slope<E>(e.kind, in.at[k]);
        break;
    case LKS__EPILOGUE_RESIDUAL:
        v = lks_dropout_of<N>(e.drop, at, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v.at[k] += in.at[k];
        break;
    case LKS__EPILOGUE_BRANCH: {
        const lks_floats<N> scale = lks_load<N>(e.scale + column);
#pragma unroll
        for (int k = 0; k < N; k++)
            second.at[k] = scale.at[k] * second.at[k] + in.at[k];
        lks_store<N>(e.out + at, second);
        break;
    }
    }
    if (!e.unchanged)
        lks_store<N>(y + at, v);
}

#endif
