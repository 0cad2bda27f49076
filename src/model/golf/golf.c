/* model/golf/golf.c - parameter-golf's model (train_gpt.py): embedding, U-net, last norm, memory.
 * The blocks are in golf_block.c, the tensors in golf_table.c. */
#include "model/golf/golf.h"

#include <stddef.h>

#include "base/number/math.h"

/* 6 N + 12 L C T, N without an embedding that is only looked up. */
static double golf_flops_per_token(const lks__model_config *c, const lks__table *table)
{
    double n = (double)table->n_params;
    if (!c->tie_embeddings)
        n -= (double)c->vocab_size * c->n_embd;
    return 6.0 * n + 12.0 * c->n_layer * (double)c->n_embd * c->block_size;
}

/* The skip weights' gradients come from the second half. */
static int golf_lowest(const lks__model_config *c, const lks__table_tensor *t)
{
    return t->kind == LKS__PARAM_EMBED ? -1 : (int)lks__golf_encoders(c);
}

/* --- memory ---------------------------------------------------------------------------------- */

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static lks_status golf_check(const lks__model_config *c, int batch)
{
    lks__attention_shape shape = {(size_t)batch, (size_t)c->block_size, (size_t)c->n_head,
                                  (size_t)(c->n_embd / c->n_head), (size_t)c->n_kv_head};
    return lks__attention_check(&shape);
}

static void golf_size(void *model)
{
    struct lks__golf *m = model;
    const lks__model_config *c = &m->f.c;
    m->hs = (size_t)(c->n_embd / c->n_head);
    m->KV = m->hs * (size_t)c->n_kv_head;
    m->H = m->f.C * (size_t)c->mlp_mult;
    m->n_enc = lks__golf_encoders(c);
    m->f.head_w = c->tie_embeddings ? m->t.emb : m->t.head;
    m->f.head_group = c->tie_embeddings ? c->n_layer : 0;
    m->f.head.softcap = c->logit_softcap;
}

static int golf_activations(const void *model, lks__activation_row *rows)
{
    const struct lks__golf *m = model;
    const size_t C = m->f.C, KV = m->KV, H = m->H;
    const size_t NH = (size_t)m->f.c.n_head, NKV = (size_t)m->f.c.n_kv_head;
    static lks__act *const varies = NULL; /* golf_block.c chooses memory for each use */
    int n = 0;
#define X(...) rows[n++] = LKS__ACTIVATION_ROW(struct lks__golf_acts, __VA_ARGS__);
    LKS__GOLF_ACTIVATIONS(X)
#undef X
    return n;
}

static void golf_carve(void *model, lks__carver *v)
{
    struct lks__golf *m = model;
    const size_t rows = m->f.max_rows, C = m->f.C;
    const lks__head *head = &m->f.head;
    const size_t norm_bytes = max(rows * m->f.act_bytes, max(m->H, C) * sizeof *m->product) * C;
    m->f.x0 = lks__carve_acts(v, rows, C);
    m->x0_rms = lks__carve_floats(v, rows, 1);
    m->final_rms = lks__carve_floats(v, rows, 1);
    m->dx = lks__carve_acts(v, rows, C);
    m->dx0 = lks__carve_acts(v, rows, C);
    void *norm = lks__carve(v, norm_bytes, 1, 1);
    m->norm = norm;
    m->product = norm;
    m->wide =
        lks__carve_acts(v, max(head->chunk_rows * head->ld, rows * max(m->H, C + 2 * m->KV)), 1);
    m->partial =
        lks__carve_floats(v, m->f.layers->golf_partial_floats(rows, C, (size_t)m->f.c.n_head), 1);
    m->f.y = m->dx0;
    m->f.dy = m->norm;
    m->f.head.logits = m->wide;
}

/* Cosines, or sines. */
static size_t rotary_floats(const struct lks__golf *m)
{
    return (size_t)m->f.c.block_size * (m->hs / 2);
}

static size_t golf_more_bytes(const void *m)
{
    return 2 * rotary_floats(m) * sizeof(float);
}

