/* Each operation of a device, with the arrays that it needs for a model's shapes. An operation
 * without memory only lists its arrays. */
#include "bench_operations.h"

#include "base/number/checked.h"
#include "model/table/table.h"

enum { XENT_ROWS = 4096 }; /* most rows of logits */

/* Queue an operation of the call c if its arrays have memory. */
#define RUN(operation, ...)                                                                        \
    do {                                                                                           \
        if (c->memory != NULL)                                                                     \
            c->l->operation(c->ex, __VA_ARGS__);                                                   \
    } while (0)

/* List the operation's next array, of n elements. Returns NULL without memory. */
static void *next_array(struct bench_call *c, size_t n, size_t each, enum bench_kind kind,
                        bool acts)
{
    const size_t at = c->bytes, bytes = n * each;
    c->part[c->n_parts++] = (struct bench_part){at, n, each, kind, acts};
    c->bytes += (bytes + BENCH_PART_BYTES - 1) / BENCH_PART_BYTES * BENCH_PART_BYTES;
    return c->memory == NULL ? NULL : c->memory + at;
}

static void *array(struct bench_call *c, size_t n, enum bench_kind kind)
{
    return next_array(c, n, kind == BENCH_DOUBLES ? sizeof(double) : sizeof(float), kind, false);
}

static lks__act *acts(struct bench_call *c, size_t n, enum bench_kind kind)
{
    return next_array(c, n, c->act_bytes, kind, true);
}

static float *values(struct bench_call *c, size_t n)
{
    return array(c, n, BENCH_VALUES);
}

static float *positive(struct bench_call *c, size_t n)
{
    return array(c, n, BENCH_POSITIVE);
}

static float *results(struct bench_call *c, size_t n)
{
    return array(c, n, BENCH_RESULT);
}

/* Activations of all rows, `width` each: an operation's input and its output. */
static lks__act *in(struct bench_call *c, size_t width)
{
    return acts(c, c->shape->rows * width, BENCH_VALUES);
}

static lks__act *out(struct bench_call *c, size_t width)
{
    return acts(c, c->shape->rows * width, BENCH_RESULT);
}

static void run_copy(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *y = out(c, s->C), *x = in(c, s->C);
    RUN(act_copy, y, x, s->rows * s->C);
}

static void run_accumulate(struct bench_call *c, const struct bench_shape *s)
{
    const size_t n = s->hidden * s->C;
    float *y = values(c, n), *x = values(c, n);
    RUN(accumulate, y, x, n);
}

static void run_act_accumulate(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *y = in(c, s->C), *x = in(c, s->C);
    RUN(act_accumulate, y, x, s->rows * s->C);
}

/* A forward product from n_in to n_out columns, plain or with an activation's epilogue. */
static void linear(struct bench_call *c, size_t n_out, size_t n_in, lks__epilogue_kind kind)
{
    lks__act *y = out(c, n_out), *x = in(c, n_in);
    float *w = values(c, n_out * n_in);
    lks__epilogue e = {.kind = kind, .out = kind == LKS__EPILOGUE_NONE ? NULL : out(c, n_out)};
    RUN(linear_fwd, y, n_out, x, w, c->shape->rows, n_out, n_in, &e);
}

static void run_linear_in(struct bench_call *c, const struct bench_shape *s)
{
    linear(c, (s->heads + 2 * s->kv) * s->hs, s->C, LKS__EPILOGUE_NONE);
}

static void run_linear_gelu(struct bench_call *c, const struct bench_shape *s)
{
    linear(c, s->hidden, s->C, LKS__EPILOGUE_GELU);
}

static void run_linear_relu2(struct bench_call *c, const struct bench_shape *s)
{
    linear(c, s->hidden, s->C, LKS__EPILOGUE_RELU2);
}

static void run_linear_down(struct bench_call *c, const struct bench_shape *s)
{
    linear(c, s->C, s->hidden, LKS__EPILOGUE_NONE);
}

static void run_linear_bwd_x(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *dx = out(c, s->C), *dy = in(c, s->hidden);
    float *w = values(c, s->hidden * s->C);
    RUN(linear_bwd_x, dx, dy, s->hidden, w, s->rows, s->hidden, s->C, NULL);
}

