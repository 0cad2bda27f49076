/* compute/cuda/kernels/golf.cu - parameter-golf's operations on rows: RMSNorms, a block's entry and
 * branches, and its query and key heads.
 *
 * All of them are limited by memory. A warp takes a row, or a head of a row, and sums in registers;
 * rows that are read twice come from the first-level cache the second time. Gradients of vectors
 * are sums over all rows: a block of threads sums SLAB rows in order into its line of `partial`,
 * and lks__cuda_column_sums() adds the lines. */
#include "compute/cuda/cuda.h"
#include "compute/cuda/common/fours.h"
#include "compute/cuda/common/launch.h"
#include "compute/cuda/questions.h"
#include "compute/cuda/common/reduce.h"

#include <float.h>
#include <math.h>

enum {
    LANE_STEP = LKS_WARP * 4,
    WARPS = 8,   /* of a block */
    AT_ONCE = 4, /* loads of a row that a thread has under way */
    SLAB = LKS__CUDA_GOLF_ROWS,
    MAX_VECTORS = LKS__CUDA_GOLF_VECTORS,
};

/* Rows of the slab that begins at row r0. */
__device__ static size_t slab_rows(size_t rows, size_t r0)
{
    return r0 + SLAB < rows ? (size_t)SLAB : rows - r0;
}

static size_t slabs(size_t rows)
{
    return (rows + SLAB - 1) / SLAB;
}

/* The place of this thread's warp among those of all blocks. */
__device__ static size_t warp_index(void)
{
    return (size_t)blockIdx.x * WARPS + threadIdx.x / LKS_WARP;
}

static dim3 warps_grid(size_t n)
{
    return dim3((unsigned)((n + WARPS - 1) / WARPS));
}

static const dim3 warps_block(WARPS *LKS_WARP);

/* Puts kernel<E, fours> on the stream. Both ways to load have separate code, so that no branch
 * keeps loads from overlapping. */
#define LAUNCH_EACH(kernel, halves, fours, grid, block, stream, ...)                               \
    do {                                                                                           \
        if (fours)                                                                                 \
            LAUNCH_WITH(kernel, true, halves, grid, block, stream, __VA_ARGS__);                   \
        else                                                                                       \
            LAUNCH_WITH(kernel, false, halves, grid, block, stream, __VA_ARGS__);                  \
    } while (0)
#define LAUNCH_WITH(kernel, FOURS, halves, grid, block, stream, ...)                               \
    do {                                                                                           \
        if (halves) {                                                                              \
            using E = lks_half;                                                                    \
            LKS_LAUNCH_NAMED(#kernel "<half>", (kernel<E, FOURS>), grid, block, stream,            \
                             __VA_ARGS__);                                                         \
        } else {                                                                                   \
            using E = float;                                                                       \
            LKS_LAUNCH_NAMED(#kernel "<float>", (kernel<E, FOURS>), grid, block, stream,           \
                             __VA_ARGS__);                                                         \
        }                                                                                          \
    } while (0)

/* A lane takes elements 4 lane to 4 lane + 3 of a row, and so on in steps of a warp. */
__device__ static size_t first_of_lane(void)
{
    return threadIdx.x % LKS_WARP * 4;
}

__device__ static float reciprocal_rms(float squares, size_t n)
{
    return 1.0f / sqrtf(squares / (float)n + FLT_EPSILON);
}

/* --- embedding, plain norms ------------------------------------------------------------------ */

/* y = rmsnorm(x) of row r: x is that row's input, which may be a row of the embedding. */
template <typename Y, typename X>
__device__ static void norm_fwd(Y *y, float *rms, const X *x, size_t r, size_t C, bool fours)
{
    float squares = 0.0f;
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        const lks_four v = lks_four_at(x + i, rest);
        for (int j = 0; j < 4; j++)
            squares = fmaf(v.at[j], v.at[j], squares);
    }
    const float scale = reciprocal_rms(lks_warp_sum(squares), C);
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        lks_four v = lks_four_at(x + i, rest);
        for (int j = 0; j < 4; j++)
            v.at[j] *= scale;
        lks_four_put(y + r * C + i, rest, v);
    }
    if (threadIdx.x % LKS_WARP == 0)
        rms[r] = scale;
}

template <typename E>
static __global__ void golf_norm_fwd(E *y, float *rms, const E *x, size_t rows, size_t C,
                                     bool fours)
{
    const size_t r = warp_index();
    if (r < rows)
        norm_fwd(y, rms, x + r * C, r, C, fours);
}