/* Angles as the script's Rotary rounds them: each frequency and each product to float. */
static lks_status golf_open(void *model)
{
    struct lks__golf *m = model;
    const size_t half = m->hs / 2;
    LKS__TRY(lks__mirror_open(m->f.device, 2 * rotary_floats(m) * sizeof(float), &m->rotary));
    float *cosine = m->rotary.host, *sine = cosine + rotary_floats(m);
    for (size_t j = 0; j < half; j++) {
        float power =
            (float)lks__math_pow((double)m->f.c.rope_base, (double)((float)(2 * j) / (float)m->hs));
        float frequency = 1.0f / power;
        for (size_t t = 0; t < (size_t)m->f.c.block_size; t++) {
            float angle = (float)t * frequency;
            cosine[t * half + j] = (float)lks__math_cos((double)angle);
            sine[t * half + j] = (float)lks__math_sin((double)angle);
        }
    }
    m->cosine = m->rotary.dev;
    m->sine = m->cosine + rotary_floats(m);
    lks__mirror_to_device(&m->rotary, LKS__QUEUE_COMPUTE, 0, m->rotary.bytes);
    return LKS_OK;
}

static void golf_close(void *model)
{
    lks__mirror_close(&((struct lks__golf *)model)->rotary);
}

static int golf_kv_heads(const lks__model_config *c)
{
    return c->n_kv_head;
}

/* --- forward and backward -------------------------------------------------------------------- */

static void golf_embed_forward(const lks__pass *p)
{
    const struct lks__golf *m = p->m;
    m->f.layers->golf_embed_fwd(m->f.ex, m->f.x0, m->x0_rms, p->mb->tokens, p->params + m->t.emb,
                                p->rows, m->f.C);
}

static void golf_last_forward(const lks__pass *p)
{
    const struct lks__golf *m = p->m;
    m->f.layers->golf_norm_fwd(m->f.ex, m->f.y, m->final_rms, lks__golf_input(m, m->f.c.n_layer),
                               p->rows, m->f.C);
}

static void golf_last_backward(const lks__pass *p)
{
    const struct lks__golf *m = p->m;
    m->f.layers->golf_norm_bwd(m->f.ex, m->dx, m->f.dy, lks__golf_input(m, m->f.c.n_layer),
                               m->final_rms, p->rows, m->f.C);
    m->f.layers->act_clear(m->f.ex, m->dx0, p->rows * m->f.C);
}

static void golf_embed_backward(const lks__pass *p)
{
    const struct lks__golf *m = p->m;
    float *demb = lks__grad_at(p, m->f.table->n_groups - 1, m->t.emb);
    m->f.layers->act_accumulate(m->f.ex, m->dx, m->dx0, p->rows * m->f.C);
    m->f.layers->golf_embed_bwd(m->f.ex, demb, m->norm, m->dx, p->mb->tokens, p->params + m->t.emb,
                                m->x0_rms, p->rows, m->f.C);
}

const struct lks__model_ops lks__model_golf = {
    .table = lks__table_golf,
    .init = lks__init_golf,
    .flops_per_token = golf_flops_per_token,
    .lowest = golf_lowest,
    .bytes = sizeof(struct lks__golf),
    .once = offsetof(struct lks__golf, t),
    .once_bytes = sizeof(struct lks__golf_once),
    .layer_tensors = sizeof(struct lks__golf_tensors),
    .layer_activations = sizeof(struct lks__golf_acts),
    .layer = "blocks",
    .first = "tok_emb",
    .last = "final_norm",
    .check = golf_check,
    .size = golf_size,
    .activations = golf_activations,
    .carve = golf_carve,
    .open = golf_open,
    .close = golf_close,
    .more_bytes = golf_more_bytes,
    .kv_heads = golf_kv_heads,
    .embed_forward = golf_embed_forward,
    .layer_forward = lks__golf_block_forward,
    .last_forward = golf_last_forward,
    .last_backward = golf_last_backward,
    .layer_backward = lks__golf_block_backward,
    .embed_backward = golf_embed_backward,
};
