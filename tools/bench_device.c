/* lockstep bench kernels --device=…: each operation of a device by the shapes of a model, beside
 * the roofline: the longer of the time for its bytes at the speed of the device's copies, and the
 * time for its operations at the speed of its products. Both are measured in the same run; bytes
 * and operations are the device's own counts. First, each operation is compared with the CPU's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "bench.h"
#include "kernels/layers.h"
#include "settings/family.h"
#include "tool.h"
#include "weights/saved.h"

enum {
    PATTERN = 65532,      /* floats that repeat in an array; not a multiple of a row */
    CHECK_T = 37,         /* tokens of a sequence, for comparisons */
    CHECK_V = 997,        /* vocabulary for comparisons */
    XENT_ROWS = 4096,     /* of logits at once */
    MATRICES = 18,        /* of Muon at once: those of one shape in golf's model */
    LEAST_PRODUCT = 256,  /* rows of a matrix, doubled until a product takes long enough */
    MOST_PRODUCT = 4096,  /*  */
    LEAST_COPY = 1 << 18, /* floats */
    MOST_COPY = 64 << 20,
    PARTS = 16,          /* arrays of one operation */
    PART_BYTES = 256,    /* they begin at multiples of it */
    TURN_US = 5000,      /* microseconds of a turn, at least */
    MOST_RUNS = 1 << 12, /* in a turn */
    MOST_TURNS = 100,
};

static const double TOLERANCE = 1e-5, TOLERANCE_BF16 = 1e-2; /* of an array's norm */

struct shape {
    size_t B, T, C, hidden, V, heads, kv;
    size_t matrices; /* of Muon */
};

/* What an array holds at first. */
enum kind {
    VALUES,   /* in [-1, 1) */
    POSITIVE, /* in (0, 1) */
    TOKENS,
    RESULT,  /* NaN: it is written only */
    DOUBLES, /* the same, of doubles */
    WORK,    /* NaN, and not compared */
    SPENT,   /* as VALUES, but not compared */
    KINDS
};

struct part {
    size_t at, bytes;
    enum kind kind;
};

/* An operation on a device, or on the CPU. */
struct job {
    const lks__layers *l;
    const lks__exec *ex;
    const struct shape *shape;
    const lks__dropout *drop;
    char *memory; /* NULL: list the arrays only */
    struct part part[PARTS];
    int n_parts;
    size_t bytes;
};

/* --- operations ------------------------------------------------------------------------------- */

/* The next array of the operation, of n floats; NULL if there is no memory yet. */
static void *array(struct job *j, size_t n, enum kind kind)
{
    const size_t at = j->bytes, bytes = n * (kind == DOUBLES ? sizeof(double) : sizeof(float));
    j->part[j->n_parts++] = (struct part){at, bytes, kind};
    j->bytes += (bytes + PART_BYTES - 1) / PART_BYTES * PART_BYTES;
    return j->memory == NULL ? NULL : j->memory + at;
}

static size_t rows_of(const struct job *j)
{
    return j->shape->B * j->shape->T;
}

static void run_copy(struct job *j)
{
    const size_t n = rows_of(j) * j->shape->C;
    float *y = array(j, n, RESULT), *x = array(j, n, VALUES);
    if (y != NULL)
        j->l->copy(j->ex, y, x, n);
}

static void run_accumulate(struct job *j)
{
    const size_t n = rows_of(j) * j->shape->C;
    float *y = array(j, n, VALUES), *x = array(j, n, VALUES);
    if (y != NULL)
        j->l->accumulate(j->ex, y, x, n);
}

/* A product of forward from `in` to `out` columns, plain or with an activation's epilogue. */
static void linear(struct job *j, size_t out, size_t in, lks__epilogue_kind kind)
{
    const size_t rows = rows_of(j);
    float *y = array(j, rows * out, RESULT), *x = array(j, rows * in, VALUES),
          *w = array(j, out * in, VALUES);
    lks__epilogue e = {.kind = kind};
    if (kind != LKS__EPILOGUE_NONE)
        e.out = array(j, rows * out, RESULT);
    if (y != NULL)
        j->l->linear_fwd(j->ex, y, out, x, w, rows, out, in, &e);
}

static void run_linear_in(struct job *j)
{
    linear(j, (j->shape->heads + 2 * j->shape->kv) * (j->shape->C / j->shape->heads), j->shape->C,
           LKS__EPILOGUE_NONE);
}

static void run_linear_gelu(struct job *j)
{
    linear(j, j->shape->hidden, j->shape->C, LKS__EPILOGUE_GELU);
}

static void run_linear_relu2(struct job *j)
{
    linear(j, j->shape->hidden, j->shape->C, LKS__EPILOGUE_RELU2);
}

