/* Each operation of a device, with the arrays that it needs for a model's shapes. An operation
 * without memory only lists its arrays. */
#include "bench_operations.h"

#include "base/number/checked.h"
#include "model/table/table.h"

enum { XENT_ROWS = 4096 }; /* most rows of logits */

/* List the operation's next array, of n elements. Returns NULL without memory. */
static void *next_array(struct bench_job *j, size_t n, size_t each, enum bench_kind kind, bool acts)
{
    const size_t at = j->bytes, bytes = n * each;
    j->part[j->n_parts++] = (struct bench_part){at, n, each, kind, acts};
    j->bytes += (bytes + BENCH_PART_BYTES - 1) / BENCH_PART_BYTES * BENCH_PART_BYTES;
    return j->memory == NULL ? NULL : j->memory + at;
}

static void *array(struct bench_job *j, size_t n, enum bench_kind kind)
{
    return next_array(j, n, kind == BENCH_DOUBLES ? sizeof(double) : sizeof(float), kind, false);
}

static lks__act *acts(struct bench_job *j, size_t n, enum bench_kind kind)
{
    return next_array(j, n, j->act_bytes, kind, true);
}

static size_t rows_of(const struct bench_job *j)
{
    return j->shape->B * j->shape->T;
}

static void run_copy(struct bench_job *j)
{
    const size_t n = rows_of(j) * j->shape->C;
    lks__act *y = acts(j, n, BENCH_RESULT), *x = acts(j, n, BENCH_VALUES);
    if (y != NULL)
        j->l->act_copy(j->ex, y, x, n);
}

static void run_accumulate(struct bench_job *j)
{
    const size_t n = j->shape->hidden * j->shape->C;
    float *y = array(j, n, BENCH_VALUES), *x = array(j, n, BENCH_VALUES);
    if (y != NULL)
        j->l->accumulate(j->ex, y, x, n);
}

static void run_act_accumulate(struct bench_job *j)
{
    const size_t n = rows_of(j) * j->shape->C;
    lks__act *y = acts(j, n, BENCH_VALUES), *x = acts(j, n, BENCH_VALUES);
    if (y != NULL)
        j->l->act_accumulate(j->ex, y, x, n);
}

/* A forward product from `in` to `out` columns, plain or with an activation's epilogue. */
static void linear(struct bench_job *j, size_t out, size_t in, lks__epilogue_kind kind)
{
    const size_t rows = rows_of(j);
    lks__act *y = acts(j, rows * out, BENCH_RESULT), *x = acts(j, rows * in, BENCH_VALUES);
    float *w = array(j, out * in, BENCH_VALUES);
    lks__epilogue e = {.kind = kind};
    if (kind != LKS__EPILOGUE_NONE)
        e.out = acts(j, rows * out, BENCH_RESULT);
    if (y != NULL)
        j->l->linear_fwd(j->ex, y, out, x, w, rows, out, in, &e);
}

static void run_linear_in(struct bench_job *j)
{
    linear(j, (j->shape->heads + 2 * j->shape->kv) * (j->shape->C / j->shape->heads), j->shape->C,
           LKS__EPILOGUE_NONE);
}

static void run_linear_gelu(struct bench_job *j)
{
    linear(j, j->shape->hidden, j->shape->C, LKS__EPILOGUE_GELU);
}

static void run_linear_relu2(struct bench_job *j)
{
    linear(j, j->shape->hidden, j->shape->C, LKS__EPILOGUE_RELU2);
}

static void run_linear_down(struct bench_job *j)
{
    linear(j, j->shape->C, j->shape->hidden, LKS__EPILOGUE_NONE);
}

static void run_linear_bwd_x(struct bench_job *j)
{
    const size_t rows = rows_of(j), out = j->shape->hidden, in = j->shape->C;
    lks__act *dx = acts(j, rows * in, BENCH_RESULT), *dy = acts(j, rows * out, BENCH_VALUES);
    float *w = array(j, out * in, BENCH_VALUES);
    if (dx != NULL)
        j->l->linear_bwd_x(j->ex, dx, dy, out, w, rows, out, in, NULL);
}

static void run_linear_bwd_w(struct bench_job *j)
{
    const size_t rows = rows_of(j), out = j->shape->hidden, in = j->shape->C;
    lks__act *dy = acts(j, rows * out, BENCH_VALUES), *x = acts(j, rows * in, BENCH_VALUES);
    float *dw = array(j, out * in, BENCH_VALUES), *db = array(j, out, BENCH_VALUES);
    if (dw != NULL)
        j->l->linear_bwd_w(j->ex, dw, db, dy, out, x, rows, out, in);
}