template <typename E>
static __global__ void golf_embed_fwd(E *y, float *rms, const int32_t *tokens, const float *emb,
                                      size_t rows, size_t C, bool fours)
{
    const size_t r = warp_index();
    if (r < rows)
        norm_fwd(y, rms, emb + (size_t)tokens[r] * C, r, C, fours);
}

/* The mean over j of dy[j] * xhat[j], in all threads of the warp. Beyond the row a lane loads its
 * first elements once more, since a load without a condition waits for no other. */
template <bool FOURS, typename E, typename X>
__device__ static float norm_mean(const E *dy, const X *x, float rms, size_t C)
{
    float sum = 0.0f;
    for (size_t i0 = first_of_lane(); i0 < C; i0 += AT_ONCE * LANE_STEP) {
        lks_four d[AT_ONCE], v[AT_ONCE];
#pragma unroll
        for (size_t k = 0; k < AT_ONCE; k++) {
            const size_t i = i0 + k * LANE_STEP < C ? i0 + k * LANE_STEP : i0;
            d[k] = lks_four_at(dy + i, {C - i, FOURS});
            v[k] = lks_four_at(x + i, {C - i, FOURS});
        }
#pragma unroll
        for (size_t k = 0; k < AT_ONCE; k++)
            for (int j = 0; j < 4 && i0 + k * LANE_STEP < C; j++)
                sum = fmaf(d[k].at[j], v[k].at[j], sum);
    }
    return lks_warp_sum(sum) * rms / (float)C;
}

/* The gradient of one element of a norm's input. */
__device__ static float norm_grad(float dy, float x, float rms, float mean)
{
    return rms * (dy - x * rms * mean);
}

/* Backward of norm_fwd(); dx, dy: of all rows. */
template <bool FOURS, typename E, typename X>
__device__ static void norm_bwd(E *dx, const E *dy, const X *x, const float *rms, size_t r,
                                size_t C)
{
    const float scale = rms[r], mean = norm_mean<FOURS>(dy + r * C, x, scale, C);
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, FOURS};
        const lks_four d = lks_four_at(dy + r * C + i, rest), v = lks_four_at(x + i, rest);
        lks_four out;
        for (int j = 0; j < 4; j++)
            out.at[j] = norm_grad(d.at[j], v.at[j], scale, mean);
        lks_four_put(dx + r * C + i, rest, out);
    }
}

template <typename E, bool FOURS>
static __global__ void golf_norm_bwd(E *dx, const E *dy, const E *x, const float *rms, size_t rows,
                                     size_t C)
{
    const size_t r = warp_index();
    if (r < rows)
        norm_bwd<FOURS>(dx, dy, x + r * C, rms, r, C);
}

template <typename E, bool FOURS>
static __global__ void golf_embed_bwd(E *dx, const E *dy, const int32_t *tokens, const float *emb,
                                      const float *rms, size_t rows, size_t C)
{
    const size_t r = warp_index();
    if (r < rows)
        norm_bwd<FOURS>(dx, dy, emb + (size_t)tokens[r] * C, rms, r, C);
}

extern "C" void lks__cuda_golf_norm_fwd(const lks__exec *ex, lks__act *y, float *rms,
                                        const lks__act *x, size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, 4 * n);
    LKS_LAUNCH_TYPED(golf_norm_fwd, halves, warps_grid(rows), warps_block, lks__cuda_stream(ex),
                     LKS_ACTS(E, y), rms, LKS_ACTS(const E, x), rows, C, lks_in_fours(C, y, x));
}

extern "C" void lks__cuda_golf_norm_bwd(const lks__exec *ex, lks__act *dx, const lks__act *dy,
                                        const lks__act *x, const float *rms, size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, 3 * lks_act_bytes(halves) * n, 7 * n);
    const bool fours = lks_in_fours(C, dx, dy, x);
    LAUNCH_EACH(golf_norm_bwd, halves, fours, warps_grid(rows), warps_block, lks__cuda_stream(ex),
                LKS_ACTS(E, dx), LKS_ACTS(const E, dy), LKS_ACTS(const E, x), rms, rows, C);
}

extern "C" void lks__cuda_golf_embed_fwd(const lks__exec *ex, lks__act *x, float *rms,
                                         const int32_t *tokens, const float *emb, size_t rows,
                                         size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (lks_act_bytes(halves) + 4) * n, 4 * n);
    LKS_LAUNCH_TYPED(golf_embed_fwd, halves, warps_grid(rows), warps_block, lks__cuda_stream(ex),
                     LKS_ACTS(E, x), rms, tokens, emb, rows, C, lks_in_fours(C, x, emb));
}

