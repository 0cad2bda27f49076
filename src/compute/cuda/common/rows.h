/* compute/cuda/common/rows.h - for kernels on the rows of matrices: N floats at a time (4 where
 * rows allow it), and dropout's masks. */
#ifndef LKS_COMPUTE_CUDA_COMMON_ROWS_H
#define LKS_COMPUTE_CUDA_COMMON_ROWS_H

#include "compute/cuda/common/bf16.h"
#include "compute/dropout.h"

/* N floats that are read or written by one instruction. */
template <int N> struct alignas(4 * N) lks_floats {
    float at[N];
};

template <int N> static __device__ inline lks_floats<N> lks_load(const float *p)
{
    return *(const lks_floats<N> *)p;
}

template <int N> static __device__ inline void lks_store(float *p, lks_floats<N> v)
{
    *(lks_floats<N> *)p = v;
}

/* An element of activations stored in bfloat16. Kernels compute in float32: they widen loaded
 * values, and round stored ones to nearest, ties to even. */
struct lks_half {
    uint16_t bits;
};

template <int N> struct alignas(2 * N) lks_halves {
    lks_half at[N];
};

template <int N> static __device__ inline lks_floats<N> lks_load(const lks_half *p)
{
    const lks_halves<N> v = *(const lks_halves<N> *)p;
    lks_floats<N> wide;
#pragma unroll
    for (int k = 0; k < N; k++)
        wide.at[k] = __uint_as_float((uint32_t)v.at[k].bits << 16);
    return wide;
}

/* Four of them, which one instruction stores: as elements the compiler may store them one by one.
 */
typedef uint64_t lks_four_halves __attribute__((may_alias));

template <int N> static __device__ inline void lks_store(lks_half *p, lks_floats<N> v)
{
    if constexpr (N == 4) {
        const uint32_t low = lks_bf16_pair(v.at[0], v.at[1]),
                       high = lks_bf16_pair(v.at[2], v.at[3]);
        *(lks_four_halves *)p = (uint64_t)high << 32 | low;
        return;
    }
    lks_halves<N> to;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        const uint32_t pair = lks_bf16_pair(v.at[k], N == 1 ? 0.0f : v.at[k + (N > 1)]);
        to.at[k].bits = (uint16_t)pair;
        if (N > 1)
            to.at[k + (N > 1)].bits = (uint16_t)(pair >> 16);
    }
    *(lks_halves<N> *)p = to;
}

/* Load COUNT batches of N elements of a row: from element c, c + step, c + 2 step … Instead of a
 * batch beyond `end`, load the first one again, because loads without a condition don't wait for
 * each other. */
template <int N, int COUNT, typename E>
static __device__ inline void lks_load_batch(lks_floats<N> (&to)[COUNT], const E *row, size_t c,
                                             size_t step, size_t end)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const size_t at = c + (size_t)i * step;
        to[i] = lks_load<N>(row + (at < end ? at : c));
    }
}

/* One element. */
static __device__ inline float lks_element(const float *p)
{
    return *p;
}

static __device__ inline float lks_element(const lks_half *p)
{
    return lks_load<1>(p).at[0];
}

static __device__ inline void lks_put(float *p, float x)
{
    *p = x;
}

static __device__ inline void lks_put(lks_half *p, float x)
{
    lks_store<1>(p, {{x}});
}

/* The value that a load from p returns after x has been stored there. */
static __device__ inline float lks_as_stored(const float *p, float x)
{
    return x;
}

static __device__ inline float lks_as_stored(const lks_half *p, float x)
{
    return lks_bf16_rounded(x);
}

/* Bytes per element of activations. */
static inline double lks_act_bytes(bool halves)
{
    return halves ? sizeof(lks_half) : sizeof(float);
}

/* True if rows of n elements, or with that leading dimension, can be moved by fours from these
 * addresses on. NULL counts as aligned. */
template <typename... P> static inline bool lks_in_fours(size_t n, P... p)
{
    return n % 4 == 0 && (... && ((uintptr_t)p % 16 == 0));
}

/* Threads of a block that goes along rows of `width`, each by fours or one by one: whole warps. */
static inline unsigned lks_row_threads(size_t width, bool fours, unsigned most = 256)
{
    const size_t threads = fours ? (width + 3) / 4 : width;
    return threads > most ? most : (unsigned)(threads + 31) / 32 * 32;
}

