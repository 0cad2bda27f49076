/* parameter-golf's operations on rows: src/compute/cuda/kernels/golf.cu, with activations in
 * float32 and in bfloat16. Each result is compared with its formula in double, with the CPU's
 * operation on what is stored, and with its own bits in other orders. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "host.h"

/* One row and one column, less than a warp's step; a slab and a rest; a step and a rest. */
static const struct {
    size_t rows, C;
} shapes[] = {{1, 1}, {3, 2}, {17, 12}, {33, 37}, {18, 516}, {2, 1101}};
#ifdef LKS_TEST_THREAD
enum { SHAPES = 4 };
#else
enum { SHAPES = sizeof shapes / sizeof *shapes };
#endif

/* What the CPU would have given if it stored activations as the device does. */
static void assert_close_stored(const float *got, const float *cpu, size_t n)
{
    assert_close_floats(got, host_as_stored(cpu, n), n, host_tolerance());
}

static void assert_bits_stored(const float *got, const float *cpu, size_t n)
{
    assert_bits(got, host_as_stored(cpu, n), n);
}

/* In the first order, keep the bits; in others they must be the same. */
static void same(unsigned seed, float **first, const float *got, size_t n)
{
    if (seed == 0)
        *first = host_copy(got, n);
    else
        assert_bits(got, *first, n);
}

/* --- formulas --------------------------------------------------------------------------------- */

static double reciprocal_rms(const double *x, size_t n)
{
    double squares = 0.0;
    for (size_t j = 0; j < n; j++)
        squares += x[j] * x[j];
    return 1.0 / sqrt(squares / (double)n + (double)FLT_EPSILON);
}

/* dx = the gradient of a norm of x, whose output has gradient dy. */
static void norm_grad(double *dx, const double *dy, const double *x, size_t n)
{
    const double r = reciprocal_rms(x, n);
    double mean = 0.0;
    for (size_t j = 0; j < n; j++)
        mean += dy[j] * x[j] * r / (double)n;
    for (size_t j = 0; j < n; j++)
        dx[j] = r * (dy[j] - x[j] * r * mean);
}

/* --- norms ------------------------------------------------------------------------------------ */

/* Uniform in [-size, size). */
static float *randoms(size_t n, unsigned seed, float size)
{
    float *x = host_randoms(n, seed);
    for (size_t i = 0; i < n; i++)
        x[i] *= size;
    return x;
}