extern "C" void lks__cuda_golf_embed_bwd(const lks__exec *ex, float *demb, lks__act *d_row,
                                         const lks__act *dx, const int32_t *tokens,
                                         const float *emb, const float *rms, size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (2 * lks_act_bytes(halves) + 4) * n, 7 * n);
    const bool fours = lks_in_fours(C, d_row, dx, emb);
    LAUNCH_EACH(golf_embed_bwd, halves, fours, warps_grid(rows), warps_block, lks__cuda_stream(ex),
                LKS_ACTS(E, d_row), LKS_ACTS(const E, dx), tokens, emb, rms, rows, C);
    lks__cuda_embedding_bwd(ex, demb, NULL, d_row, tokens, rows, rows, C);
}

/* --- a block's entry ------------------------------------------------------------------------- */

/* lks__golf_entry with elements of type E. */
template <typename E> struct entry {
    const E *prev, *skip, *x0;
    const float *mix, *skip_weight;
    E *x, *norm;
    float *rms;
};

template <typename E> static entry<E> entry_of(const lks__golf_entry &e)
{
    return {LKS_ACTS(const E, e.prev),
            LKS_ACTS(const E, e.skip),
            LKS_ACTS(const E, e.x0),
            e.mix,
            e.skip_weight,
            LKS_ACTS(E, e.x),
            LKS_ACTS(E, e.norm),
            e.rms};
}

/* prev + skip_weight * skip; without a skip, prev. Products are rounded before they are added, here
 * and in entry_batch(): the mixed input has the CPU's bits. */
template <typename E>
__device__ static lks_four entry_input(const entry<E> &e, lks_four prev, const lks_four &skip,
                                       const lks_four &weight)
{
    for (int j = 0; j < 4; j++)
        prev.at[j] = e.skip != NULL ? prev.at[j] + weight.at[j] * skip.at[j] : prev.at[j];
    return prev;
}

/* Loaded instead of a missing skip, so that a load has no condition. */
template <typename E> __device__ static const E *skip_or_prev(const entry<E> &e)
{
    return e.skip != NULL ? e.skip : e.prev;
}

template <typename E> __device__ static const float *weight_or_mix(const entry<E> &e)
{
    return e.skip != NULL ? e.skip_weight : e.mix;
}

/* x of AT_ONCE fours of row r from column i0 on, a warp's step apart, as it is stored; the sum of
 * its squares is added to `squares`. As in norm_mean() no load has a condition. */
template <bool FOURS, typename E>
__device__ static void entry_batch(const entry<E> &e, size_t r, size_t i0, size_t C,
                                   lks_four x[AT_ONCE], float *squares)
{
    lks_four skip[AT_ONCE], x0[AT_ONCE];
#pragma unroll
    for (size_t k = 0; k < AT_ONCE; k++) {
        const size_t i = i0 + k * LANE_STEP < C ? i0 + k * LANE_STEP : i0, at = r * C + i;
        x[k] = lks_four_at(e.prev + at, {C - i, FOURS});
        skip[k] = lks_four_at(skip_or_prev(e) + at, {C - i, FOURS});
        x0[k] = lks_four_at(e.x0 + at, {C - i, FOURS});
    }
#pragma unroll
    for (size_t k = 0; k < AT_ONCE; k++) {
        const size_t i = i0 + k * LANE_STEP;
        if (i >= C)
            break;
        const lks_rest rest = {C - i, FOURS};
        const lks_four mix = lks_four_at(e.mix + i, rest), mix0 = lks_four_at(e.mix + C + i, rest);
        x[k] = entry_input(e, x[k], skip[k], lks_four_at(weight_or_mix(e) + i, rest));
        for (int j = 0; j < 4; j++) {
            x[k].at[j] = lks_as_stored(e.x, mix.at[j] * x[k].at[j] + mix0.at[j] * x0[k].at[j]);
            *squares = fmaf(x[k].at[j], x[k].at[j], *squares);
        }
        lks_four_put(e.x + r * C + i, rest, x[k]);
    }
}

/* The norm is computed from x as stored, which backward reads. A thread's first elements stay in
 * registers: all of a row of up to 512 elements. */
