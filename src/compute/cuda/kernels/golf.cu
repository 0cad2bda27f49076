/* compute/cuda/kernels/golf.cu - parameter-golf's operations on rows: RMSNorms, a block's entry and
 * branches.
 *
 * All of them are limited by memory. A warp takes a row and sums in registers; rows that are read
 * twice come from the first-level cache the second time. Gradients of vectors are sums over all
 * rows: a block of threads sums LKS_SLAB rows in order into its line of `partial`, and
 * lks__cuda_column_sums() adds the lines. */
#include "compute/cuda/common/norms.h"
#include "compute/cuda/common/reduce.h"
#include "compute/cuda/common/rows.h"

enum {
    AT_ONCE = 4, /* loads of a row that a thread has under way */
    MAX_VECTORS = LKS__CUDA_GOLF_VECTORS,
};

/* A lane takes N elements of a row, N more one step of the warp later, and so on. */
template <int N> __device__ static size_t first_of_lane(void)
{
    return threadIdx.x % LKS_WARP * N;
}

/* --- embedding, plain norms ------------------------------------------------------------------ */

/* y = rmsnorm(x) of row r: x is that row's input, which may be a row of the embedding. */
template <int N, typename Y, typename X>
__device__ static void norm_fwd(Y *y, float *rms, const X *x, size_t r, size_t C)
{
    float squares = 0.0f;
    for (size_t i = first_of_lane<N>(); i < C; i += LKS_WARP * N) {
        const lks_floats<N> v = lks_load<N>(x + i);
        for (int j = 0; j < N; j++)
            squares = fmaf(v.at[j], v.at[j], squares);
    }
    const float scale = lks_reciprocal_rms(lks_warp_sum(squares), C);
    for (size_t i = first_of_lane<N>(); i < C; i += LKS_WARP * N) {
        lks_floats<N> v = lks_load<N>(x + i);
        for (int j = 0; j < N; j++)
            v.at[j] *= scale;
        lks_store<N>(y + r * C + i, v);
    }
    if (threadIdx.x % LKS_WARP == 0)
        rms[r] = scale;
}

template <typename E, int N>
static __global__ void golf_norm_fwd(E *y, float *rms, const E *x, size_t rows, size_t C)
{
    const size_t r = lks_warp_index();
    if (r < rows)
        norm_fwd<N>(y, rms, x + r * C, r, C);
}

template <typename E, int N>
static __global__ void golf_embed_fwd(E *y, float *rms, const int32_t *tokens, const float *emb,
                                      size_t rows, size_t C)
{
    const size_t r = lks_warp_index();
    if (r < rows)
        norm_fwd<N>(y, rms, emb + (size_t)tokens[r] * C, r, C);
}

/* The mean over j of dy[j] * xhat[j], in all threads of the warp. */
template <int N, typename E, typename X>
__device__ static float norm_mean(const E *dy, const X *x, float rms, size_t C)
{
    float sum = 0.0f;
    for (size_t i0 = first_of_lane<N>(); i0 < C; i0 += AT_ONCE * LKS_WARP * N) {
        lks_floats<N> d[AT_ONCE], v[AT_ONCE];
        lks_load_batch(d, dy, i0, LKS_WARP * N, C);
        lks_load_batch(v, x, i0, LKS_WARP * N, C);
#pragma unroll
        for (size_t k = 0; k < AT_ONCE; k++)
            for (int j = 0; j < N && i0 + k * LKS_WARP * N < C; j++)
                sum = fmaf(d[k].at[j], v[k].at[j], sum);
    }
    return lks_warp_sum(sum) * rms / (float)C;
}

/* Backward of norm_fwd(); dx, dy: of all rows. */
template <int N, typename E, typename X>
__device__ static void norm_bwd(E *dx, const E *dy, const X *x, const float *rms, size_t r,
                                size_t C)
{
    const float scale = rms[r], mean = norm_mean<N>(dy + r * C, x, scale, C);
    for (size_t i = first_of_lane<N>(); i < C; i += LKS_WARP * N) {
        const lks_floats<N> d = lks_load<N>(dy + r * C + i), v = lks_load<N>(x + i);
        lks_floats<N> out;
        for (int j = 0; j < N; j++)
            out.at[j] = lks_norm_grad(d.at[j], v.at[j], scale, mean);
        lks_store<N>(dx + r * C + i, out);
    }
}

template <typename E, int N>
static __global__ void golf_norm_bwd(E *dx, const E *dy, const E *x, const float *rms, size_t rows,
                                     size_t C)
{
    const size_t r = lks_warp_index();
    if (r < rows)
        norm_bwd<N>(dx, dy, x + r * C, rms, r, C);
}

