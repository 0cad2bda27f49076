/* mlp.c - a third family, in one file: layers of LayerNorm and MLP without attention, trained as
 * nanoGPT trains. docs/inside/extending.md explains it.
 *
 * A program with this family links this file, whose list takes the place of
 * train/procedure/families/list.c. */
#include <stddef.h>

#include "model/frame.h"
#include "train/procedure/families/families.h"
#include "train/procedure/procedure.h"

/* --- tensors and activations ------------------------------------------------------------------ */

#define FIRST(X)                                                                                   \
    X(wte, "wte", (V, C), NORMAL, EMBED)                                                           \
    X(wpe, "wpe", (T, C), NORMAL, EMBED)
#define LAYER(X)                                                                                   \
    X(gain, "norm", (C, 0), ONE, SCALAR)                                                           \
    X(up, "up", (2 * C, C), NORMAL, MATRIX)                                                        \
    X(down, "down", (C, 2 * C), NORMAL, MATRIX)
#define LAST(X)                                                                                    \
    X(last, "last", (C, 0), ONE, SCALAR)                                                           \
    X(head, "head", (V, C), NORMAL, HEAD)
#define ACTIVATIONS(X)                                                                             \
    X(norm, ACTS, C, "norm", BLOCK)                                                                \
    X(mean, FLOATS, 1, NULL, BLOCK)                                                                \
    X(rstd, FLOATS, 1, NULL, BLOCK)                                                                \
    X(wide, ACTS, 2 * C, "up", BLOCK) /* before the activation */                                  \
    X(gelu, ACTS, 2 * C, NULL, BLOCK)                                                              \
    X(out, ACTS, C, "down", NEVER)

struct once {
    FIRST(LKS__TENSOR_FIELD)
    LAST(LKS__TENSOR_FIELD)
};

struct layer {
    LAYER(LKS__TENSOR_FIELD)
};

struct acts {
    ACTIVATIONS(LKS__ACTIVATION_FIELD)
};

static const struct lks__model_ops mlp_ops;

struct mlp {
    lks__model f;
    struct once t;
    float *mean, *rstd, *partial;
    lks__act *dx, *d_wide;
};

#define ROW(of, field_, name_, shape_, init_, kind_)                                               \
    {.field = offsetof(struct of, field_),                                                         \
     .name = name_,                                                                                \
     LKS__TENSOR_SHAPE shape_,                                                                     \
     .init = LKS__INIT_##init_,                                                                    \
     .kind = LKS__PARAM_##kind_,                                                                   \
     .there = true},
#define ONCE_ROW(...)  ROW(once, __VA_ARGS__)
#define LAYER_ROW(...) ROW(layer, __VA_ARGS__)

static lks_status mlp_table(const lks__model_config *c, lks__table *table)
{
    const size_t C = (size_t)c->n_embd, T = (size_t)c->block_size, V = (size_t)c->vocab_size;
    const lks__tensor_row first[] = {FIRST(ONCE_ROW)}, last[] = {LAST(ONCE_ROW)};
    const lks__tensor_row layer[] = {LAYER(LAYER_ROW)};
    LKS__TRY(lks__table_open(table, 4 + 3 * (size_t)c->n_layer, c->n_layer + 2));
    lks__table_add(table, NULL, -1, c->n_layer + 1, first, 2);
    for (int l = 0; l < c->n_layer; l++)
        lks__table_add(table, mlp_ops.layer, l, c->n_layer - l, layer, 3);
    lks__table_add(table, NULL, -1, 0, last, 2);
    return LKS_OK;
}

/* Matrices uniform in (-0.1, 0.1), in the table's order. */
static uint64_t mlp_init(const lks__model_config *c, const lks__table *table, lks__mt *g,
                         float *params)
{
    uint64_t draws = 0;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (t->init == LKS__INIT_NORMAL)
            draws += t->count;
        if (params != NULL && t->init == LKS__INIT_NORMAL)
            lks__mt_uniform(g, params + t->offset, t->count, -0.1f, 0.1f);
        for (size_t j = 0; params != NULL && t->init == LKS__INIT_ONE && j < t->count; j++)
            params[t->offset + j] = 1.0f;
    }
    return draws;
}