template <typename E, bool FOURS>
static __global__ void __launch_bounds__(WARPS *LKS_WARP)
    golf_entry_fwd(entry<E> e, size_t rows, size_t C)
{
    const size_t r = warp_index(), first = first_of_lane(), step = AT_ONCE * LANE_STEP;
    if (r >= rows)
        return;
    float squares = 0.0f;
    lks_four kept[AT_ONCE] = {};
    if (first < C)
        entry_batch<FOURS>(e, r, first, C, kept, &squares);
    for (size_t i = first + step; i < C; i += step) {
        lks_four x[AT_ONCE];
        entry_batch<FOURS>(e, r, i, C, x, &squares);
    }
    const float scale = reciprocal_rms(lks_warp_sum(squares), C);
#pragma unroll
    for (size_t k = 0; k < AT_ONCE; k++) {
        const size_t i = first + k * LANE_STEP;
        for (int j = 0; j < 4; j++)
            kept[k].at[j] *= scale;
        if (i < C)
            lks_four_put(e.norm + r * C + i, {C - i, FOURS}, kept[k]);
    }
    for (size_t i = first + step; i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, FOURS};
        lks_four x = lks_four_at(e.x + r * C + i, rest); /* this thread's own */
        for (int j = 0; j < 4; j++)
            x.at[j] *= scale;
        lks_four_put(e.norm + r * C + i, rest, x);
    }
    if (threadIdx.x % LKS_WARP == 0)
        e.rms[r] = scale;
}

extern "C" void lks__cuda_golf_entry_fwd(const lks__exec *ex, const lks__golf_entry *e, size_t rows,
                                         size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const bool fours =
        lks_in_fours(C, e->prev, e->skip, e->x0, e->mix, e->skip_weight, e->x, e->norm);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (e->skip != NULL ? 5 : 4) * lks_act_bytes(halves) * n,
                    (e->skip != NULL ? 9 : 7) * n);
    LAUNCH_EACH(golf_entry_fwd, halves, fours, warps_grid(rows), warps_block, lks__cuda_stream(ex),
                entry_of<E>(*e), rows, C);
}

/* The arguments of an entry's backward in addition to its lks__golf_entry. */
template <typename E> struct entry_grads {
    E *dx, *dx0, *dskip;
    const E *dnorm;
    float *partial; /* NULL: no vector's gradient is wanted */
};

/* A block takes a slab. First a warp sums a row's mean; then a thread goes down its columns, so
 * that it sums the vectors' gradients in registers. The slab's rows are still in a cache then. */
template <typename E, bool FOURS>
static __global__ void golf_entry_bwd(entry<E> e, entry_grads<E> g, size_t rows, size_t C)
{
    LKS_SHARED(float, mean, SLAB);
    const size_t r0 = (size_t)blockIdx.x * SLAB, n = slab_rows(rows, r0);
    for (size_t k = threadIdx.x / LKS_WARP; k < n; k += blockDim.x / LKS_WARP) {
        const size_t at = (r0 + k) * C;
        const float m = norm_mean<FOURS>(g.dnorm + at, e.x + at, e.rms[r0 + k], C);
        if (threadIdx.x % LKS_WARP == 0)
            mean[k] = m;
    }
    __syncthreads();
    for (size_t c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        const lks_rest rest = {C - c, FOURS};
        const lks_four mix = lks_four_at(e.mix + c, rest), mix0 = lks_four_at(e.mix + C + c, rest);
        const lks_four weight = lks_four_at(weight_or_mix(e) + c, rest);
        lks_four dmix = {}, dmix0 = {}, dweight = {};
        for (size_t k = 0; k < n; k++) {
            const size_t at = (r0 + k) * C + c;
            const lks_four prev = lks_four_at(e.prev + at, rest);
            const lks_four skip = lks_four_at(skip_or_prev(e) + at, rest);
            const lks_four x = lks_four_at(e.x + at, rest), x0 = lks_four_at(e.x0 + at, rest);
            const lks_four dnorm = lks_four_at(g.dnorm + at, rest);
            lks_four dx = lks_four_at(g.dx + at, rest), dx0 = lks_four_at(g.dx0 + at, rest);
            const float rms = e.rms[r0 + k], m = mean[k];
            const lks_four in = entry_input(e, prev, skip, weight);
            lks_four dskip;
            for (int j = 0; j < 4; j++) {
                dx.at[j] += norm_grad(dnorm.at[j], x.at[j], rms, m);
                dmix.at[j] = fmaf(dx.at[j], in.at[j], dmix.at[j]);
                dmix0.at[j] = fmaf(dx.at[j], x0.at[j], dmix0.at[j]);
                dx0.at[j] += mix0.at[j] * dx.at[j];
                dx.at[j] *= mix.at[j];
                dweight.at[j] = fmaf(dx.at[j], skip.at[j], dweight.at[j]);
                dskip.at[j] = weight.at[j] * dx.at[j];
            }
            lks_four_put(g.dx + at, rest, dx);
            lks_four_put(g.dx0 + at, rest, dx0);
            if (e.skip != NULL)
                lks_four_put(g.dskip + at, rest, dskip);
        }
        if (g.partial != NULL) {
            float *line = g.partial + (size_t)blockIdx.x * MAX_VECTORS * C + c;
            lks_four_put(line, rest, dmix);
            lks_four_put(line + C, rest, dmix0);
            lks_four_put(line + 2 * C, rest, dweight);
        }
    }
}

