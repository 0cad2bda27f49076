/* Weights of every form come back value for value, with the settings that the file gives. */
#include "forge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "weights/forms/saved.h"
#include "weights/weights.h"

static float *read_all(lks__weights *w, const lks__settings *s, lks__table *table)
{
    const lks__model_config config = lks__state_model_config(s, (uint32_t)s->vocab_size);
    assert_ok(lks__model_table(&config, table));
    float *params = lks_test_calloc(table->count, sizeof *params);
    assert_ok(lks__weights_read(w, &config, table, 3, params));
    return params;
}

/* The source has the model's settings, this form of GELU, and its values. */
static void assert_reads(const forge_model *m, const char *source, const char *gelu,
                         const lks__weights_want *want)
{
    lks__weights *w;
    lks__settings s;
    lks__table table;
    assert_ok(lks__weights_open(source, want, &w));
    lks__settings_defaults(&s);
    assert_ok(lks__settings_begin(&s, &w->model, w->shown));
    assert_int_equal(s.n_layer, m->config.n_layer);
    assert_int_equal(s.n_head, m->config.n_head);
    assert_int_equal(s.n_embd, m->config.n_embd);
    assert_int_equal(s.block_size, m->config.block_size);
    assert_int_equal(s.vocab_size, m->config.vocab_size);
    assert_int_equal(s.bias, m->config.bias);
    assert_string_equal(lks__setting_word(&s, LKS__SETTING_gelu), gelu);
    float *params = read_all(w, &s, &table);
    assert_int_equal(table.count, m->table.count);
    assert_memory_equal(params, m->params, table.count * sizeof *params);
    free(params);
    lks__table_free(&table);
    lks__weights_close(w);
}

TEST(test_hf)
{
    forge_model m = forge_open(true);
    static const forge_hf hows[] = {
        {0},
        {.no_prefix = true, .buffers = true},
        {.lm_head = true, .buffers = true},
        {.dtype = "F16"},
        {.dtype = "BF16", .no_prefix = true, .lm_head = true},
        {.parts = 3},
        {.parts = 2, .dtype = "BF16"},
    };
    for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++)
        assert_reads(&m, forge_hf_folder(&m, &hows[i]), "tanh", NULL);
    const forge_hf exact = {.gelu = "gelu"}, pytorch = {.gelu = "gelu_pytorch_tanh"};
    assert_reads(&m, forge_hf_folder(&m, &exact), "exact", NULL);
    assert_reads(&m, forge_hf_folder(&m, &pytorch), "tanh", NULL);
    const forge_hf fast = {.gelu = "gelu_fast"};
    assert_reads(&m, forge_hf_folder(&m, &fast), "tanh", NULL);
    /* a slash at its end; the file itself, with its config beside it */
    const char *folder = forge_hf_folder(&m, &exact);
    assert_reads(&m, lks_test_text("%s/", folder), "exact", NULL);
    assert_reads(&m, lks_test_text("%s/model.safetensors", folder), "exact", NULL);
    /* a folder whose name ends as a file's */
    const char *named = lks_test_text("%s/as.safetensors", lks_test_folder());
    assert_int_equal(rename(folder, named), 0);
    assert_reads(&m, named, "exact", NULL);
    forge_close(&m);
}

/* Matrices and a vocabulary of more than 2^18 numbers, which are read in pieces. */
TEST(test_pieces)
{
    const lks__model_config config = {.n_layer = 1,
                                      .n_head = 2,
                                      .n_embd = 264,
                                      .block_size = 4,
                                      .vocab_size = 1000,
                                      .bias = true};
    forge_model m = forge_open_as(&config);
    static const forge_hf hows[] = {{.lm_head = true}, {.dtype = "BF16", .lm_head = true}};
    for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++)
        assert_reads(&m, forge_hf_folder(&m, &hows[i]), "tanh", NULL);
    forge_close(&m);
}

/* A config that leaves out what GPT2Config has by default: 12 heads, gelu_new. */
TEST(test_bare_config)
{
    const lks__model_config config = {
        .n_layer = 1, .n_head = 12, .n_embd = 48, .block_size = 4, .vocab_size = 7, .bias = true};
    forge_model m = forge_open_as(&config);
    const forge_hf bare = {.config = "{}"};
    assert_reads(&m, forge_hf_folder(&m, &bare), "tanh", NULL);
    forge_close(&m);
}

