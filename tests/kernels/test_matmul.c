/* The products of a linear layer (compute/cpu/layers.h) with the shapes of models, against sums in
 * double: every row at some columns, every column at some rows, so that every tile and panel is
 * checked. In float32 and in bfloat16. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "compute/cpu/layers.h"
#include "kernels/guard.h"

static lks__kernels kernels, reference;

typedef struct shape {
    size_t rows, out, in;
    size_t pad; /* of y and dy: their rows are this much longer than `out` */
} shape;

/* An inner dimension above 1,792 is added in panels, if the strides are those that slow down the
 * GEMM library: a multiple of 128 for dy (weights' gradients), of 512 for w (bwd_x). */
static const shape large[] = {
    {1793, 256, 257, 0}, /* one panel and one row more */
    {257, 1793, 512, 0}, /* dx, in the same way */
    {1792, 256, 257, 0}, /* one panel exactly */
    {1800, 384, 384, 0}, /* nanoGPT's width: dw over 1,800 rows in two panels */
    {1800, 256, 768, 0}, /* GPT-2's */
    {260, 3700, 512, 0}, /* dx over 3,700 outputs in three panels */
};
static const shape small[] = {
    {1793, 385, 129, 0},  {129, 1793, 385, 0}, {385, 129, 1793, 0},
    {513, 1000, 256, 24}, /* the layout of the head's logits: rows 1,024 apart */
    {1, 2304, 384, 0},    {1, 1, 1, 0},        {2, 3, 5, 1},
    {17, 129, 31, 3},     {300, 64, 16, 0},
};
enum {
    N_LARGE = sizeof large / sizeof large[0],
    N_SMALL = sizeof small / sizeof small[0],
    N_LONG = 4 /* the first small ones, which take long with plain kernels */
};

/* Everything that the products of one shape read. */
struct operands {
    shape s;
    size_t ld; /* of y and dy */
    float *x, *w, *dy;
};

static float *filled(size_t n, unsigned seed)
{
    float *x = lks_test_malloc(n * sizeof *x);
    fill_random(x, n, 1.0f, seed);
    return x;
}

static struct operands operands_of(const shape *s)
{
    struct operands o = {.s = *s, .ld = s->out + s->pad};
    o.x = filled(s->rows * s->in, 1);
    o.w = filled(s->out * s->in, 2);
    o.dy = filled(s->rows * o.ld, 3);
    return o;
}

static void operands_free(struct operands *o)
{
    lks_test_free(o->x, o->w, o->dy);
}

/* ---- the reference ----------------------------------------------------------------------- */

/* A matrix, or its transpose, as the definition of a product reads it: element (i, p). */
typedef struct view {
    const float *x;
    size_t row, inner; /* strides */
} view;

/* c = start + a b: element (i, j) is the sum over p < k of a(i, p) b(j, p). */
typedef struct expected {
    const char *what;
    size_t m, n, k;
    view a, b;
    const float *start; /* [m, n], or NULL for 0 */
    const float *c;     /* the result, rows ldc apart */
    size_t ldc;
} expected;

static float seen(bool bf16, float x)
{
    return bf16 ? lks__bf16_to_float(lks__bf16_from_float(x)) : x;
}

/* Rounding error of an fp32 sum of k terms of random sign, in any order: about sqrt(k) half ulps of
 * the partial sums, which grow with the root mean square of the terms. Worst seen, over all shapes
 * and levels: 1.4 of epsilon * sqrt(k) * norm. With k = 1,793, a missing, extra or wrong term is
 * 1,500 times the tolerance. */
static double tolerance(double sumsq, size_t k)
{
    return 3.0 * 0x1p-23 * sqrt((double)k) * sqrt(sumsq);
}

static double worst; /* the largest error as a part of its tolerance */

static void check_element(const expected *e, const shape *s, bool bf16, size_t i, size_t j)
{
    double sum = 0.0, sumsq = 0.0;
    if (e->start != NULL) {
        sum = (double)e->start[i * e->n + j];
        sumsq = sum * sum;
    }
    for (size_t p = 0; p < e->k; p++) {
        double a = (double)seen(bf16, e->a.x[i * e->a.row + p * e->a.inner]);
        double product = a * (double)seen(bf16, e->b.x[j * e->b.row + p * e->b.inner]);
        sum += product;
        sumsq += product * product;
    }
    double got = (double)e->c[i * e->ldc + j], allowed = tolerance(sumsq, e->k + 1);
    worst = fmax(worst, fabs(got - sum) / allowed);
    if (!(fabs(got - sum) <= allowed))
        fail_msg("%s of %zu rows, out %zu, in %zu%s: element (%zu, %zu) is %.9g, not %.9g (off by "
                 "%.3g, allowed %.3g)",
                 e->what, s->rows, s->out, s->in, bf16 ? ", bf16" : "", i, j, got, sum,
                 fabs(got - sum), allowed);
}