static void run_linear_down(struct job *j)
{
    linear(j, j->shape->C, j->shape->hidden, LKS__EPILOGUE_NONE);
}

static void run_linear_bwd_x(struct job *j)
{
    const size_t rows = rows_of(j), out = j->shape->hidden, in = j->shape->C;
    float *dx = array(j, rows * in, RESULT), *dy = array(j, rows * out, VALUES),
          *w = array(j, out * in, VALUES);
    if (dx != NULL)
        j->l->linear_bwd_x(j->ex, dx, dy, out, w, rows, out, in, NULL);
}

static void run_linear_bwd_w(struct job *j)
{
    const size_t rows = rows_of(j), out = j->shape->hidden, in = j->shape->C;
    float *dw = array(j, out * in, VALUES), *db = array(j, out, VALUES),
          *dy = array(j, rows * out, VALUES), *x = array(j, rows * in, VALUES);
    if (dw != NULL)
        j->l->linear_bwd_w(j->ex, dw, db, dy, out, x, rows, out, in);
}

/* A new token of each sequence. */
static void run_linear_rows(struct job *j)
{
    const size_t rows = j->shape->B, out = j->shape->hidden, in = j->shape->C;
    float *y = array(j, rows * out, RESULT), *x = array(j, rows * in, VALUES),
          *w = array(j, out * in, VALUES);
    if (y != NULL)
        j->l->linear_rows_fwd(j->ex, y, out, x, w, rows, out, in, NULL);
}

static void run_activation(struct job *j)
{
    const size_t rows = rows_of(j), width = j->shape->hidden;
    float *y = array(j, rows * width, RESULT), *x = array(j, rows * width, VALUES);
    if (y != NULL)
        j->l->activation_fwd(j->ex, LKS__EPILOGUE_GELU, y, x, rows, width);
}

static lks__attention_shape attention_shape(const struct job *j)
{
    return (lks__attention_shape){j->shape->B, j->shape->T, j->shape->heads,
                                  j->shape->C / j->shape->heads, j->shape->kv};
}

static lks__attention_in attention_in(struct job *j)
{
    const size_t ldkv = j->shape->kv * (j->shape->C / j->shape->heads);
    lks__attention_in in = {.ldq = j->shape->C, .ldkv = ldkv};
    in.q = array(j, rows_of(j) * in.ldq, VALUES);
    in.k = array(j, rows_of(j) * ldkv, VALUES);
    in.v = array(j, rows_of(j) * ldkv, VALUES);
    return in;
}

static void run_attention_fwd(struct job *j)
{
    const lks__attention_shape shape = attention_shape(j);
    const lks__attention_in in = attention_in(j);
    float *out = array(j, rows_of(j) * j->shape->C, RESULT),
          *lse = array(j, rows_of(j) * shape.NH, RESULT);
    if (out != NULL)
        j->l->attention_fwd(j->ex, &shape, out, lse, &in, j->drop);
}

static void run_attention_bwd(struct job *j)
{
    const lks__attention_shape shape = attention_shape(j);
    const lks__attention_in in = attention_in(j);
    const size_t rows = rows_of(j);
    const lks__attention_grads grads = {array(j, rows * in.ldq, RESULT),
                                        array(j, rows * in.ldkv, RESULT),
                                        array(j, rows * in.ldkv, RESULT), in.ldq, in.ldkv};
    float *dout = array(j, rows * j->shape->C, VALUES), *out = array(j, rows * j->shape->C, VALUES),
          *lse = array(j, rows * shape.NH, POSITIVE);
    if (dout != NULL)
        j->l->attention_bwd(j->ex, &shape, &grads, dout, &in, out, lse, j->drop);
}

/* The last token of each sequence. */
static void run_attention_cached(struct job *j)
{
    lks__attention_shape shape = attention_shape(j);
    const size_t keys = shape.B * shape.NKV * shape.T * shape.hs;
    lks__attention_cache cache = {.T = shape.T, .at = shape.T - 1};
    lks__attention_in in = {.ldq = j->shape->C, .ldkv = shape.NKV * shape.hs};
    shape.T = 1;
    cache.k = array(j, keys, VALUES);
    cache.v = array(j, keys, VALUES);
    in.q = array(j, shape.B * in.ldq, VALUES);
    in.k = array(j, shape.B * in.ldkv, VALUES);
    in.v = array(j, shape.B * in.ldkv, VALUES);
    float *out = array(j, shape.B * in.ldq, RESULT);
    if (out != NULL)
        j->l->attention_cached_fwd(j->ex, &shape, out, &cache, &in);
}

