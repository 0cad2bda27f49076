#include "compute/cpu/layers.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/number/math.h"

/* Words used below. A *block* is `rows` query rows times COLS key columns of one head's scores. It
 * is cut short at T, and its columns end at the block's last row, because later ones are masked for
 * all its rows. A row's *visible* columns in a block are those not after the row itself.
 *
 * Block sizes depend on T and the GEMM (lks__tiles), and every sum over blocks runs in one task in
 * one order. So neither threads nor batch size change a bit of a head's result. COLS is a multiple
 * of `rows`: then each row of a block has at least one visible column.
 *
 * The sizes were measured. Short blocks waste less on masked scores, which matters if most blocks
 * lie on the diagonal. Tall blocks need fewer calls. Three blocks of scores fit in a second-level
 * cache together with the head's q, k, v. */
enum { COLS = 256, MAX_ROWS = LKS__MAX_QUERIES };

static size_t block_rows(const lks__exec *ex, size_t T)
{
    return T > 256 ? lks__exec_tiles(ex)->far_queries : lks__exec_tiles(ex)->queries;
}

struct fwd_scratch {
    float s[MAX_ROWS * COLS];
    float max[MAX_ROWS], sum[MAX_ROWS], factor[MAX_ROWS];
};

struct bwd_scratch {
    float p[MAX_ROWS * COLS];    /* scores, then probabilities */
    float ds[MAX_ROWS * COLS];   /* gradient of probabilities, then of scores */
    float mask[MAX_ROWS * COLS]; /* dropout's factors, then probabilities after dropout */
    float ones[COLS];
    float delta[]; /* [T] sum over a row of probability times its gradient */
};

/* Shared by all tasks of one call. */
struct job {
    const lks__exec *ex;
    const lks__kernels *k;
    lks__pool *pool;
    lks__attention_shape shape;
    size_t rows;              /* per block */
    size_t group;             /* query heads per key/value head */
    size_t c;                 /* C: floats from one token's out to the next token's */
    float scale;              /* 1 / sqrt(hs) */
    const lks__dropout *drop; /* NULL: none */
    lks__attention_in in;
    float *out;         /* forward */
    float *lse;         /* forward; may be NULL */
    const float *f_out; /* backward: forward's out, lse */
    const float *f_lse;
    const float *dout;
    lks__attention_grads grads;
};

static struct job job_make(const lks__exec *ex, const lks__attention_shape *shape,
                           const lks__attention_in *in, const lks__dropout *drop)
{
    struct job job = {.ex = ex, .k = ex->k, .pool = ex->pool, .shape = *shape, .in = *in};
    if (shape->NKV == 0)
        job.shape.NKV = shape->NH;
    job.rows = block_rows(ex, shape->T);
    job.group = job.shape.NH / job.shape.NKV;
    job.c = shape->NH * shape->hs;
    job.scale = (float)(1.0 / sqrt((double)shape->hs));
    if (drop != NULL && drop->threshold != 0)
        job.drop = drop;
    return job;
}

static size_t row_blocks(const struct job *job)
{
    return (job->shape.T + job->rows - 1) / job->rows;
}

/* Number of columns in [j0, j0 + cols) that row `i` sees. Only for blocks of which it sees at least
 * one. */
static size_t visible(size_t i, size_t j0, size_t cols)
{
    return lks__min(cols, i - j0 + 1);
}

/* The element of the dropout mask at which the scores of `row` of head bh = b * NH + h begin. */
static uint64_t mask_row(const struct job *job, size_t bh, size_t row)
{
    return ((uint64_t)bh * job->shape.T + row) * job->shape.T;
}

/* Forward of one block of rows of one head: out = softmax(q k^T / sqrt(hs)) v. Until the last key
 * block `out` holds the sum of exp(score - max so far) * v. */
