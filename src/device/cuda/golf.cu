/* cuda/golf.cu - parameter-golf's operations on rows: RMSNorms, a block's entry and branches, and
 * its query and key heads.
 *
 * All of them are limited by memory. A warp takes a row, or a head of a row, and sums in registers;
 * rows that are read twice come from the first-level cache the second time. Gradients of vectors
 * are sums over all rows: a block of threads sums SLAB rows in order into its line of `partial`,
 * and lks__cuda_column_sums() adds the lines. */
#include "device/cuda/cuda.h"
#include "device/cuda/fours.h"
#include "device/cuda/launch.h"
#include "device/cuda/questions.h"
#include "device/cuda/reduce.h"

#include <float.h>
#include <math.h>

enum {
    LANE_STEP = LKS_WARP * 4,
    WARPS = 8, /* of a block */
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

/* Row r of a norm's input is x[tokens[r]], or x[r] if there are no tokens. */
__device__ static const float *norm_input(const float *x, const int32_t *tokens, size_t r, size_t C)
{
    return x + (tokens != NULL ? (size_t)tokens[r] : r) * C;
}

static __global__ void golf_norm_fwd(float *y, float *rms, const float *x, const int32_t *tokens,
                                     size_t rows, size_t C, bool fours)
{
    const size_t r = warp_index();
    if (r >= rows)
        return;
    const float *in = norm_input(x, tokens, r, C);
    float squares = 0.0f;
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        const lks_four v = lks_four_at(in + i, rest);
        for (int j = 0; j < 4; j++)
            squares = fmaf(v.at[j], v.at[j], squares);
    }
    const float scale = reciprocal_rms(lks_warp_sum(squares), C);
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        lks_four v = lks_four_at(in + i, rest);
        for (int j = 0; j < 4; j++)
            v.at[j] *= scale;
        lks_four_put(y + r * C + i, rest, v);
    }
    if (threadIdx.x % LKS_WARP == 0)
        rms[r] = scale;
}

/* The mean over j of dy[j] * xhat[j], in all threads of the warp. */
__device__ static float norm_mean(const float *dy, const float *x, float rms, size_t C, bool fours)
{
    float sum = 0.0f;
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        const lks_four d = lks_four_at(dy + i, rest), v = lks_four_at(x + i, rest);
        for (int j = 0; j < 4; j++)
            sum = fmaf(d.at[j], v.at[j], sum);
    }
    return lks_warp_sum(sum) * rms / (float)C;
}

/* The gradient of one element of a norm's input. */
__device__ static float norm_grad(float dy, float x, float rms, float mean)
{
    return rms * (dy - x * rms * mean);
}

static __global__ void golf_norm_bwd(float *dx, const float *dy, const float *x,
                                     const int32_t *tokens, const float *rms, size_t rows, size_t C,
                                     bool fours)
{
    const size_t r = warp_index();
    if (r >= rows)
        return;
    const float *in = norm_input(x, tokens, r, C);
    const float scale = rms[r], mean = norm_mean(dy + r * C, in, scale, C, fours);
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        const lks_four d = lks_four_at(dy + r * C + i, rest), v = lks_four_at(in + i, rest);
        lks_four out;
        for (int j = 0; j < 4; j++)
            out.at[j] = norm_grad(d.at[j], v.at[j], scale, mean);
        lks_four_put(dx + r * C + i, rest, out);
    }
}

static void run_norm_fwd(const lks__exec *ex, float *y, float *rms, const float *x,
                         const int32_t *tokens, size_t rows, size_t C)
{
    const dim3 grid = warps_grid(rows), block(WARPS * LKS_WARP);
    const bool fours = lks_in_fours(C, y, x);
    lks__cuda_count(ex, 8.0 * (double)(rows * C), 4.0 * (double)(rows * C));
    LKS_LAUNCH(golf_norm_fwd, grid, block, lks__cuda_stream(ex), y, rms, x, tokens, rows, C, fours);
}

