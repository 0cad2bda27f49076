#include "compute/cpu/layers.h"

#include <string.h>

#include "compute/cpu/row_tasks.h"

enum { MAX_VECTORS = 3 };

static inline float *row_of(const lks__act *x, size_t r, size_t C)
{
    return lks__floats(x) + r * C;
}

size_t lks__golf_partial_floats(size_t rows, size_t C, size_t n_heads)
{
    return row_tasks(rows) * (MAX_VECTORS * C + n_heads);
}

/* --- embedding, plain norms ------------------------------------------------------------------ */

struct norm_op {
    const lks__exec *ex;
    const int32_t *tokens; /* row r of the input is x[tokens[r]]; NULL: x[r] */
    const float *x;
    size_t rows, C;
    float *y, *rms_out; /* forward */
    float *dx;          /* backward */
    const float *dy, *rms;
};

static const float *norm_input(const struct norm_op *o, size_t r)
{
    return o->x + (o->tokens != NULL ? (size_t)o->tokens[r] : r) * o->C;
}

static void norm_fwd_task(void *ctx, size_t task, int thread)
{
    const struct norm_op *o = ctx;
    const struct row_range range = rows_of(task, o->rows);
    for (size_t r = range.first; r < range.end; r++)
        o->ex->k->rmsnorm_fwd(o->y + r * o->C, o->rms_out + r, norm_input(o, r), 1, o->C);
}

static void norm_bwd_task(void *ctx, size_t task, int thread)
{
    const struct norm_op *o = ctx;
    const struct row_range range = rows_of(task, o->rows);
    for (size_t r = range.first; r < range.end; r++) {
        float *dx = o->dx + r * o->C;
        memset(dx, 0, o->C * sizeof *dx);
        o->ex->k->rmsnorm_bwd(dx, o->dy + r * o->C, norm_input(o, r), o->rms + r, 1, o->C);
    }
}

void lks__golf_norm_fwd(const lks__exec *ex, lks__act *y, float *rms, const lks__act *x,
                        size_t rows, size_t C)
{
    struct norm_op o = {ex, NULL, lks__floats(x), rows, C, .y = lks__floats(y), .rms_out = rms};
    lks__pool_run(ex->pool, row_tasks(rows), norm_fwd_task, &o);
}

void lks__golf_norm_bwd(const lks__exec *ex, lks__act *dx, const lks__act *dy, const lks__act *x,
                        const float *rms, size_t rows, size_t C)
{
    struct norm_op o = {.ex = ex, .x = lks__floats(x), .rows = rows, .C = C, .rms = rms};
    o.dx = lks__floats(dx);
    o.dy = lks__floats(dy);
    lks__pool_run(ex->pool, row_tasks(rows), norm_bwd_task, &o);
}

void lks__golf_embed_fwd(const lks__exec *ex, lks__act *x, float *rms, const int32_t *tokens,
                         const float *emb, size_t rows, size_t C)
{
    struct norm_op o = {ex, tokens, emb, rows, C, .y = lks__floats(x), .rms_out = rms};
    lks__pool_run(ex->pool, row_tasks(rows), norm_fwd_task, &o);
}

void lks__golf_embed_bwd(const lks__exec *ex, float *demb, lks__act *d_row, const lks__act *dx,
                         const int32_t *tokens, const float *emb, const float *rms, size_t rows,
                         size_t C)
{
    struct norm_op o = {
        ex, tokens, emb, rows, C, .dx = lks__floats(d_row), .dy = lks__floats(dx), .rms = rms};
    lks__pool_run(ex->pool, row_tasks(rows), norm_bwd_task, &o);
    lks__embedding_bwd(ex, demb, NULL, d_row, tokens, rows, rows, C);
}

/* --- a block's entry ------------------------------------------------------------------------- */

struct entry_op {
    const lks__exec *ex;
    const lks__golf_entry *e;
    size_t rows, C;
    float *dx, *dx0, *dskip, *partial; /* backward */
    const float *dnorm;
};

/* prev + skip_weight * skip of row r; without a skip, the row of x. */
static const float *row_input(const lks__kernels *k, const lks__golf_entry *e, size_t r, size_t C)
{
    const float *prev = row_of(e->prev, r, C);
    float *x = row_of(e->x, r, C);
    if (e->skip == NULL)
        return prev;
    memcpy(x, prev, C * sizeof *prev);
    k->mul_add(x, e->skip_weight, row_of(e->skip, r, C), C);
    return x;
}