/* Puts kernel<4> or kernel<1> on the stream. */
#define LKS_LAUNCH_FOURS(kernel, fours, grid, block, stream, ...)                                  \
    do {                                                                                           \
        if (fours)                                                                                 \
            LKS_LAUNCH(kernel<4>, grid, block, stream, __VA_ARGS__);                               \
        else                                                                                       \
            LKS_LAUNCH(kernel<1>, grid, block, stream, __VA_ARGS__);                               \
    } while (0)

/* The same for kernels of activations: puts kernel<E, N> on the stream, where E is lks_half if
 * `halves`, else float. In the arguments, `E` is that type: LKS_ACTS(E, p) is the pointer p to
 * activations as one to E. */
#define LKS_LAUNCH_ACTS(kernel, halves, fours, grid, block, stream, ...)                           \
    do {                                                                                           \
        if (halves) {                                                                              \
            using E = lks_half;                                                                    \
            if (fours)                                                                             \
                LKS_LAUNCH_NAMED(#kernel "<half, 4>", (kernel<E, 4>), grid, block, stream,         \
                                 __VA_ARGS__);                                                     \
            else                                                                                   \
                LKS_LAUNCH_NAMED(#kernel "<half, 1>", (kernel<E, 1>), grid, block, stream,         \
                                 __VA_ARGS__);                                                     \
        } else {                                                                                   \
            using E = float;                                                                       \
            if (fours)                                                                             \
                LKS_LAUNCH_NAMED(#kernel "<float, 4>", (kernel<E, 4>), grid, block, stream,        \
                                 __VA_ARGS__);                                                     \
            else                                                                                   \
                LKS_LAUNCH_NAMED(#kernel "<float, 1>", (kernel<E, 1>), grid, block, stream,        \
                                 __VA_ARGS__);                                                     \
        }                                                                                          \
    } while (0)
/* And for kernels that have no N: kernel<E>. */
#define LKS_LAUNCH_TYPED(kernel, halves, grid, block, stream, ...)                                 \
    do {                                                                                           \
        if (halves) {                                                                              \
            using E = lks_half;                                                                    \
            LKS_LAUNCH_NAMED(#kernel "<half>", kernel<E>, grid, block, stream, __VA_ARGS__);       \
        } else {                                                                                   \
            using E = float;                                                                       \
            LKS_LAUNCH_NAMED(#kernel "<float>", kernel<E>, grid, block, stream, __VA_ARGS__);      \
        }                                                                                          \
    } while (0)
#define LKS_ACTS(E, p) ((E *)(void *)(uintptr_t)(p))

/* Words 4q … 4q + 3 of a mask (compute/dropout.h): number/rng.c's Philox4x32-10 of the counter
 * {step, vm, site, q}. */
static __device__ inline uint4 lks_dropout_words(const lks__dropout &d, uint32_t q)
{
    uint32_t c0 = d.step, c1 = d.vm, c2 = d.site, c3 = q, k0 = d.key.k[0], k1 = d.key.k[1];
    for (int round = 0; round < 10; round++) {
        const uint32_t a_high = __umulhi(0xd2511f53u, c0), a_low = 0xd2511f53u * c0;
        const uint32_t b_high = __umulhi(0xcd9e8d57u, c2), b_low = 0xcd9e8d57u * c2;
        c0 = b_high ^ c1 ^ k0;
        c1 = b_low;
        c2 = a_high ^ c3 ^ k1;
        c3 = a_low;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* Word k, chosen without an index that the compiler doesn't know; for other k than 0, 1 and 2 the
 * last one. */
static __device__ inline uint32_t lks_word(uint4 words, unsigned k)
{
    return k == 0 ? words.x : k == 1 ? words.y : k == 2 ? words.z : words.w;
}

static __device__ inline float lks_dropped(const lks__dropout &d, uint32_t word, float x)
{
    return x * (word >= d.threshold ? d.scale : 0.0f); /* a NaN stays one */
}

/* N elements from number `element` on, a multiple of N. threshold 0: all are kept unchanged. */
template <int N>
static __device__ inline lks_floats<N> lks_dropout_of(const lks__dropout &d, size_t element,
                                                      lks_floats<N> v)
{
    if (d.threshold == 0)
        return v;
    const uint4 words = lks_dropout_words(d, (uint32_t)(element / 4));
#pragma unroll
    for (int k = 0; k < N; k++)
        v.at[k] = lks_dropped(d, lks_word(words, N == 1 ? element % 4 : k), v.at[k]);
    return v;
}

#endif