static void run_linear_bwd_w(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *dy = in(c, s->hidden), *x = in(c, s->C);
    float *dw = values(c, s->hidden * s->C), *db = values(c, s->hidden);
    RUN(linear_bwd_w, dw, db, dy, s->hidden, x, s->rows, s->hidden, s->C, false);
}

/* One new token per sequence. */
static void run_linear_rows(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *y = acts(c, s->B * s->hidden, BENCH_RESULT), *x = acts(c, s->B * s->C, BENCH_VALUES);
    float *w = values(c, s->hidden * s->C);
    RUN(linear_rows_fwd, y, s->hidden, x, w, s->B, s->hidden, s->C, NULL);
}

static void run_activation(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *y = out(c, s->hidden), *x = in(c, s->hidden);
    RUN(activation_fwd, LKS__EPILOGUE_GELU, y, x, s->rows, s->hidden);
}

/* The inputs for n tokens of each sequence. */
static lks__attention_in attention_in(struct bench_call *c, const struct bench_shape *s, size_t n)
{
    lks__attention_in in = {.ldq = s->C, .ldkv = s->kv * s->hs};
    in.q = acts(c, s->B * n * in.ldq, BENCH_VALUES);
    in.k = acts(c, s->B * n * in.ldkv, BENCH_VALUES);
    in.v = acts(c, s->B * n * in.ldkv, BENCH_VALUES);
    return in;
}

static void run_attention_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const lks__attention_shape shape = {s->B, s->T, s->heads, s->hs, s->kv};
    const lks__attention_in in = attention_in(c, s, s->T);
    lks__act *y = out(c, s->C);
    float *lse = results(c, s->rows * s->heads);
    RUN(attention_fwd, &shape, y, lse, &in, c->drop);
}

static void run_attention_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const lks__attention_shape shape = {s->B, s->T, s->heads, s->hs, s->kv};
    const lks__attention_in x = attention_in(c, s, s->T);
    const lks__attention_grads grads = {out(c, x.ldq), out(c, x.ldkv), out(c, x.ldkv), x.ldq,
                                        x.ldkv};
    lks__act *dy = in(c, s->C), *y = in(c, s->C);
    float *lse = positive(c, s->rows * s->heads);
    RUN(attention_bwd, &shape, &grads, dy, &x, y, lse, c->drop);
}

/* The last token of each sequence, after a cache of all others. */
static void run_attention_cached(struct bench_call *c, const struct bench_shape *s)
{
    const lks__attention_shape shape = {s->B, 1, s->heads, s->hs, s->kv};
    const size_t keys = s->B * s->kv * s->T * s->hs;
    lks__attention_cache cache = {.T = s->T, .at = s->T - 1};
    cache.k = acts(c, keys, BENCH_VALUES);
    cache.v = acts(c, keys, BENCH_VALUES);
    const lks__attention_in in = attention_in(c, s, 1);
    lks__act *y = acts(c, s->B * in.ldq, BENCH_RESULT);
    RUN(attention_cached_fwd, &shape, y, &cache, &in);
}

static void run_embedding_fwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *x = out(c, s->C);
    float *wte = values(c, s->V * s->C), *wpe = values(c, s->T * s->C);
    int32_t *tokens = array(c, s->rows, BENCH_TOKENS);
    RUN(embedding_fwd, x, tokens, wte, wpe, s->rows, s->T, s->C, c->drop);
}

static void run_embedding_bwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *dx = in(c, s->C);
    float *dwte = values(c, s->V * s->C), *dwpe = values(c, s->T * s->C);
    int32_t *tokens = array(c, s->rows, BENCH_TOKENS);
    RUN(embedding_bwd, dwte, dwpe, dx, tokens, s->rows, s->T, s->C);
}

static void run_layernorm_fwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *y = out(c, s->C), *x = in(c, s->C);
    float *mean = results(c, s->rows), *rstd = results(c, s->rows), *gain = values(c, s->C),
          *bias = values(c, s->C);
    RUN(layernorm_rows_fwd, y, mean, rstd, x, gain, bias, s->rows, s->C);
}