static void run_embedding_fwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *x = array(j, rows * C, RESULT), *wte = array(j, j->shape->V * C, VALUES),
          *wpe = array(j, j->shape->T * C, VALUES);
    int32_t *tokens = array(j, rows, TOKENS);
    if (x != NULL)
        j->l->embedding_fwd(j->ex, x, tokens, wte, wpe, rows, j->shape->T, C, j->drop);
}

static void run_embedding_bwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *dx = array(j, rows * C, VALUES), *dwte = array(j, j->shape->V * C, VALUES),
          *dwpe = array(j, j->shape->T * C, VALUES);
    int32_t *tokens = array(j, rows, TOKENS);
    if (dx != NULL)
        j->l->embedding_bwd(j->ex, dwte, dwpe, dx, tokens, rows, j->shape->T, C);
}

static void run_layernorm_fwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *y = array(j, rows * C, RESULT), *mean = array(j, rows, RESULT),
          *rstd = array(j, rows, RESULT), *x = array(j, rows * C, VALUES),
          *gain = array(j, C, VALUES), *bias = array(j, C, VALUES);
    if (y != NULL)
        j->l->layernorm_rows_fwd(j->ex, y, mean, rstd, x, gain, bias, rows, C);
}

static void run_layernorm_bwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *dx = array(j, rows * C, VALUES), *dgain = array(j, C, VALUES),
          *dbias = array(j, C, VALUES), *dy = array(j, rows * C, VALUES),
          *x = array(j, rows * C, VALUES), *gain = array(j, C, VALUES),
          *mean = array(j, rows, VALUES), *rstd = array(j, rows, POSITIVE),
          *partial = array(j, j->l->layernorm_partial_floats(rows, C), WORK);
    if (dx != NULL)
        j->l->layernorm_rows_bwd(j->ex, dx, dgain, dbias, dy, x, gain, mean, rstd, rows, C,
                                 partial);
}

static void run_dropout(struct job *j)
{
    const lks__dropout half = {.key = {{1, 2}}, 3, 4, 5, 1u << 31, 2.0f};
    const size_t rows = rows_of(j), C = j->shape->C;
    float *y = array(j, rows * C, RESULT), *x = array(j, rows * C, VALUES);
    if (y != NULL)
        j->l->dropout_rows(j->ex, y, x, rows, C, &half);
}

static void run_golf_embed(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *x = array(j, rows * C, RESULT), *rms = array(j, rows, RESULT),
          *emb = array(j, j->shape->V * C, VALUES);
    int32_t *tokens = array(j, rows, TOKENS);
    if (x != NULL)
        j->l->golf_embed_fwd(j->ex, x, rms, tokens, emb, rows, C);
}

static void run_golf_norm_fwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *y = array(j, rows * C, RESULT), *rms = array(j, rows, RESULT),
          *x = array(j, rows * C, VALUES);
    if (y != NULL)
        j->l->golf_norm_fwd(j->ex, y, rms, x, rows, C);
}

static void run_golf_norm_bwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *dx = array(j, rows * C, RESULT), *dy = array(j, rows * C, VALUES),
          *x = array(j, rows * C, VALUES), *rms = array(j, rows, POSITIVE);
    if (dx != NULL)
        j->l->golf_norm_bwd(j->ex, dx, dy, x, rms, rows, C);
}

static void run_golf_embed_bwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    float *demb = array(j, j->shape->V * C, VALUES), *row = array(j, rows * C, WORK),
          *dx = array(j, rows * C, VALUES), *emb = array(j, j->shape->V * C, VALUES),
          *rms = array(j, rows, POSITIVE);
    int32_t *tokens = array(j, rows, TOKENS);
    if (demb != NULL)
        j->l->golf_embed_bwd(j->ex, demb, row, dx, tokens, emb, rms, rows, C);
}

/* With a skip. `backward`: what forward made is there already. */
static lks__golf_entry golf_entry(struct job *j, bool backward)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__golf_entry e = {.prev = array(j, rows * C, VALUES)};
    e.skip = array(j, rows * C, VALUES);
    e.x0 = array(j, rows * C, VALUES);
    e.mix = array(j, 2 * C, VALUES);
    e.skip_weight = array(j, C, VALUES);
    e.x = array(j, rows * C, backward ? SPENT : RESULT);
    e.norm = array(j, rows * C, backward ? VALUES : RESULT);
    e.rms = array(j, rows, backward ? POSITIVE : RESULT);
    return e;
}

static void run_golf_entry_fwd(struct job *j)
{
    const lks__golf_entry e = golf_entry(j, false);
    if (e.x != NULL)
        j->l->golf_entry_fwd(j->ex, &e, rows_of(j), j->shape->C);
}