static void check_norms(size_t rows, size_t C, float size)
{
    enum { V = 5 };
    const size_t n = rows * C;
    const float *x = host_as_stored(randoms(n, 1, size), n), *emb = randoms(V * C, 2, size);
    const float *dy = host_as_stored(host_randoms(n, 3), n);
    const lks__act *x_acts = host_acts(x, n), *dy_acts = host_acts(dy, n);
    const int32_t *tokens = host_tokens(rows, V, 4);
    const float *demb_before = host_randoms(V * C, 5);
    double *y_want = host_doubles(n), *dx_want = host_doubles(n), *ey_want = host_doubles(n);
    double *edx_want = host_doubles(n), *demb_want = host_wide(demb_before, V * C);
    double *rms_want = host_doubles(rows);
    for (size_t r = 0; r < rows; r++) {
        const double *wide = host_wide(x + r * C, C), *wide_dy = host_wide(dy + r * C, C);
        const double *wide_emb = host_wide(emb + (size_t)tokens[r] * C, C);
        rms_want[r] = reciprocal_rms(wide, C);
        for (size_t j = 0; j < C; j++) {
            y_want[r * C + j] = wide[j] * rms_want[r];
            ey_want[r * C + j] = wide_emb[j] * reciprocal_rms(wide_emb, C);
        }
        norm_grad(dx_want + r * C, wide_dy, wide, C);
        norm_grad(edx_want + r * C, wide_dy, wide_emb, C);
        for (size_t j = 0; j < C; j++)
            demb_want[(size_t)tokens[r] * C + j] += edx_want[r * C + j];
    }
    float *firsts[5];
    EACH_ORDER(seed)
    {
        lks__act *y_acts = host_empty_acts(n), *dx_acts = host_empty_acts(n);
        lks__act *ey_acts = host_empty_acts(n), *d_row_acts = host_empty_acts(n);
        float *rms = host_floats(rows), *erms = host_floats(rows);
        float *demb = host_copy(demb_before, V * C);
        lks__cuda_golf_norm_fwd(NULL, y_acts, rms, x_acts, rows, C);
        lks__cuda_golf_norm_bwd(NULL, dx_acts, dy_acts, x_acts, rms, rows, C);
        lks__cuda_golf_embed_fwd(NULL, ey_acts, erms, tokens, emb, rows, C);
        lks__cuda_golf_embed_bwd(NULL, demb, d_row_acts, dy_acts, tokens, emb, erms, rows, C);
        const float *y = host_act_floats(y_acts, n), *dx = host_act_floats(dx_acts, n);
        const float *ey = host_act_floats(ey_acts, n), *d_row = host_act_floats(d_row_acts, n);
        assert_close(y, y_want, n, host_tolerance());
        assert_close(rms, rms_want, rows, 1e-5);
        assert_close(dx, dx_want, n, host_tolerance());
        assert_close(ey, ey_want, n, host_tolerance());
        assert_close(d_row, edx_want, n, host_tolerance());
        assert_close(demb, demb_want, V * C, host_tolerance());
        same(seed, &firsts[0], y, n);
        same(seed, &firsts[1], dx, n);
        same(seed, &firsts[2], ey, n);
        same(seed, &firsts[3], demb, V * C);
        same(seed, &firsts[4], rms, rows);
    }
    const bool halves = host_halves(false);
    lks__act *y = host_empty_acts(n), *dx = host_empty_acts(n);
    float *rms = host_floats(rows);
    lks__layers_cpu.golf_norm_fwd(host_exec(), y, rms, host_acts(x, n), rows, C);
    lks__layers_cpu.golf_norm_bwd(host_exec(), dx, host_acts(dy, n), host_acts(x, n), rms, rows, C);
    const float *cpu_y = host_act_floats(y, n), *cpu_dx = host_act_floats(dx, n);
    host_halves(halves);
    assert_close_stored(firsts[0], cpu_y, n);
    assert_close_stored(firsts[1], cpu_dx, n);
    assert_close_floats(firsts[4], rms, rows, 1e-5);
}

HOST_TEST(test_norms)
{
    for (size_t s = 0; s < SHAPES; s++)
        check_norms(shapes[s].rows, shapes[s].C, 1.0f);
    check_norms(3, 5, 1e-4f); /* squares of the order of the norm's epsilon */
}

/* Rows that can't be moved by fours are added up in another order. */
HOST_TEST(test_places)
{
    enum { ROWS = 3, C = 132, N = ROWS * C };
    const float *x = host_randoms(N, 1);
    lks__act *want = host_empty_acts(N);
    float *want_rms = host_floats(ROWS);
    lks__cuda_golf_norm_fwd(NULL, want, want_rms, host_acts(x, N), ROWS, C);
    for (size_t at = 1; at < 4; at++) {
        float *moved = host_floats(N + at), *rms = host_floats(ROWS);
        memcpy(moved + at, x, N * sizeof *x);
        lks__act *y = host_act_at(host_empty_acts(N + at), at);
        lks__cuda_golf_norm_fwd(NULL, y, rms, host_act_at(host_acts(moved, N + at), at), ROWS, C);
        assert_close_floats(host_act_floats(y, N), host_act_floats(want, N), N, host_tolerance());
        assert_close_floats(rms, want_rms, ROWS, 1e-6);
    }
}

/* --- a block's entry -------------------------------------------------------------------------- */

struct entry {
    size_t rows, C;
    bool skip;
    const float *prev, *other, *x0, *mix, *weight;  /* other: what the skip brings */
    const float *dx, *dx0, *dnorm, *dmix, *dweight; /* before backward */
};

/* What both ways make of it, in floats. */
struct entry_results {
    float *x, *norm, *rms, *dx, *dx0, *dmix, *dskip, *dweight;
};