template <typename E, int N>
static __global__ void golf_embed_bwd(E *dx, const E *dy, const int32_t *tokens, const float *emb,
                                      const float *rms, size_t rows, size_t C)
{
    const size_t r = lks_warp_index();
    if (r < rows)
        norm_bwd<N>(dx, dy, emb + (size_t)tokens[r] * C, rms, r, C);
}

extern "C" void lks__cuda_golf_norm_fwd(const lks__exec *ex, lks__act *y, float *rms,
                                        const lks__act *x, size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, 2 * lks_act_bytes(halves) * n, 4 * n);
    LKS_LAUNCH_ACTS(golf_norm_fwd, halves, lks_in_fours(C, y, x), lks_warps_grid(rows),
                    lks_warps_block, lks__cuda_stream(ex), LKS_ACTS(E, y), rms,
                    LKS_ACTS(const E, x), rows, C);
}

extern "C" void lks__cuda_golf_norm_bwd(const lks__exec *ex, lks__act *dx, const lks__act *dy,
                                        const lks__act *x, const float *rms, size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, 3 * lks_act_bytes(halves) * n, 7 * n);
    const bool fours = lks_in_fours(C, dx, dy, x);
    LKS_LAUNCH_ACTS(golf_norm_bwd, halves, fours, lks_warps_grid(rows), lks_warps_block,
                    lks__cuda_stream(ex), LKS_ACTS(E, dx), LKS_ACTS(const E, dy),
                    LKS_ACTS(const E, x), rms, rows, C);
}

extern "C" void lks__cuda_golf_embed_fwd(const lks__exec *ex, lks__act *x, float *rms,
                                         const int32_t *tokens, const float *emb, size_t rows,
                                         size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (lks_act_bytes(halves) + 4) * n, 4 * n);
    LKS_LAUNCH_ACTS(golf_embed_fwd, halves, lks_in_fours(C, x, emb), lks_warps_grid(rows),
                    lks_warps_block, lks__cuda_stream(ex), LKS_ACTS(E, x), rms, tokens, emb, rows,
                    C);
}