/* One new token per sequence. */
static void run_linear_rows(struct bench_job *j)
{
    const size_t rows = j->shape->B, out = j->shape->hidden, in = j->shape->C;
    lks__act *y = acts(j, rows * out, BENCH_RESULT), *x = acts(j, rows * in, BENCH_VALUES);
    float *w = array(j, out * in, BENCH_VALUES);
    if (y != NULL)
        j->l->linear_rows_fwd(j->ex, y, out, x, w, rows, out, in, NULL);
}

static void run_activation(struct bench_job *j)
{
    const size_t rows = rows_of(j), width = j->shape->hidden;
    lks__act *y = acts(j, rows * width, BENCH_RESULT), *x = acts(j, rows * width, BENCH_VALUES);
    if (y != NULL)
        j->l->activation_fwd(j->ex, LKS__EPILOGUE_GELU, y, x, rows, width);
}

static lks__attention_shape attention_shape(const struct bench_job *j)
{
    return (lks__attention_shape){j->shape->B, j->shape->T, j->shape->heads,
                                  j->shape->C / j->shape->heads, j->shape->kv};
}

static lks__attention_in attention_in(struct bench_job *j)
{
    const size_t ldkv = j->shape->kv * (j->shape->C / j->shape->heads);
    lks__attention_in in = {.ldq = j->shape->C, .ldkv = ldkv};
    in.q = acts(j, rows_of(j) * in.ldq, BENCH_VALUES);
    in.k = acts(j, rows_of(j) * ldkv, BENCH_VALUES);
    in.v = acts(j, rows_of(j) * ldkv, BENCH_VALUES);
    return in;
}

static void run_attention_fwd(struct bench_job *j)
{
    const lks__attention_shape shape = attention_shape(j);
    const lks__attention_in in = attention_in(j);
    lks__act *out = acts(j, rows_of(j) * j->shape->C, BENCH_RESULT);
    float *lse = array(j, rows_of(j) * shape.NH, BENCH_RESULT);
    if (out != NULL)
        j->l->attention_fwd(j->ex, &shape, out, lse, &in, j->drop);
}

static void run_attention_bwd(struct bench_job *j)
{
    const lks__attention_shape shape = attention_shape(j);
    const lks__attention_in in = attention_in(j);
    const size_t rows = rows_of(j);
    const lks__attention_grads grads = {acts(j, rows * in.ldq, BENCH_RESULT),
                                        acts(j, rows * in.ldkv, BENCH_RESULT),
                                        acts(j, rows * in.ldkv, BENCH_RESULT), in.ldq, in.ldkv};
    lks__act *dout = acts(j, rows * j->shape->C, BENCH_VALUES),
             *out = acts(j, rows * j->shape->C, BENCH_VALUES);
    float *lse = array(j, rows * shape.NH, BENCH_POSITIVE);
    if (dout != NULL)
        j->l->attention_bwd(j->ex, &shape, &grads, dout, &in, out, lse, j->drop);
}

/* The last token of each sequence, after a cache of all others. */
static void run_attention_cached(struct bench_job *j)
{
    lks__attention_shape shape = attention_shape(j);
    const size_t keys = shape.B * shape.NKV * shape.T * shape.hs;
    lks__attention_cache cache = {.T = shape.T, .at = shape.T - 1};
    lks__attention_in in = {.ldq = j->shape->C, .ldkv = shape.NKV * shape.hs};
    shape.T = 1;
    cache.k = acts(j, keys, BENCH_VALUES);
    cache.v = acts(j, keys, BENCH_VALUES);
    in.q = acts(j, shape.B * in.ldq, BENCH_VALUES);
    in.k = acts(j, shape.B * in.ldkv, BENCH_VALUES);
    in.v = acts(j, shape.B * in.ldkv, BENCH_VALUES);
    lks__act *out = acts(j, shape.B * in.ldq, BENCH_RESULT);
    if (out != NULL)
        j->l->attention_cached_fwd(j->ex, &shape, out, &cache, &in);
}

static void run_embedding_fwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *x = acts(j, rows * C, BENCH_RESULT);
    float *wte = array(j, j->shape->V * C, BENCH_VALUES),
          *wpe = array(j, j->shape->T * C, BENCH_VALUES);
    int32_t *tokens = array(j, rows, BENCH_TOKENS);
    if (x != NULL)
        j->l->embedding_fwd(j->ex, x, tokens, wte, wpe, rows, j->shape->T, C, j->drop);
}