static struct entry entry_make(size_t rows, size_t C, bool skip)
{
    const size_t n = rows * C;
    return (struct entry){.rows = rows,
                          .C = C,
                          .skip = skip,
                          .prev = host_as_stored(host_randoms(n, 1), n),
                          .other = host_as_stored(host_randoms(n, 2), n),
                          .x0 = host_as_stored(host_randoms(n, 3), n),
                          .mix = host_randoms(2 * C, 4),
                          .weight = host_randoms(C, 5),
                          .dx = host_as_stored(host_randoms(n, 6), n),
                          .dx0 = host_as_stored(host_randoms(n, 7), n),
                          .dnorm = host_as_stored(host_randoms(n, 8), n),
                          .dmix = host_randoms(2 * C, 9),
                          .dweight = host_randoms(C, 10)};
}

static struct entry_results entry_run(const lks__layers *layers, const lks__exec *ex,
                                      const struct entry *t)
{
    const size_t n = t->rows * t->C;
    lks__act *dx = host_acts(t->dx, n), *dx0 = host_acts(t->dx0, n), *dskip = host_empty_acts(n);
    struct entry_results r = {.rms = host_floats(t->rows),
                              .dmix = host_copy(t->dmix, 2 * t->C),
                              .dweight = host_copy(t->dweight, t->C)};
    const lks__golf_entry e = {.prev = host_acts(t->prev, n),
                               .skip = t->skip ? host_acts(t->other, n) : NULL,
                               .x0 = host_acts(t->x0, n),
                               .mix = t->mix,
                               .skip_weight = t->skip ? t->weight : NULL,
                               .x = host_empty_acts(n),
                               .norm = host_empty_acts(n),
                               .rms = r.rms};
    layers->golf_entry_fwd(ex, &e, t->rows, t->C);
    r.x = host_act_floats(e.x, n); /* backward may overwrite it */
    r.norm = host_act_floats(e.norm, n);
    layers->golf_entry_bwd(ex, &e, dx, dx0, r.dmix, t->skip ? dskip : NULL,
                           t->skip ? r.dweight : NULL, host_acts(t->dnorm, n), t->rows, t->C,
                           host_floats(layers->golf_partial_floats(t->rows, t->C, 1)));
    r.dx = host_act_floats(dx, n);
    r.dx0 = host_act_floats(dx0, n);
    r.dskip = host_act_floats(dskip, n);
    return r;
}

static const lks__layers cuda = {
    .golf_entry_fwd = lks__cuda_golf_entry_fwd,
    .golf_entry_bwd = lks__cuda_golf_entry_bwd,
    .golf_branch_bwd = lks__cuda_golf_branch_bwd,
    .golf_scaled_bwd = lks__cuda_golf_scaled_bwd,
    .golf_heads_fwd = lks__cuda_golf_heads_fwd,
    .golf_heads_bwd = lks__cuda_golf_heads_bwd,
    .golf_partial_floats = lks__cuda_golf_partial_floats,
};

