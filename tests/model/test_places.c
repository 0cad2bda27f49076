/* Queries about a model: the places of its tensors in an arena, the module that first made a number
 * that isn't finite, the FLOPs of a token, logits that agree with the loss, and how many numbers
 * the initial weights draw. */
#include "models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every float of an arena belongs to one tensor, or is padding. */
TEST(test_tensors_apart)
{
    (void)state;
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        lks__table t = {0};
        assert_ok(lks__model_table(&small_models[i].config, &t));
        const lks__table_tensor **owner = lks_test_calloc(t.count, sizeof *owner);
        for (size_t k = 0; k < t.n_tensors; k++)
            for (size_t e = 0; e < t.tensors[k].count; e++) {
                assert_null(owner[t.tensors[k].offset + e]);
                owner[t.tensors[k].offset + e] = &t.tensors[k];
            }
        free(owner);
        lks__table_free(&t);
    }
}

/* ---- the first module with a bad number --------------------------------------------------- */

static const char *module_found(small_run *run)
{
    static char place[LKS__PLACE];
    lks__backward bw = {.seed = 3, .step = 2, .vm = 1};
    memset(place, 'x', sizeof place);
    assert_ok(lks__model_find_bad(run->model, run->params, &run->mb, &bw, place));
    return place;
}

/* If element `at` of this tensor isn't finite, this module is the first to show it. */
static void expect_module(small_run *run, const char *tensor, size_t at, float bad,
                          const char *module)
{
    const lks__table_tensor *t = lks__table_find(&run->table, tensor);
    if (t == NULL)
        fail_msg("no tensor %s", tensor);
    float *x = &run->params[t->offset + at], kept = *x;
    *x = bad;
    if (strcmp(module_found(run), module) != 0)
        fail_msg("a bad %s was found in %s, not in %s", tensor, module_found(run), module);
    *x = kept;
}

static void check_modules_with(lks__recompute recompute, int which, const char *layer,
                               const char *const modules[], const char *suffix)
{
    small_run run;
    small_model m = small_models[which];
    m.config.recompute = recompute;
    small_open(&m, &run);
    for (int l = 0; l < run.config.n_layer; l++)
        for (int i = 0; modules[i] != NULL; i++) {
            const char *name = lks_test_text("%s.%d.%s", layer, l, modules[i]);
            const lks__table_tensor *t =
                lks__table_find(&run.table, lks_test_text("%s.%s", name, suffix));
            assert_non_null(t);
            expect_module(&run, t->name, 0, NAN, name);
            expect_module(&run, t->name, t->count - 1, INFINITY, name);
        }
    small_close(&run);
}

/* The same if layers share memory for what is made again. */
static void check_modules(int which, const char *layer, const char *const modules[],
                          const char *suffix)
{
    check_modules_with(LKS__RECOMPUTE_NONE, which, layer, modules, suffix);
    check_modules_with(LKS__RECOMPUTE_ROWS, which, layer, modules, suffix);
    check_modules_with(LKS__RECOMPUTE_BLOCK, which, layer, modules, suffix);
}

TEST(test_first_bad_gpt2)
{
    (void)state;
    static const char *const modules[] = {"ln_1",     "attn.c_attn", "attn.c_proj", "ln_2",
                                          "mlp.c_fc", "mlp.c_proj",  NULL};
    check_modules(0, "transformer.h", modules, "weight");
    check_modules(1, "transformer.h", modules, "bias");
    small_run run;
    small_open(&small_models[0], &run);
    expect_module(&run, "transformer.ln_f.weight", 5, NAN, "transformer.ln_f");
    /* in the last row alone; in no row: then it is the head, which uses the weights of all
     * tokens */
    expect_module(&run, "transformer.wte.weight", SMALL_LAST * 24, NAN, "transformer.wte");
    run.tokens[SMALL_B * SMALL_T - 1] = 0;
    expect_module(&run, "transformer.wte.weight", SMALL_LAST * 24, NAN, "lm_head");
    assert_string_equal(module_found(&run), "lm_head");
    small_close(&run);
}

TEST(test_first_bad_golf)
{
    (void)state;
    static const char *const modules[] = {"attn.c_q", "attn.c_k", "attn.c_v", "attn.proj",
                                          "mlp.fc",   "mlp.proj", NULL};
    check_modules(2, "blocks", modules, "weight");
    check_modules(3, "blocks", modules, "weight");
    small_run run;
    small_open(&small_models[2], &run);
    expect_module(&run, "tok_emb.weight", SMALL_LAST * 24, NAN, "tok_emb");
    small_close(&run);
    small_open(&small_models[3], &run);
    expect_module(&run, "lm_head.weight", 0, NAN, "lm_head");
    small_close(&run);
}

/* ---- FLOPs --------------------------------------------------------------------------------- */

static double flops_of(const lks__model_config *c, double *n_params)
{
    lks__table t = {0};
    assert_ok(lks__model_table(c, &t));
    double flops = lks__model_flops_per_token(c, &t);
    *n_params = (double)t.n_params;
    lks__table_free(&t);
    return flops;
}

/* GPT-2 of 124M as nanoGPT counts it: 124,475,904 parameters with biases and a vocabulary of
 * 50,304, of which 786,432 are positions; 6 N + 12 L C T. golf: a table of the vocabulary counts
 * once, as the head, even if an untied one exists twice. */