static void entry_fwd_task(void *ctx, size_t task, int thread)
{
    const struct entry_op *o = ctx;
    const lks__golf_entry *e = o->e;
    const lks__kernels *k = o->ex->k;
    const size_t C = o->C;
    const struct row_range range = rows_of(task, o->rows);
    for (size_t r = range.first; r < range.end; r++) {
        float *x = row_of(e->x, r, C);
        k->mul(x, e->mix, row_input(k, e, r, C), C);
        k->mul_add(x, e->mix + C, row_of(e->x0, r, C), C);
        k->rmsnorm_fwd(row_of(e->norm, r, C), e->rms + r, x, 1, C);
    }
}

void lks__golf_entry_fwd(const lks__exec *ex, const lks__golf_entry *e, size_t rows, size_t C)
{
    struct entry_op o = {.ex = ex, .e = e, .rows = rows, .C = C};
    lks__pool_run(ex->pool, row_tasks(rows), entry_fwd_task, &o);
}

/* Sums of block b: those of mix[0], mix[1] and the skip weight start at row MAX_VECTORS * b. */
static void entry_bwd_task(void *ctx, size_t task, int thread)
{
    const struct entry_op *o = ctx;
    const lks__golf_entry *e = o->e;
    const lks__kernels *k = o->ex->k;
    const size_t C = o->C;
    float *dmix = o->partial + task * MAX_VECTORS * C, *dweight = dmix + 2 * C;
    memset(dmix, 0, MAX_VECTORS * C * sizeof *dmix);
    const struct row_range range = rows_of(task, o->rows);
    for (size_t r = range.first; r < range.end; r++) {
        float *dx = o->dx + r * C;
        k->rmsnorm_bwd(dx, o->dnorm + r * C, row_of(e->x, r, C), e->rms + r, 1, C);
        k->mul_add(dmix, dx, row_input(k, e, r, C), C);
        k->mul_add(dmix + C, dx, row_of(e->x0, r, C), C);
        k->mul_add(o->dx0 + r * C, e->mix + C, dx, C);
        k->mul(dx, e->mix, dx, C);
        if (e->skip != NULL) {
            k->mul_add(dweight, dx, row_of(e->skip, r, C), C);
            k->mul(o->dskip + r * C, e->skip_weight, dx, C);
        }
    }
}

void lks__golf_entry_bwd(const lks__exec *ex, const lks__golf_entry *e, lks__act *dx, lks__act *dx0,
                         float *dmix, lks__act *dskip, float *dskip_weight, const lks__act *dnorm,
                         size_t rows, size_t C, float *partial)
{
    struct entry_op o = {ex,
                         e,
                         rows,
                         C,
                         lks__floats(dx),
                         lks__floats(dx0),
                         lks__floats(dskip),
                         partial,
                         lks__floats(dnorm)};
    size_t n = row_tasks(rows);
    lks__pool_run(ex->pool, n, entry_bwd_task, &o);
    if (dmix != NULL)
        ex->k->colsum(dmix, partial, MAX_VECTORS * C, n, 2 * C);
    if (dskip_weight != NULL)
        ex->k->colsum(dskip_weight, partial + 2 * C, MAX_VECTORS * C, n, C);
}

/* --- a branch of a block --------------------------------------------------------------------- */

struct branch_op {
    const lks__exec *ex;
    const lks__golf_branch *b;
    size_t rows, C;
};

static void branch_bwd_task(void *ctx, size_t task, int thread)
{
    const struct branch_op *o = ctx;
    const lks__golf_branch *b = o->b;
    const lks__kernels *k = o->ex->k;
    const size_t C = o->C;
    const struct row_range range = rows_of(task, o->rows);
    for (size_t r = range.first; r < range.end; r++) {
        float *dx = row_of(b->dx, r, C);
        if (b->dnorm != NULL)
            k->rmsnorm_bwd(dx, row_of(b->dnorm, r, C), row_of(b->normed, r, C), b->rms + r, 1, C);
        if (b->add != NULL)
            k->add(dx, row_of(b->add, r, C), C);
        k->mul(row_of(b->dy, r, C), dx, b->scale, C);
    }
}

void lks__golf_branch_bwd(const lks__exec *ex, const lks__golf_branch *b, size_t rows, size_t C)
{
    struct branch_op o = {ex, b, rows, C};
    lks__pool_run(ex->pool, row_tasks(rows), branch_bwd_task, &o);
}

struct scaled_op {
    const lks__golf_scaled *s;
    size_t C, in;
};

/* Sum a row in LANES partial sums, which the compiler turns into vectors; then add those in
 * order. */
