/* Logits of Hugging Face's GPT-2 from its own files, in both forms of GELU. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/device.h"
#include "model/models.h"
#include "weights/forms/saved.h"
#include "weights/weights.h"

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};
static lks__device device;

#define TOLERANCE 1e-4

static void check_sequence(lks__model *model, const float *params, size_t V, const json_t *want)
{
    int32_t tokens[64];
    const json_t *ids = json_object_get(want, "tokens");
    const int T = (int)json_array_size(ids);
    float *logits = malloc(V * sizeof *logits);
    double sum = 0.0, exps = 0.0;
    assert_non_null(logits);
    assert_in_range(T, 1, 64);
    for (int i = 0; i < T; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    models_logits(model, params, tokens, T, logits);
    for (size_t i = 0; i < V; i++) {
        sum += (double)logits[i];
        exps += exp((double)logits[i]);
    }
    const json_t *first = json_object_get(want, "first16");
    for (size_t i = 0; i < json_array_size(first); i++)
        assert_near((double)logits[i], json_number_value(json_array_get(first, i)), TOLERANCE);
    assert_near(log(exps), lks_test_number(want, "row_logsumexp"), TOLERANCE);
    assert_near(sum, lks_test_number(want, "row_sum"), TOLERANCE * sqrt((double)V));
    free(logits);
}

static void check_model(const char *folder, const char *gelu, const json_t *sequences)
{
    lks__weights *w;
    lks__settings s;
    lks__table table;
    lks__model *model;
    lks__settings_defaults(&s);
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "gelu", gelu, LKS__FROM_ARG, "test"));
    assert_ok(lks__weights_open(folder, NULL, &w));
    assert_ok(lks__settings_begin(&s, &w->model, w->shown));
    const lks__model_config config = lks__state_model_config(&s, (uint32_t)s.vocab_size);
    assert_ok(lks__model_table(&config, &table));
    float *params = aligned_alloc(64, (table.count * sizeof *params + 63) / 64 * 64);
    assert_non_null(params);
    memset(params, 0, table.count * sizeof *params);
    assert_ok(lks__weights_read(w, &config, &table, 1, params));
    assert_ok(lks__model_open(&config, &table, 1, &device, &model));
    assert_true(json_array_size(sequences) > 0);
    for (size_t i = 0; i < json_array_size(sequences); i++)
        check_sequence(model, params, (size_t)config.vocab_size, json_array_get(sequences, i));
    lks__model_close(model);
    free(params);
    lks__table_free(&table);
    lks__weights_close(w);
}

/* The model and the logits that lie beside the repository. */
TEST(test_gpt2_tiny)
{
    const char *folder = lks_test_shared("reference/gpt2-tiny");
    const json_t *figure = lks_test_figure(lks_test_shared("reference/gpt2_tiny_logits.json"));
    check_model(folder, "auto", json_object_get(figure, "transformers"));
    check_model(folder, "tanh", json_object_get(figure, "transformers"));
    check_model(folder, "exact", json_object_get(figure, "nanogpt"));
}

static int open_device(void **state)
{
    assert_ok(lks__pool_open(2, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    device = lks__device_cpu(&ex);
    return 0;
}

static int close_device(void **state)
{
    lks__pool_close(ex.pool);
    return 0;
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(open_device, close_device);
}
