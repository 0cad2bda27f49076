/* Weights that are cut, altered or of another model are refused with file, place and reason. */
#include "forge.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "files/safetensors/safetensors.h"
#include "weights/choice/known.h"
#include "weights/forms/saved.h"
#include "weights/weights.h"

#define CONV "transformer.h.1.mlp.c_fc.weight"

static lks_status try(const char *source)
{
    lks__weights *w = NULL;
    lks_status st = lks__weights_open(source, NULL, &w);
    lks__weights_close(w);
    return st;
}

TEST(test_hf)
{
    forge_model m = forge_open(true);
    const struct {
        forge_hf how;
        const char *says;
    } rows[] = {
        {{.left_out = CONV}, "tensor " CONV ", which a model of n_layer=2, n_embd=16"},
        {{.left_out = "transformer.wpe.weight"}, "wte.weight or wpe.weight is missing"},
        {{.longer = CONV},
         "tensor " CONV " is [17, 64], but a model of n_layer=2, n_embd=16, "
         "block_size=12, vocab_size=65 has [16, 64] there"},
        {{.longer = "transformer.h.0.ln_1.bias"}, "ln_1.bias is [17], but"},
        {{.longer = "transformer.wte.weight"},
         "config.json says vocab_size = 65, but the shape of wte.weight gives 66"},
        {{.longer = "transformer.wpe.weight"}, "n_positions = 12, but"},
        {{.added = "transformer.h.1.crossattention.bias"},
         "doesn't belong to a model of n_layer=2"},
        {{.added = "h.0.ln_1.weight"}, "or occurs twice"},
        {{.added = "transformer.h.1023.ln_1.weight"},
         "says n_layer = 2, but the numbering of its tensors gives 1024"},
        {{.added = "transformer.h.90000.ln_1.weight"}, "90001 layers"},
        {{.added = "lm_head.weight"}, "tensor lm_head.weight is [2], but"},
        {{.config = "[1]"}, "config.json is not a JSON object"},
        {{.config = "{\"n_layer\": 2"}, "config.json"},
        {{.gelu = "relu"}, "activation_function = \"relu\""},
        {{.dtype = "I16"}, "tensor wte.weight is of type I16"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *folder = forge_hf_folder(&m, &rows[i].how);
        const lks_status st = try(folder);
        assert_true(st == LKS_ERR_FORMAT || st == LKS_ERR_SUPPORT);
        assert_contains(lks_last_error(), folder, rows[i].says);
    }
    forge_close(&m);
}

/* What lockstep's gpt2 doesn't compute. */
TEST(test_variants)
{
    forge_model m = forge_open(true);
    static const struct {
        const char *key, *value, *says;
    } rows[] = {
        {"model_type", "\"llama\"", "model_type = \"llama\""},
        {"scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx = false only"},
        {"scale_attn_weights", "false", "scale_attn_weights = true only"},
        {"tie_word_embeddings", "false", "tie_word_embeddings = true only"},
        {"add_cross_attention", "true", "add_cross_attention = false only"},
        {"layer_norm_epsilon", "1e-6", "layer_norm_epsilon = 1e-5 only"},
        {"layer_norm_epsilon", "\"1e-5\"", "layer_norm_epsilon = 1e-5 only"},
        {"n_inner", "48", "n_inner = 48"},
        {"n_head", "0", "n_head is not a positive number"},
        {"n_head", "-2", "n_head is not a positive number"},
        {"n_head", "99999999999999999999", "config.json"},
        {"n_head", "3", "n_embd = 16 is not a multiple of n_head = 3"},
        {"n_embd", "32", "n_embd = 32, but the shape of wte.weight gives 16"},
        {"activation_function", "7", "activation_function"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *config = json_loads(forge_config(&m, NULL), 0, NULL);
        json_error_t error;
        json_t *value = json_loads(rows[i].value, JSON_DECODE_ANY, &error);
        char *text;
        if (value != NULL) {
            json_object_set_new(config, rows[i].key, value);
            text = json_dumps(config, 0);
        } else { /* a number that jansson doesn't write */
            text = strdup(lks_test_text("{\"%s\": %s}", rows[i].key, rows[i].value));
        }
        const forge_hf how = {.config = text};
        const lks_status st = try(forge_hf_folder(&m, &how));
        assert_int_not_equal(st, LKS_OK);
        assert_contains(lks_last_error(), rows[i].says);
        free(text);
        json_decref(config);
    }
    forge_close(&m);
}

/* JSON of depth 10,000 in every JSON file. */
TEST(test_deep_json)
{
    enum { DEPTH = 10000 };
    forge_model m = forge_open(true);
    char *deep = lks_test_malloc(2 * DEPTH + 32);
    size_t n = (size_t)sprintf(deep, "{\"a\": ");
    memset(deep + n, '[', DEPTH);
    memset(deep + n + DEPTH, ']', DEPTH);
    strcpy(deep + n + 2 * DEPTH, "}");
    const forge_hf config = {.config = deep}, parts = {.parts = 2};
    assert_fails(LKS_ERR_FORMAT, try(forge_hf_folder(&m, &config)), "config.json", "depth");
    const char *folder = forge_hf_folder(&m, &parts);
    lks_test_write(lks_test_text("%s/model.safetensors.index.json", folder), deep, strlen(deep));
    assert_fails(LKS_ERR_FORMAT, try(folder), "index.json", "depth");
    free(deep);
    forge_close(&m);
}

/* Parts of a model: names that lead elsewhere, a part that is missing. */
TEST(test_parts)
{
    static const struct {
        const char *index, *says;
    } rows[] = {
        {"{\"weight_map\": {\"wte.weight\": \"../model.safetensors\"}}",
         "only names of files in the same folder"},
        {"{\"weight_map\": {\"wte.weight\": 7}}", "only names of files in the same folder"},
        {"{\"weight_map\": {\"wte.weight\": \"none.safetensors\"}}", "none.safetensors"},
        {"{\"weight_map\": []}", "has no weight_map"},
        {"{\"weight_map\": {}}", "wte.weight or wpe.weight is missing"},
        {"7", "index.json"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *folder = lks_test_folder();
        lks_test_write(lks_test_text("%s/model.safetensors.index.json", folder), rows[i].index,
                       strlen(rows[i].index));
        assert_int_not_equal(try(folder), LKS_OK);
        assert_contains(lks_last_error(), rows[i].says);
    }
    for (int n = 256; n <= 257; n++) { /* as many as possible, and one more */
        const char *folder = lks_test_folder();
        char index[8192] = "{\"weight_map\": {";
        for (int i = 0; i < n; i++) {
            const size_t at = strlen(index);
            snprintf(index + at, sizeof index - at, "\"%d\": \"%d\"%s", i, i,
                     i < n - 1 ? "," : "}}");
            lks_test_write(lks_test_text("%s/%d", folder, i), "\2\0\0\0\0\0\0\0{}", 10);
        }
        lks_test_write(lks_test_text("%s/model.safetensors.index.json", folder), index,
                       strlen(index));
        assert_int_not_equal(try(folder), LKS_OK);
        assert_contains(lks_last_error(), n == 256 ? "wte.weight or wpe.weight is missing"
                                                   : "names more than 256 files");
    }
}

TEST(test_values)
{
    forge_model m = forge_open(true);
    static const struct {
        forge_hf how;
        lks_status st;
        const char *says;
    } rows[] = {
        {{.nan = CONV}, LKS_ERR_NAN, "tensor " CONV " has NaN at index 5"},
        {{.nan = "transformer.wte.weight", .dtype = "BF16"}, LKS_ERR_NAN, "NaN at index 5"},
        {{.nan = "transformer.ln_f.bias", .dtype = "F16"}, LKS_ERR_NAN, "ln_f.bias has NaN"},
        {{.lm_head = true, .other_head = true},
         LKS_ERR_FORMAT,
         "tensor lm_head.weight differs from transformer.wte.weight"},
    };
    float *params = lks_test_calloc(m.table.count, sizeof *params);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lks__weights *w;
        assert_ok(lks__weights_open(forge_hf_folder(&m, &rows[i].how), NULL, &w));
        assert_fails(rows[i].st, lks__weights_read(w, &m.config, &m.table, 1, params),
                     rows[i].says);
        lks__weights_close(w);
    }
    free(params);
    forge_close(&m);
}

TEST(test_llmc)
{
    forge_model m = forge_open(true);
    static const struct {
        int at; /* number of the header */
        int32_t value;
        const char *says;
    } rows[] = {
        {1, 1, "of version 1; lockstep reads 3"},
        {2, 0, "number 2 of its header is 0"},
        {3, -1, "number 3 of its header is -1"},
        {4, 3, "it is truncated"},
        {4, 1, "it is damaged"},
        {4, 2000000000, "n_layer must be"},
        {5, 3, "n_head = 3"},
        {6, 2147483647, "n_embd must be"},
        {6, 65536, "it is truncated"},
        {7, 64, "a vocabulary of 65 is padded to 64"},
        {7, 2147483647, "is padded to 2147483647"},
    };
    size_t bytes;
    const char *path = forge_llmc(&m, 3, &bytes), *good = lks_test_read(path, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *copy = lks_test_malloc(bytes);
        memcpy(copy, good, bytes);
        memcpy(copy + 4 * rows[i].at, &rows[i].value, 4);
        lks_test_write(path, copy, bytes);
        free(copy);
        assert_int_not_equal(try(path), LKS_OK);
        assert_contains(lks_last_error(), path, rows[i].says);
    }
    lks_test_write(path, good, bytes - 1);
    assert_fails(LKS_ERR_FORMAT, try(path), "it is truncated");
    lks_test_write(path, good, 100);
    assert_fails(LKS_ERR_FORMAT, try(path), "truncated within its header");

    lks__weights *w;
    float *params = lks_test_calloc(m.table.count, sizeof *params);
    lks_test_write(path, good, bytes);
    assert_ok(lks__weights_open(path, NULL, &w));
    assert_int_equal(truncate(path, 2000), 0); /* the file that is open */
    assert_fails(LKS_ERR_FORMAT, lks__weights_read(w, &m.config, &m.table, 1, params), path,
                 "ended while it was read");
    lks__weights_close(w);
    free(params);
    forge_close(&m);
}

/* Paths and names. */
TEST(test_sources)
{
    const char *folder = lks_test_folder(), *text = lks_test_text("%s/text", folder);
    lks_test_write(text, "To be", 5);
    assert_fails(LKS_ERR_FORMAT, try(folder), "is no folder with weights", "a model file of llm.c");
    assert_fails(LKS_ERR_FORMAT, try(text), "is no file with weights");
    assert_fails(LKS_ERR_CONFIG, try("resum"), "did you mean resume?");
    assert_fails(LKS_ERR_CONFIG, try("gpt2-xll"), "did you mean gpt2-xl?");
    assert_fails(LKS_ERR_CONFIG, try("/none/such/path"), "cannot read /none/such/path");

    /* a name is looked for in LOCKSTEP_HOME, then in the cache */
    setenv("LOCKSTEP_HOME", folder, 1);
    assert_fails(LKS_ERR_CONFIG, try("gpt2"), lks_test_text("to %s/gpt2.", folder),
                 "`lockstep fetch gpt2`", "model.safetensors");
    unsetenv("LOCKSTEP_HOME");
    setenv("XDG_CACHE_HOME", folder, 1);
    setenv("LOCKSTEP_HOME", "", 1); /* as if it weren't set */
    assert_fails(LKS_ERR_CONFIG, try("gpt2-xl"), lks_test_text("%s/lockstep/gpt2-xl", folder));
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", folder, 1);
    assert_fails(LKS_ERR_CONFIG, try("gpt2"), lks_test_text("%s/.cache/lockstep/gpt2", folder));
    /* a model of another shape under that name */
    setenv("LOCKSTEP_HOME", folder, 1);
    forge_model m = forge_open(true);
    const forge_hf how = {0};
    const char *models = lks_test_folder();
    setenv("LOCKSTEP_HOME", models, 1);
    char *named = strdup(lks_test_text("%s/gpt2", models));
    assert_ok(lks__sys_make_dirs(named));
    assert_fails(LKS_ERR_FORMAT, try("gpt2"), "gpt2 has no config.json and model.safetensors",
                 "`lockstep fetch gpt2` downloads them");
    lks_test_write(lks_test_text("%s/encoder.json", named), "{}", 2);
    assert_fails(LKS_ERR_FORMAT, try("gpt2"),
                 "gpt2 has the vocabulary, but no config.json and model.safetensors");
    forge_write_hf(&m, named, &how);
    assert_fails(LKS_ERR_FORMAT, try("gpt2"),
                 "tensor transformer.wte.weight is [65, 16], but gpt2 has [50257, 768] there");
    free(named);
    forge_close(&m);
}

/* The shapes of Radford et al. (2019), table 2, with the heads of their files. */
TEST(test_known)
{
    static const lks__known rows[] = {{"gpt2", 12, 12, 768},
                                      {"gpt2-medium", 24, 16, 1024},
                                      {"gpt2-large", 36, 20, 1280},
                                      {"gpt2-xl", 48, 25, 1600}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const lks__known *known = lks__known_find(rows[i].name);
        assert_non_null(known);
        assert_int_equal(known->n_layer, rows[i].n_layer);
        assert_int_equal(known->n_head, rows[i].n_head);
        assert_int_equal(known->n_embd, rows[i].n_embd);
    }
}

/* GPT-2's header without its numbers: a file that takes no room. */
static void write_gpt2(const char *folder, int n_layer, int n_head)
{
    const lks__model_config config = {.ops = &lks__model_gpt2,
                                      .n_layer = n_layer,
                                      .n_head = 12,
                                      .n_embd = 768,
                                      .block_size = 1024,
                                      .vocab_size = 50257,
                                      .bias = true};
    const char *path = lks_test_text("%s/model.safetensors", folder);
    lks__table table;
    assert_ok(lks__model_tensors(&config, &table));
    lks__st_tensor *list = lks_test_calloc(table.n_tensors, sizeof *list);
    size_t bytes = 0;
    for (size_t i = 0; i < table.n_tensors; i++) {
        const lks__table_tensor *t = &table.tensors[i];
        const bool turn = t->layer >= 0 && t->n_dims == 2;
        list[i] = (lks__st_tensor){.name = t->name,
                                   .dtype = "F16",
                                   .n_dims = t->n_dims,
                                   .shape = {t->shape[turn], t->shape[!turn]},
                                   .bytes = t->count * 2};
        bytes += list[i].bytes;
    }
    char *block;
    size_t block_bytes;
    assert_ok(lks__st_head(path, list, table.n_tensors, NULL, false, &block, &block_bytes));
    lks_test_write(path, block, block_bytes);
    assert_int_equal(truncate(path, (off_t)(block_bytes + bytes)), 0);
    const char *json = lks_test_text("{\"n_head\": %d}", n_head);
    lks_test_write(lks_test_text("%s/config.json", folder), json, strlen(json));
    lks_test_free(block, list);
    lks__table_free(&table);
}

/* A model by its name has that name's shape and heads. */
TEST(test_by_name)
{
    const char *models = lks_test_folder(), *folder = lks_test_text("%s/gpt2", models);
    lks__weights *w;
    setenv("LOCKSTEP_HOME", models, 1);
    assert_ok(lks__sys_make_dirs(folder));
    write_gpt2(folder, 12, 12);
    assert_ok(lks__weights_open("gpt2", NULL, &w));
    assert_int_equal(w->model.n_layer, 12);
    assert_int_equal(w->model.vocab_size, 50257);
    lks__weights_close(w);
    write_gpt2(folder, 11, 12);
    assert_fails(LKS_ERR_FORMAT, try("gpt2"), "which gpt2 has, is missing");
    write_gpt2(folder, 12, 16);
    assert_fails(LKS_ERR_FORMAT, try("gpt2"), "has n_head = 16, but gpt2 has 12");
    assert_ok(try(folder)); /* by its path it is whatever it is */
    assert_int_equal(rename(folder, lks_test_text("%s/gpt2-medium", models)), 0);
    assert_fails(LKS_ERR_FORMAT, try("gpt2-medium"), "but gpt2-medium has");
    unsetenv("LOCKSTEP_HOME");
}

/* A checkpoint's file with the right names and numbers of elements, but another shape or type. */
TEST(test_shape)
{
    forge_model m = forge_open(true);
    const char *path = lks_test_text("%s/model.safetensors", lks_test_folder());
    lks__st_tensor *tensors = lks_test_calloc(m.table.n_tensors, sizeof *tensors);
    for (int wrong = 0; wrong < 3; wrong++) {
        for (size_t i = 0; i < m.table.n_tensors; i++) {
            const lks__table_tensor *t = &m.table.tensors[i];
            const bool turn = wrong == 1 && i == 0;
            assert_true(!turn || (t->n_dims == 2 && t->shape[0] != t->shape[1]));
            tensors[i] = (lks__st_tensor){.name = t->name,
                                          .dtype = wrong == 2 && i == 1 ? "I32" : "F32",
                                          .n_dims = t->n_dims,
                                          .shape = {t->shape[turn], t->shape[!turn]},
                                          .data = m.params + t->offset,
                                          .bytes = t->count * sizeof *m.params};
        }
        unlink(path);
        assert_ok(lks__st_write(path, tensors, m.table.n_tensors, NULL));
        lks__st_file *file;
        assert_ok(lks__st_open(path, &file));
        const lks_status st = lks__state_check_params(file, path, &m.table);
        lks__st_close(file);
        if (wrong == 0)
            assert_ok(st);
        else
            assert_fails(LKS_ERR_FORMAT, st, "has another type or shape than state.json's");
    }
    free(tensors);
    forge_close(&m);
}