TEST(test_flops)
{
    (void)state;
    double n;
    lks__model_config c = {.ops = &lks__model_gpt2,
                           .n_layer = 12,
                           .n_head = 12,
                           .n_embd = 768,
                           .block_size = 1024,
                           .vocab_size = 50304,
                           .bias = true};
    assert_true(flops_of(&c, &n) == 6.0 * (124475904.0 - 786432.0) + 12.0 * 12 * 768 * 1024);
    assert_true(n == 124475904.0);
    c = small_models[2].config;
    double tied = flops_of(&c, &n), n_tied = n;
    assert_true(tied == 6.0 * n_tied + 12.0 * 3 * 24 * SMALL_T);
    c = small_models[3].config;
    assert_true(flops_of(&c, &n) == tied);
    assert_true(n == n_tied + SMALL_VOCAB * 24);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* What a model is said to need is what it takes: its arena, and golf's cosines and sines. */
TEST(test_bytes)
{
    (void)state;
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        small_run run;
        size_t bytes, arena;
        small_open(&small_models[i], &run);
        const lks__model_config *c = &run.config;
        const size_t angles = SMALL_T * (size_t)(c->n_embd / c->n_head / 2);
        lks__model_scratch(run.model, &arena);
        assert_ok(lks__model_activation_bytes(c, SMALL_B, &lks__layers_cpu, &bytes));
        const size_t more = c->ops == &lks__model_golf ? 2 * angles * sizeof(float) : 0;
        assert_int_equal(bytes, arena + more);
        small_close(&run);
    }
}

/* Sizes that don't fit the address space are refused, also where no product overflows. */
TEST(test_too_large)
{
    (void)state;
    lks__model_config c = small_models[0].config;
    lks__table table;
    size_t bytes;
    c.n_layer = c.n_head = 1;
    for (int shift = 27; shift <= 30; shift += 3) { /* 2^63 bytes, and 2^69 */
        c.n_embd = 1 << shift;
        assert_fails(LKS_ERR_CONFIG, lks__model_table(&c, &table), "memory can address");
    }
    c.n_embd = 1 << 29;
    c.block_size = 1;
    c.dropout = 0.0f;
    assert_fails(LKS_ERR_CONFIG, lks__model_activation_bytes(&c, 1 << 30, &lks__layers_cpu, &bytes),
                 "batch_size = 1073741824", "memory can address");
    c.n_embd = 32;
    assert_ok(lks__model_activation_bytes(&c, 1 << 30, &lks__layers_cpu, &bytes));
    c.dropout = 0.1f; /* 2^34 masked activations, and twice as many */
    assert_ok(lks__model_activation_bytes(&c, 1 << 29, &lks__layers_cpu, &bytes));
    assert_fails(LKS_ERR_CONFIG, lks__model_activation_bytes(&c, 1 << 30, &lks__layers_cpu, &bytes),
                 "batch_size = 1073741824 of block_size = 1 and n_embd = 32 has more than 2^34");
}

/* ---- logits ------------------------------------------------------------------------------- */

/* -log of the probability that the logits of the token after tokens[0, n) give to `target`. */
static double loss_of_logits(small_run *run, const int32_t *tokens, int n, int32_t target)
{
    float logits[SMALL_VOCAB];
    double sum = 0.0;
    models_logits(run->model, run->params, tokens, n, logits);
    for (int i = 0; i < SMALL_VOCAB; i++)
        sum += exp((double)logits[i] - (double)logits[target]);
    return log(sum);
}

/* The loss of a batch is the mean of the losses from the logits, for every length of the
 * context. */
TEST(test_logits)
{
    (void)state;
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        small_run run;
        small_open(&small_models[i], &run);
        double sum = 0.0;
        for (int b = 0; b < SMALL_B; b++)
            for (int n = 1; n <= SMALL_T; n++)
                sum += loss_of_logits(&run, run.tokens + b * SMALL_T, n,
                                      run.targets[b * SMALL_T + n - 1]);
        float loss;
        lks__model_loss(run.model, run.params, &run.mb, &loss);
        assert_near((double)loss, sum / (SMALL_B * SMALL_T), 2e-6 * (double)loss);
        small_close(&run);
    }
}

/* ---- initial weights ----------------------------------------------------------------------- */

/* lks__model_init() counts as many draws as it consumes. */
static void check_draws(const char *name, const lks__model_config *c)
{
    lks__table t = {0};
    lks__mt drawn, skipped;
    assert_ok(lks__model_table(c, &t));
    float *params = lks_test_calloc(t.count, sizeof *params);
    lks__mt_seed(&drawn, 1337);
    lks__mt_seed(&skipped, 1337);
    uint64_t n = lks__model_init(c, &t, NULL, NULL);
    assert_int_equal(lks__model_init(c, &t, &drawn, params), n);
    lks__mt_skip(&skipped, n);
    for (int i = 0; i < 1000; i++)
        if (lks__mt_u32(&drawn) != lks__mt_u32(&skipped))
            fail_msg("%s: %llu draws counted, others made", name, (unsigned long long)n);
    free(params);
    lks__table_free(&t);
}

/* Tensors of fewer than 16 elements are drawn one by one, two from each pair of numbers. */
TEST(test_draws)
{
    (void)state;
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        lks__model_config c = small_models[i].config;
        check_draws(small_models[i].name, &c);
        c.n_embd = c.ops == &lks__model_golf ? 2 : 1;
        c.n_head = c.n_kv_head = 1;
        c.vocab_size = 7;
        c.block_size = 5;
        check_draws(small_models[i].name, &c);
        c.vocab_size = 16 / c.n_embd; /* as many as are drawn at once */
        check_draws(small_models[i].name, &c);
    }
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(small_open_exec, small_close_exec);
}
