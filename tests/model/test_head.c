/* The classifier fused with its loss (model/head.h) against sums in double, with vocabularies and
 * batches that need several chunks: each row's loss, their mean, and both gradients completely. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "compute/cpu/layers.h"
#include "model/head.h"

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};

typedef struct shape {
    const char *name;
    size_t rows, V, C;
    float softcap;
    int n_chunks;  /* for which the shape is chosen */
    size_t stride; /* of the rows that are checked, with those at borders of chunks; 1: all rows,
                      and dw too */
    bool slow;     /* on the reference kernels, which get their chunks and panels as all others */
} shape;

/* GPT-2's vocabulary; golf's with its cap and its default batch of 524,288 / 8 tokens; golf's with
 * chunks whose rows take two panels of the weight gradient's product (256 columns are enough for
 * that); odd sizes everywhere. */
static const shape shapes[] = {
    {"GPT-2's vocabulary", 300, 50304, 12, 0.0f, 3, 1, false},
    {"golf's batch", 65536, 1024, 8, 30.0f, 32, 71, true},
    {"golf's panels", 2100, 1024, 256, 30.0f, 2, 1, true},
    {"odd", 261, 16411, 33, 0.0f, 3, 1, false},
    {"odd, capped", 1027, 3001, 17, 1.5f, 2, 1, false},
    {"one row", 1, 65, 48, 0.0f, 1, 1, false},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Worst errors seen, over all shapes and levels: a row's loss 3.3e-6 (of logits up to 30, whose ulp
 * is 1.9e-6), the mean 4.7e-7 (half an ulp of a float between 8 and 16), a row of dx 2.8e-6 of its
 * norm, a row of dw 2.1e-6 of the norm of its terms' absolute values. */
static const double ROW_LOSS = 1e-5, MEAN_LOSS = 6e-7, GRADIENT = 4e-6;

static struct {
    double row_loss, mean_loss, dx, dw;
} worst;

struct problem {
    const shape *s;
    float *x, *w;
    int32_t *targets;
};

static float *filled(size_t n, double scale, lks__mt *g)
{
    float *x = lks_test_malloc(n * sizeof *x);
    lks__mt_uniform(g, x, n, (float)-scale, (float)scale);
    return x;
}

/* Logits of some units, so that probabilities differ clearly. */
static struct problem problem_of(const shape *s)
{
    lks__mt g;
    lks__mt_seed(&g, 17);
    struct problem p = {.s = s};
    p.x = filled(s->rows * s->C, 2.0, &g);
    p.w = filled(s->V * s->C, 3.0 / sqrt((double)s->C), &g);
    p.targets = lks_test_malloc(s->rows * sizeof *p.targets);
    for (size_t r = 0; r < s->rows; r++)
        p.targets[r] = (int32_t)lks__mt_randint(&g, s->V);
    return p;
}

static void problem_free(struct problem *p)
{
    lks_test_free(p->x, p->w, p->targets);
}

static double *doubles(size_t n)
{
    return lks_test_calloc(n, sizeof(double));
}

/* ---- the reference ----------------------------------------------------------------------- */

struct expected {
    double *wt;      /* [C, V]: w transposed, so that inner loops run along the vocabulary */
    double *logits;  /* [V]: of one row; then its gradient */
    double *row_dx;  /* [C] */
    double *dw;      /* [C, V] */
    double *dw_size; /* [V]: sum over rows of |dlogit|, times the largest |x| */
};

static struct expected expected_of(const struct problem *p)
{
    const size_t V = p->s->V, C = p->s->C;
    struct expected e = {doubles(C * V), doubles(V), doubles(C), doubles(C * V), doubles(V)};
    for (size_t v = 0; v < V; v++)
        for (size_t c = 0; c < C; c++)
            e.wt[c * V + v] = (double)p->w[v * C + c];
    return e;
}

static void expected_free(struct expected *e)
{
    lks_test_free(e->wt, e->logits, e->row_dx, e->dw, e->dw_size);
}

