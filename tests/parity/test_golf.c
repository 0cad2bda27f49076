/* The golf family against parameter-golf's figures: initial tensors, and losses and gradients of
 * the first steps; finite differences of small models; the same bits for any number of threads. */
#include "parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/optim/optimizer.h"

/* ---- the script's model ------------------------------------------------------------------ */

TEST(test_init)
{
    for (const char *const *name = parity_golf_figures(); *name != NULL; name++)
        parity_hold_init(*name);
    parity_hold_init("golf_small.json");
}

/* One step of the script's optimizers, with the rates that the figure recorded. */
static void update(parity_model *g, int step, float *moments, const float *grads)
{
    const json_t *c = lks_test_member(g->figure, "config");
    double norm = sqrt(parity_sum(grads, g->table.count).sumsq);
    const double scale = lks_test_number(g->figure, lks_test_text("lr_scale.%d", step));
    const char *embed = g->config.tie_embeddings ? "TIED_EMBED_LR" : "EMBED_LR";
    const lks__rates rates = {
        .lr = {[LKS__PARAM_EMBED] = lks_test_number(c, embed) * scale,
               [LKS__PARAM_HEAD] = lks_test_number(c, "HEAD_LR") * scale,
               [LKS__PARAM_SCALAR] = lks_test_number(c, "SCALAR_LR") * scale},
        .orthogonal_lr = lks_test_number(c, "MATRIX_LR") * scale,
        .beta1 = lks_test_number(c, "BETA1"),
        .beta2 = lks_test_number(c, "BETA2"),
        .eps = lks_test_number(c, "ADAM_EPS"),
        .momentum = lks_test_number(g->figure, lks_test_text("muon_momentum.%d", step)),
        .ns_steps = (int)lks_test_number(c, "MUON_BACKEND_STEPS"),
        .t = (uint64_t)step + 1,
        .clip = lks__clip_factor(norm, lks_test_number(c, "GRAD_CLIP_NORM")),
    };
    parity_update(&lks__optimizer_muon, &g->table, &rates, g->params, moments, grads);
}

/* The micro-batches of one step into one arena, then the mean. Spans of tokens + 1 are adjacent in
 * the stream. */
static void run_step(const parity_model *g, lks__model *model, int step, const uint16_t *stream,
                     float *grads, float *seen)
{
    const size_t n = (size_t)g->B * (size_t)g->T;
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    const char *at = lks_test_text("step %d", step);
    const char *quantity = step == 0 ? "loss_0" : "loss_3";
    double loss = 0.0;
    assert_non_null(tokens);
    memset(grads, 0, g->table.count * sizeof *grads);
    for (int m = 0; m < g->A; m++) {
        parity_groups groups = {&g->table, grads, seen, 0};
        size_t first = (size_t)(step * g->A + m) * (n + 1);
        for (size_t i = 0; i <= n; i++)
            tokens[i] = stream[first + i];
        lks__micro_batch mb = {tokens, tokens + 1, g->B, g->T};
        lks__backward bw = {.grads = grads, .done = parity_group_done, .done_ctx = &groups};
        double micro = parity_loss(model, g->params, &mb, &bw);
        const char *which = lks_test_text("micro_losses.%d.%d", step, m);
        parity_hold(&(parity_place){g->name, quantity, at, which}, "loss", micro,
                    lks_test_number(g->figure, which), 1.0);
        /* the same arithmetic without backward; a row's logits are summed in another order */
        if (m == 0)
            assert_near(parity_loss(model, g->params, &mb, NULL), micro, 1e-6);
        parity_all_done(&groups);
        loss += micro / g->A;
    }
    assert_memory_equal(seen, grads, g->table.count * sizeof(float));
    parity_hold(&(parity_place){g->name, quantity, at, "the model"}, "loss", loss,
                lks_test_number(g->figure, lks_test_text("train_loss.%d", step)), 1.0);
    for (size_t i = 0; i < g->table.count; i++)
        grads[i] *= 1.0f / (float)g->A;
    free(tokens);
}