extern "C" void lks__cuda_golf_embed_bwd(const lks__exec *ex, float *demb, lks__act *d_row,
                                         const lks__act *dx, const int32_t *tokens,
                                         const float *emb, const float *rms, size_t rows, size_t C)
{
    const bool halves = lks__cuda_halves(ex);
    const double n = (double)(rows * C);
    lks__cuda_count(ex, (2 * lks_act_bytes(halves) + 4) * n, 7 * n);
    const bool fours = lks_in_fours(C, d_row, dx, emb);
    LKS_LAUNCH_ACTS(golf_embed_bwd, halves, fours, lks_warps_grid(rows), lks_warps_block,
                    lks__cuda_stream(ex), LKS_ACTS(E, d_row), LKS_ACTS(const E, dx), tokens, emb,
                    rms, rows, C);
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
template <int N, typename E>
__device__ static lks_floats<N> entry_input(const entry<E> &e, lks_floats<N> prev,
                                            const lks_floats<N> &skip, const lks_floats<N> &weight)
{
    for (int j = 0; j < N; j++)
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

/* A batch of row r from column i0 on: x, as it is stored. The sum of its squares is added to
 * `squares`. */
template <int N, typename E>
__device__ static void entry_batch(const entry<E> &e, size_t r, size_t i0, size_t C,
                                   lks_floats<N> (&x)[AT_ONCE], float *squares)
{
    lks_floats<N> skip[AT_ONCE], x0[AT_ONCE];
    lks_load_batch(x, e.prev + r * C, i0, LKS_WARP * N, C);
    lks_load_batch(skip, skip_or_prev(e) + r * C, i0, LKS_WARP * N, C);
    lks_load_batch(x0, e.x0 + r * C, i0, LKS_WARP * N, C);
#pragma unroll
    for (size_t k = 0; k < AT_ONCE; k++) {
        const size_t i = i0 + k * LKS_WARP * N;
        if (i >= C)
            break;
        const lks_floats<N> mix = lks_load<N>(e.mix + i), mix0 = lks_load<N>(e.mix + C + i);
        x[k] = entry_input<N>(e, x[k], skip[k], lks_load<N>(weight_or_mix(e) + i));
        for (int j = 0; j < N; j++) {
            x[k].at[j] = lks_as_stored(e.x, mix.at[j] * x[k].at[j] + mix0.at[j] * x0[k].at[j]);
            *squares = fmaf(x[k].at[j], x[k].at[j], *squares);
        }
        lks_store<N>(e.x + r * C + i, x[k]);
    }
}

/* The norm is computed from x as stored, which backward reads. A thread's first elements stay in
 * registers: all of a row of up to 512 elements. */
template <typename E, int N>
static __global__ void __launch_bounds__(LKS_WARPS *LKS_WARP)
    golf_entry_fwd(entry<E> e, size_t rows, size_t C)
{
    const size_t r = lks_warp_index(), first = first_of_lane<N>(), step = AT_ONCE * LKS_WARP * N;
    if (r >= rows)
        return;
    float squares = 0.0f;
    lks_floats<N> kept[AT_ONCE] = {};
    if (first < C)
        entry_batch<N>(e, r, first, C, kept, &squares);
    for (size_t i = first + step; i < C; i += step) {
        lks_floats<N> x[AT_ONCE];
        entry_batch<N>(e, r, i, C, x, &squares);
    }
    const float scale = lks_reciprocal_rms(lks_warp_sum(squares), C);
#pragma unroll
    for (size_t k = 0; k < AT_ONCE; k++) {
        const size_t i = first + k * LKS_WARP * N;
        for (int j = 0; j < N; j++)
            kept[k].at[j] *= scale;
        if (i < C)
            lks_store<N>(e.norm + r * C + i, kept[k]);
    }
    for (size_t i = first + step; i < C; i += LKS_WARP * N) {
        lks_floats<N> x = lks_load<N>(e.x + r * C + i); /* this thread's own */
        for (int j = 0; j < N; j++)
            x.at[j] *= scale;
        lks_store<N>(e.norm + r * C + i, x);
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
    LKS_LAUNCH_ACTS(golf_entry_fwd, halves, fours, lks_warps_grid(rows), lks_warps_block,
                    lks__cuda_stream(ex), entry_of<E>(*e), rows, C);
}

/* The arguments of an entry's backward in addition to its lks__golf_entry. */
template <typename E> struct entry_grads {
    E *dx, *dx0, *dskip;
    const E *dnorm;
    float *partial; /* NULL: no vector's gradient is wanted */
};

/* A block takes a slab. First a warp sums a row's mean; then a thread goes down its columns, so
 * that it sums the vectors' gradients in registers. The slab's rows are still in a cache then. */
template <typename E, int N>
static __global__ void golf_entry_bwd(entry<E> e, entry_grads<E> g, size_t rows, size_t C)
{
    LKS_SHARED(float, mean, LKS_SLAB);
    const size_t r0 = (size_t)blockIdx.x * LKS_SLAB, n = lks_slab_rows(rows, r0);
    for (size_t k = threadIdx.x / LKS_WARP; k < n; k += blockDim.x / LKS_WARP) {
        const size_t at = (r0 + k) * C;
        const float m = norm_mean<N>(g.dnorm + at, e.x + at, e.rms[r0 + k], C);
        if (threadIdx.x % LKS_WARP == 0)
            mean[k] = m;
    }
    __syncthreads();
    for (size_t c = threadIdx.x * N; c < C; c += blockDim.x * N) {
        const lks_floats<N> mix = lks_load<N>(e.mix + c), mix0 = lks_load<N>(e.mix + C + c);
        const lks_floats<N> weight = lks_load<N>(weight_or_mix(e) + c);
        lks_floats<N> dmix = {}, dmix0 = {}, dweight = {};
        for (size_t k = 0; k < n; k++) {
            const size_t at = (r0 + k) * C + c;
            const lks_floats<N> prev = lks_load<N>(e.prev + at);
            const lks_floats<N> skip = lks_load<N>(skip_or_prev(e) + at);
            const lks_floats<N> x = lks_load<N>(e.x + at), x0 = lks_load<N>(e.x0 + at);
            const lks_floats<N> dnorm = lks_load<N>(g.dnorm + at);
            lks_floats<N> dx = lks_load<N>(g.dx + at), dx0 = lks_load<N>(g.dx0 + at);
            const float rms = e.rms[r0 + k], m = mean[k];
            const lks_floats<N> in = entry_input<N>(e, prev, skip, weight);
            lks_floats<N> dskip;
            for (int j = 0; j < N; j++) {
                dx.at[j] += lks_norm_grad(dnorm.at[j], x.at[j], rms, m);
                dmix.at[j] = fmaf(dx.at[j], in.at[j], dmix.at[j]);
                dmix0.at[j] = fmaf(dx.at[j], x0.at[j], dmix0.at[j]);
                dx0.at[j] += mix0.at[j] * dx.at[j];
                dx.at[j] *= mix.at[j];
                dweight.at[j] = fmaf(dx.at[j], skip.at[j], dweight.at[j]);
                dskip.at[j] = weight.at[j] * dx.at[j];
            }
            lks_store<N>(g.dx + at, dx);
            lks_store<N>(g.dx0 + at, dx0);
            if (e.skip != NULL)
                lks_store<N>(g.dskip + at, dskip);
        }
        if (g.partial != NULL) {
            float *line = g.partial + (size_t)blockIdx.x * MAX_VECTORS * C + c;
            lks_store<N>(line, dmix);
            lks_store<N>(line + C, dmix0);
            lks_store<N>(line + 2 * C, dweight);
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
    const dim3 columns(lks_row_threads(C, fours));
    const double n = (double)(rows * C), sums = lines != NULL ? (double)(lks_slabs(rows) * C) : 0;
    lks__cuda_count(
        ex, (e->skip != NULL ? 10 : 8) * lks_act_bytes(halves) * n + 4.0 * MAX_VECTORS * sums,
        (e->skip != NULL ? 23 : 18) * n);
    LKS_LAUNCH_ACTS(golf_entry_bwd, halves, fours, dim3((unsigned)lks_slabs(rows)), columns,
                    lks__cuda_stream(ex), entry_of<E>(*e),
                    (entry_grads<E>{LKS_ACTS(E, dx), LKS_ACTS(E, dx0), LKS_ACTS(E, dskip),
                                    LKS_ACTS(const E, dnorm), lines}),
                    rows, C);
    if (dmix != NULL)
        lks__cuda_column_sums(ex, dmix, partial, MAX_VECTORS * C, lks_slabs(rows), 2 * C);
    if (dskip_weight != NULL)
        lks__cuda_column_sums(ex, dskip_weight, partial + 2 * C, MAX_VECTORS * C, lks_slabs(rows),
                              C);
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

template <typename E, int N>
static __global__ void golf_branch_bwd(branch<E> b, size_t rows, size_t C)
{
    const size_t r = lks_warp_index();
    if (r >= rows)
        return;
    float rms = 0.0f, mean = 0.0f;
    if (b.dnorm != NULL) {
        rms = b.rms[r];
        mean = norm_mean<N>(b.dnorm + r * C, b.normed + r * C, rms, C);
    }
    for (size_t i = first_of_lane<N>(); i < C; i += LKS_WARP * N) {
        const size_t at = r * C + i;
        lks_floats<N> dx = lks_load<N>(b.dx + at), dy = lks_load<N>(b.scale + i);
        if (b.dnorm != NULL) {
            const lks_floats<N> d = lks_load<N>(b.dnorm + at), x = lks_load<N>(b.normed + at);
            for (int j = 0; j < N; j++)
                dx.at[j] += lks_norm_grad(d.at[j], x.at[j], rms, mean);
        }
        if (b.add != NULL) {
            const lks_floats<N> add = lks_load<N>(b.add + at);
            for (int j = 0; j < N; j++)
                dx.at[j] += add.at[j];
        }
        for (int j = 0; j < N; j++)
            dy.at[j] *= dx.at[j];
        if (b.dnorm != NULL || b.add != NULL)
            lks_store<N>(b.dx + at, dx);
        lks_store<N>(b.dy + at, dy);
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
    LKS_LAUNCH_ACTS(golf_branch_bwd, halves, fours, lks_warps_grid(rows), lks_warps_block,
                    lks__cuda_stream(ex), branch_of<E>(*b), rows, C);
}

template <int N> static __global__ void golf_scaled_bwd(lks__golf_scaled s, size_t C, size_t in)
{
    const size_t r = lks_warp_index();
    if (r >= C)
        return;
    const float scale = s.scale[r];
    float sum = 0.0f;
    for (size_t i = first_of_lane<N>(); i < in; i += LKS_WARP * N) {
        const lks_floats<N> product = lks_load<N>(s.product + r * in + i);
        if (s.dscale != NULL) {
            const lks_floats<N> w = lks_load<N>(s.w + r * in + i);
            for (int j = 0; j < N; j++)
                sum = fmaf(w.at[j], product.at[j], sum);
        }
        if (s.dw != NULL) {
            lks_floats<N> dw = {};
            if (!s.fresh)
                dw = lks_load<N>(s.dw + r * in + i);
            for (int j = 0; j < N; j++)
                dw.at[j] += scale * product.at[j];
            lks_store<N>(s.dw + r * in + i, dw);
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
    lks__cuda_count(ex, (s->fresh ? 12.0 : 16.0) * (double)(C * in), 4.0 * (double)(C * in));
    LKS_LAUNCH_FOURS(golf_scaled_bwd, fours, lks_warps_grid(C), lks_warps_block,
                     lks__cuda_stream(ex), *s, C, in);
}