static void axpy(double *restrict y, double a, const double *restrict x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < 8; l++)
            y[i + l] += a * x[i + l];
    for (; i < n; i++)
        y[i] += a * x[i];
}

static double dot(const double *restrict a, const double *restrict b, size_t n)
{
    double lanes[8] = {0}, sum = 0.0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t l = 0; l < 8; l++)
            lanes[l] += a[i + l] * b[i + l];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (size_t l = 0; l < 8; l++)
        sum += lanes[l];
    return sum;
}

/* Returns row r's loss; leaves the gradient of its logits in e->logits. */
static double row_loss(const struct problem *p, struct expected *e, size_t r)
{
    const size_t V = p->s->V, C = p->s->C, target = (size_t)p->targets[r];
    const double cap = (double)p->s->softcap, scale = 1.0 / (double)p->s->rows;
    double *l = e->logits, max = -INFINITY, sum = 0.0;
    memset(l, 0, V * sizeof *l);
    for (size_t c = 0; c < C; c++)
        axpy(l, (double)p->x[r * C + c], e->wt + c * V, V);
    for (size_t v = 0; v < V; v++) {
        if (cap > 0.0)
            l[v] = cap * tanh(l[v] / cap);
        max = fmax(max, l[v]);
    }
    for (size_t v = 0; v < V; v++)
        sum += exp(l[v] - max);
    double loss = log(sum) + max - l[target];
    for (size_t v = 0; v < V; v++) {
        double slope = cap > 0.0 ? 1.0 - (l[v] / cap) * (l[v] / cap) : 1.0;
        l[v] = (exp(l[v] - max) / sum - (v == target)) * slope * scale;
    }
    return loss;
}

/* ---- the comparison ---------------------------------------------------------------------- */

static void near(const shape *s, const char *what, size_t at, double off, double allowed,
                 double *worst_p)
{
    *worst_p = fmax(*worst_p, off / allowed);
    if (!(off <= allowed))
        fail_msg("%s: %s %zu is off by %.3g, allowed %.3g", s->name, what, at, off, allowed);
}

static void check_dx(const struct problem *p, struct expected *e, size_t r, const float *dx)
{
    const size_t V = p->s->V, C = p->s->C;
    double off = 0.0, norm = 0.0;
    for (size_t c = 0; c < C; c++) {
        double want = dot(e->logits, e->wt + c * V, V), d = (double)dx[r * C + c] - want;
        off += d * d;
        norm += want * want;
    }
    /* For p near 1 the gradient p - 1 loses an ulp, times a row of w, which is 3 at most. */
    double lost = 3.0 * 0x1p-23 / (double)p->s->rows;
    near(p->s, "dx of row", r, sqrt(off), GRADIENT * sqrt(norm) + lost, &worst.dx);
}

static void add_dw(const struct problem *p, struct expected *e, size_t r)
{
    const size_t V = p->s->V, C = p->s->C;
    double sumsq = 0.0;
    for (size_t c = 0; c < C; c++) {
        double x = (double)p->x[r * C + c];
        axpy(e->dw + c * V, x, e->logits, V);
        sumsq += x * x;
    }
    for (size_t v = 0; v < V; v++)
        e->dw_size[v] += fabs(e->logits[v]) * sqrt(sumsq);
}

static void check_dw(const struct problem *p, const struct expected *e, const float *dw,
                     const float *start)
{
    const size_t V = p->s->V, C = p->s->C;
    for (size_t v = 0; v < V; v++) {
        double off = 0.0, began = 0.0;
        for (size_t c = 0; c < C; c++) {
            double s = (double)start[v * C + c], d = (double)dw[v * C + c] - s - e->dw[c * V + v];
            off += d * d;
            began += s * s;
        }
        near(p->s, "dw of token", v, sqrt(off), GRADIENT * (e->dw_size[v] + sqrt(began)),
             &worst.dw);
    }
}