/* Steps 0 to 3: gradients of the first, and of the last, which follows three updates. */
static void check_steps(const char *name, const uint16_t *stream)
{
    parity_model g = parity_open(name);
    lks__model *model;
    assert_ok(lks__model_open(&g.config, &g.table, g.B, &parity_device, &model));
    float *grads = parity_floats(g.table.count), *seen = parity_floats(g.table.count);
    float *moments = parity_floats(2 * g.table.count);
    for (int step = 0; step < 4; step++) {
        run_step(&g, model, step, stream, grads, seen);
        if (step == 0 || step == 3)
            parity_hold_gradients(&g, step == 0 ? "grad0" : "grad3", grads);
        update(&g, step, moments, grads);
    }
    lks_test_free(grads, seen, moments);
    lks__model_close(model);
    parity_close(&g);
}

/* A shard's ids; valid until the program ends. */
static const uint16_t *first_shard(const char *path)
{
    enum { HEADER = 1024 };
    size_t bytes;
    const char *file = lks_test_read(path, &bytes);
    assert_true(bytes > HEADER);
    return (const uint16_t *)(const void *)(file + HEADER);
}

/* The generated tokens of tests/figures/README.md, vocabulary 1,024. */
TEST(test_generated)
{
    const char *dir = lks_test_folder();
    lks_test_generated_golf(dir);
    const uint16_t *stream = first_shard(lks_test_text("%s/fineweb_train_000000.bin", dir));
    for (const char *const *name = parity_golf_figures(); *name != NULL; name++)
        /* the wide ones take a minute and more at level plain; kernels_matmul tests their products
         * there */
        if (parity_ex.k->level != LKS__CPU_PLAIN ||
            lks_test_number(lks_test_figure(*name), "config.MODEL_DIM") < 100)
            check_steps(*name, stream);
}

TEST(test_shards)
{
    const char *path = lks_test_shared("reference/golf-data/fineweb_train_000000.bin");
    check_steps("golf_small.json", first_shard(path));
}

/* ---- small models ------------------------------------------------------------------------ */

/* Uneven: rows that don't fill a task, halves of heads that don't fill a vector; each kind of
 * U-net: skips for all decoders, one decoder without a skip, no encoder at all. */
static const lks__model_config smalls[] = {
    {.n_layer = 4,
     .n_head = 4,
     .n_kv_head = 2,
     .n_embd = 24,
     .mlp_mult = 2,
     .tie_embeddings = true},
    {.n_layer = 5, .n_head = 3, .n_kv_head = 1, .n_embd = 30, .mlp_mult = 3},
    {.n_layer = 1, .n_head = 2, .n_kv_head = 2, .n_embd = 36, .mlp_mult = 1},
};
enum { N_SMALLS = sizeof smalls / sizeof smalls[0], SMALL_B = 3, SMALL_T = 17, SMALL_V = 29 };
enum { SMALL_ROWS = SMALL_B * SMALL_T };

struct small_model {
    lks__model_config config;
    lks__table table;
    lks__model *model;
    float *params, *grads;
    int32_t tokens[SMALL_ROWS], targets[SMALL_ROWS];
};

/* Into `s`, which the model then points to. */
static void small_open(int which, struct small_model *s)
{
    *s = (struct small_model){.config = smalls[which]};
    lks__mt g;
    lks__mt_seed(&g, 99 + (uint64_t)which);
    s->config.ops = &lks__model_golf;
    s->config.block_size = SMALL_T;
    s->config.vocab_size = SMALL_V;
    s->config.logit_softcap = 1.5f; /* low enough to change every logit */
    s->config.rope_base = 50.0f;
    assert_ok(lks__model_table(&s->config, &s->table));
    assert_ok(lks__model_open(&s->config, &s->table, SMALL_B, &parity_device, &s->model));
    s->params = parity_floats(s->table.count);
    s->grads = parity_floats(s->table.count);
    for (size_t i = 0; i < s->table.n_tensors; i++) { /* large enough for slopes everywhere */
        const lks__table_tensor *t = &s->table.tensors[i];
        float mean = t->kind == LKS__PARAM_SCALAR ? 0.8f : 0.0f;
        lks__mt_normal(&g, s->params + t->offset, t->count, mean, 0.3f);
    }
    for (int i = 0; i < SMALL_ROWS; i++) {
        s->tokens[i] = (int32_t)lks__mt_randint(&g, SMALL_V);
        s->targets[i] = (int32_t)lks__mt_randint(&g, SMALL_V);
    }
}

