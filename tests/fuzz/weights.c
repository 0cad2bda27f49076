/* Weights to begin with: llm.c's model file; a config.json, or an index of parts, beside a sound
 * model.safetensors; or an input of neither kind, as a safetensors file by itself. */
#include "weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "files/safetensors/safetensors.h"
#include "fuzz.h"
#include "weights/forms/saved.h"

const char *const fuzz_words[] = {
    "\"n_layer\":",
    "\"n_head\":",
    "\"n_embd\":",
    "\"n_positions\":",
    "\"vocab_size\":",
    "\"activation_function\":",
    "\"gelu_new\"",
    "\"layer_norm_epsilon\":",
    "\"weight_map\":{",
    "\"wte.weight\":\"model.safetensors\"",
    "transformer.h.1.",
    "h.0.attn.c_attn.weight",
    "lm_head.weight",
    "\"BF16\"",
    "null",
    "1e-5",
    "2147483647",
    "\xc6\xd7\x34\x01", /* 20240326 */
    "\x05\0\0\0",
    "\xff\xff\xff\x7f",
    NULL,
};

enum { T = 2, V = 3, C = 2, PADDED = 4 };

/* A model of one layer, [in, out], zeros. */
static const struct {
    const char *name;
    uint64_t d0, d1;
} shapes[] = {
    {"wte.weight", V, C},
    {"wpe.weight", T, C},
    {"h.0.ln_1.weight", C, 0},
    {"h.0.ln_1.bias", C, 0},
    {"h.0.attn.c_attn.weight", C, 3 * C},
    {"h.0.attn.c_attn.bias", 3 * C, 0},
    {"h.0.attn.c_proj.weight", C, C},
    {"h.0.attn.c_proj.bias", C, 0},
    {"h.0.ln_2.weight", C, 0},
    {"h.0.ln_2.bias", C, 0},
    {"h.0.mlp.c_fc.weight", C, 4 * C},
    {"h.0.mlp.c_fc.bias", 4 * C, 0},
    {"h.0.mlp.c_proj.weight", 4 * C, C},
    {"h.0.mlp.c_proj.bias", C, 0},
    {"ln_f.weight", C, 0},
    {"ln_f.bias", C, 0},
};

enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static const float zeros[64];

static void write_model(const char *path, const char *dtype, uint64_t width)
{
    lks__st_tensor tensors[N_SHAPES];
    for (size_t i = 0; i < N_SHAPES; i++)
        tensors[i] = (lks__st_tensor){.name = shapes[i].name,
                                      .dtype = dtype,
                                      .n_dims = shapes[i].d1 == 0 ? 1 : 2,
                                      .shape = {shapes[i].d0, shapes[i].d1},
                                      .data = zeros,
                                      .bytes = shapes[i].d0 *
                                               (shapes[i].d1 == 0 ? 1 : shapes[i].d1) * width};
    FUZZ_HOLDS(lks__st_write(path, tensors, N_SHAPES, NULL) == LKS_OK);
}

static void seed_llmc(int32_t version)
{
    const int32_t header[8] = {20240326, version, T, V, 1, 1, C, PADDED};
    const size_t n = PADDED * C + T * C + 12 * C * C + 13 * C + 2 * C;
    const size_t bytes = 1024 + n * (version == 3 ? 4 : 2);
    char *text = calloc(bytes, 1);
    FUZZ_HOLDS(text != NULL);
    memcpy(text, header, sizeof header);
    fuzz_seed(text, bytes);
    free(text);
}

void fuzz_seeds(void)
{
    seed_llmc(3);
    seed_llmc(5);
    write_model(fuzz_path("seed.safetensors"), "F32", 4);
    fuzz_seed_file(fuzz_path("seed.safetensors"));
    write_model(fuzz_path("half.safetensors"), "F16", 2);
    fuzz_seed_file(fuzz_path("half.safetensors"));
    fuzz_seed_text("{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 2, "
                   "\"n_positions\": 2, \"vocab_size\": 3, \"n_inner\": null, "
                   "\"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-05, "
                   "\"tie_word_embeddings\": true, \"scale_attn_weights\": true}");
    fuzz_seed_text("{\"weight_map\": {\"wte.weight\": \"part.safetensors\", \"wpe.weight\": "
                   "\"part.safetensors\"}}");
}

/* Whatever is accepted can be read into a model that is no larger than its file. */
static void read_all(const char *source, uint64_t most)
{
    lks__weights *w = NULL;
    lks__table table;
    const lks__weights_want want = {.n_head = 1};
    if (lks__weights_open(source, &want, &w) != LKS_OK)
        return;
    FUZZ_HOLDS(w->model.n_layer >= 1 && w->model.n_layer <= 1024 && w->model.vocab_size >= 1);
    const lks__model_config config =
        lks__state_model_config(&w->model, (uint32_t)w->model.vocab_size);
    FUZZ_HOLDS(lks__model_table(&config, &table) == LKS_OK);
    FUZZ_HOLDS(table.n_params <= most);
    float *params = calloc(table.count + 1, sizeof *params);
    FUZZ_HOLDS(params != NULL);
    lks__weights_read(w, &config, &table, 1, params);
    free(params);
    lks__table_free(&table);
    lks__weights_close(w);
}

static const char *folder(const char *name, const char *file)
{
    static char path[2][4096];
    static int next;
    char *out = path[next++ % 2];
    snprintf(out, sizeof path[0], "%s/%s", fuzz_folder(), name);
    if (lks__sys_make_dirs(out) == LKS_OK) {
        char model[4200];
        snprintf(model, sizeof model, "%s/%s", out, file);
        lks__sys_unlink(model);
        write_model(model, "F32", 4);
    }
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *config, *index;
    if (config == NULL) {
        static char kept[2][4096];
        snprintf(kept[0], sizeof kept[0], "%s", folder("config", "model.safetensors"));
        snprintf(kept[1], sizeof kept[1], "%s", folder("index", "part.safetensors"));
        config = kept[0];
        index = kept[1];
    }
    if (bytes >= 4 && memcmp(data, "\xc6\xd7\x34\x01", 4) == 0) {
        read_all(fuzz_file("x.bin", data, bytes), bytes);
    } else if (bytes > 0 && data[0] == '{') {
        fuzz_file("config/config.json", data, bytes);
        read_all(config, 1000);
        fuzz_file("index/model.safetensors.index.json", data, bytes);
        read_all(index, 1000);
    } else {
        read_all(fuzz_file("x.safetensors", data, bytes), bytes);
    }
    return 0;
}