static lks__head head_of(const shape *s)
{
    lks__head h = {.chunk_rows = lks__head_chunk_rows(&lks__layers_cpu, s->rows, s->V, s->C),
                   .sum_rows = lks__head_sum_rows(&lks__layers_cpu, s->V),
                   .ld = lks__round_up(s->V, 16),
                   .softcap = s->softcap,
                   .act_bytes = sizeof(float)};
    h.logits = aligned_alloc(64, lks__round_up(h.chunk_rows * h.ld * sizeof(float), 64));
    h.row_loss = doubles(s->rows);
    assert_non_null(h.logits);
    assert_int_equal((s->rows + h.chunk_rows - 1) / h.chunk_rows, s->n_chunks);
    return h;
}

/* Old contents of the gradients: dx is replaced, dw is added to, or replaced if there are several
 * chunks. */
static void check_shape(const shape *s)
{
    struct problem p = problem_of(s);
    struct expected e = expected_of(&p);
    lks__head h = head_of(s);
    lks__mt g;
    lks__mt_seed(&g, 18);
    float *dx = filled(s->rows * s->C, 1.0, &g), *dw = malloc(s->V * s->C * sizeof *dw);
    float *start = filled(s->V * s->C, 1e-3 / (double)s->rows, &g);
    assert_non_null(dw);
    h.fresh = s->n_chunks > 1;
    if (h.fresh)
        memset(start, 0, s->V * s->C * sizeof *start);
    memcpy(dw, start, s->V * s->C * sizeof *dw);
    for (size_t i = 0; h.fresh && i < s->V * s->C; i++)
        dw[i] = NAN;
    float mean, again;
    lks__head_loss(&lks__layers_cpu, &ex, &h, &mean, lks__acts(dx), dw, lks__acts(p.x), p.w,
                   p.targets, s->rows, s->V, s->C);

    double sum = 0.0;
    for (size_t r = 0; r < s->rows; r++) {
        sum += h.row_loss[r];
        const size_t of_chunk = r % h.chunk_rows;
        const bool border = of_chunk == 0 || of_chunk + 1 == h.chunk_rows || r + 1 == s->rows;
        if (r % s->stride != 0 && !border)
            continue;
        double loss = row_loss(&p, &e, r);
        near(s, "loss of row", r, fabs(h.row_loss[r] - loss), ROW_LOSS, &worst.row_loss);
        /* A row takes half of the test's time. */
        if (s->stride > 1 || r % 7 == 0 || r + 1 == s->rows)
            check_dx(&p, &e, r, dx);
        if (s->stride == 1)
            add_dw(&p, &e, r);
    }
    near(s, "mean of rows", s->rows, fabs((double)mean - sum / (double)s->rows), MEAN_LOSS,
         &worst.mean_loss);
    if (s->stride == 1)
        check_dw(&p, &e, dw, start);

    /* without gradients: the same bits of the loss */
    lks__head_loss(&lks__layers_cpu, &ex, &h, &again, NULL, NULL, lks__acts(p.x), p.w, p.targets,
                   s->rows, s->V, s->C);
    assert_true(again == mean);
    lks_test_free(dx, dw, start, h.logits, h.row_loss);
    expected_free(&e);
    problem_free(&p);
}

TEST(test_shapes)
{
    for (int i = 0; i < N_SHAPES; i++)
        if (kernels.level != LKS__CPU_PLAIN || !shapes[i].slow)
            check_shape(&shapes[i]);
    print_message("worst errors, of what is allowed: row loss %.2f, mean loss %.2f, dx %.2f, dw "
                  "%.2f\n",
                  worst.row_loss, worst.mean_loss, worst.dx, worst.dw);
}