static void run_layernorm_bwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *dx = in(c, s->C), *dy = in(c, s->C), *x = in(c, s->C);
    float *dgain = values(c, s->C), *dbias = values(c, s->C), *gain = values(c, s->C),
          *mean = values(c, s->rows), *rstd = positive(c, s->rows),
          *partial = array(c, c->l->layernorm_partial_floats(s->rows, s->C), BENCH_WORK);
    RUN(layernorm_rows_bwd, dx, dgain, dbias, dy, x, gain, mean, rstd, s->rows, s->C, partial);
}

static void run_dropout(struct bench_call *c, const struct bench_shape *s)
{
    const lks__dropout half = {.key = {{1, 2}}, 3, 4, 5, 1u << 31, 2.0f};
    lks__act *y = out(c, s->C), *x = in(c, s->C);
    RUN(dropout_rows, y, x, s->rows, s->C, &half);
}

static void run_golf_embed(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *x = out(c, s->C);
    float *rms = results(c, s->rows), *emb = values(c, s->V * s->C);
    int32_t *tokens = array(c, s->rows, BENCH_TOKENS);
    RUN(golf_embed_fwd, x, rms, tokens, emb, s->rows, s->C);
}

static void run_golf_norm_fwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *y = out(c, s->C), *x = in(c, s->C);
    float *rms = results(c, s->rows);
    RUN(golf_norm_fwd, y, rms, x, s->rows, s->C);
}

static void run_golf_norm_bwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *dx = out(c, s->C), *dy = in(c, s->C), *x = in(c, s->C);
    float *rms = positive(c, s->rows);
    RUN(golf_norm_bwd, dx, dy, x, rms, s->rows, s->C);
}

static void run_golf_embed_bwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__act *row = acts(c, s->rows * s->C, BENCH_WORK), *dx = in(c, s->C);
    float *demb = values(c, s->V * s->C), *emb = values(c, s->V * s->C),
          *rms = positive(c, s->rows);
    int32_t *tokens = array(c, s->rows, BENCH_TOKENS);
    RUN(golf_embed_bwd, demb, row, dx, tokens, emb, rms, s->rows, s->C);
}

/* A block's entry with a skip. With `backward`, forward's results are inputs. */
static lks__golf_entry golf_entry(struct bench_call *c, const struct bench_shape *s, bool backward)
{
    lks__golf_entry e = {.prev = in(c, s->C)};
    e.skip = in(c, s->C);
    e.x0 = in(c, s->C);
    e.mix = values(c, 2 * s->C);
    e.skip_weight = values(c, s->C);
    e.x = acts(c, s->rows * s->C, backward ? BENCH_SPENT : BENCH_RESULT);
    e.norm = backward ? in(c, s->C) : out(c, s->C);
    e.rms = backward ? positive(c, s->rows) : results(c, s->rows);
    return e;
}

static void run_golf_entry_fwd(struct bench_call *c, const struct bench_shape *s)
{
    const lks__golf_entry e = golf_entry(c, s, false);
    RUN(golf_entry_fwd, &e, s->rows, s->C);
}

static float *golf_partial(struct bench_call *c, const struct bench_shape *s)
{
    return array(c, c->l->golf_partial_floats(s->rows, s->C, s->heads), BENCH_WORK);
}

static void run_golf_entry_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const lks__golf_entry e = golf_entry(c, s, true);
    lks__act *dx = in(c, s->C), *dx0 = in(c, s->C), *dskip = out(c, s->C), *dnorm = in(c, s->C);
    float *dmix = values(c, 2 * s->C), *dskip_weight = values(c, s->C),
          *partial = golf_partial(c, s);
    RUN(golf_entry_bwd, &e, dx, dx0, dmix, dskip, dskip_weight, dnorm, s->rows, s->C, partial);
}

static void run_golf_branch(struct bench_call *c, const struct bench_shape *s)
{
    lks__golf_branch b = {.dx = in(c, s->C)};
    b.dy = out(c, s->C);
    b.scale = values(c, s->C);
    b.dnorm = in(c, s->C);
    b.normed = in(c, s->C);
    b.rms = positive(c, s->rows);
    RUN(golf_branch_bwd, &b, s->rows, s->C);
}