/* Each row at two columns, each column at two rows, at places that depend on the number, and the
 * corners. Multipliers are odd primes, so neighbours are checked at distant places. */
static void check(const expected *e, const shape *s, bool bf16)
{
    for (size_t i = 0; i < e->m; i++)
        for (size_t t = 0; t < 2; t++)
            check_element(e, s, bf16, i, (i * 7919 + t * 104729) % e->n);
    for (size_t j = 0; j < e->n; j++)
        for (size_t t = 0; t < 2; t++)
            check_element(e, s, bf16, (j * 6271 + t * 15485863) % e->m, j);
    for (int corner = 0; corner < 4; corner++)
        check_element(e, s, bf16, corner & 1 ? e->m - 1 : 0, corner & 2 ? e->n - 1 : 0);
}

/* ---- the products ------------------------------------------------------------------------ */

/* Memory of which every element must be written: NaN at first. Padding must not be written: it
 * holds a mark that no product gives. */
static const float mark = -12345.0f;

static float *blank(size_t rows, size_t ld, size_t n)
{
    float *x = lks_test_malloc(rows * ld * sizeof *x);
    for (size_t i = 0; i < rows * ld; i++)
        x[i] = i % ld < n ? NAN : mark;
    return x;
}

static void check_padding(const float *x, size_t rows, size_t ld, size_t n)
{
    for (size_t i = 0; i < rows * ld; i++)
        assert_true(i % ld < n || x[i] == mark);
}

/* A product with an epilogue of any kind, and operands for all kinds. */
struct finished {
    size_t m, n, ld;
    float *y, *out; /* the product, and a second output */
    float *in, *bias, *scale;
    lks__dropout drop;
    lks__epilogue epilogue;
};

static struct finished finished_open(lks__epilogue_kind kind, size_t m, size_t n, size_t ld)
{
    struct finished f = {.m = m,
                         .n = n,
                         .ld = ld,
                         .y = blank(m, ld, n),
                         .out = blank(m, ld, n),
                         .in = filled(m * ld, 7),
                         .bias = filled(n, 8),
                         .scale = filled(n, 9),
                         .drop = {.key = lks__philox_key_of(1), .threshold = 1u << 30}};
    f.drop.scale = 4.0f / 3.0f;
    f.epilogue = (lks__epilogue){kind, f.bias, lks__acts(f.in), f.scale, lks__acts(f.out), NULL};
    return f;
}

static void finished_close(struct finished *f)
{
    lks_test_free(f->y, f->out, f->in, f->bias, f->scale);
}

/* Apply the epilogue to the plain product, in whole rows: `y` in place, and the second output if
 * the kind has one. */
static void finish(const struct finished *f, float *y, float *out)
{
    const lks__kernels *k = &kernels;
    const size_t n = f->n;
    for (size_t r = 0; r < f->m; r++) {
        float *row = y + r * f->ld, *second = out + r * f->ld;
        const float *in = f->in + r * f->ld;
        k->add_bias(row, f->ld, f->bias, 1, n);
        switch (f->epilogue.kind) {
        case LKS__EPILOGUE_NONE:
            break;
        case LKS__EPILOGUE_GELU:
            k->gelu_erf_fwd(second, row, n);
            break;
        case LKS__EPILOGUE_GELU_BWD:
            k->gelu_erf_bwd(row, row, in, n);
            break;
        case LKS__EPILOGUE_GELU_TANH:
            k->gelu_tanh_fwd(second, row, n);
            break;
        case LKS__EPILOGUE_GELU_TANH_BWD:
            k->gelu_tanh_bwd(row, row, in, n);
            break;
        case LKS__EPILOGUE_RELU2:
            k->relu2_fwd(second, row, n);
            break;
        case LKS__EPILOGUE_RELU2_BWD:
            k->relu2_bwd(row, row, in, n);
            break;
        case LKS__EPILOGUE_RESIDUAL:
            if (f->epilogue.drop != NULL)
                k->dropout(row, row, n, r * f->ld, f->epilogue.drop);
            k->add(row, in, n);
            break;
        case LKS__EPILOGUE_BRANCH:
            for (size_t c = 0; c < n; c++) {
                volatile float product = f->scale[c] * row[c]; /* rounded before the sum */
                second[c] = product + in[c];
            }
            break;
        }
    }
}

/* Check for the same bits as the plain product followed by the epilogue: so each element was
 * complete when the epilogue used it, and was used once. Padding stays. */
static void check_finished(const struct finished *f, const float *plain)
{
    const size_t bytes = f->m * f->ld * sizeof(float);
    float *y = lks_test_malloc(bytes), *out = blank(f->m, f->ld, f->n);
    memcpy(y, plain, bytes);
    finish(f, y, out);
    assert_memory_equal(f->y, y, bytes);
    assert_memory_equal(f->out, out, bytes);
    lks_test_free(y, out);
}

