/* compute/cuda/attention/attention_cached.cu - attention of new tokens over kept keys and values,
 * for sampling. */
#include "compute/cuda/attention/attention.h"
#include "compute/cuda/common/reduce.h"

enum {
    KEYS = 128, /* processed at once, one per thread */
    DIMS = 2,   /* elements of the output that a thread sums */
    KEEP_WARPS = 8,
};

/* Element 0 of a position of key/value head h of sequence b, in the cache's k or v. */
__device__ static size_t cache_at(const lks_attention &a, const lks__attention_cache &cache,
                                  size_t b, size_t h, size_t position)
{
    return ((b * a.shape.NKV + h) * cache.T + position) * a.shape.hs;
}

/* Copy keys and values of the new tokens to the cache: one warp per head of a token. */
template <typename E>
static __global__ void attention_keep(lks_attention a, lks__attention_cache cache)
{
    const size_t i = (size_t)blockIdx.x * KEEP_WARPS + threadIdx.x / LKS_WARP;
    if (i >= a.shape.B * a.shape.T * a.shape.NKV)
        return;
    const size_t row = i / a.shape.NKV, h = i % a.shape.NKV;
    const size_t to = cache_at(a, cache, row / a.shape.T, h, cache.at + row % a.shape.T);
    const size_t from = row * a.in.ldkv + h * a.shape.hs;
    const E *k = LKS_ACTS(const E, a.in.k) + from, *v = LKS_ACTS(const E, a.in.v) + from;
    for (size_t d = threadIdx.x % LKS_WARP; d < a.shape.hs; d += LKS_WARP) {
        lks_put(LKS_ACTS(E, cache.k) + to + d, lks_element(k + d));
        lks_put(LKS_ACTS(E, cache.v) + to + d, lks_element(v + d));
    }
}

template <typename E> __device__ static float dot(const E *x, const E *y, size_t n, bool fours)
{
    lks_floats<4> sum = {};
    for (size_t d = 0; fours && d < n; d += 4) {
        const lks_floats<4> u = lks_load<4>(x + d), v = lks_load<4>(y + d);
        for (int k = 0; k < 4; k++)
            sum.at[k] = fmaf(u.at[k], v.at[k], sum.at[k]);
    }
    for (size_t d = 0; !fours && d < n; d++)
        sum.at[d % 4] = fmaf(lks_element(x + d), lks_element(y + d), sum.at[d % 4]);
    return (sum.at[0] + sum.at[1]) + (sum.at[2] + sum.at[3]);
}

/* One query, of one new token, over all keys up to its own. Each thread computes a key's score.
 * Then groups of threads, one thread per element of the output, add up values of every groups-th
 * key. All borders are counted from the first key on, so a token's bits depend only on its position
 * and on the keys and values. */
template <typename E>
static __global__ void __launch_bounds__(KEYS)
    attention_cached(lks_attention a, lks__attention_cache cache)
{
    LKS_SHARED(float, p, KEYS);
    LKS_SHARED(float, parts, KEYS *DIMS);
    const size_t hs = a.shape.hs, blocks = (hs + KEYS * DIMS - 1) / (KEYS * DIMS);
    const size_t task = blockIdx.x / blocks, c0 = blockIdx.x % blocks * KEYS * DIMS;
    const size_t row = task / a.shape.NH, h = task % a.shape.NH, b = row / a.shape.T;
    const size_t n = cache.at + row % a.shape.T + 1; /* keys that it sees */
    const size_t kv = cache_at(a, cache, b, h / a.group, 0);
    const E *q = LKS_ACTS(const E, a.in.q) + row * a.in.ldq + h * hs;
    const E *k = LKS_ACTS(const E, cache.k) + kv, *v = LKS_ACTS(const E, cache.v) + kv;
    unsigned lanes = LKS_WARP; /* threads of a group */
    while (lanes < hs && lanes < KEYS)
        lanes *= 2;
    const unsigned groups = KEYS / lanes, group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    float max = -INFINITY, sum = 0.0f, out[DIMS] = {};
    for (size_t j0 = 0; j0 < n; j0 += KEYS) {
        const size_t j = j0 + threadIdx.x;
        const float s = j < n ? a.scale * dot(q, k + j * hs, hs, a.wide) : -INFINITY;
        const float top = fmaxf(max, lks_block_max(s)),
                    factor = max == top ? 1.0f : expf(max - top);
        const float e = j < n ? expf(s - top) : 0.0f;
        p[threadIdx.x] = lks_as_stored(q, e);  /* an operand */
        sum = sum * factor + lks_block_sum(e); /* which waits for all threads' p */
        max = top;
        for (int m = 0; m < DIMS; m++) {
            const size_t c = c0 + lane + m * lanes;
            out[m] *= factor;
            for (size_t i = group; i < KEYS && j0 + i < n && c < hs; i += groups)
                out[m] = fmaf(p[i], lks_element(v + (j0 + i) * hs + c), out[m]);
        }
        __syncthreads();
    }
    for (int m = 0; m < DIMS; m++)
        parts[m * KEYS + threadIdx.x] = out[m];
    __syncthreads();
    for (int m = 0; m < DIMS; m++) {
        const size_t c = c0 + lane + m * lanes;
        float total = 0.0f;
        for (unsigned g = 0; g < groups; g++)
            total += parts[m * KEYS + g * lanes + lane];
        if (group == 0 && c < hs)
            lks_put(LKS_ACTS(E, a.out) + row * a.c + h * hs + c, total / sum);
    }
}

/* Keys and values that several queries read come from the second-level cache. */
extern "C" void lks__cuda_attention_cached_fwd(const lks__exec *ex,
                                               const lks__attention_shape *shape, lks__act *out,
                                               const lks__attention_cache *cache,
                                               const lks__attention_in *in)
{
    lks_attention a = lks_attention_of(ex, shape, in, NULL);
    const size_t heads = shape->B * shape->T * a.shape.NKV,
                 queries = shape->B * shape->T * shape->NH;
    const size_t blocks = (shape->hs + KEYS * DIMS - 1) / (KEYS * DIMS);
    a.out = out;
    a.wide = a.wide && lks_in_fours(shape->hs, cache->k, cache->v);
    const double keys = (double)(cache->at + shape->T), hs = (double)shape->hs;
    const double seen = (double)cache->at + ((double)shape->T + 1) / 2; /* by a query, on average */
    const double bytes = lks_act_bytes(a.halves);
    lks__cuda_count(ex, bytes * 4 * (double)heads * hs, 0.0);
    LKS_LAUNCH_TYPED(attention_keep, a.halves,
                     dim3((unsigned)((heads + KEEP_WARPS - 1) / KEEP_WARPS)),
                     dim3(KEEP_WARPS * LKS_WARP), lks__cuda_stream(ex), a, *cache);
    lks__cuda_count(ex,
                    bytes * 2 * hs * ((double)queries + (double)(shape->B * a.shape.NKV) * keys),
                    (double)queries * seen * 4 * hs);
    LKS_LAUNCH_TYPED(attention_cached, a.halves, dim3((unsigned)(queries * blocks)), dim3(KEYS),
                     lks__cuda_stream(ex), a, *cache);
}