extern "C" void lks__cuda_golf_entry_bwd(const lks__exec *ex, const lks__golf_entry *e,
                                         lks__act *dx, lks__act *dx0, float *dmix, lks__act *dskip,
                                         float *dskip_weight, const lks__act *dnorm, size_t rows,
                                         size_t C, float *partial)
{
    const bool halves = lks__cuda_halves(ex);
    float *lines = dmix != NULL || dskip_weight != NULL ? partial : NULL;
    const bool fours = lks_in_fours(C, e->prev, e->skip, e->x0, e->mix, e->skip_weight, e->x, dx,
                                    dx0, dskip, dnorm, partial);
    const size_t warps = (C + LANE_STEP - 1) / LANE_STEP;
    const dim3 columns(LKS_WARP * (warps < WARPS ? (unsigned)warps : (unsigned)WARPS));
    const double n = (double)(rows * C), sums = lines != NULL ? (double)(slabs(rows) * C) : 0;
    lks__cuda_count(
        ex, (e->skip != NULL ? 10 : 8) * lks_act_bytes(halves) * n + 4.0 * MAX_VECTORS * sums,
        (e->skip != NULL ? 23 : 18) * n);
    LAUNCH_EACH(golf_entry_bwd, halves, fours, dim3((unsigned)slabs(rows)), columns,
                lks__cuda_stream(ex), entry_of<E>(*e),
                (entry_grads<E>{LKS_ACTS(E, dx), LKS_ACTS(E, dx0), LKS_ACTS(E, dskip),
                                LKS_ACTS(const E, dnorm), lines}),
                rows, C);
    if (dmix != NULL)
        lks__cuda_column_sums(ex, dmix, partial, MAX_VECTORS * C, slabs(rows), 2 * C);
    if (dskip_weight != NULL)
        lks__cuda_column_sums(ex, dskip_weight, partial + 2 * C, MAX_VECTORS * C, slabs(rows), C);
}

/* --- a branch of a block --------------------------------------------------------------------- */

/* lks__golf_branch with elements of type E. */
template <typename E> struct branch {
    E *dx, *dy;
    const float *scale;
    const E *dnorm, *normed;
    const float *rms;
    const E *add;
};

template <typename E> static branch<E> branch_of(const lks__golf_branch &b)
{
    return {LKS_ACTS(E, b.dx),          LKS_ACTS(E, b.dy),           b.scale,
            LKS_ACTS(const E, b.dnorm), LKS_ACTS(const E, b.normed), b.rms,
            LKS_ACTS(const E, b.add)};
}

template <typename E, bool FOURS>
static __global__ void golf_branch_bwd(branch<E> b, size_t rows, size_t C)
{
    const size_t r = warp_index();
    if (r >= rows)
        return;
    float rms = 0.0f, mean = 0.0f;
    if (b.dnorm != NULL) {
        rms = b.rms[r];
        mean = norm_mean<FOURS>(b.dnorm + r * C, b.normed + r * C, rms, C);
    }
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, FOURS};
        const size_t at = r * C + i;
        lks_four dx = lks_four_at(b.dx + at, rest), dy = lks_four_at(b.scale + i, rest);
        if (b.dnorm != NULL) {
            const lks_four d = lks_four_at(b.dnorm + at, rest),
                           x = lks_four_at(b.normed + at, rest);
            for (int j = 0; j < 4; j++)
                dx.at[j] += norm_grad(d.at[j], x.at[j], rms, mean);
        }
        if (b.add != NULL) {
            const lks_four add = lks_four_at(b.add + at, rest);
            for (int j = 0; j < 4; j++)
                dx.at[j] += add.at[j];
        }
        for (int j = 0; j < 4; j++)
            dy.at[j] *= dx.at[j];
        if (b.dnorm != NULL || b.add != NULL)
            lks_four_put(b.dx + at, rest, dx);
        lks_four_put(b.dy + at, rest, dy);
    }
}