static void run_embedding_bwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *dx = acts(j, rows * C, BENCH_VALUES);
    float *dwte = array(j, j->shape->V * C, BENCH_VALUES),
          *dwpe = array(j, j->shape->T * C, BENCH_VALUES);
    int32_t *tokens = array(j, rows, BENCH_TOKENS);
    if (dx != NULL)
        j->l->embedding_bwd(j->ex, dwte, dwpe, dx, tokens, rows, j->shape->T, C);
}

static void run_layernorm_fwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *y = acts(j, rows * C, BENCH_RESULT), *x = acts(j, rows * C, BENCH_VALUES);
    float *mean = array(j, rows, BENCH_RESULT), *rstd = array(j, rows, BENCH_RESULT),
          *gain = array(j, C, BENCH_VALUES), *bias = array(j, C, BENCH_VALUES);
    if (y != NULL)
        j->l->layernorm_rows_fwd(j->ex, y, mean, rstd, x, gain, bias, rows, C);
}

static void run_layernorm_bwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *dx = acts(j, rows * C, BENCH_VALUES), *dy = acts(j, rows * C, BENCH_VALUES),
             *x = acts(j, rows * C, BENCH_VALUES);
    float *dgain = array(j, C, BENCH_VALUES), *dbias = array(j, C, BENCH_VALUES),
          *gain = array(j, C, BENCH_VALUES), *mean = array(j, rows, BENCH_VALUES),
          *rstd = array(j, rows, BENCH_POSITIVE),
          *partial = array(j, j->l->layernorm_partial_floats(rows, C), BENCH_WORK);
    if (dx != NULL)
        j->l->layernorm_rows_bwd(j->ex, dx, dgain, dbias, dy, x, gain, mean, rstd, rows, C,
                                 partial);
}

static void run_dropout(struct bench_job *j)
{
    const lks__dropout half = {.key = {{1, 2}}, 3, 4, 5, 1u << 31, 2.0f};
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *y = acts(j, rows * C, BENCH_RESULT), *x = acts(j, rows * C, BENCH_VALUES);
    if (y != NULL)
        j->l->dropout_rows(j->ex, y, x, rows, C, &half);
}

static void run_golf_embed(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *x = acts(j, rows * C, BENCH_RESULT);
    float *rms = array(j, rows, BENCH_RESULT), *emb = array(j, j->shape->V * C, BENCH_VALUES);
    int32_t *tokens = array(j, rows, BENCH_TOKENS);
    if (x != NULL)
        j->l->golf_embed_fwd(j->ex, x, rms, tokens, emb, rows, C);
}

static void run_golf_norm_fwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *y = acts(j, rows * C, BENCH_RESULT), *x = acts(j, rows * C, BENCH_VALUES);
    float *rms = array(j, rows, BENCH_RESULT);
    if (y != NULL)
        j->l->golf_norm_fwd(j->ex, y, rms, x, rows, C);
}

static void run_golf_norm_bwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *dx = acts(j, rows * C, BENCH_RESULT), *dy = acts(j, rows * C, BENCH_VALUES),
             *x = acts(j, rows * C, BENCH_VALUES);
    float *rms = array(j, rows, BENCH_POSITIVE);
    if (dx != NULL)
        j->l->golf_norm_bwd(j->ex, dx, dy, x, rms, rows, C);
}

static void run_golf_embed_bwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__act *row = acts(j, rows * C, BENCH_WORK), *dx = acts(j, rows * C, BENCH_VALUES);
    float *demb = array(j, j->shape->V * C, BENCH_VALUES),
          *emb = array(j, j->shape->V * C, BENCH_VALUES), *rms = array(j, rows, BENCH_POSITIVE);
    int32_t *tokens = array(j, rows, BENCH_TOKENS);
    if (demb != NULL)
        j->l->golf_embed_bwd(j->ex, demb, row, dx, tokens, emb, rms, rows, C);
}

/* A block's entry with a skip. With `backward`, forward's results are inputs. */
static lks__golf_entry golf_entry(struct bench_job *j, bool backward)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__golf_entry e = {.prev = acts(j, rows * C, BENCH_VALUES)};
    e.skip = acts(j, rows * C, BENCH_VALUES);
    e.x0 = acts(j, rows * C, BENCH_VALUES);
    e.mix = array(j, 2 * C, BENCH_VALUES);
    e.skip_weight = array(j, C, BENCH_VALUES);
    e.x = acts(j, rows * C, backward ? BENCH_SPENT : BENCH_RESULT);
    e.norm = acts(j, rows * C, backward ? BENCH_VALUES : BENCH_RESULT);
    e.rms = array(j, rows, backward ? BENCH_POSITIVE : BENCH_RESULT);
    return e;
}