static size_t golf_partial(const struct job *j)
{
    return j->l->golf_partial_floats(rows_of(j), j->shape->C, j->shape->heads);
}

static void run_golf_entry_bwd(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    const lks__golf_entry e = golf_entry(j, true);
    float *dx = array(j, rows * C, VALUES), *dx0 = array(j, rows * C, VALUES),
          *dmix = array(j, 2 * C, VALUES), *dskip = array(j, rows * C, RESULT),
          *dskip_weight = array(j, C, VALUES), *dnorm = array(j, rows * C, VALUES),
          *partial = array(j, golf_partial(j), WORK);
    if (dx != NULL)
        j->l->golf_entry_bwd(j->ex, &e, dx, dx0, dmix, dskip, dskip_weight, dnorm, rows, C,
                             partial);
}

static void run_golf_branch(struct job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__golf_branch b = {.dx = array(j, rows * C, VALUES)};
    b.dy = array(j, rows * C, RESULT);
    b.scale = array(j, C, VALUES);
    b.dnorm = array(j, rows * C, VALUES);
    b.normed = array(j, rows * C, VALUES);
    b.rms = array(j, rows, POSITIVE);
    if (b.dx != NULL)
        j->l->golf_branch_bwd(j->ex, &b, rows, C);
}

static void run_golf_scaled(struct job *j)
{
    const size_t C = j->shape->C, in = j->shape->hidden;
    lks__golf_scaled s = {.dw = array(j, C * in, VALUES)};
    s.dscale = array(j, C, VALUES);
    s.product = array(j, C * in, VALUES);
    s.w = array(j, C * in, VALUES);
    s.scale = array(j, C, VALUES);
    if (s.dw != NULL)
        j->l->golf_scaled_bwd(j->ex, &s, C, in);
}

static lks__golf_heads golf_heads(struct job *j, bool backward)
{
    const size_t rows = rows_of(j), hs = j->shape->C / j->shape->heads;
    const size_t q = rows * j->shape->heads, k = rows * j->shape->kv;
    lks__golf_heads h = {.rows = rows,
                         .T = j->shape->T,
                         .n_head = j->shape->heads,
                         .n_kv_head = j->shape->kv,
                         .hs = hs};
    h.cosine = array(j, j->shape->T * (hs / 2), VALUES);
    h.sine = array(j, j->shape->T * (hs / 2), VALUES);
    h.gain = array(j, j->shape->heads, VALUES);
    h.q_raw = array(j, q * hs, VALUES);
    h.k_raw = array(j, k * hs, VALUES);
    h.q_rms = array(j, q, backward ? POSITIVE : RESULT);
    h.k_rms = array(j, k, backward ? POSITIVE : RESULT);
    return h;
}

static void run_golf_heads_fwd(struct job *j)
{
    lks__golf_heads h = golf_heads(j, false);
    h.q = array(j, h.rows * h.n_head * h.hs, RESULT);
    h.k = array(j, h.rows * h.n_kv_head * h.hs, RESULT);
    if (h.q != NULL)
        j->l->golf_heads_fwd(j->ex, &h);
}

static void run_golf_heads_bwd(struct job *j)
{
    const lks__golf_heads h = golf_heads(j, true);
    float *dq = array(j, h.rows * h.n_head * h.hs, VALUES),
          *dk = array(j, h.rows * h.n_kv_head * h.hs, VALUES), *dgain = array(j, h.n_head, VALUES),
          *partial = array(j, golf_partial(j), WORK);
    if (dq != NULL)
        j->l->golf_heads_bwd(j->ex, &h, dq, dk, dgain, partial);
}

static void xent(struct job *j, float softcap)
{
    const size_t rows = rows_of(j) < XENT_ROWS ? rows_of(j) : XENT_ROWS, V = j->shape->V;
    const lks__xent x = {rows, V, V, 1.0f / (float)rows, softcap, true};
    float *logits = array(j, rows * V, VALUES), *loss = array(j, 1, RESULT);
    int32_t *targets = array(j, rows, TOKENS);
    double *row_loss = array(j, rows, DOUBLES);
    if (logits == NULL)
        return;
    j->l->xent_rows(j->ex, &x, logits, targets, row_loss);
    j->l->mean_loss(j->ex, loss, row_loss, rows);
}

static void run_xent(struct job *j)
{
    xent(j, 0);
}

static void run_xent_cap(struct job *j)
{
    xent(j, 30);
}

static void run_blend(struct job *j)
{
    const size_t n = j->shape->hidden * j->shape->C;
    lks__blend list = {.a = 0.5f, .b = 0.25f, .n_pieces = 1};
    list.piece[0].y = array(j, n, VALUES);
    list.piece[0].x = array(j, n, VALUES);
    list.piece[0].n = n;
    if (j->memory != NULL)
        j->l->update_blend(j->ex, &list);
}