static void check_entry(size_t rows, size_t C, bool skip)
{
    const struct entry t = entry_make(rows, C, skip);
    const size_t n = rows * C;
    double *x = host_doubles(n), *norm = host_doubles(n), *dx = host_doubles(n),
           *dskip = host_doubles(n);
    double *dx0 = host_wide(t.dx0, n), *dmix = host_wide(t.dmix, 2 * C);
    double *dweight = host_wide(t.dweight, C), *rms = host_doubles(rows);
    for (size_t r = 0; r < rows; r++) {
        double *in = host_doubles(C), *wide_dnorm = host_wide(t.dnorm + r * C, C),
               *d = host_doubles(C);
        float *stored = host_floats(C);
        for (size_t j = 0; j < C; j++) {
            const size_t i = r * C + j;
            in[j] = (double)t.prev[i];
            if (skip)
                in[j] += (double)t.weight[j] * (double)t.other[i];
            x[i] = (double)t.mix[j] * in[j] + (double)t.mix[C + j] * (double)t.x0[i];
            stored[j] = (float)x[i];
        }
        const double *of_norm = host_wide(host_as_stored(stored, C), C); /* x as it is read again */
        rms[r] = reciprocal_rms(of_norm, C);
        norm_grad(d, wide_dnorm, of_norm, C);
        for (size_t j = 0; j < C; j++) {
            const size_t i = r * C + j;
            norm[i] = of_norm[j] * rms[r];
            d[j] += (double)t.dx[i];
            dmix[j] += d[j] * in[j];
            dmix[C + j] += d[j] * (double)t.x0[i];
            dx0[i] += d[j] * (double)t.mix[C + j];
            dx[i] = d[j] * (double)t.mix[j];
            dweight[j] += dx[i] * (double)t.other[i];
            dskip[i] = dx[i] * (double)t.weight[j];
        }
    }
    struct entry_results first;
    EACH_ORDER(seed)
    {
        const struct entry_results got = entry_run(&cuda, NULL, &t);
        assert_close(got.x, x, n, host_tolerance());
        assert_close(got.norm, norm, n, host_tolerance());
        assert_close(got.rms, rms, rows, 1e-5);
        assert_close(got.dx, dx, n, host_tolerance());
        assert_close(got.dx0, dx0, n, host_tolerance());
        assert_close(got.dmix, dmix, 2 * C, 1e-5);
        if (skip) {
            assert_close(got.dskip, dskip, n, host_tolerance());
            assert_close(got.dweight, dweight, C, 1e-5);
        }
        same(seed, &first.x, got.x, n);
        same(seed, &first.norm, got.norm, n);
        same(seed, &first.rms, got.rms, rows);
        same(seed, &first.dx, got.dx, n);
        same(seed, &first.dx0, got.dx0, n);
        same(seed, &first.dmix, got.dmix, 2 * C);
        same(seed, &first.dskip, got.dskip, n);
        same(seed, &first.dweight, got.dweight, C);
    }
    const bool halves = host_halves(false);
    const struct entry_results cpu = entry_run(&lks__layers_cpu, host_exec(), &t);
    host_halves(halves);
    assert_bits_stored(first.x, cpu.x, n); /* no sum is in it */
    if (halves)
        return; /* the CPU's norm is that of x before it is rounded */
    assert_close_floats(first.norm, cpu.norm, n, host_tolerance());
    assert_close_floats(first.dx, cpu.dx, n, host_tolerance());
    assert_close_floats(first.dx0, cpu.dx0, n, host_tolerance());
    assert_close_floats(first.dmix, cpu.dmix, 2 * C, 1e-5);
    assert_close_floats(first.dweight, cpu.dweight, C, 1e-5);
    if (skip)
        assert_close_floats(first.dskip, cpu.dskip, n, host_tolerance());
}

HOST_TEST(test_entry)
{
    for (size_t s = 0; s < SHAPES; s++) {
        check_entry(shapes[s].rows, shapes[s].C, false);
        check_entry(shapes[s].rows, shapes[s].C, true);
    }
}

/* Without gradients of vectors, the others have the same bits, and the work space isn't touched. */
HOST_TEST(test_entry_frozen)
{
    enum { ROWS = 19, C = 8, N = ROWS * C };
    const struct entry t = entry_make(ROWS, C, true);
    const struct entry_results want = entry_run(&cuda, NULL, &t);
    for (int wanted = 0; wanted < 3; wanted++) {
        lks__act *dx = host_acts(t.dx, N), *dx0 = host_acts(t.dx0, N), *dskip = host_empty_acts(N);
        float *dmix = host_copy(t.dmix, 2 * C), *dweight = host_copy(t.dweight, C);
        const lks__golf_entry e = {.prev = host_acts(t.prev, N),
                                   .skip = host_acts(t.other, N),
                                   .x0 = host_acts(t.x0, N),
                                   .mix = t.mix,
                                   .skip_weight = t.weight,
                                   .x = host_acts(want.x, N),
                                   .norm = host_acts(want.norm, N),
                                   .rms = host_copy(want.rms, ROWS)};
        float *partial = host_floats(lks__cuda_golf_partial_floats(ROWS, C, 1));
        lks__cuda_golf_entry_bwd(NULL, &e, dx, dx0, wanted == 1 ? dmix : NULL, dskip,
                                 wanted == 2 ? dweight : NULL, host_acts(t.dnorm, N), ROWS, C,
                                 wanted == 0 ? NULL : partial);
        assert_bits(host_act_floats(dx, N), want.dx, N);
        assert_bits(host_act_floats(dx0, N), want.dx0, N);
        assert_bits(host_act_floats(dskip, N), want.dskip, N);
        assert_bits(dmix, wanted == 1 ? want.dmix : t.dmix, 2 * C);
        assert_bits(dweight, wanted == 2 ? want.dweight : t.dweight, C);
    }
}