static void fwd_task(void *ctx, size_t task, int thread)
{
    const struct job *job = ctx;
    const lks__exec *ex = job->ex;
    const lks__kernels *k = job->k;
    struct fwd_scratch *w = lks__pool_scratch(job->pool, thread);
    const size_t T = job->shape.T, hs = job->shape.hs, NH = job->shape.NH;
    const size_t n_blocks = row_blocks(job);
    const size_t bh = task / n_blocks, b = bh / NH, h = bh % NH;
    /* The last rows have the most columns. They run first, so that no thread starts on them when
     * the others are done. */
    const size_t i0 = (n_blocks - 1 - task % n_blocks) * job->rows;
    const size_t rows = lks__min(job->rows, T - i0);
    const size_t ldq = job->in.ldq, ldkv = job->in.ldkv;
    const size_t kv = b * T * ldkv + h / job->group * hs;
    const float *q = lks__floats(job->in.q) + (b * T + i0) * ldq + h * hs;
    const float *key = lks__floats(job->in.k) + kv, *val = lks__floats(job->in.v) + kv;
    float *out = job->out + (b * T + i0) * job->c + h * hs;

    for (size_t i = 0; i < rows; i++) {
        w->max[i] = -INFINITY;
        w->sum[i] = 0;
    }
    for (size_t j0 = 0; j0 < i0 + rows; j0 += COLS) {
        const size_t cols = lks__min(COLS, i0 + rows - j0);
        lks__gemm(ex, thread, 'N', 'T', rows, cols, hs, job->scale, q, ldq, key + j0 * ldkv, ldkv,
                  0, w->s, COLS);
        k->softmax_block(w->s, COLS, rows, cols, (ptrdiff_t)(i0 - j0), w->max, w->sum, w->factor);
        if (job->drop != NULL)
            for (size_t i = 0; i < rows; i++)
                k->dropout(w->s + i * COLS, w->s + i * COLS, visible(i0 + i, j0, cols),
                           mask_row(job, bh, i0 + i) + j0, job->drop);
        if (j0 > 0)
            for (size_t i = 0; i < rows; i++)
                if (w->factor[i] != 1)
                    k->scale(out + i * job->c, w->factor[i], hs);
        lks__gemm(ex, thread, 'N', 'N', rows, hs, cols, 1, w->s, COLS, val + j0 * ldkv, ldkv,
                  j0 > 0, out, job->c);
    }
    for (size_t i = 0; i < rows; i++)
        k->scale(out + i * job->c, 1 / w->sum[i], hs);
    if (job->lse != NULL)
        for (size_t i = 0; i < rows; i++)
            job->lse[bh * T + i0 + i] =
                (float)((double)w->max[i] + lks__math_log((double)w->sum[i]));
}

void lks__attention_fwd(const lks__exec *ex, const lks__attention_shape *shape, lks__act *out,
                        float *lse, const lks__attention_in *in, const lks__dropout *drop)
{
    struct job job = job_make(ex, shape, in, drop);
    job.out = lks__floats(out);
    job.lse = lse;
    lks__pool_run(ex->pool, shape->B * shape->NH * row_blocks(&job), fwd_task, &job);
}

/* ds <- p * (ds - delta). Compilers turn fixed strips of eight into vector code at -O2; no result
 * depends on the strips. */
static void score_grad(float *restrict ds, const float *restrict p, float delta, size_t n)
{
    size_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (size_t l = 0; l < 8; l++)
            ds[j + l] = p[j + l] * (ds[j + l] - delta);
    for (; j < n; j++)
        ds[j] = p[j] * (ds[j] - delta);
}

/* The same with dropout between p and v: ds <- p * (m * ds - delta), m <- p * m. */
static void score_grad_dropped(float *restrict ds, float *restrict m, const float *restrict p,
                               float delta, size_t n)
{
    size_t j = 0;
    for (; j + 8 <= n; j += 8)
        for (size_t l = 0; l < 8; l++) {
            ds[j + l] = p[j + l] * (m[j + l] * ds[j + l] - delta);
            m[j + l] *= p[j + l];
        }
    for (; j < n; j++) {
        ds[j] = p[j] * (m[j] * ds[j] - delta);
        m[j] *= p[j];
    }
}

/* From scores in w->p and gradients of dropped probabilities in w->ds, compute the gradients of
 * scores in w->ds; returns the probabilities that weighted v. */
static const float *bwd_block_rows(const struct job *job, struct bwd_scratch *w, size_t bh,
                                   size_t i0, size_t rows, size_t j0, size_t cols)
{
    const lks__kernels *k = job->k;
    k->softmax_again(w->p, COLS, rows, cols, (ptrdiff_t)(i0 - j0),
                     job->f_lse + bh * job->shape.T + i0);
    for (size_t i = 0; i < rows; i++) {
        const size_t n = visible(i0 + i, j0, cols);
        float *p = w->p + i * COLS, *ds = w->ds + i * COLS, *mask = w->mask + i * COLS;
        if (job->drop != NULL) {
            k->dropout(mask, w->ones, n, mask_row(job, bh, i0 + i) + j0, job->drop);
            score_grad_dropped(ds, mask, p, w->delta[i0 + i], n);
            memset(mask + n, 0, (cols - n) * sizeof *mask);
        } else {
            score_grad(ds, p, w->delta[i0 + i], n);
        }
        memset(ds + n, 0, (cols - n) * sizeof *ds);
    }
    return job->drop != NULL ? w->mask : w->p;
}