static void run_adamw(struct job *j)
{
    const size_t n = j->shape->V * j->shape->C;
    lks__adamw_list list = {1e-3, 0.9, 0.95, 1e-8, 0.1, 2, 1, .n_pieces = 1};
    list.piece[0].params = array(j, n, VALUES);
    list.piece[0].exp_avg = array(j, n, VALUES);
    list.piece[0].exp_avg_sq = array(j, n, POSITIVE);
    list.piece[0].grads = array(j, n, VALUES);
    list.piece[0].n = n;
    if (j->memory != NULL)
        j->l->update_adamw(j->ex, &list);
}

/* Matrices of one shape, side by side in each array. */
static void run_muon(struct job *j)
{
    const size_t rows = j->shape->hidden, cols = j->shape->C, n = rows * cols;
    const size_t bytes = j->l->update_muon_bytes(j->ex, rows, cols), count = j->shape->matrices;
    lks__muon_list list = {.lr = 1, .momentum = 0.95, .clip = 1, .ns_steps = 5};
    float *params = array(j, count * n, VALUES), *momentum = array(j, count * n, VALUES),
          *grads = array(j, count * n, VALUES);
    list.work_bytes = count * bytes;
    list.work = array(j, list.work_bytes / sizeof(float), WORK);
    if (params == NULL)
        return;
    for (list.n_pieces = 0; list.n_pieces < count; list.n_pieces++) {
        list.piece[list.n_pieces].rows = rows;
        list.piece[list.n_pieces].cols = cols;
        list.piece[list.n_pieces].params = params + list.n_pieces * n;
        list.piece[list.n_pieces].momentum = momentum + list.n_pieces * n;
        list.piece[list.n_pieces].grads = grads + list.n_pieces * n;
    }
    j->l->update_muon(j->ex, &list);
}

/* Which families have the operation. */
enum { GPT2 = 1, GOLF = 2, BOTH = GPT2 | GOLF };

static const struct item {
    const char *name;
    void (*run)(struct job *j);
    int families;
} items[] = {
    {"copy", run_copy, BOTH},
    {"accumulate", run_accumulate, BOTH},
    {"product, attention in", run_linear_in, BOTH},
    {"product with gelu", run_linear_gelu, GPT2},
    {"product with relu2", run_linear_relu2, GOLF},
    {"product, MLP down", run_linear_down, BOTH},
    {"product to inputs", run_linear_bwd_x, BOTH},
    {"product to weights", run_linear_bwd_w, BOTH},
    {"product of new tokens", run_linear_rows, BOTH},
    {"gelu", run_activation, GPT2},
    {"attention", run_attention_fwd, BOTH},
    {"attention backward", run_attention_bwd, BOTH},
    {"attention, cached", run_attention_cached, BOTH},
    {"embedding", run_embedding_fwd, GPT2},
    {"embedding backward", run_embedding_bwd, GPT2},
    {"layernorm", run_layernorm_fwd, GPT2},
    {"layernorm backward", run_layernorm_bwd, GPT2},
    {"dropout", run_dropout, GPT2},
    {"golf embedding", run_golf_embed, GOLF},
    {"embedding backward", run_golf_embed_bwd, GOLF},
    {"rmsnorm", run_golf_norm_fwd, GOLF},
    {"rmsnorm backward", run_golf_norm_bwd, GOLF},
    {"block entry", run_golf_entry_fwd, GOLF},
    {"block entry backward", run_golf_entry_bwd, GOLF},
    {"branch backward", run_golf_branch, GOLF},
    {"scaled weights", run_golf_scaled, GOLF},
    {"heads", run_golf_heads_fwd, GOLF},
    {"heads backward", run_golf_heads_bwd, GOLF},
    {"cross-entropy", run_xent, GPT2},
    {"cross-entropy, capped", run_xent_cap, GOLF},
    {"sgd", run_blend, BOTH},
    {"adamw", run_adamw, BOTH},
    {"muon", run_muon, GOLF},
};

enum { N_ITEMS = sizeof items / sizeof *items };

/* --- memory ----------------------------------------------------------------------------------- */

struct bench {
    lks__device *cpu, *device;
    const struct shape *shape;
    lks__dropout drop;
    float *pattern[KINDS]; /* [PATTERN] each: what arrays of that kind hold at first, repeated */
    int turns;
    double tolerance;
    double off[N_ITEMS]; /* relative distance from the CPU */
    struct bench_peaks peaks;
};

