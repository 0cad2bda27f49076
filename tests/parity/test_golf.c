/* The golf family against parameter-golf's figures: initial tensors, and losses and gradients of
 * the first steps; finite differences of small models; the same bits for any number of threads. */
#include "parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/optim/optimizer.h"

/* ---- the script's model ------------------------------------------------------------------ */

enum { MICRO_STEPS = 8, STEPS = 4 };

struct golf {
    const char *name;
    const json_t *figure;
    lks__model_config config;
    lks__table table;
    float *params;
    uint64_t seed;
    size_t tokens; /* of a micro-batch */
};

static struct golf golf_open(const char *name)
{
    struct golf g = {.name = name, .figure = lks_test_figure(name)};
    const json_t *c = lks_test_member(g.figure, "config");
    g.config = (lks__model_config){
        .ops = &lks__model_golf,
        .n_layer = (int)lks_test_number(c, "NUM_LAYERS"),
        .n_head = (int)lks_test_number(c, "NUM_HEADS"),
        .n_kv_head = (int)lks_test_number(c, "NUM_KV_HEADS"),
        .n_embd = (int)lks_test_number(c, "MODEL_DIM"),
        .mlp_mult = (int)lks_test_number(c, "MLP_MULT"),
        .block_size = (int)lks_test_number(c, "TRAIN_SEQ_LEN"),
        .vocab_size = (int)lks_test_number(c, "VOCAB_SIZE"),
        .tie_embeddings = json_is_true(lks_test_member(c, "TIE_EMBEDDINGS")),
        .tied_embed_init_std = (float)lks_test_number(c, "TIED_EMBED_INIT_STD"),
        .logit_softcap = (float)lks_test_number(c, "LOGIT_SOFTCAP"),
        .rope_base = (float)lks_test_number(c, "ROPE_BASE"),
        .qk_gain_init = (float)lks_test_number(c, "QK_GAIN_INIT"),
        .scalar_parts = json_string_value(json_object_get(c, "CONTROL_TENSOR_NAME_PATTERNS")),
    };
    g.seed = (uint64_t)lks_test_number(c, "SEED");
    g.tokens = (size_t)lks_test_number(c, "TRAIN_BATCH_TOKENS") / MICRO_STEPS;
    assert_ok(lks__model_table(&g.config, &g.table));
    g.params = parity_floats(g.table.count);
    lks__mt mt;
    lks__mt_seed(&mt, g.seed);
    lks__model_init(&g.config, &g.table, &mt, g.params);
    return g;
}

static void golf_close(struct golf *g)
{
    free(g->params);
    lks__table_free(&g->table);
}

static const json_t *section_of(const struct golf *g, const char *section, const char *tensor)
{
    /* not lks_test_member(), because these names contain dots */
    const json_t *t = json_object_get(lks_test_member(g->figure, section), tensor);
    if (t == NULL)
        fail_msg("%s has no %s of %s", g->name, section, tensor);
    return t;
}

/* Values come from log, cos and sin; libraries differ in the last bit. */
static void check_init(const char *name)
{
    struct golf g = golf_open(name);
    assert_int_equal(json_object_size(lks_test_member(g.figure, "init")), g.table.n_tensors);
    assert_int_equal(g.table.n_params, lks_test_number(g.figure, "config.model_params"));
    for (size_t i = 0; i < g.table.n_tensors; i++) {
        const lks__table_tensor *t = &g.table.tensors[i];
        parity_hold_init(g.name, t, g.params + t->offset, section_of(&g, "init", t->name));
    }
    golf_close(&g);
}

TEST(test_init)
{
    for (const char *const *name = parity_golf_figures(); *name != NULL; name++)
        check_init(*name);
    check_init("golf_small.json");
}

/* Counting gives the number of draws that drawing consumes: tied and untied, and with embeddings of
 * under 16 elements, for which normal_ works in pairs. */