/* Rows of chunks and of products, and the same bits for any number of products in a chunk. */
TEST(test_chunks)
{
    enum { ROWS = 23, V = 67, LD = 80, C = 24, SUM = 4 };
    static const size_t chunks[] = {SUM, 2 * SUM, 3 * SUM, ROWS};
    const lks__layers *cpu = &lks__layers_cpu;
    assert_int_equal(lks__head_sum_rows(cpu, 50304), 128);
    assert_int_equal(lks__head_chunk_rows(cpu, 4096, 50304, 64), 128);
    assert_int_equal(lks__head_chunk_rows(cpu, 4096, 50304, 512), 128);
    assert_int_equal(lks__head_chunk_rows(cpu, 4096, 50304, 768), 256);
    assert_int_equal(lks__head_chunk_rows(cpu, 200, 50304, 768), 200);
    assert_int_equal(lks__head_sum_rows(cpu, 1024), 2048);
    assert_int_equal(lks__head_chunk_rows(cpu, 4096, 1024, 768), 2048);

    lks__mt g;
    lks__mt_seed(&g, 23);
    float *x = filled(ROWS * C, 1.0, &g), *w = filled(V * C, 1.0, &g), mean[4];
    float logits[ROWS * LD];
    struct {
        float dx[ROWS * C], dw[V * C];
    } got[4];
    double row_loss[ROWS];
    int32_t targets[ROWS];
    for (int r = 0; r < ROWS; r++)
        targets[r] = r * 5 % V;
    for (int i = 0; i < 4; i++) {
        const lks__head h = {.chunk_rows = chunks[i],
                             .ld = LD,
                             .sum_rows = SUM,
                             .logits = lks__acts(logits),
                             .act_bytes = sizeof(float),
                             .row_loss = row_loss,
                             .fresh = true};
        memset(&got[i], 0xff, sizeof got[i]);
        lks__head_loss(cpu, &ex, &h, &mean[i], lks__acts(got[i].dx), got[i].dw, lks__acts(x), w,
                       targets, ROWS, V, C);
        assert_true(mean[i] == mean[0]);
        assert_memory_equal(&got[i], &got[0], sizeof got[i]);
    }
    lks_test_free(x, w);
}

/* Logits for a caller, made in chunks of 7 rows, the last of them short: those of double
 * arithmetic, and the same bits as in one chunk. */
TEST(test_logits)
{
    enum { ROWS = 19, V = 33, C = 17 };
    static const float caps[] = {0.0f, 1.5f};
    float work[ROWS * V], got[ROWS * V], whole[ROWS * V];
    lks__mt g;
    lks__mt_seed(&g, 21);
    float *x = filled(ROWS * C, 1.0, &g), *w = filled(V * C, 1.0, &g);
    for (int k = 0; k < 2; k++) {
        lks__head h = {.chunk_rows = 7,
                       .ld = V,
                       .logits = lks__acts(work),
                       .act_bytes = sizeof(float),
                       .softcap = caps[k]};
        lks__head_logits(&lks__layers_cpu, &ex, &h, lks__layers_cpu.linear_rows_fwd, got,
                         lks__acts(x), w, ROWS, V, C);
        h.chunk_rows = ROWS;
        lks__head_logits(&lks__layers_cpu, &ex, &h, lks__layers_cpu.linear_rows_fwd, whole,
                         lks__acts(x), w, ROWS, V, C);
        assert_memory_equal(got, whole, sizeof got);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t v = 0; v < V; v++) {
                double sum = 0.0;
                for (size_t c = 0; c < C; c++)
                    sum += (double)x[r * C + c] * (double)w[v * C + c];
                const double cap = (double)caps[k];
                sum = cap > 0.0 ? cap * tanh(sum / cap) : sum;
                assert_true(fabs((double)got[r * V + v] - sum) <= 1e-5);
            }
    }
    lks_test_free(x, w);
}

int main(void)
{
    lks_test_need_level(&kernels);
    if (lks__pool_open(2, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool) != LKS_OK)
        return 1;
    int failed = lks_test_run_all(NULL, NULL);
    lks__pool_close(ex.pool);
    return failed;
}