static double mlp_flops_per_token(const lks__model_config *c, const lks__table *table)
{
    return 6.0 * (double)table->n_params;
}

/* --- memory ---------------------------------------------------------------------------------- */

static lks_status mlp_check(const lks__model_config *c, int batch)
{
    return LKS_OK;
}

static void mlp_size(void *model)
{
    struct mlp *m = model;
    m->f.head_w = m->t.head;
    m->f.head_group = 0;
}

static int mlp_activations(const void *model, lks__activation_row *rows)
{
    const size_t C = ((const struct mlp *)model)->f.C;
    int n = 0;
#define X(...) rows[n++] = LKS__ACTIVATION_ROW(struct acts, __VA_ARGS__, NULL);
    ACTIVATIONS(X)
#undef X
    return n;
}

static void mlp_carve(void *model, lks__carver *v)
{
    struct mlp *m = model;
    const size_t rows = m->f.max_rows, C = m->f.C;
    m->f.x0 = lks__carve_acts(v, rows, C);
    m->f.y = lks__carve_acts(v, rows, C);
    m->f.dy = lks__carve_acts(v, rows, C);
    m->f.head.logits = lks__carve_acts(v, m->f.head.chunk_rows, m->f.head.ld);
    m->mean = lks__carve_floats(v, rows, 1);
    m->rstd = lks__carve_floats(v, rows, 1);
    m->dx = lks__carve_acts(v, rows, C);
    m->d_wide = lks__carve_acts(v, rows, 2 * C);
    m->partial = lks__carve_floats(v, m->f.layers->layernorm_partial_floats(rows, C), 1);
}

/* --- forward and backward -------------------------------------------------------------------- */

static const struct acts *acts_of(const struct mlp *m, int l)
{
    return (const struct acts *)m->f.la + l;
}

static const struct layer *tensors_of(const struct mlp *m, int l)
{
    return (const struct layer *)m->f.lt + l;
}

static const lks__act *input_of(const struct mlp *m, int l)
{
    return l == 0 ? m->f.x0 : acts_of(m, l - 1)->out;
}

static const lks__dropout no_dropout = {.scale = 1.0f};

static void embed_forward(const lks__pass *p)
{
    const struct mlp *m = p->m;
    m->f.layers->embedding_fwd(m->f.ex, m->f.x0, p->mb->tokens, p->params + m->t.wte,
                               p->params + m->t.wpe, p->rows, (size_t)p->mb->T, m->f.C,
                               &no_dropout);
}

static void layer_forward(const lks__pass *p, int l)
{
    const struct mlp *m = p->m;
    const lks__layers *layers = m->f.layers;
    const struct layer *t = tensors_of(m, l);
    const struct acts *a = acts_of(m, l);
    const float *w = p->params;
    const lks__act *x = input_of(m, l);
    const size_t rows = p->rows, C = m->f.C;

    layers->layernorm_rows_fwd(m->f.ex, a->norm, a->mean, a->rstd, x, w + t->gain, NULL, rows, C);
    const lks__epilogue gelu = {LKS__EPILOGUE_GELU, .out = a->gelu};
    layers->linear_fwd(m->f.ex, a->wide, 2 * C, a->norm, w + t->up, rows, 2 * C, C, &gelu);
    if (p->recompute)
        return;
    const lks__epilogue add = {LKS__EPILOGUE_RESIDUAL, .in = x, .drop = &no_dropout};
    layers->linear_fwd(m->f.ex, a->out, C, a->gelu, w + t->down, rows, C, 2 * C, &add);
}

static void last_forward(const lks__pass *p)
{
    const struct mlp *m = p->m;
    m->f.layers->layernorm_rows_fwd(m->f.ex, m->f.y, m->mean, m->rstd, input_of(m, m->f.c.n_layer),
                                    p->params + m->t.last, NULL, p->rows, m->f.C);
}