/* --- a branch of a block ---------------------------------------------------------------------- */

struct branch {
    size_t rows, C;
    const float *dx, *scale, *dnorm, *normed, *rms, *add; /* dnorm, normed, add: or NULL */
};

struct branch_results {
    float *dx, *dy;
};

static struct branch_results branch_run(const lks__layers *layers, const lks__exec *ex,
                                        const struct branch *t)
{
    const size_t n = t->rows * t->C;
    const lks__golf_branch b = {.dx = host_acts(t->dx, n),
                                .dy = host_empty_acts(n),
                                .scale = t->scale,
                                .dnorm = t->dnorm != NULL ? host_acts(t->dnorm, n) : NULL,
                                .normed = t->normed != NULL ? host_acts(t->normed, n) : NULL,
                                .rms = t->rms,
                                .add = t->add != NULL ? host_acts(t->add, n) : NULL};
    layers->golf_branch_bwd(ex, &b, t->rows, t->C);
    return (struct branch_results){host_act_floats(b.dx, n), host_act_floats(b.dy, n)};
}

static void check_branch(size_t rows, size_t C, bool norm, bool add)
{
    const size_t n = rows * C;
    const float *dnorm = host_as_stored(host_randoms(n, 3), n);
    const float *normed = host_as_stored(host_randoms(n, 4), n);
    const float *added = host_as_stored(host_randoms(n, 5), n);
    float *rms = host_floats(rows);
    const struct branch t = {.rows = rows,
                             .C = C,
                             .dx = host_as_stored(host_randoms(n, 1), n),
                             .scale = host_randoms(C, 2),
                             .dnorm = norm ? dnorm : NULL,
                             .normed = norm ? normed : NULL,
                             .rms = norm ? rms : NULL,
                             .add = add ? added : NULL};
    double *dx_want = host_wide(t.dx, n), *dy_want = host_doubles(n);
    for (size_t r = 0; r < rows; r++) {
        double *d = host_doubles(C);
        const double *wide = host_wide(normed + r * C, C);
        rms[r] = (float)reciprocal_rms(wide, C);
        norm_grad(d, host_wide(dnorm + r * C, C), wide, C);
        for (size_t j = 0; j < C; j++) {
            dx_want[r * C + j] += (norm ? d[j] : 0.0) + (add ? (double)added[r * C + j] : 0.0);
            dy_want[r * C + j] = dx_want[r * C + j] * (double)t.scale[j];
        }
    }
    struct branch_results first;
    EACH_ORDER(seed)
    {
        const struct branch_results got = branch_run(&cuda, NULL, &t);
        assert_close(got.dx, dx_want, n, host_tolerance());
        assert_close(got.dy, dy_want, n, host_tolerance());
        same(seed, &first.dx, got.dx, n);
        same(seed, &first.dy, got.dy, n);
    }
    const bool halves = host_halves(false);
    const struct branch_results cpu = branch_run(&lks__layers_cpu, host_exec(), &t);
    host_halves(halves);
    assert_close_stored(first.dx, cpu.dx, n);
    if (!norm) { /* no sum is in them */
        assert_bits_stored(first.dx, cpu.dx, n);
        assert_bits_stored(first.dy, cpu.dy, n);
    }
}

HOST_TEST(test_branch)
{
    for (size_t s = 0; s < SHAPES; s++)
        for (int kind = 0; kind < 4; kind++)
            check_branch(shapes[s].rows, shapes[s].C, kind % 2 == 1, kind / 2 == 1);
}