/* All kinds at small shapes; at large ones only the kind that needs most, because only tiles
 * differ. */
static int first_kind(const shape *s)
{
    bool is_small = s->rows * s->out * s->in < (size_t)4 << 20;
    return is_small ? LKS__EPILOGUE_NONE : LKS__EPILOGUE_RESIDUAL;
}

static int last_kind(const shape *s)
{
    return first_kind(s) == LKS__EPILOGUE_NONE ? LKS__EPILOGUE_BRANCH : LKS__EPILOGUE_RESIDUAL;
}

static void check_fwd(const lks__exec *ex, lks__linear_fwd_fn *linear, const struct operands *o,
                      bool with_epilogue)
{
    const shape *s = &o->s;
    float *y = blank(s->rows, o->ld, s->out);
    linear(ex, lks__acts(y), o->ld, lks__acts(o->x), o->w, s->rows, s->out, s->in, NULL);
    check(&(expected){.what = linear == lks__linear_fwd ? "fwd" : "fwd of a few rows",
                      .m = s->rows,
                      .n = s->out,
                      .k = s->in,
                      .a = {o->x, s->in, 1},
                      .b = {o->w, s->in, 1},
                      .c = y,
                      .ldc = o->ld},
          s, ex->bf16);
    check_padding(y, s->rows, o->ld, s->out);
    for (int kind = first_kind(s); with_epilogue && kind <= last_kind(s); kind++) {
        struct finished f = finished_open(kind, s->rows, s->out, o->ld);
        f.epilogue.drop = &f.drop;
        linear(ex, lks__acts(f.y), o->ld, lks__acts(o->x), o->w, s->rows, s->out, s->in,
               &f.epilogue);
        check_finished(&f, y);
        finished_close(&f);
    }
    free(y);
}

static void check_bwd_x(const lks__exec *ex, const struct operands *o, bool with_epilogue, bool add)
{
    const shape *s = &o->s;
    float *dx = blank(s->rows, s->in, s->in), *start = filled(s->rows * s->in, 4);
    if (add) {
        memcpy(dx, start, s->rows * s->in * sizeof *dx);
        lks__linear_bwd_x_add(ex, lks__acts(dx), lks__acts(o->dy), o->ld, o->w, s->rows, s->out,
                              s->in);
    } else {
        lks__linear_bwd_x(ex, lks__acts(dx), lks__acts(o->dy), o->ld, o->w, s->rows, s->out, s->in,
                          NULL);
    }
    check(&(expected){.what = add ? "bwd_x_add" : "bwd_x",
                      .m = s->rows,
                      .n = s->in,
                      .k = s->out,
                      .a = {o->dy, o->ld, 1},
                      .b = {o->w, 1, s->in},
                      .start = add ? start : NULL,
                      .c = dx,
                      .ldc = s->in},
          s, ex->bf16);
    for (int kind = first_kind(s); with_epilogue && kind <= last_kind(s); kind++) {
        struct finished f = finished_open(kind, s->rows, s->in, s->in);
        lks__linear_bwd_x(ex, lks__acts(f.y), lks__acts(o->dy), o->ld, o->w, s->rows, s->out, s->in,
                          &f.epilogue);
        check_finished(&f, dx);
        finished_close(&f);
    }
    lks_test_free(dx, start);
}

static void check_bwd_w(const lks__exec *ex, const struct operands *o, bool with_bias)
{
    const shape *s = &o->s;
    const bool fresh = !with_bias;
    float *start = filled(s->out * s->in, 5), *dw = lks_test_malloc(s->out * s->in * sizeof *dw);
    float *bias = filled(s->out, 6), *db = lks_test_malloc(s->out * sizeof *db);
    memcpy(dw, start, s->out * s->in * sizeof *dw);
    if (fresh) {
        memset(dw, 0xff, s->out * s->in * sizeof *dw);
        memset(start, 0, s->out * s->in * sizeof *start);
    }
    memcpy(db, bias, s->out * sizeof *db);
    lks__linear_bwd_w(ex, dw, with_bias ? db : NULL, lks__acts(o->dy), o->ld, lks__acts(o->x),
                      s->rows, s->out, s->in, fresh);
    check(&(expected){.what = "bwd_w",
                      .m = s->out,
                      .n = s->in,
                      .k = s->rows,
                      .a = {o->dy, 1, o->ld},
                      .b = {o->x, 1, s->in},
                      .start = start,
                      .c = dw,
                      .ldc = s->in},
          s, ex->bf16);
    if (!with_bias)
        assert_memory_equal(db, bias, s->out * sizeof *db);
    static const float one = 1.0f;
    if (with_bias) /* a product with ones; its sums are float32 in bf16 too */
        check(&(expected){.what = "db",
                          .m = s->out,
                          .n = 1,
                          .k = s->rows,
                          .a = {o->dy, 1, o->ld},
                          .b = {&one, 0, 0},
                          .start = bias,
                          .c = db,
                          .ldc = 1},
              s, false);
    lks_test_free(start, dw, bias, db);
}