static void run_golf_entry_fwd(struct bench_job *j)
{
    const lks__golf_entry e = golf_entry(j, false);
    if (e.x != NULL)
        j->l->golf_entry_fwd(j->ex, &e, rows_of(j), j->shape->C);
}

static size_t golf_partial(const struct bench_job *j)
{
    return j->l->golf_partial_floats(rows_of(j), j->shape->C, j->shape->heads);
}

static void run_golf_entry_bwd(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    const lks__golf_entry e = golf_entry(j, true);
    lks__act *dx = acts(j, rows * C, BENCH_VALUES), *dx0 = acts(j, rows * C, BENCH_VALUES),
             *dskip = acts(j, rows * C, BENCH_RESULT), *dnorm = acts(j, rows * C, BENCH_VALUES);
    float *dmix = array(j, 2 * C, BENCH_VALUES), *dskip_weight = array(j, C, BENCH_VALUES),
          *partial = array(j, golf_partial(j), BENCH_WORK);
    if (dx != NULL)
        j->l->golf_entry_bwd(j->ex, &e, dx, dx0, dmix, dskip, dskip_weight, dnorm, rows, C,
                             partial);
}

static void run_golf_branch(struct bench_job *j)
{
    const size_t rows = rows_of(j), C = j->shape->C;
    lks__golf_branch b = {.dx = acts(j, rows * C, BENCH_VALUES)};
    b.dy = acts(j, rows * C, BENCH_RESULT);
    b.scale = array(j, C, BENCH_VALUES);
    b.dnorm = acts(j, rows * C, BENCH_VALUES);
    b.normed = acts(j, rows * C, BENCH_VALUES);
    b.rms = array(j, rows, BENCH_POSITIVE);
    if (b.dx != NULL)
        j->l->golf_branch_bwd(j->ex, &b, rows, C);
}

static void run_golf_scaled(struct bench_job *j)
{
    const size_t C = j->shape->C, in = j->shape->hidden;
    lks__golf_scaled s = {.dw = array(j, C * in, BENCH_VALUES)};
    s.dscale = array(j, C, BENCH_VALUES);
    s.product = array(j, C * in, BENCH_VALUES);
    s.w = array(j, C * in, BENCH_VALUES);
    s.scale = array(j, C, BENCH_VALUES);
    if (s.dw != NULL)
        j->l->golf_scaled_bwd(j->ex, &s, C, in);
}

static lks__golf_heads golf_heads(struct bench_job *j, bool backward)
{
    const size_t rows = rows_of(j), hs = j->shape->C / j->shape->heads;
    const size_t q = rows * j->shape->heads, k = rows * j->shape->kv;
    lks__golf_heads h = {.rows = rows,
                         .T = j->shape->T,
                         .n_head = j->shape->heads,
                         .n_kv_head = j->shape->kv,
                         .hs = hs};
    h.cosine = array(j, j->shape->T * (hs / 2), BENCH_VALUES);
    h.sine = array(j, j->shape->T * (hs / 2), BENCH_VALUES);
    h.gain = array(j, j->shape->heads, BENCH_VALUES);
    h.q_raw = acts(j, q * hs, BENCH_VALUES);
    h.k_raw = acts(j, k * hs, BENCH_VALUES);
    h.q_rms = array(j, q, backward ? BENCH_POSITIVE : BENCH_RESULT);
    h.k_rms = array(j, k, backward ? BENCH_POSITIVE : BENCH_RESULT);
    return h;
}

static void run_golf_heads_fwd(struct bench_job *j)
{
    lks__golf_heads h = golf_heads(j, false);
    h.q = acts(j, h.rows * h.n_head * h.hs, BENCH_RESULT);
    h.k = acts(j, h.rows * h.n_kv_head * h.hs, BENCH_RESULT);
    if (h.q != NULL)
        j->l->golf_heads_fwd(j->ex, &h);
}

static void run_golf_heads_bwd(struct bench_job *j)
{
    const lks__golf_heads h = golf_heads(j, true);
    lks__act *dq = acts(j, h.rows * h.n_head * h.hs, BENCH_VALUES),
             *dk = acts(j, h.rows * h.n_kv_head * h.hs, BENCH_VALUES);
    float *dgain = array(j, h.n_head, BENCH_VALUES),
          *partial = array(j, golf_partial(j), BENCH_WORK);
    if (dq != NULL)
        j->l->golf_heads_bwd(j->ex, &h, dq, dk, dgain, partial);
}