extern "C" void lks__cuda_golf_branch_bwd(const lks__exec *ex, const lks__golf_branch *b,
                                          size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const bool fours = lks_in_fours(C, b->dx, b->dy, b->scale, b->dnorm, b->normed, b->add);
    const double n = (double)(rows * C);
    lks__cuda_count(ex,
                    (b->dnorm != NULL ? 5
                     : b->add != NULL ? 4
                                      : 2) *
                        lks_act_bytes(halves) * n,
                    (b->dnorm != NULL ? 8
                     : b->add != NULL ? 2
                                      : 1) *
                        n);
    LAUNCH_EACH(golf_branch_bwd, halves, fours, warps_grid(rows), warps_block, lks__cuda_stream(ex),
                branch_of<E>(*b), rows, C);
}

static __global__ void golf_scaled_bwd(lks__golf_scaled s, size_t C, size_t in, bool fours)
{
    const size_t r = warp_index();
    if (r >= C)
        return;
    const float scale = s.scale[r];
    float sum = 0.0f;
    for (size_t i = first_of_lane(); i < in; i += LANE_STEP) {
        const lks_rest rest = {in - i, fours};
        const lks_four product = lks_four_at(s.product + r * in + i, rest);
        if (s.dscale != NULL) {
            const lks_four w = lks_four_at(s.w + r * in + i, rest);
            for (int j = 0; j < 4; j++)
                sum = fmaf(w.at[j], product.at[j], sum);
        }
        if (s.dw != NULL) {
            lks_four dw = lks_four_at(s.dw + r * in + i, rest);
            for (int j = 0; j < 4; j++)
                dw.at[j] += scale * product.at[j];
            lks_four_put(s.dw + r * in + i, rest, dw);
        }
    }
    sum = lks_warp_sum(sum);
    if (s.dscale != NULL && threadIdx.x % LKS_WARP == 0)
        s.dscale[r] += sum;
}

extern "C" void lks__cuda_golf_scaled_bwd(const lks__exec *ex, const lks__golf_scaled *s, size_t C,
                                          size_t in)
{
    const bool fours = lks_in_fours(in, s->dw, s->product, s->w);
    lks__cuda_count(ex, 16.0 * (double)(C * in), 4.0 * (double)(C * in));
    LKS_LAUNCH(golf_scaled_bwd, warps_grid(C), warps_block, lks__cuda_stream(ex), *s, C, in, fours);
}

/* --- queries and keys ------------------------------------------------------------------------ */

/* lks__golf_heads with elements of type E. */
template <typename E> struct heads {
    size_t rows, T, n_head, n_kv_head, hs;
    const float *cosine, *sine, *gain;
    const E *q_raw, *k_raw;
    E *q, *k;
    float *q_rms, *k_rms;
};

template <typename E> static heads<E> heads_of(const lks__golf_heads &h)
{
    return {h.rows,
            h.T,
            h.n_head,
            h.n_kv_head,
            h.hs,
            h.cosine,
            h.sine,
            h.gain,
            LKS_ACTS(const E, h.q_raw),
            LKS_ACTS(const E, h.k_raw),
            LKS_ACTS(E, h.q),
            LKS_ACTS(E, h.k),
            h.q_rms,
            h.k_rms};
}

enum { HEAD_LANES = 8, HEADS = LKS_WARP / HEAD_LANES, HEAD_STEP = HEAD_LANES * 4 };

/* One head of one row: a query's, or a key's, which follow. Eight lanes process it, so a warp has
 * four heads of a row. A lane processes elements 4 lane to 4 lane + 3 of both of the head's halves,
 * which the rotation mixes, and so on in steps of the lanes. */
template <typename E> struct head {
    const E *raw;
    const float *cosine, *sine;
    float gain;
    size_t at;     /* its first element among the queries, or the keys */
    size_t number; /* its own among all rows' */
    bool query;
};

/* i beyond the last head: the last one. */
template <typename E> __device__ static head<E> head_of(const heads<E> &h, size_t row, unsigned i)
{
    const unsigned all = (unsigned)(h.n_head + h.n_kv_head), n_head = (unsigned)h.n_head;
    const size_t position = (unsigned)row % (unsigned)h.T; /* 64 bits would take 70 instructions */
    head<E> one;
    i = i < all ? i : all - 1;
    one.query = i < n_head;
    one.number = one.query ? row * n_head + i : row * h.n_kv_head + (i - n_head);
    one.at = one.number * h.hs;
    one.raw = (one.query ? h.q_raw : h.k_raw) + one.at;
    one.gain = one.query ? h.gain[i] : 1.0f;
    one.cosine = h.cosine + position * (h.hs / 2);
    one.sine = h.sine + position * (h.hs / 2);
    return one;
}