static inline void scaled_bwd_row(const lks__golf_scaled *s, size_t row, size_t in, bool has_dw)
{
    enum { LANES = 16 };
    float *restrict dw = has_dw ? s->dw + row * in : NULL;
    const float *restrict product = s->product + row * in, *restrict w = s->w + row * in;
    const float scale = s->scale[row];
    float lanes[LANES] = {0}, sum = 0.0f;
    size_t i = 0;
    for (; i + LANES <= in; i += LANES)
        for (size_t j = 0; j < LANES; j++) {
            lanes[j] += w[i + j] * product[i + j];
            if (has_dw)
                dw[i + j] += scale * product[i + j];
        }
    for (; i < in; i++) {
        lanes[0] += w[i] * product[i];
        if (has_dw)
            dw[i] += scale * product[i];
    }
    for (size_t j = 0; j < LANES; j++)
        sum += lanes[j];
    if (s->dscale != NULL)
        s->dscale[row] += sum;
}

static void scaled_bwd_task(void *ctx, size_t task, int thread)
{
    const struct scaled_op *o = ctx;
    const struct row_range range = rows_of(task, o->C);
    for (size_t r = range.first; r < range.end; r++)
        if (o->s->dw != NULL) /* a constant, so that the loops have no branch */
            scaled_bwd_row(o->s, r, o->in, true);
        else
            scaled_bwd_row(o->s, r, o->in, false);
}

void lks__golf_scaled_bwd(const lks__exec *ex, const lks__golf_scaled *s, size_t C, size_t in)
{
    struct scaled_op o = {s, C, in};
    if (s->dw != NULL && s->fresh)
        lks__clear(ex, s->dw, C * in);
    lks__pool_run(ex->pool, row_tasks(C), scaled_bwd_task, &o);
}

/* --- queries and keys ------------------------------------------------------------------------ */

struct heads_op {
    const lks__exec *ex;
    const lks__golf_heads *h;
    float *dq, *dk, *partial;
};

static void heads_fwd_task(void *ctx, size_t task, int thread)
{
    const struct heads_op *o = ctx;
    const lks__golf_heads *h = o->h;
    const size_t C = h->n_head * h->hs, KV = h->n_kv_head * h->hs;
    const struct row_range range = rows_of(task, h->rows);
    for (size_t r = range.first; r < range.end; r++) {
        const float *cosine = h->cosine + r % h->T * (h->hs / 2);
        const float *sine = h->sine + r % h->T * (h->hs / 2);
        o->ex->k->rope_fwd(row_of(h->q, r, C), h->q_rms + r * h->n_head, row_of(h->q_raw, r, C),
                           cosine, sine, h->gain, h->n_head, h->hs);
        o->ex->k->rope_fwd(row_of(h->k, r, KV), h->k_rms + r * h->n_kv_head,
                           row_of(h->k_raw, r, KV), cosine, sine, NULL, h->n_kv_head, h->hs);
    }
}

void lks__golf_heads_fwd(const lks__exec *ex, const lks__golf_heads *h)
{
    struct heads_op o = {.ex = ex, .h = h};
    lks__pool_run(ex->pool, row_tasks(h->rows), heads_fwd_task, &o);
}

static void heads_bwd_task(void *ctx, size_t task, int thread)
{
    const struct heads_op *o = ctx;
    const lks__golf_heads *h = o->h;
    const size_t C = h->n_head * h->hs, KV = h->n_kv_head * h->hs;
    float *dgain = o->partial + task * h->n_head;
    memset(dgain, 0, h->n_head * sizeof *dgain);
    const struct row_range range = rows_of(task, h->rows);
    for (size_t r = range.first; r < range.end; r++) {
        const float *cosine = h->cosine + r % h->T * (h->hs / 2);
        const float *sine = h->sine + r % h->T * (h->hs / 2);
        float *dq = o->dq + r * C, *dk = o->dk + r * KV;
        o->ex->k->rope_bwd(dq, dgain, dq, row_of(h->q_raw, r, C), h->q_rms + r * h->n_head, cosine,
                           sine, h->gain, h->n_head, h->hs);
        o->ex->k->rope_bwd(dk, NULL, dk, row_of(h->k_raw, r, KV), h->k_rms + r * h->n_kv_head,
                           cosine, sine, NULL, h->n_kv_head, h->hs);
    }
}

void lks__golf_heads_bwd(const lks__exec *ex, const lks__golf_heads *h, lks__act *dq, lks__act *dk,
                         float *dgain, float *partial)
{
    struct heads_op o = {ex, h, lks__floats(dq), lks__floats(dk), partial};
    size_t n = row_tasks(h->rows);
    lks__pool_run(ex->pool, n, heads_bwd_task, &o);
    if (dgain != NULL)
        ex->k->colsum(dgain, partial, h->n_head, n, h->n_head);
}