static void run_norm_bwd(const lks__exec *ex, float *dx, const float *dy, const float *x,
                         const int32_t *tokens, const float *rms, size_t rows, size_t C)
{
    const dim3 grid = warps_grid(rows), block(WARPS * LKS_WARP);
    const bool fours = lks_in_fours(C, dx, dy, x);
    lks__cuda_count(ex, 12.0 * (double)(rows * C), 7.0 * (double)(rows * C));
    LKS_LAUNCH(golf_norm_bwd, grid, block, lks__cuda_stream(ex), dx, dy, x, tokens, rms, rows, C,
               fours);
}

extern "C" void lks__cuda_golf_norm_fwd(const lks__exec *ex, float *y, float *rms, const float *x,
                                        size_t rows, size_t C)
{
    run_norm_fwd(ex, y, rms, x, NULL, rows, C);
}

extern "C" void lks__cuda_golf_norm_bwd(const lks__exec *ex, float *dx, const float *dy,
                                        const float *x, const float *rms, size_t rows, size_t C)
{
    run_norm_bwd(ex, dx, dy, x, NULL, rms, rows, C);
}

extern "C" void lks__cuda_golf_embed_fwd(const lks__exec *ex, float *x, float *rms,
                                         const int32_t *tokens, const float *emb, size_t rows,
                                         size_t C)
{
    run_norm_fwd(ex, x, rms, emb, tokens, rows, C);
}

extern "C" void lks__cuda_golf_embed_bwd(const lks__exec *ex, float *demb, float *d_row,
                                         const float *dx, const int32_t *tokens, const float *emb,
                                         const float *rms, size_t rows, size_t C)
{
    run_norm_bwd(ex, d_row, dx, emb, tokens, rms, rows, C);
    lks__cuda_embedding_bwd(ex, demb, NULL, d_row, tokens, rows, rows, C);
}

/* --- a block's entry ------------------------------------------------------------------------- */

/* Elements from `at` on of prev + skip_weight * skip; without a skip, those of prev. Products are
 * rounded before they are added, here and in entry_fwd(): the mixed input has the CPU's bits. */
__device__ static lks_four entry_input(const lks__golf_entry &e, size_t at, size_t column,
                                       lks_rest rest)
{
    lks_four in = lks_four_at(e.prev + at, rest);
    if (e.skip != NULL) {
        const lks_four skip = lks_four_at(e.skip + at, rest);
        const lks_four weight = lks_four_at(e.skip_weight + column, rest);
        for (int j = 0; j < 4; j++)
            in.at[j] += weight.at[j] * skip.at[j];
    }
    return in;
}

static __global__ void golf_entry_fwd(lks__golf_entry e, size_t rows, size_t C, bool fours)
{
    const size_t r = warp_index();
    if (r >= rows)
        return;
    float squares = 0.0f;
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
        lks_four x = entry_input(e, r * C + i, i, rest);
        const lks_four x0 = lks_four_at(e.x0 + r * C + i, rest);
        const lks_four mix = lks_four_at(e.mix + i, rest), mix0 = lks_four_at(e.mix + C + i, rest);
        for (int j = 0; j < 4; j++) {
            x.at[j] = mix.at[j] * x.at[j] + mix0.at[j] * x0.at[j];
            squares = fmaf(x.at[j], x.at[j], squares);
        }
        lks_four_put(e.x + r * C + i, rest, x);
    }
    const float scale = reciprocal_rms(lks_warp_sum(squares), C);
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
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
    const dim3 grid = warps_grid(rows), block(WARPS * LKS_WARP);
    const bool fours =
        lks_in_fours(C, e->prev, e->skip, e->x0, e->mix, e->skip_weight, e->x, e->norm);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (e->skip != NULL ? 20 : 16) * n, (e->skip != NULL ? 9 : 7) * n);
    LKS_LAUNCH(golf_entry_fwd, grid, block, lks__cuda_stream(ex), *e, rows, C, fours);
}

/* What backward of an entry reads and writes beside its lks__golf_entry. */
struct entry_grads {
    float *dx, *dx0, *dskip;
    const float *dnorm;
    float *partial; /* NULL: no vector's gradient is wanted */
};