static void make_patterns(struct bench *b, uint64_t seed)
{
    lks__mt g;
    lks__mt_seed(&g, seed);
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < PATTERN; i++) {
            const uint32_t random = lks__mt_u32(&g) >> 8;
            const float x = ((float)random + 0.5f) * 0x1p-24f;
            const int32_t token = (int32_t)(random % b->shape->V);
            if (kind == TOKENS)
                memcpy(&b->pattern[kind][i], &token, sizeof token);
            else
                b->pattern[kind][i] = kind == POSITIVE                  ? x
                                      : kind == VALUES || kind == SPENT ? 2 * x - 1
                                                                        : NAN;
        }
}

/* The pattern is sent once, and copied where the memory is. */
static void fill(const struct bench *b, lks__device *device, const struct job *j)
{
    for (int i = 0; i < j->n_parts; i++) {
        const struct part *p = &j->part[i];
        const size_t n = p->bytes / sizeof(float);
        float *to = (float *)(void *)(j->memory + p->at);
        size_t have = n < PATTERN ? n : PATTERN;
        device->ops->copy(device, LKS__QUEUE_COMPUTE, to, b->pattern[p->kind],
                          have * sizeof(float));
        for (size_t more; have < n; have += more) {
            more = have < n - have ? have : n - have;
            j->l->copy(j->ex, to + have, to, more);
        }
    }
}

static void run(const struct item *item, struct job *j)
{
    j->n_parts = 0;
    j->bytes = 0;
    item->run(j);
}

/* The operation with its memory, filled; close_job() gives that back. */
static lks_status open_job(const struct bench *b, lks__device *device, const struct item *item,
                           struct job *j)
{
    void *memory;
    *j = (struct job){.l = device->layers, .ex = device->ex, .shape = b->shape, .drop = &b->drop};
    run(item, j);
    LKS__TRY(device->ops->alloc(device, j->bytes, &memory));
    j->memory = memory;
    fill(b, device, j);
    return LKS_OK;
}

static void close_job(lks__device *device, struct job *j)
{
    if (j->memory == NULL)
        return;
    lks__device_drain(device);
    device->ops->release(device, j->memory, j->bytes);
}

/* --- beside the CPU --------------------------------------------------------------------------- */

static double number(const struct part *p, const char *memory, size_t i)
{
    float x;
    double y;
    if (p->kind != DOUBLES) {
        memcpy(&x, memory + i * sizeof x, sizeof x);
        return (double)x;
    }
    memcpy(&y, memory + i * sizeof y, sizeof y);
    return y;
}

/* |got - want| / |want| of the array that is furthest off; not finite if one of them isn't. */
static double distance(const struct job *cpu, const struct job *device, const char *got)
{
    double most = 0.0;
    for (int i = 0; i < cpu->n_parts; i++) {
        const struct part *p = &cpu->part[i];
        double off = 0.0, size = 0.0;
        if (p->kind == TOKENS || p->kind == WORK || p->kind == SPENT)
            continue;
        for (size_t k = 0; k < p->bytes / (p->kind == DOUBLES ? sizeof(double) : sizeof(float));
             k++) {
            const double x = number(p, got + device->part[i].at, k);
            const double y = number(p, cpu->memory + p->at, k);
            off += (x - y) * (x - y);
            size += y * y;
        }
        off = sqrt(off) / (size > 0 ? sqrt(size) : 1);
        most = off <= most ? most : off;
    }
    return most;
}

static lks_status compare(struct bench *b, int i)
{
    struct job cpu = {0}, device = {0};
    char *got = NULL;
    lks_status st = open_job(b, b->cpu, &items[i], &cpu);
    if (st == LKS_OK)
        st = open_job(b, b->device, &items[i], &device);
    if (st == LKS_OK) {
        run(&items[i], &cpu);
        run(&items[i], &device);
        got = malloc(device.bytes);
        if (got == NULL)
            st = lks__fail(LKS_ERR_NOMEM, "no memory for %.1f MB", (double)device.bytes / 1e6);
    }
    if (st == LKS_OK) {
        b->device->ops->copy(b->device, LKS__QUEUE_COMPUTE, got, device.memory, device.bytes);
        st = lks__device_finish(b->device, LKS__QUEUE_COMPUTE);
    }
    if (st == LKS_OK)
        b->off[i] = distance(&cpu, &device, got);
    close_job(b->cpu, &cpu);
    close_job(b->device, &device);
    free(got);
    return st;
}

/* --- times ------------------------------------------------------------------------------------ */