static void run_golf_scaled(struct bench_call *c, const struct bench_shape *s)
{
    const size_t n = s->C * s->hidden;
    lks__golf_scaled scaled = {.dw = values(c, n)};
    scaled.dscale = values(c, s->C);
    scaled.product = values(c, n);
    scaled.w = values(c, n);
    scaled.scale = values(c, s->C);
    RUN(golf_scaled_bwd, &scaled, s->C, s->hidden);
}

static lks__golf_heads golf_heads(struct bench_call *c, const struct bench_shape *s, bool backward)
{
    const size_t q = s->rows * s->heads, k = s->rows * s->kv, turns = s->T * (s->hs / 2);
    lks__golf_heads h = {
        .rows = s->rows, .T = s->T, .n_head = s->heads, .n_kv_head = s->kv, .hs = s->hs};
    h.cosine = values(c, turns);
    h.sine = values(c, turns);
    h.gain = values(c, s->heads);
    h.q_raw = acts(c, q * s->hs, BENCH_VALUES);
    h.k_raw = acts(c, k * s->hs, BENCH_VALUES);
    h.q_rms = backward ? positive(c, q) : results(c, q);
    h.k_rms = backward ? positive(c, k) : results(c, k);
    return h;
}

static void run_golf_heads_fwd(struct bench_call *c, const struct bench_shape *s)
{
    lks__golf_heads h = golf_heads(c, s, false);
    h.q = out(c, s->heads * s->hs);
    h.k = out(c, s->kv * s->hs);
    RUN(golf_heads_fwd, &h);
}

static void run_golf_heads_bwd(struct bench_call *c, const struct bench_shape *s)
{
    const lks__golf_heads h = golf_heads(c, s, true);
    lks__act *dq = in(c, s->heads * s->hs), *dk = in(c, s->kv * s->hs);
    float *dgain = values(c, s->heads), *partial = golf_partial(c, s);
    RUN(golf_heads_bwd, &h, dq, dk, dgain, partial);
}

static void xent(struct bench_call *c, const struct bench_shape *s, float softcap)
{
    const size_t rows = s->rows < XENT_ROWS ? s->rows : XENT_ROWS;
    const lks__xent x = {rows, s->V, s->V, 1.0f / (float)rows, softcap, true};
    lks__act *logits = acts(c, rows * s->V, BENCH_VALUES);
    float *loss = results(c, 1);
    int32_t *targets = array(c, rows, BENCH_TOKENS);
    double *row_loss = array(c, rows, BENCH_DOUBLES);
    RUN(xent_rows, &x, logits, targets, row_loss);
    RUN(mean_loss, loss, row_loss, rows);
}

static void run_xent(struct bench_call *c, const struct bench_shape *s)
{
    xent(c, s, 0);
}

static void run_xent_cap(struct bench_call *c, const struct bench_shape *s)
{
    xent(c, s, 30);
}

static void run_blend(struct bench_call *c, const struct bench_shape *s)
{
    const size_t n = s->hidden * s->C;
    lks__blend list = {.a = 0.5f, .b = 0.25f, .n_pieces = 1, .piece[0].n = n};
    list.piece[0].y = values(c, n);
    list.piece[0].x = values(c, n);
    RUN(update_blend, &list);
}

static void run_adamw(struct bench_call *c, const struct bench_shape *s)
{
    const size_t n = s->V * s->C;
    lks__adamw_list list = {1e-3, 0.9, 0.95, 1e-8, 0.1, 2, 1, .n_pieces = 1, .piece[0].n = n};
    list.piece[0].params = values(c, n);
    list.piece[0].exp_avg = values(c, n);
    list.piece[0].exp_avg_sq = positive(c, n);
    list.piece[0].grads = values(c, n);
    RUN(update_adamw, &list);
}

/* `count` matrices of one shape. Zeros between them, as between tensors of an arena, because an
 * update may write to the padding. */