static void check_scaled(size_t C, size_t in, bool has_dw, bool has_dscale)
{
    const size_t n = C * in;
    const float *product = host_randoms(n, 1), *w = host_randoms(n, 2), *scale = host_randoms(C, 3);
    const float *dw_before = host_randoms(n, 4), *dscale_before = host_randoms(C, 5);
    double *dw_want = host_wide(dw_before, n), *dscale_want = host_wide(dscale_before, C);
    for (size_t i = 0; i < n; i++) {
        if (has_dw)
            dw_want[i] += (double)scale[i / in] * (double)product[i];
        if (has_dscale)
            dscale_want[i / in] += (double)w[i] * (double)product[i];
    }
    float *first[2] = {NULL};
    EACH_ORDER(seed)
    {
        float *dw = host_copy(dw_before, n), *dscale = host_copy(dscale_before, C);
        const lks__golf_scaled s = {
            has_dw ? dw : NULL, has_dscale ? dscale : NULL, product, w, scale, false};
        lks__cuda_golf_scaled_bwd(NULL, &s, C, in);
        assert_close(dw, dw_want, n, 1e-5);
        assert_close(dscale, dscale_want, C, 1e-5);
        same(seed, &first[0], dw, n);
        same(seed, &first[1], dscale, C);
    }
    float *dw = host_copy(dw_before, n), *dscale = host_copy(dscale_before, C);
    const lks__golf_scaled s = {
        has_dw ? dw : NULL, has_dscale ? dscale : NULL, product, w, scale, false};
    lks__layers_cpu.golf_scaled_bwd(host_exec(), &s, C, in);
    assert_bits(first[0], dw, n); /* no sum is in them */
    assert_close_floats(first[1], dscale, C, 1e-5);
}

TEST(test_scaled)
{
    for (size_t s = 0; s < SHAPES; s++)
        for (int kind = 0; kind < 4; kind++)
            check_scaled(shapes[s].rows, shapes[s].C, kind % 2 == 1, kind / 2 == 1);
}

/* --- queries and keys ------------------------------------------------------------------------- */

struct heads {
    lks__golf_heads h; /* its activations and outputs are new for each run */
    size_t nq, nk;     /* elements of q and k */
    const float *q_raw, *k_raw, *dq, *dk, *dgain;
};

struct heads_results {
    float *q, *k, *q_rms, *k_rms, *dq, *dk, *dgain;
};

static struct heads heads_make(size_t B, size_t T, size_t n_head, size_t n_kv_head, size_t hs)
{
    const size_t rows = B * T, nq = rows * n_head * hs, nk = rows * n_kv_head * hs;
    float *cosine = host_floats(T * hs / 2), *sine = host_floats(T * hs / 2);
    for (size_t i = 0; i < T * hs / 2; i++) {
        cosine[i] = cosf((float)i);
        sine[i] = sinf((float)i);
    }
    return (struct heads){.h = {.rows = rows,
                                .T = T,
                                .n_head = n_head,
                                .n_kv_head = n_kv_head,
                                .hs = hs,
                                .cosine = cosine,
                                .sine = sine,
                                .gain = host_randoms(n_head, 1)},
                          .nq = nq,
                          .nk = nk,
                          .q_raw = host_as_stored(host_randoms(nq, 2), nq),
                          .k_raw = host_as_stored(host_randoms(nk, 3), nk),
                          .dq = host_as_stored(host_randoms(nq, 4), nq),
                          .dk = host_as_stored(host_randoms(nk, 5), nk),
                          .dgain = host_randoms(n_head, 6)};
}

static struct heads_results heads_run(const lks__layers *layers, const lks__exec *ex,
                                      const struct heads *t, bool has_dgain)
{
    struct heads_results r = {.q_rms = host_floats(t->h.rows * t->h.n_head),
                              .k_rms = host_floats(t->h.rows * t->h.n_kv_head),
                              .dgain = host_copy(t->dgain, t->h.n_head)};
    lks__act *dq = host_acts(t->dq, t->nq), *dk = host_acts(t->dk, t->nk);
    lks__golf_heads h = t->h;
    h.q_raw = host_acts(t->q_raw, t->nq);
    h.k_raw = host_acts(t->k_raw, t->nk);
    h.q = host_empty_acts(t->nq);
    h.k = host_empty_acts(t->nk);
    h.q_rms = r.q_rms;
    h.k_rms = r.k_rms;
    layers->golf_heads_fwd(ex, &h);
    layers->golf_heads_bwd(ex, &h, dq, dk, has_dgain ? r.dgain : NULL,
                           host_floats(layers->golf_partial_floats(h.rows, 1, h.n_head)));
    r.q = host_act_floats(h.q, t->nq);
    r.k = host_act_floats(h.k, t->nk);
    r.dq = host_act_floats(dq, t->nq);
    r.dk = host_act_floats(dk, t->nk);
    return r;
}