/* Seconds of one of `n` runs that are queued together. */
static lks_status time_runs(const struct item *item, lks__device *device, struct job *j, int n,
                            double *seconds_p)
{
    const double start = lks__sys_now();
    for (int i = 0; i < n; i++)
        run(item, j);
    LKS__TRY(lks__device_finish(device, LKS__QUEUE_COMPUTE));
    *seconds_p = (lks__sys_now() - start) / n;
    return LKS_OK;
}

/* The median, and the least, of turns that are long enough for the host's clock. */
static lks_status time_item(const struct item *item, lks__device *device, struct job *j, int turns,
                            double *median_p, double *least_p)
{
    double times[MOST_TURNS], seconds = 0.0;
    int n = 1;
    LKS__TRY(time_runs(item, device, j, 1, &seconds)); /* what the first one makes is there then */
    for (;; n *= 2) {
        LKS__TRY(time_runs(item, device, j, n, &seconds));
        if (seconds * n * 1e6 >= TURN_US || n >= MOST_RUNS)
            break;
    }
    turns = turns < MOST_TURNS ? turns : MOST_TURNS;
    for (int i = 0; i < turns; i++)
        LKS__TRY(time_runs(item, device, j, n, &times[i]));
    *median_p = bench_median(times, turns);
    *least_p = times[0];
    return LKS_OK;
}

/* --- ceilings --------------------------------------------------------------------------------- */

static void run_ceiling_copy(struct job *j)
{
    float *y = array(j, j->shape->C, WORK), *x = array(j, j->shape->C, VALUES);
    if (y != NULL)
        j->l->copy(j->ex, y, x, j->shape->C);
}

static void run_ceiling_product(struct job *j)
{
    const size_t n = j->shape->C;
    float *y = array(j, n * n, WORK), *x = array(j, n * n, VALUES), *w = array(j, n * n, VALUES);
    if (y != NULL)
        j->l->linear_fwd(j->ex, y, n, x, w, n, n, n, NULL);
}

/* The best rate over sizes that double until one takes a whole turn. */
static lks_status measure_ceiling(struct bench *b, const struct item *item, size_t n, size_t most,
                                  double *bytes_p, double *flops_p)
{
    double median = 0.0, least = 0.0;
    for (; n <= most && median * 1e6 < TURN_US; n *= 2) {
        const struct shape square = {.C = n, .V = 1};
        struct job j = {0};
        b->shape = &square;
        lks_status st = open_job(b, b->device, item, &j);
        if (st == LKS_OK)
            st = time_item(item, b->device, &j, 3, &median, &least);
        const lks__device_counts before = b->device->ops->counts(b->device);
        if (st == LKS_OK)
            run(item, &j);
        const lks__device_counts after = b->device->ops->counts(b->device);
        close_job(b->device, &j);
        LKS__TRY(st);
        *bytes_p = fmax(*bytes_p, (after.bytes - before.bytes) / least);
        *flops_p = fmax(*flops_p, (after.flops - before.flops) / least);
    }
    return LKS_OK;
}

static lks_status measure_ceilings(struct bench *b)
{
    static const struct item copies = {"copies", run_ceiling_copy, BOTH},
                             products = {"products", run_ceiling_product, BOTH};
    double ignored = 0.0;
    if (b->device->ops->counts == NULL)
        return lks__fail(
            LKS_ERR_SUPPORT,
            "the device %s doesn't count what its operations need: measure cuda or cpu",
            b->device->ops->name);
    LKS__TRY(measure_ceiling(b, &copies, LEAST_COPY, MOST_COPY, &b->peaks.bytes, &ignored));
    return measure_ceiling(b, &products, LEAST_PRODUCT, MOST_PRODUCT, &ignored, &b->peaks.flops);
}

/* --- the table -------------------------------------------------------------------------------- */

static lks_status measure(struct bench *b, int i)
{
    struct job j = {0};
    double seconds = 0.0, least = 0.0;
    lks_status st = open_job(b, b->device, &items[i], &j);
    const lks__device_counts before = b->device->ops->counts(b->device);
    if (st == LKS_OK)
        run(&items[i], &j);
    const lks__device_counts after = b->device->ops->counts(b->device);
    if (st == LKS_OK)
        st = time_item(&items[i], b->device, &j, b->turns, &seconds, &least);
    close_job(b->device, &j);
    LKS__TRY(st);
    const double bytes = after.bytes - before.bytes, flops = after.flops - before.flops;
    const double by_bytes = bytes / b->peaks.bytes, by_flops = flops / b->peaks.flops;
    printf("%-22s %10.1f us %9.1f GB/s %10.1f GFLOP/s %4.0f%% of %-8s off by %.1e%s\n",
           items[i].name, seconds * 1e6, bytes / seconds * 1e-9, flops / seconds * 1e-9,
           fmax(by_bytes, by_flops) / seconds * 100, by_bytes > by_flops ? "copies" : "products",
           b->off[i], b->off[i] <= b->tolerance ? "" : ": WRONG");
    return LKS_OK;
}