static void run_muon(struct bench_call *c, const struct bench_shape *s)
{
    const size_t rows = s->hidden, cols = s->C, n = rows * cols, count = s->matrices;
    const size_t room = lks__round_up(n, LKS__PADDED);
    lks__muon_list list = {.lr = 1, .momentum = 0.95, .clip = 1, .ns_steps = 5};
    float *params = values(c, count * room), *momentum = values(c, count * room),
          *grads = values(c, count * room);
    list.work_bytes = count * c->l->update_muon_bytes(c->ex, rows, cols);
    list.work = array(c, list.work_bytes / sizeof(float), BENCH_WORK);
    for (size_t at = 0; c->memory != NULL && list.n_pieces < count; at += room) {
        float *const all[] = {params + at, momentum + at, grads + at};
        for (int i = 0; i < 3 && room > n; i++)
            RUN(clear, all[i] + n, room - n);
        list.piece[list.n_pieces].rows = rows;
        list.piece[list.n_pieces].cols = cols;
        list.piece[list.n_pieces].params = all[0];
        list.piece[list.n_pieces].momentum = all[1];
        list.piece[list.n_pieces++].grads = all[2];
    }
    RUN(update_muon, &list);
}

static void run_ceiling_copy(struct bench_call *c, const struct bench_shape *s)
{
    float *y = array(c, s->C, BENCH_WORK), *x = values(c, s->C);
    RUN(copy, y, x, s->C);
}

static void run_ceiling_product(struct bench_call *c, const struct bench_shape *s)
{
    const size_t n = s->C;
    lks__act *y = acts(c, n * n, BENCH_WORK), *x = acts(c, n * n, BENCH_VALUES);
    float *w = values(c, n * n);
    RUN(linear_fwd, y, n, x, w, n, n, n, NULL);
}

const struct bench_item bench_copies = {"copies", run_ceiling_copy, 0};
const struct bench_item bench_products = {"products", run_ceiling_product, 0};

enum { BOTH = BENCH_GPT2 | BENCH_GOLF };

const struct bench_item bench_items[] = {
    {"copy", run_copy, BOTH},
    {"accumulate", run_accumulate, BOTH},
    {"accumulate rows", run_act_accumulate, BENCH_GOLF},
    {"product, attention in", run_linear_in, BOTH},
    {"product with gelu", run_linear_gelu, BENCH_GPT2},
    {"product with relu2", run_linear_relu2, BENCH_GOLF},
    {"product, MLP down", run_linear_down, BOTH},
    {"product to inputs", run_linear_bwd_x, BOTH},
    {"product to weights", run_linear_bwd_w, BOTH},
    {"product of new tokens", run_linear_rows, BOTH},
    {"gelu", run_activation, BENCH_GPT2},
    {"attention", run_attention_fwd, BOTH},
    {"attention backward", run_attention_bwd, BOTH},
    {"attention, cached", run_attention_cached, BOTH},
    {"embedding", run_embedding_fwd, BENCH_GPT2},
    {"embedding backward", run_embedding_bwd, BENCH_GPT2},
    {"layernorm", run_layernorm_fwd, BENCH_GPT2},
    {"layernorm backward", run_layernorm_bwd, BENCH_GPT2},
    {"dropout", run_dropout, BENCH_GPT2},
    {"golf embedding", run_golf_embed, BENCH_GOLF},
    {"embedding backward", run_golf_embed_bwd, BENCH_GOLF},
    {"rmsnorm", run_golf_norm_fwd, BENCH_GOLF},
    {"rmsnorm backward", run_golf_norm_bwd, BENCH_GOLF},
    {"block entry", run_golf_entry_fwd, BENCH_GOLF},
    {"block entry backward", run_golf_entry_bwd, BENCH_GOLF},
    {"branch backward", run_golf_branch, BENCH_GOLF},
    {"scaled weights", run_golf_scaled, BENCH_GOLF},
    {"heads", run_golf_heads_fwd, BENCH_GOLF},
    {"heads backward", run_golf_heads_bwd, BENCH_GOLF},
    {"cross-entropy", run_xent, BENCH_GPT2},
    {"cross-entropy, capped", run_xent_cap, BENCH_GOLF},
    {"sgd", run_blend, BOTH},
    {"adamw", run_adamw, BOTH},
    {"muon", run_muon, BENCH_GOLF},
};

_Static_assert(sizeof bench_items / sizeof *bench_items <= BENCH_MOST_ITEMS, "more operations");
const int bench_n_items = sizeof bench_items / sizeof *bench_items;