/* ---- the tests --------------------------------------------------------------------------- */

static lks__exec open_exec(bool bf16, int n_threads, size_t scratch_bytes)
{
    lks__exec ex = {.k = &kernels, .bf16 = bf16};
    assert_ok(lks__pool_open(n_threads, scratch_bytes, lks__kernels_thread_init, &ex.pool));
    return ex;
}

static bool is_plain(const lks__exec *ex)
{
    return ex->k->gemm == reference.gemm;
}

/* How many of some large shapes: plain kernels take long, and panels are copied by the same code at
 * each level. Products in bfloat16 use no panels. */
static int some(const lks__exec *ex, int n)
{
    return is_plain(ex) ? !ex->bf16 : ex->bf16 ? 1 : n;
}

static void check_shape(const lks__exec *ex, const shape *s)
{
    struct operands o = operands_of(s);
    bool plain = s->pad > 0; /* with optional operands and without, alternately */
    check_fwd(ex, lks__linear_fwd, &o, !plain);
    if (s->rows < 20) /* what decoding takes at a time */
        check_fwd(ex, lks__linear_rows_fwd, &o, !plain);
    check_bwd_x(ex, &o, !plain, false);
    check_bwd_x(ex, &o, false, true);
    check_bwd_w(ex, &o, !plain);
    operands_free(&o);
}

static void check_all(bool bf16)
{
    worst = 0.0;
    lks__exec ex = open_exec(bf16, 2, LKS__EXEC_SCRATCH_BYTES);
    for (int i = 0; i < some(&ex, N_LARGE); i++)
        check_shape(&ex, &large[i]);
    for (size_t i = is_plain(&ex) ? N_LONG : 0; i < N_SMALL; i++)
        check_shape(&ex, &small[i]);
    lks__pool_close(ex.pool);
    print_message("worst error: %.2f of what is allowed\n", worst);
}

TEST(test_float32)
{
    check_all(false);
}

TEST(test_bf16)
{
    check_all(true);
}

/* Threads without room for a panel: the same products, without copies. */
TEST(test_no_room_for_panels)
{
    static const shape packed[] = {{1793, 256, 257, 0}, {257, 1793, 512, 0}};
    lks__exec ex = open_exec(false, 2, 4096);
    for (int i = 0; i < some(&ex, 2); i++)
        check_shape(&ex, &packed[i]);
    lks__pool_close(ex.pool);
}

/* No bit depends on the number of threads, and no row of the forward product depends on later
 * tiles. */
TEST(test_same_bits_for_any_threads)
{
    static const shape shapes[] = {
        {129, 385, 93, 5}, {513, 600, 64, 0}, {1793, 384, 257, 0}, {257, 1793, 512, 0}};
    const int n = kernels.gemm == reference.gemm ? 2 : 4;
    for (int which = 0; which < 2 * n; which++) {
        struct operands o = operands_of(&shapes[which / 2]);
        const shape *s = &o.s;
        const size_t ny = s->rows * o.ld, nx = s->rows * s->in, nw = s->out * s->in;
        float *first = NULL;
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            lks__exec ex = open_exec(which % 2 == 1, n_threads, LKS__EXEC_SCRATCH_BYTES);
            float *all = lks_test_calloc(ny + nx + nw, sizeof *all);
            lks__linear_fwd(&ex, lks__acts(all), o.ld, lks__acts(o.x), o.w, s->rows, s->out, s->in,
                            NULL);
            lks__linear_bwd_x(&ex, lks__acts(all + ny), lks__acts(o.dy), o.ld, o.w, s->rows, s->out,
                              s->in, NULL);
            lks__linear_bwd_w(&ex, all + ny + nx, NULL, lks__acts(o.dy), o.ld, lks__acts(o.x),
                              s->rows, s->out, s->in, false);
            lks__pool_close(ex.pool);
            if (first == NULL) {
                first = all;
                continue;
            }
            assert_memory_equal(all, first, (ny + nx + nw) * sizeof *all);
            free(all);
        }
        free(first);
        operands_free(&o);
    }
}

int main(void)
{
    lks_test_need_level(NULL);
    lks__cpu_level level;
    if (lks__cpu_level_get(&level) != LKS_OK || lks__kernels_open(level, &kernels) != LKS_OK)
        return 1;
    lks__kernels_open_own(LKS__CPU_PLAIN, &reference);
    return lks_test_run_all(NULL, NULL);
}