/* Sum over the lanes of a head. */
static __device__ float head_sum(float v)
{
    for (int lane = HEAD_LANES / 2; lane > 0; lane /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* Elements j to j + 3 of both halves of a head, or of its angles' cosines and sines. */
struct pair {
    lks_four a, b;
};

template <bool FOURS, typename A>
static __device__ pair pair_at(const A *a, const A *b, size_t j, size_t half)
{
    const lks_rest rest = {half - j, FOURS};
    return {lks_four_at(a + j, rest), lks_four_at(b + j, rest)};
}

template <bool FOURS, typename E>
static __device__ void pair_put(E *p, size_t j, size_t half, const pair &v)
{
    const lks_rest rest = {half - j, FOURS};
    lks_four_put(p + j, rest, v.a);
    lks_four_put(p + half + j, rest, v.b);
}

static __device__ float pair_product(const pair &u, const pair &v, float sum)
{
    for (int k = 0; k < 4; k++) {
        sum = fmaf(u.a.at[k], v.a.at[k], sum);
        sum = fmaf(u.b.at[k], v.b.at[k], sum);
    }
    return sum;
}

static __device__ pair turned(pair v, const pair &angles, float rms, float gain)
{
    for (int k = 0; k < 4; k++) {
        const float a = v.a.at[k] * rms, b = v.b.at[k] * rms;
        v.a.at[k] = gain * (a * angles.a.at[k] + b * angles.b.at[k]);
        v.b.at[k] = gain * (b * angles.a.at[k] - a * angles.b.at[k]);
    }
    return v;
}

/* One warp per row. A lane's first elements of a head stay in registers, which is all for heads of
 * up to 64 elements; the rest is loaded a second time. */
template <typename E, bool FOURS>
static __global__ void __launch_bounds__(WARPS *LKS_WARP, 5) golf_heads_fwd(heads<E> h)
{
    const size_t row = warp_index(), half = h.hs / 2, first = threadIdx.x % HEAD_LANES * 4;
    const unsigned all = (unsigned)(h.n_head + h.n_kv_head);
    if (row >= h.rows)
        return;
    const head<E> last = head_of(h, row, all);
    pair angles = {};
    if (first < half)
        angles = pair_at<FOURS>(last.cosine, last.sine, first, half);
    for (unsigned quad = 0; quad < all; quad += HEADS) {
        const unsigned i = quad + threadIdx.x % LKS_WARP / HEAD_LANES;
        const size_t own = i < all ? first : half; /* beyond the last head there is nothing */
        const head<E> one = head_of(h, row, i);
        const E *raw = one.raw;
        pair x = {};
        if (own < half)
            x = pair_at<FOURS>(raw, raw + half, own, half);
        float squares = pair_product(x, x, 0.0f);
#pragma unroll 1
        for (size_t j = own + HEAD_STEP; j < half; j += HEAD_STEP) {
            const pair v = pair_at<FOURS>(raw, raw + half, j, half);
            squares = pair_product(v, v, squares);
        }
        const float rms = reciprocal_rms(head_sum(squares), h.hs);
        E *y = (one.query ? h.q : h.k) + one.at;
        if (own < half)
            pair_put<FOURS>(y, own, half, turned(x, angles, rms, one.gain));
#pragma unroll 1
        for (size_t j = own + HEAD_STEP; j < half; j += HEAD_STEP)
            pair_put<FOURS>(y, j, half,
                            turned(pair_at<FOURS>(raw, raw + half, j, half),
                                   pair_at<FOURS>(one.cosine, one.sine, j, half), rms, one.gain));
        if (own == 0)
            (one.query ? h.q_rms : h.k_rms)[one.number] = rms;
    }
}

extern "C" void lks__cuda_golf_heads_fwd(const lks__exec *ex, const lks__golf_heads *h)
{
    const double n = (double)(h->rows * (h->n_head + h->n_kv_head) * h->hs);
    const bool halves = lks__cuda_halves(ex);
    const bool fours = lks_in_fours(h->hs / 2, h->q_raw, h->k_raw, h->q, h->k, h->cosine, h->sine);
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, 9 * n); /* angles come from the cache */
    LAUNCH_EACH(golf_heads_fwd, halves, fours, warps_grid(h->rows), warps_block,
                lks__cuda_stream(ex), heads_of<E>(*h));
}

/* dy through the rotation. */
static __device__ pair turned_back(pair v, const pair &angles)
{
    for (int k = 0; k < 4; k++) {
        const float p = v.a.at[k], q = v.b.at[k];
        v.a.at[k] = p * angles.a.at[k] - q * angles.b.at[k];
        v.b.at[k] = p * angles.b.at[k] + q * angles.a.at[k];
    }
    return v;
}

static __device__ pair pair_grad(pair u, const pair &x, float gain, float rms, float mean)
{
    for (int k = 0; k < 4; k++) {
        u.a.at[k] = gain * norm_grad(u.a.at[k], x.a.at[k], rms, mean);
        u.b.at[k] = gain * norm_grad(u.b.at[k], x.b.at[k], rms, mean);
    }
    return u;
}

/* A warp processes four heads of two rows of a slab, and the warps' sums of the gain's gradient are
 * added in their order. In place: each element is read and written by one thread only. */
template <typename E, bool FOURS>
static __global__ void __launch_bounds__(WARPS *LKS_WARP, 3)
    golf_heads_bwd(heads<E> h, E *dq, E *dk, float *partial)
{
    LKS_SHARED(float, sums, WARPS *HEADS);
    const size_t half = h.hs / 2, first = threadIdx.x % HEAD_LANES * 4;
    const size_t r0 = (size_t)blockIdx.x * SLAB, end = r0 + slab_rows(h.rows, r0);
    const unsigned i = blockIdx.y * HEADS + threadIdx.x % LKS_WARP / HEAD_LANES;
    const size_t own = i < h.n_head + h.n_kv_head ? first : half; /* as above */
    float dgain = 0.0f;
    for (size_t row = r0 + threadIdx.x / LKS_WARP; row < end; row += WARPS) {
        const head<E> one = head_of(h, row, i);
        const E *raw = one.raw;
        E *d = (one.query ? dq : dk) + one.at;
        const float rms = (one.query ? h.q_rms : h.k_rms)[one.number];
        pair x = {}, u = {};
        if (own < half) {
            x = pair_at<FOURS>(raw, raw + half, own, half);
            u = turned_back(pair_at<FOURS>(d, d + half, own, half),
                            pair_at<FOURS>(one.cosine, one.sine, own, half));
        }
        float sum = pair_product(u, x, 0.0f);
#pragma unroll 1
        for (size_t j = own + HEAD_STEP; j < half; j += HEAD_STEP)
            sum = pair_product(turned_back(pair_at<FOURS>(d, d + half, j, half),
                                           pair_at<FOURS>(one.cosine, one.sine, j, half)),
                               pair_at<FOURS>(raw, raw + half, j, half), sum);
        const float m = head_sum(sum) * rms; /* sum of u * xhat */
        const float mean = m / (float)h.hs;
        dgain += m;
        if (own < half)
            pair_put<FOURS>(d, own, half, pair_grad(u, x, one.gain, rms, mean));
#pragma unroll 1
        for (size_t j = own + HEAD_STEP; j < half; j += HEAD_STEP) {
            u = turned_back(pair_at<FOURS>(d, d + half, j, half),
                            pair_at<FOURS>(one.cosine, one.sine, j, half));
            x = pair_at<FOURS>(raw, raw + half, j, half);
            pair_put<FOURS>(d, j, half, pair_grad(u, x, one.gain, rms, mean));
        }
    }
    if (partial == NULL)
        return;
    if (first == 0)
        sums[threadIdx.x / LKS_WARP * HEADS + threadIdx.x % LKS_WARP / HEAD_LANES] = dgain;
    __syncthreads();
    const unsigned of = blockIdx.y * HEADS + threadIdx.x;
    if (threadIdx.x < HEADS && of < h.n_head) {
        float sum = sums[threadIdx.x];
        for (unsigned w = 1; w < WARPS; w++)
            sum += sums[w * HEADS + threadIdx.x];
        partial[blockIdx.x * h.n_head + of] = sum;
    }
}

extern "C" void lks__cuda_golf_heads_bwd(const lks__exec *ex, const lks__golf_heads *h,
                                         lks__act *dq, lks__act *dk, float *dgain, float *partial)
{
    const double n = (double)(h->rows * (h->n_head + h->n_kv_head) * h->hs);
    const bool halves = lks__cuda_halves(ex);
    const bool fours = lks_in_fours(h->hs / 2, h->q_raw, h->k_raw, dq, dk, h->cosine, h->sine);
    lks__cuda_count(ex, 3 * lks_act_bytes(halves) * n, 20 * n);
    const unsigned quads = (unsigned)((h->n_head + h->n_kv_head + HEADS - 1) / HEADS);
    LAUNCH_EACH(golf_heads_bwd, halves, fours, dim3((unsigned)slabs(h->rows), quads), warps_block,
                lks__cuda_stream(ex), heads_of<E>(*h), LKS_ACTS(E, dq), LKS_ACTS(E, dk),
                dgain != NULL ? partial : (float *)NULL);
    if (dgain != NULL)
        lks__cuda_column_sums(ex, dgain, partial, h->n_head, slabs(h->rows), h->n_head);
}