TEST(test_draws)
{
    static const int vocab[] = {1024, 2, 3, 7};
    for (int v = 0; v < 4; v++)
        for (int tied = 0; tied < 2; tied++) {
            lks__model_config c = {.ops = &lks__model_golf,
                                   .n_layer = 1,
                                   .n_head = 1,
                                   .n_kv_head = 1,
                                   .n_embd = 2,
                                   .mlp_mult = 3,
                                   .block_size = 4,
                                   .vocab_size = vocab[v],
                                   .tie_embeddings = tied == 1,
                                   .tied_embed_init_std = 0.005f,
                                   .logit_softcap = 30.0f,
                                   .rope_base = 10000.0f,
                                   .qk_gain_init = 1.5f};
            lks__table table;
            lks__mt drawn, skipped;
            assert_ok(lks__model_table(&c, &table));
            float *params = parity_floats(table.count);
            lks__mt_seed(&drawn, 5);
            uint64_t n = lks__model_init(&c, &table, &drawn, params);
            lks__mt_seed(&skipped, 5);
            lks__mt_skip(&skipped, lks__model_init(&c, &table, NULL, NULL));
            assert_true(n == lks__model_init(&c, &table, NULL, NULL));
            for (int i = 0; i < 100; i++)
                assert_int_equal(lks__mt_u32(&drawn), lks__mt_u32(&skipped));
            free(params);
            lks__table_free(&table);
        }
}

static void check_gradient(const struct golf *g, const char *section, const lks__table_tensor *t,
                           const float *x)
{
    const json_t *want = section_of(g, section, t->name);
    parity_sums got = parity_sum(x, t->count);
    double norm = sqrt(lks_test_number(want, "sumsq"));
    parity_place at = {g->name, section, section, t->name};
    if (norm == 0.0) /* behind a projection that is zero at first */
        for (size_t i = 0; i < t->count; i++)
            assert_true(x[i] == 0.0f);
    parity_hold(&at, "norm", sqrt(got.sumsq), norm, norm);
    parity_hold(&at, "dots[0]", got.dots[0], lks_test_number(want, "dots.0"), norm);
    parity_hold(&at, "dots[1]", got.dots[1], lks_test_number(want, "dots.1"), norm);
    /* if most values have one sign, so may their errors */
    double sum = lks_test_number(want, "sum"), scale = norm * fmax(1.0, fabs(sum) / norm);
    parity_hold(&at, "sum", got.sum, sum, norm > 0.0 ? scale : 0.0);
    parity_hold_values(&at, x, t->count, norm, want);
}

/* One step of the script's optimizers, with the rates that the figure recorded. */
static void update(struct golf *g, int step, float *moments, const float *grads)
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
static void run_step(const struct golf *g, lks__model *model, int step, const uint16_t *stream,
                     float *grads, float *seen)
{
    const int T = g->config.block_size, B = (int)g->tokens / T;
    int32_t *tokens = calloc(g->tokens + 1, sizeof *tokens);
    const char *at = lks_test_text("step %d", step);
    const char *quantity = step == 0 ? "loss_0" : "loss_3";
    double loss = 0.0;
    assert_non_null(tokens);
    memset(grads, 0, g->table.count * sizeof *grads);
    for (size_t m = 0; m < MICRO_STEPS; m++) {
        parity_groups groups = {&g->table, grads, seen, 0};
        size_t first = ((size_t)step * MICRO_STEPS + m) * (g->tokens + 1);
        for (size_t i = 0; i <= g->tokens; i++)
            tokens[i] = stream[first + i];
        lks__micro_batch mb = {tokens, tokens + 1, B, T};
        lks__backward bw = {.grads = grads, .done = parity_group_done, .done_ctx = &groups};
        double micro = parity_loss(model, g->params, &mb, &bw);
        const char *which = lks_test_text("micro_losses.%d.%zu", step, m);
        parity_hold(&(parity_place){g->name, quantity, at, which}, "loss", micro,
                    lks_test_number(g->figure, which), 1.0);
        /* the same arithmetic without backward; a row's logits are summed in another order */
        if (m == 0)
            assert_near(parity_loss(model, g->params, &mb, NULL), micro, 1e-6);
        parity_all_done(&groups);
        loss += micro / MICRO_STEPS;
    }
    assert_memory_equal(seen, grads, g->table.count * sizeof(float));
    parity_hold(&(parity_place){g->name, quantity, at, "the model"}, "loss", loss,
                lks_test_number(g->figure, lks_test_text("train_loss.%d", step)), 1.0);
    for (size_t i = 0; i < g->table.count; i++)
        grads[i] *= 1.0f / MICRO_STEPS;
    free(tokens);
}