static void xent(struct bench_job *j, float softcap)
{
    const size_t rows = rows_of(j) < XENT_ROWS ? rows_of(j) : XENT_ROWS, V = j->shape->V;
    const lks__xent x = {rows, V, V, 1.0f / (float)rows, softcap, true};
    lks__act *logits = acts(j, rows * V, BENCH_VALUES);
    float *loss = array(j, 1, BENCH_RESULT);
    int32_t *targets = array(j, rows, BENCH_TOKENS);
    double *row_loss = array(j, rows, BENCH_DOUBLES);
    if (logits == NULL)
        return;
    j->l->xent_rows(j->ex, &x, logits, targets, row_loss);
    j->l->mean_loss(j->ex, loss, row_loss, rows);
}

static void run_xent(struct bench_job *j)
{
    xent(j, 0);
}

static void run_xent_cap(struct bench_job *j)
{
    xent(j, 30);
}

static void run_blend(struct bench_job *j)
{
    const size_t n = j->shape->hidden * j->shape->C;
    lks__blend list = {.a = 0.5f, .b = 0.25f, .n_pieces = 1};
    list.piece[0].y = array(j, n, BENCH_VALUES);
    list.piece[0].x = array(j, n, BENCH_VALUES);
    list.piece[0].n = n;
    if (j->memory != NULL)
        j->l->update_blend(j->ex, &list);
}

static void run_adamw(struct bench_job *j)
{
    const size_t n = j->shape->V * j->shape->C;
    lks__adamw_list list = {1e-3, 0.9, 0.95, 1e-8, 0.1, 2, 1, .n_pieces = 1};
    list.piece[0].params = array(j, n, BENCH_VALUES);
    list.piece[0].exp_avg = array(j, n, BENCH_VALUES);
    list.piece[0].exp_avg_sq = array(j, n, BENCH_POSITIVE);
    list.piece[0].grads = array(j, n, BENCH_VALUES);
    list.piece[0].n = n;
    if (j->memory != NULL)
        j->l->update_adamw(j->ex, &list);
}

/* `count` matrices of one shape. Zeros between them, as between tensors of an arena, because an
 * update may write to the padding. */
static void run_muon(struct bench_job *j)
{
    const size_t rows = j->shape->hidden, cols = j->shape->C, n = rows * cols;
    const size_t room = lks__round_up(n, LKS__PADDED), count = j->shape->matrices;
    const size_t bytes = j->l->update_muon_bytes(j->ex, rows, cols);
    lks__muon_list list = {.lr = 1, .momentum = 0.95, .clip = 1, .ns_steps = 5};
    float *params = array(j, count * room, BENCH_VALUES),
          *momentum = array(j, count * room, BENCH_VALUES),
          *grads = array(j, count * room, BENCH_VALUES);
    list.work_bytes = count * bytes;
    list.work = array(j, list.work_bytes / sizeof(float), BENCH_WORK);
    if (params == NULL)
        return;
    for (list.n_pieces = 0; list.n_pieces < count; list.n_pieces++) {
        const size_t at = list.n_pieces * room;
        float *const all[] = {params + at, momentum + at, grads + at};
        for (int i = 0; i < 3 && room > n; i++)
            j->l->clear(j->ex, all[i] + n, room - n);
        list.piece[list.n_pieces].rows = rows;
        list.piece[list.n_pieces].cols = cols;
        list.piece[list.n_pieces].params = all[0];
        list.piece[list.n_pieces].momentum = all[1];
        list.piece[list.n_pieces].grads = all[2];
    }
    j->l->update_muon(j->ex, &list);
}

static void run_ceiling_copy(struct bench_job *j)
{
    float *y = array(j, j->shape->C, BENCH_WORK), *x = array(j, j->shape->C, BENCH_VALUES);
    if (y != NULL)
        j->l->copy(j->ex, y, x, j->shape->C);
}

static void run_ceiling_product(struct bench_job *j)
{
    const size_t n = j->shape->C;
    lks__act *y = acts(j, n * n, BENCH_WORK), *x = acts(j, n * n, BENCH_VALUES);
    float *w = array(j, n * n, BENCH_VALUES);
    if (y != NULL)
        j->l->linear_fwd(j->ex, y, n, x, w, n, n, n, NULL);
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