/* A block takes a slab. First a warp sums a row's mean; then a thread goes down its columns, so
 * that it sums the vectors' gradients in registers. The slab's rows are still in a cache then. */
static __global__ void golf_entry_bwd(lks__golf_entry e, entry_grads g, size_t rows, size_t C,
                                      bool fours)
{
    LKS_SHARED(float, mean, SLAB);
    const size_t r0 = (size_t)blockIdx.x * SLAB, n = slab_rows(rows, r0);
    for (size_t k = threadIdx.x / LKS_WARP; k < n; k += blockDim.x / LKS_WARP) {
        const size_t at = (r0 + k) * C;
        const float m = norm_mean(g.dnorm + at, e.x + at, e.rms[r0 + k], C, fours);
        if (threadIdx.x % LKS_WARP == 0)
            mean[k] = m;
    }
    __syncthreads();
    for (size_t c = threadIdx.x * 4; c < C; c += blockDim.x * 4) {
        const lks_rest rest = {C - c, fours};
        const lks_four mix = lks_four_at(e.mix + c, rest), mix0 = lks_four_at(e.mix + C + c, rest);
        lks_four dmix = {}, dmix0 = {}, dweight = {};
        for (size_t k = 0; k < n; k++) {
            const size_t at = (r0 + k) * C + c;
            const lks_four in = entry_input(e, at, c, rest), x = lks_four_at(e.x + at, rest);
            const lks_four x0 = lks_four_at(e.x0 + at, rest);
            const lks_four dnorm = lks_four_at(g.dnorm + at, rest);
            lks_four dx = lks_four_at(g.dx + at, rest), dx0 = lks_four_at(g.dx0 + at, rest);
            for (int j = 0; j < 4; j++) {
                dx.at[j] += norm_grad(dnorm.at[j], x.at[j], e.rms[r0 + k], mean[k]);
                dmix.at[j] = fmaf(dx.at[j], in.at[j], dmix.at[j]);
                dmix0.at[j] = fmaf(dx.at[j], x0.at[j], dmix0.at[j]);
                dx0.at[j] += mix0.at[j] * dx.at[j];
                dx.at[j] *= mix.at[j];
            }
            lks_four_put(g.dx + at, rest, dx);
            lks_four_put(g.dx0 + at, rest, dx0);
            if (e.skip != NULL) {
                const lks_four skip = lks_four_at(e.skip + at, rest);
                lks_four dskip = lks_four_at(e.skip_weight + c, rest);
                for (int j = 0; j < 4; j++) {
                    dweight.at[j] = fmaf(dx.at[j], skip.at[j], dweight.at[j]);
                    dskip.at[j] *= dx.at[j];
                }
                lks_four_put(g.dskip + at, rest, dskip);
            }
        }
        if (g.partial != NULL) {
            float *line = g.partial + (size_t)blockIdx.x * MAX_VECTORS * C + c;
            lks_four_put(line, rest, dmix);
            lks_four_put(line + C, rest, dmix0);
            lks_four_put(line + 2 * C, rest, dweight);
        }
    }
}

extern "C" void lks__cuda_golf_entry_bwd(const lks__exec *ex, const lks__golf_entry *e, float *dx,
                                         float *dx0, float *dmix, float *dskip, float *dskip_weight,
                                         const float *dnorm, size_t rows, size_t C, float *partial)
{
    const bool sums = dmix != NULL || dskip_weight != NULL;
    const entry_grads g = {dx, dx0, dskip, dnorm, sums ? partial : NULL};
    const bool fours = lks_in_fours(C, e->prev, e->skip, e->x0, e->mix, e->skip_weight, e->x, dx,
                                    dx0, dskip, dnorm, partial);
    const size_t warps = (C + LANE_STEP - 1) / LANE_STEP;
    const dim3 grid((unsigned)slabs(rows)),
        block(warps < WARPS ? (unsigned)warps * LKS_WARP : WARPS * LKS_WARP);
    const double n = (double)(rows * C), lines = sums ? 3 * (double)(slabs(rows) * C) : 0;
    lks__cuda_count(ex, (e->skip != NULL ? 40 : 32) * n + 4 * lines,
                    (e->skip != NULL ? 23 : 18) * n);
    LKS_LAUNCH(golf_entry_bwd, grid, block, lks__cuda_stream(ex), *e, g, rows, C, fours);
    if (dmix != NULL)
        lks__cuda_column_sums(ex, dmix, partial, MAX_VECTORS * C, slabs(rows), 2 * C);
    if (dskip_weight != NULL)
        lks__cuda_column_sums(ex, dskip_weight, partial + 2 * C, MAX_VECTORS * C, slabs(rows), C);
}