/* Backward of one query head. With P the probabilities, M dropout's factors, o = (P*M) v:
 *   dv = (P*M)^T do      dP = M * (do v^T)      dS = P * (dP - delta),  delta_i = do_i . o_i
 *   dq = dS k / sqrt(hs)                        dk = dS^T q / sqrt(hs)
 *
 * Key blocks run forwards and row blocks backwards. So the first key block writes every dq first.
 * The last row block sees all columns of a key block, so it writes every dk and dv first, unless
 * another query head has done so (`add`). Nothing has to be cleared. */
static void bwd_head(const struct job *job, int thread, size_t b, size_t h, bool add)
{
    const lks__exec *ex = job->ex;
    const lks__kernels *k = job->k;
    struct bwd_scratch *w = lks__pool_scratch(job->pool, thread);
    const size_t T = job->shape.T, hs = job->shape.hs, c = job->c, bh = b * job->shape.NH + h;
    const size_t ldq = job->in.ldq, ldkv = job->in.ldkv;
    const size_t ld_dq = job->grads.ldq, ld_dkv = job->grads.ldkv;
    const size_t last = (row_blocks(job) - 1) * job->rows; /* first row of the last row block */
    const size_t kv = h / job->group * hs;
    const float *q = lks__floats(job->in.q) + b * T * ldq + h * hs;
    const float *key = lks__floats(job->in.k) + b * T * ldkv + kv;
    const float *val = lks__floats(job->in.v) + b * T * ldkv + kv;
    float *dq = lks__floats(job->grads.dq) + b * T * ld_dq + h * hs;
    float *dk = lks__floats(job->grads.dk) + b * T * ld_dkv + kv;
    float *dv = lks__floats(job->grads.dv) + b * T * ld_dkv + kv;
    const float *out = job->f_out + b * T * c + h * hs, *dout = job->dout + b * T * c + h * hs;

    for (size_t i = 0; i < T; i++)
        w->delta[i] = k->dot(dout + i * c, out + i * c, hs);
    for (size_t j0 = 0; j0 < T; j0 += COLS) {
        for (size_t i0 = last + job->rows; i0 > j0;) {
            i0 -= job->rows;
            const size_t rows = lks__min(job->rows, T - i0);
            const size_t cols = lks__min(COLS, i0 + rows - j0);
            const float add_q = j0 > 0, add_kv = i0 < last || add;
            lks__gemm(ex, thread, 'N', 'T', rows, cols, hs, job->scale, q + i0 * ldq, ldq,
                      key + j0 * ldkv, ldkv, 0, w->p, COLS);
            lks__gemm(ex, thread, 'N', 'T', rows, cols, hs, 1, dout + i0 * c, c, val + j0 * ldkv,
                      ldkv, 0, w->ds, COLS);
            const float *p = bwd_block_rows(job, w, bh, i0, rows, j0, cols);
            lks__gemm(ex, thread, 'T', 'N', cols, hs, rows, 1, p, COLS, dout + i0 * c, c, add_kv,
                      dv + j0 * ld_dkv, ld_dkv);
            lks__gemm(ex, thread, 'T', 'N', cols, hs, rows, job->scale, w->ds, COLS, q + i0 * ldq,
                      ldq, add_kv, dk + j0 * ld_dkv, ld_dkv);
            lks__gemm(ex, thread, 'N', 'N', rows, hs, cols, job->scale, w->ds, COLS,
                      key + j0 * ldkv, ldkv, add_q, dq + i0 * ld_dq, ld_dq);
        }
    }
}

/* A key/value head belongs to one task, which processes its query heads in order. */
static void bwd_task(void *ctx, size_t task, int thread)
{
    const struct job *job = ctx;
    struct bwd_scratch *w = lks__pool_scratch(job->pool, thread);
    const size_t b = task / job->shape.NKV, first = task % job->shape.NKV * job->group;

    for (size_t j = 0; j < COLS; j++)
        w->ones[j] = 1;
    for (size_t g = 0; g < job->group; g++)
        bwd_head(job, thread, b, first + g, g > 0);
}

void lks__attention_bwd(const lks__exec *ex, const lks__attention_shape *shape,
                        const lks__attention_grads *grads, const lks__act *dout,
                        const lks__attention_in *in, const lks__act *out, const float *lse,
                        const lks__dropout *drop)
{
    struct job job = job_make(ex, shape, in, drop);
    job.f_out = lks__floats(out);
    job.f_lse = lse;
    job.dout = lks__floats(dout);
    job.grads = *grads;
    lks__pool_run(ex->pool, shape->B * job.shape.NKV, bwd_task, &job);
}

_Static_assert(sizeof(struct fwd_scratch) <= LKS__LAYER_SCRATCH_BYTES, "forward's scratch fits");
_Static_assert(sizeof(struct bwd_scratch) + LKS__ATTENTION_MAX_T * sizeof(float) <=
                   LKS__LAYER_SCRATCH_BYTES,
               "backward's scratch fits for every T that check() accepts");