static void small_close(struct small_model *s)
{
    lks_test_free(s->params, s->grads);
    lks__model_close(s->model);
    lks__table_free(&s->table);
}

static double small_loss(struct small_model *s, float *grads)
{
    lks__micro_batch mb = {s->tokens, s->targets, SMALL_B, SMALL_T};
    lks__backward bw = {.grads = grads, .done = parity_ignore_group};
    if (grads == NULL)
        return parity_loss(s->model, s->params, &mb, NULL);
    return parity_loss(s->model, s->params, &mb, &bw);
}

static double moved_loss(void *model)
{
    return small_loss(model, NULL);
}

TEST(test_slopes)
{
    for (int which = 0; which < N_SMALLS; which++) {
        struct small_model s;
        small_open(which, &s);
        small_loss(&s, s.grads);
        parity_hold_slopes("golf", &s.table, s.params, s.grads, 0.01, 0.13, moved_loss, &s);
        small_close(&s);
    }
}

/* Gradients are added to old contents, and threads change no bit of them. */
TEST(test_threads)
{
    for (int which = 0; which < N_SMALLS; which++) {
        float *first = NULL;
        double first_loss = 0.0;
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            parity_threads(n_threads);
            struct small_model s;
            small_open(which, &s);
            double loss = small_loss(&s, s.grads);
            assert_true(small_loss(&s, s.grads) == loss);
            if (first == NULL) {
                first = parity_floats(s.table.count);
                memcpy(first, s.grads, s.table.count * sizeof(float));
                first_loss = loss;
                float *once = parity_floats(s.table.count);
                small_loss(&s, once);
                for (size_t i = 0; i < s.table.count; i++)
                    assert_true(fabsf(first[i] - 2.0f * once[i]) <= 1e-5f);
                free(once);
            }
            assert_true(loss == first_loss);
            assert_memory_equal(s.grads, first, s.table.count * sizeof(float));
            small_close(&s);
        }
        free(first);
    }
    parity_threads(2);
}

TEST(test_bad_shapes)
{
    const lks__model_config good = {.ops = &lks__model_golf,
                                    .n_layer = 2,
                                    .n_head = 4,
                                    .n_kv_head = 2,
                                    .n_embd = 16,
                                    .mlp_mult = 2,
                                    .block_size = 8,
                                    .vocab_size = 8,
                                    .logit_softcap = 30.0f,
                                    .rope_base = 10000.0f};
    lks__table table;
    lks__model_config c = good;
    assert_ok(lks__model_table(&c, &table));
    lks__table_free(&table);
    c.n_embd = 18;
    assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "18", "num_heads = 4");
    c = good, c.n_kv_head = 3;
    assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "num_kv_heads = 3");
    c = good, c.n_embd = 12;
    assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "even");
    c = good, c.logit_softcap = 0.0f;
    assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "logit_softcap");
    c = good, c.logit_softcap = NAN;
    assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "logit_softcap");
    for (int i = 0; i < 3; i++) {
        c = good, c.rope_base = i == 0 ? -1.0f : i == 1 ? 0.0f : NAN;
        assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "rope_base");
    }
    c = good, c.n_embd = 1 << 30, c.mlp_mult = 1 << 30;
    assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "memory");
}

int main(int argc, char **argv)
{
    lks_test_choose(argc, argv, "test_shards");
    lks_test_need_level(NULL);
    return lks_test_run_all(parity_open_exec, parity_close_exec);
}