static lks_status run_table(struct bench *b, const lks__settings *s, int family)
{
    const size_t heads = (size_t)s->n_head;
    const struct shape shape = {.B = (size_t)s->batch_size,
                                .T = (size_t)s->block_size,
                                .C = (size_t)s->n_embd,
                                .hidden =
                                    (size_t)s->n_embd * (size_t)(family == GOLF ? s->mlp_mult : 4),
                                .V = s->vocab_size > 0 ? (size_t)s->vocab_size
                                     : family == GOLF  ? 1024
                                                       : 50304,
                                .heads = heads,
                                .kv = family == GOLF ? (size_t)s->num_kv_heads : heads,
                                .matrices = MATRICES};
    const lks__attention_shape attention = {shape.B, shape.T, heads, shape.C / heads, shape.kv};
    LKS__TRY(lks__family_check_heads(s));
    LKS__TRY(lks__attention_check(&attention));
    struct shape small = shape;
    small.B = 2;
    small.T = shape.T < CHECK_T ? shape.T : CHECK_T;
    small.V = shape.V < CHECK_V ? shape.V : CHECK_V;
    small.matrices = 2;
    b->shape = &small;
    make_patterns(b, (uint64_t)s->seed);
    const char *wrong = NULL;
    for (int i = 0; i < N_ITEMS; i++)
        if (items[i].families & family) {
            LKS__TRY(compare(b, i));
            if (!(b->off[i] <= b->tolerance) && wrong == NULL)
                wrong = items[i].name;
        }
    LKS__TRY(measure_ceilings(b));
    bench_print_peaks(b->device, &b->peaks);
    b->shape = &shape;
    make_patterns(b, (uint64_t)s->seed);
    for (int i = 0; i < N_ITEMS; i++)
        if (items[i].families & family)
            LKS__TRY(measure(b, i));
    if (wrong != NULL)
        return lks__fail(LKS_ERR_DIVERGED,
                         "results of %s differ from the CPU's by more than %g of their norm: see "
                         "the lines with WRONG",
                         wrong, b->tolerance);
    return LKS_OK;
}

static lks_status open_bench(struct bench *b, lks__session *s)
{
    *b = (struct bench){.cpu = &s->cpu, .device = s->device, .drop = {.scale = 1}};
    b->tolerance = s->ex.bf16 ? TOLERANCE_BF16 : TOLERANCE;
    b->peaks.bf16 = s->ex.bf16;
    for (int kind = 0; kind < KINDS; kind++) {
        b->pattern[kind] = malloc(PATTERN * sizeof(float));
        if (b->pattern[kind] == NULL)
            return lks__fail(LKS_ERR_NOMEM, "no memory for %d numbers", PATTERN);
    }
    return LKS_OK;
}

static void close_bench(struct bench *b)
{
    for (int kind = 0; kind < KINDS; kind++)
        free(b->pattern[kind]);
}

lks_status bench_device_peaks(lks__session *s, struct bench_peaks *peaks)
{
    static const struct shape one = {.V = 1};
    struct bench b;
    lks_status st = open_bench(&b, s);
    b.shape = &one;
    if (st == LKS_OK) {
        make_patterns(&b, 1);
        st = measure_ceilings(&b);
    }
    *peaks = b.peaks;
    close_bench(&b);
    return st;
}

void bench_print_peaks(const lks__device *device, const struct bench_peaks *peaks)
{
    printf("peak of %s: copies of %.1f GB/s, read and written; products in %s of %.1f GFLOP/s\n",
           device->ops->name, peaks->bytes * 1e-9, peaks->bf16 ? "bf16" : "fp32",
           peaks->flops * 1e-9);
}

lks_status bench_device_kernels(lks__session *session, const lks__settings *given)
{
    lks__settings chosen = *given, *s = &chosen;
    struct bench b;
    lks__state_choose_dtype(s, session->device);
    LKS__TRY(lks__session_products(session, s->dtype == LKS__dtype_bfloat16));
    lks_status st = open_bench(&b, session);
    b.turns = (int)s->iters;
    if (s->dropout > 0)
        b.drop = (lks__dropout){.key = lks__philox_key_of((uint64_t)s->seed),
                                .threshold = (uint32_t)(s->dropout * 4294967296.0),
                                .scale = (float)(1 / (1 - s->dropout))};
    if (st == LKS_OK)
        st = run_table(&b, s, (lks__family_of(s)->settings & LKS__SETTING_GOLF) != 0 ? GOLF : GPT2);
    close_bench(&b);
    return st;
}