static void last_backward(const lks__pass *p)
{
    const struct mlp *m = p->m;
    m->f.layers->act_clear(m->f.ex, m->dx, p->rows * m->f.C);
    m->f.layers->layernorm_rows_bwd(m->f.ex, m->dx, lks__grad_at(p, 0, m->t.last), NULL, m->f.dy,
                                    input_of(m, m->f.c.n_layer), p->params + m->t.last, m->mean,
                                    m->rstd, p->rows, m->f.C, m->partial);
}

static void layer_backward(const lks__pass *p, int l)
{
    const struct mlp *m = p->m;
    const lks__layers *layers = m->f.layers;
    const struct layer *t = tensors_of(m, l);
    const struct acts *a = acts_of(m, l);
    const float *w = p->params;
    const lks__act *x = input_of(m, l);
    lks__act *d_row = m->f.dy;
    const size_t rows = p->rows, C = m->f.C;
    const int group = m->f.c.n_layer - l;
    float *d_down = lks__grad_at(p, group, t->down), *d_up = lks__grad_at(p, group, t->up);

    if (d_down != NULL)
        layers->linear_bwd_w(m->f.ex, d_down, NULL, m->dx, C, a->gelu, rows, C, 2 * C, false);
    if (!lks__continues_below(p, l, offsetof(struct layer, down)))
        return;
    const lks__epilogue gelu = {LKS__EPILOGUE_GELU_BWD, .in = a->wide};
    layers->linear_bwd_x(m->f.ex, m->d_wide, m->dx, C, w + t->down, rows, C, 2 * C, &gelu);
    if (d_up != NULL)
        layers->linear_bwd_w(m->f.ex, d_up, NULL, m->d_wide, 2 * C, a->norm, rows, 2 * C, C, false);
    if (!lks__continues_below(p, l, offsetof(struct layer, up)))
        return;
    layers->linear_bwd_x(m->f.ex, d_row, m->d_wide, 2 * C, w + t->up, rows, 2 * C, C, NULL);
    layers->layernorm_rows_bwd(m->f.ex, m->dx, lks__grad_at(p, group, t->gain), NULL, d_row, x,
                               w + t->gain, a->mean, a->rstd, rows, C, m->partial);
}

static void embed_backward(const lks__pass *p)
{
    const struct mlp *m = p->m;
    const int group = m->f.c.n_layer + 1;
    m->f.layers->embedding_bwd(m->f.ex, lks__grad_at(p, group, m->t.wte),
                               lks__grad_at(p, group, m->t.wpe), m->dx, p->mb->tokens, p->rows,
                               (size_t)p->mb->T, m->f.C);
}

/* --- the family ------------------------------------------------------------------------------- */

static const struct lks__model_ops mlp_ops = {
    .table = mlp_table,
    .init = mlp_init,
    .flops_per_token = mlp_flops_per_token,
    .bytes = sizeof(struct mlp),
    .once = offsetof(struct mlp, t),
    .once_bytes = sizeof(struct once),
    .layer_tensors = sizeof(struct layer),
    .layer_activations = sizeof(struct acts),
    .positions = true,
    .layer = "mlp",
    .first = "wte",
    .last = "last",
    .check = mlp_check,
    .size = mlp_size,
    .activations = mlp_activations,
    .carve = mlp_carve,
    .embed_forward = embed_forward,
    .layer_forward = layer_forward,
    .last_forward = last_forward,
    .last_backward = last_backward,
    .layer_backward = layer_backward,
    .embed_backward = embed_backward,
};

static const lks__family mlp = {
    .name = "mlp",
    .about = "layers without attention",
    .model = &mlp_ops,
    .procedure = &lks__procedure_nanogpt,
    .optimizer = &lks__optimizer_adamw,
    .prep = "char",
};

const lks__family *const lks__families[] = {&lks__family_gpt2, &lks__family_golf, &mlp, NULL};