/* --- a branch of a block --------------------------------------------------------------------- */

static __global__ void golf_branch_bwd(lks__golf_branch b, size_t rows, size_t C, bool fours)
{
    const size_t r = warp_index();
    if (r >= rows)
        return;
    float rms = 0.0f, mean = 0.0f;
    if (b.dnorm != NULL) {
        rms = b.rms[r];
        mean = norm_mean(b.dnorm + r * C, b.normed + r * C, rms, C, fours);
    }
    for (size_t i = first_of_lane(); i < C; i += LANE_STEP) {
        const lks_rest rest = {C - i, fours};
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
    const dim3 grid = warps_grid(rows), block(WARPS * LKS_WARP);
    const bool fours = lks_in_fours(C, b->dx, b->dy, b->scale, b->dnorm, b->normed, b->add);
    const double n = (double)(rows * C);
    lks__cuda_count(ex,
                    (b->dnorm != NULL ? 20
                     : b->add != NULL ? 16
                                      : 8) *
                        n,
                    (b->dnorm != NULL ? 8
                     : b->add != NULL ? 2
                                      : 1) *
                        n);
    LKS_LAUNCH(golf_branch_bwd, grid, block, lks__cuda_stream(ex), *b, rows, C, fours);
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
    const dim3 grid = warps_grid(C), block(WARPS * LKS_WARP);
    const bool fours = lks_in_fours(in, s->dw, s->product, s->w);
    lks__cuda_count(ex, 16.0 * (double)(C * in), 4.0 * (double)(C * in));
    LKS_LAUNCH(golf_scaled_bwd, grid, block, lks__cuda_stream(ex), *s, C, in, fours);
}

/* --- queries and keys ------------------------------------------------------------------------ */

/* One head of one row: a query's, or a key's behind them. Lane j takes the pairs j, j + 32, … of
 * the head's halves, which the rotation mixes. */
struct head {
    const float *raw, *cosine, *sine;
    float gain;
    size_t at;     /* its first element among the queries, or the keys */
    size_t number; /* its own among all rows' */
    bool query;
};

__device__ static head head_of(const lks__golf_heads &h, size_t row, size_t i)
{
    head one;
    one.query = i < h.n_head;
    const size_t heads = one.query ? h.n_head : h.n_kv_head, own = one.query ? i : i - h.n_head;
    one.number = row * heads + own;
    one.at = one.number * h.hs;
    one.raw = (one.query ? h.q_raw : h.k_raw) + one.at;
    one.gain = one.query ? h.gain[own] : 1.0f;
    one.cosine = h.cosine + row % h.T * (h.hs / 2);
    one.sine = h.sine + row % h.T * (h.hs / 2);
    return one;
}

static __global__ void golf_heads_fwd(lks__golf_heads h)
{
    const size_t heads = h.n_head + h.n_kv_head, i = warp_index(), half = h.hs / 2;
    if (i >= h.rows * heads)
        return;
    const head one = head_of(h, i / heads, i % heads);
    float *y = (one.query ? h.q : h.k) + one.at;
    float squares = 0.0f;
    for (size_t j = threadIdx.x % LKS_WARP; j < half; j += LKS_WARP) {
        squares = fmaf(one.raw[j], one.raw[j], squares);
        squares = fmaf(one.raw[j + half], one.raw[j + half], squares);
    }
    const float rms = reciprocal_rms(lks_warp_sum(squares), h.hs);
    for (size_t j = threadIdx.x % LKS_WARP; j < half; j += LKS_WARP) {
        const float a = one.raw[j] * rms, b = one.raw[j + half] * rms;
        y[j] = one.gain * (a * one.cosine[j] + b * one.sine[j]);
        y[j + half] = one.gain * (b * one.cosine[j] - a * one.sine[j]);
    }
    if (threadIdx.x % LKS_WARP == 0)
        (one.query ? h.q_rms : h.k_rms)[one.number] = rms;
}

extern "C" void lks__cuda_golf_heads_fwd(const lks__exec *ex, const lks__golf_heads *h)
{
    const double n = (double)(h->rows * (h->n_head + h->n_kv_head) * h->hs);
    lks__cuda_count(ex, 8 * n, 9 * n); /* angles come from the cache */
    LKS_LAUNCH(golf_heads_fwd, warps_grid(h->rows * (h->n_head + h->n_kv_head)),
               dim3(WARPS * LKS_WARP), lks__cuda_stream(ex), *h);
}

/* A warp takes a head of each row of a slab in order, so that the gain's gradient is summed in a
 * register. In place: a thread reads what it writes, and no other does. */
static __global__ void golf_heads_bwd(lks__golf_heads h, float *dq, float *dk, float *partial)
{
    const size_t i = (size_t)blockIdx.y * WARPS + threadIdx.x / LKS_WARP, half = h.hs / 2;
    if (i >= h.n_head + h.n_kv_head)
        return;
    const size_t r0 = (size_t)blockIdx.x * SLAB, n = slab_rows(h.rows, r0);
    float dgain = 0.0f;
    for (size_t k = 0; k < n; k++) {
        const head one = head_of(h, r0 + k, i);
        const float rms = (one.query ? h.q_rms : h.k_rms)[one.number];
        float *d = (one.query ? dq : dk) + one.at, sum = 0.0f;
        for (size_t j = threadIdx.x % LKS_WARP; j < half; j += LKS_WARP) {
            const float p = d[j], q = d[j + half], c = one.cosine[j], s = one.sine[j];
            sum = fmaf(p * c - q * s, one.raw[j], sum);
            sum = fmaf(p * s + q * c, one.raw[j + half], sum);
        }
        const float m = lks_warp_sum(sum) * rms; /* sum of u * xhat */
        const float mean = m / (float)h.hs;
        for (size_t j = threadIdx.x % LKS_WARP; j < half; j += LKS_WARP) {
            const float p = d[j], q = d[j + half], c = one.cosine[j], s = one.sine[j];
            d[j] = one.gain * norm_grad(p * c - q * s, one.raw[j], rms, mean);
            d[j + half] = one.gain * norm_grad(p * s + q * c, one.raw[j + half], rms, mean);
        }
        dgain += m;
    }
    if (partial != NULL && i < h.n_head && threadIdx.x % LKS_WARP == 0)
        partial[blockIdx.x * h.n_head + i] = dgain;
}

extern "C" void lks__cuda_golf_heads_bwd(const lks__exec *ex, const lks__golf_heads *h, float *dq,
                                         float *dk, float *dgain, float *partial)
{
    const size_t heads = h->n_head + h->n_kv_head;
    const dim3 grid((unsigned)slabs(h->rows), (unsigned)((heads + WARPS - 1) / WARPS));
    const double n = (double)(h->rows * heads * h->hs);
    lks__cuda_count(ex, 12 * n, 20 * n);
    LKS_LAUNCH(golf_heads_bwd, grid, dim3(WARPS * LKS_WARP), lks__cuda_stream(ex), *h, dq, dk,
               dgain != NULL ? partial : (float *)NULL);
    if (dgain != NULL)
        lks__cuda_column_sums(ex, dgain, partial, h->n_head, slabs(h->rows), h->n_head);
}