/* Without config.json: heads of 64, or as many as are asked for. */
TEST(test_file_alone)
{
    forge_model m = forge_open(true);
    const forge_hf alone = {.config = ""};
    const char *folder = forge_hf_folder(&m, &alone);
    const lks__weights_want heads = {.n_head = 2};
    lks__weights *w;
    assert_reads(&m, lks_test_text("%s/model.safetensors", folder), "tanh", &heads);
    assert_fails(LKS_ERR_CONFIG, lks__weights_open(folder, NULL, &w), "give --n_head");
    forge_close(&m);

    lks__model_config config = m.config;
    config.n_embd = 128;
    m = forge_open_as(&config);
    folder = forge_hf_folder(&m, &alone);
    assert_ok(lks__weights_open(folder, NULL, &w));
    assert_int_equal(w->model.n_head, 2);
    assert_contains(w->note, "using n_head=2");
    lks__weights_close(w);
    forge_close(&m);
}

/* nanoGPT's names and torch.nn.Linear's matrices: its GELU, with and without biases. */
TEST(test_linear)
{
    const lks__weights_want heads = {.n_head = 2};
    const forge_hf linear = {.linear = true, .config = "", .lm_head = true};
    for (int bias = 0; bias < 2; bias++) {
        forge_model m = forge_open(bias);
        assert_reads(&m, forge_hf_folder(&m, &linear), "exact", &heads);
        forge_close(&m);
    }
}

TEST(test_llmc)
{
    forge_model m = forge_open(true);
    assert_reads(&m, forge_llmc(&m, 3, NULL), "tanh", NULL);
    assert_reads(&m, forge_llmc(&m, 5, NULL), "tanh", NULL);
    forge_close(&m);
}

/* Settings that may differ from the source's. */
TEST(test_crop_and_grow)
{
    forge_model m = forge_open(true);
    const forge_hf how = {0};
    lks__weights *w;
    lks__settings s;
    lks__table table;
    lks__settings_defaults(&s);
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "block_size", "7", LKS__FROM_ARG, "test"));
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "vocab_size", "80", LKS__FROM_ARG, "test"));
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "gelu", "exact", LKS__FROM_ARG, "test"));
    assert_ok(lks__weights_open(forge_hf_folder(&m, &how), NULL, &w));
    assert_ok(lks__settings_begin(&s, &w->model, w->shown));
    assert_int_equal(s.block_size, 7);
    assert_int_equal(s.vocab_size, 80);
    assert_int_equal(s.gelu, LKS__gelu_exact);
    float *params = read_all(w, &s, &table);
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < table.n_tensors; i++) {
        const lks__table_tensor *t = &table.tensors[i], *of = &m.table.tensors[i];
        const size_t n = t->count < of->count ? t->count : of->count;
        assert_memory_equal(params + t->offset, m.params + of->offset, n * sizeof *params);
        for (size_t e = n; e < t->count; e++) {
            assert_true(params[t->offset + e] != 0.0f); /* each was drawn */
            sum += (double)params[t->offset + e];
            squares += (double)params[t->offset + e] * (double)params[t->offset + e];
        }
    }
    const size_t added = 15 * 16; /* N(0, 0.02^2): five standard deviations of each figure */
    assert_near(sum / (double)added, 0.0, 5 * 0.02 / sqrt((double)added));
    assert_near(sqrt(squares / (double)added), 0.02, 5 * 0.02 / sqrt(2.0 * (double)added));
    /* keyed by the seed: the same again, and others with another seed */
    const lks__model_config config = lks__state_model_config(&s, 80);
    float *again = lks_test_calloc(table.count, sizeof *again);
    assert_ok(lks__weights_read(w, &config, &table, 3, again));
    assert_memory_equal(again, params, table.count * sizeof *params);
    assert_ok(lks__weights_read(w, &config, &table, 4, again));
    assert_memory_not_equal(again, params, table.count * sizeof *params);
    lks_test_free(again, params);
    lks__table_free(&table);
    lks__weights_close(w);
    forge_close(&m);
}