/* One head of a row: y and dx from x and dy. Returns the gain's gradient. */
static double head_formula(double *y, double *dx, const float *x, const float *dy,
                           const float *cosine, const float *sine, double gain, size_t hs)
{
    const size_t half = hs / 2;
    double *wide = host_wide(x, hs), *d = host_doubles(hs), sum = 0.0;
    const double r = reciprocal_rms(wide, hs);
    for (size_t j = 0; j < half; j++) {
        const double c = (double)cosine[j], s = (double)sine[j];
        const double p = (double)dy[j], q = (double)dy[j + half];
        y[j] = gain * r * (wide[j] * c + wide[j + half] * s);
        y[j + half] = gain * r * (wide[j + half] * c - wide[j] * s);
        sum += p * y[j] / gain + q * y[j + half] / gain;
        d[j] = gain * (p * c - q * s); /* of the norm's output */
        d[j + half] = gain * (p * s + q * c);
    }
    norm_grad(dx, d, wide, hs);
    return sum;
}

static void check_heads(size_t B, size_t T, size_t n_head, size_t n_kv_head, size_t hs)
{
    const struct heads t = heads_make(B, T, n_head, n_kv_head, hs);
    double *q = host_doubles(t.nq), *k = host_doubles(t.nk), *dq = host_doubles(t.nq),
           *dk = host_doubles(t.nk);
    double *dgain = host_wide(t.dgain, n_head);
    for (size_t r = 0; r < B * T; r++) {
        const float *cosine = t.h.cosine + r % T * (hs / 2), *sine = t.h.sine + r % T * (hs / 2);
        for (size_t i = 0; i < n_head; i++) {
            const size_t at = (r * n_head + i) * hs;
            dgain[i] += head_formula(q + at, dq + at, t.q_raw + at, t.dq + at, cosine, sine,
                                     (double)t.h.gain[i], hs);
        }
        for (size_t i = 0; i < n_kv_head; i++) {
            const size_t at = (r * n_kv_head + i) * hs;
            head_formula(k + at, dk + at, t.k_raw + at, t.dk + at, cosine, sine, 1.0, hs);
        }
    }
    struct heads_results first;
    EACH_ORDER(seed)
    {
        const struct heads_results got = heads_run(&cuda, NULL, &t, true);
        assert_close(got.q, q, t.nq, host_tolerance());
        assert_close(got.k, k, t.nk, host_tolerance());
        assert_close(got.dq, dq, t.nq, host_tolerance());
        assert_close(got.dk, dk, t.nk, host_tolerance());
        assert_close(got.dgain, dgain, n_head, 1e-5);
        same(seed, &first.q, got.q, t.nq);
        same(seed, &first.k, got.k, t.nk);
        same(seed, &first.dq, got.dq, t.nq);
        same(seed, &first.dk, got.dk, t.nk);
        same(seed, &first.dgain, got.dgain, n_head);
    }
    const struct heads_results frozen = heads_run(&cuda, NULL, &t, false);
    assert_bits(frozen.dq, first.dq, t.nq);
    assert_bits(frozen.dk, first.dk, t.nk);
    assert_bits(frozen.dgain, t.dgain, n_head);
    const bool halves = host_halves(false);
    const struct heads_results cpu = heads_run(&lks__layers_cpu, host_exec(), &t, true);
    host_halves(halves);
    assert_close_stored(first.q, cpu.q, t.nq);
    assert_close_stored(first.k, cpu.k, t.nk);
    assert_close_stored(first.dq, cpu.dq, t.nq);
    assert_close_stored(first.dk, cpu.dk, t.nk);
    assert_close_floats(first.dgain, cpu.dgain, n_head, 1e-5);
}

HOST_TEST(test_heads)
{
    check_heads(1, 1, 1, 1, 2);
    check_heads(2, 17, 4, 2, 6);
    check_heads(1, 10, 9, 3, 64);
    check_heads(3, 7, 2, 1, 70);
}