/* Steps 0 to 3: gradients of the first, and of the last, which follows three updates. */
static void check_steps(const char *name, const uint16_t *stream)
{
    struct golf g = golf_open(name);
    lks__model *model;
    assert_ok(lks__model_open(&g.config, &g.table, (int)g.tokens / g.config.block_size,
                              &parity_device, &model));
    float *grads = parity_floats(g.table.count), *seen = parity_floats(g.table.count);
    float *moments = parity_floats(2 * g.table.count);
    for (int step = 0; step < STEPS; step++) {
        run_step(&g, model, step, stream, grads, seen);
        const char *section = step == 0 ? "grad0" : step == STEPS - 1 ? "grad3" : NULL;
        for (size_t i = 0; section != NULL && i < g.table.n_tensors; i++)
            check_gradient(&g, section, &g.table.tensors[i], grads + g.table.tensors[i].offset);
        update(&g, step, moments, grads);
    }
    free(grads);
    free(seen);
    free(moments);
    lks__model_close(model);
    golf_close(&g);
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
    free(s->params);
    free(s->grads);
    lks__model_close(s->model);
    lks__table_free(&s->table);
}

static void ignore_group(void *ctx, int group)
{
    (void)ctx, (void)group;
}

static double small_loss(struct small_model *s, float *grads)
{
    lks__micro_batch mb = {s->tokens, s->targets, SMALL_B, SMALL_T};
    lks__backward bw = {.grads = grads, .done = ignore_group};
    if (grads == NULL)
        return parity_loss(s->model, s->params, &mb, NULL);
    return parity_loss(s->model, s->params, &mb, &bw);
}

/* Loss at distance `h` along the tensor's own gradient. */
static double moved_loss(struct small_model *s, const lks__table_tensor *t, double norm, double h)
{
    float *x = s->params + t->offset, *kept = parity_floats(t->count);
    memcpy(kept, x, t->count * sizeof(float));
    for (size_t i = 0; i < t->count; i++)
        x[i] = (float)((double)kept[i] + h / norm * (double)s->grads[t->offset + i]);
    double loss = small_loss(s, NULL);
    memcpy(x, kept, t->count * sizeof(float));
    free(kept);
    return loss;
}

/* The slope of the loss along a tensor's gradient is that gradient's norm. The loss is a float,
 * accurate to about 2e-7, so the slope has an error of 2e-7 / h. The error of the five-point
 * formula is of order h^4, except at the kink of relu's second derivative. */
TEST(test_slopes)
{
    const double h = 0.01;
    for (int which = 0; which < N_SMALLS; which++) {
        struct small_model s;
        small_open(which, &s);
        small_loss(&s, s.grads);
        for (size_t i = 0; i < s.table.n_tensors; i++) {
            const lks__table_tensor *t = &s.table.tensors[i];
            double norm = sqrt(parity_sum(s.grads + t->offset, t->count).sumsq);
            if (t->count == 0) /* the skip weights of one layer */
                continue;
            assert_true(norm > 1e-4);
            double near = moved_loss(&s, t, norm, h) - moved_loss(&s, t, norm, -h);
            double far = moved_loss(&s, t, norm, 2 * h) - moved_loss(&s, t, norm, -2 * h);
            double slope = (8.0 * near - far) / (12.0 * h);
            parity_hold(&(parity_place){"finite differences", "golf", "gradient", t->name},
                        lks_test_text("small model %d, slope of the loss along it", which), slope,
                        norm, 0.13 + norm);
        }
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

/* The logits of the last token are those of the loss. */
TEST(test_logits)
{
    for (int which = 0; which < N_SMALLS; which++) {
        struct small_model s;
        small_open(which, &s);
        float logits[SMALL_V];
        lks__model_logits(s.model, s.params, s.tokens, 9, logits);
        double sum_before = 0.0, sum = 0.0, all = 0.0;
        for (int v = 0; v < SMALL_V; v++) {
            assert_true(fabsf(logits[v]) <= s.config.logit_softcap);
            all += exp((double)logits[v]);
        }
        lks__micro_batch mb = {s.tokens, s.targets, 1, 8};
        sum_before = 8.0 * parity_loss(s.model, s.params, &mb, NULL);
        mb.T = 9;
        sum = 9.0 * parity_loss(s.model, s.params, &mb, NULL);
        assert_near(sum - sum_before, log(all) - (double)logits[s.targets[8]], 1e-5);
        small_close(&s);
    }
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
