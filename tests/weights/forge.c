#include "forge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "base/number/f16.h"
#include "files/safetensors/safetensors.h"

forge_model forge_open_as(const lks__model_config *config)
{
    forge_model m = {.config = *config};
    m.config.ops = &lks__model_gpt2;
    assert_ok(lks__model_table(&m.config, &m.table));
    m.params = lks_test_calloc(m.table.count, sizeof *m.params);
    lks__mt g;
    lks__mt_seed(&g, 5);
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        const bool gain = t->init == LKS__INIT_ONE;
        for (size_t e = 0; e < t->count; e++)
            m.params[t->offset + e] =
                ((float)lks__mt_randint(&g, 64) - 32.0f) / 64.0f + (gain ? 1.0f : 0.0f);
    }
    return m;
}

forge_model forge_open(bool bias)
{
    const lks__model_config config = {
        .n_layer = 2, .n_head = 2, .n_embd = 16, .block_size = 12, .vocab_size = 65, .bias = bias};
    return forge_open_as(&config);
}

void forge_close(forge_model *m)
{
    free(m->params);
    lks__table_free(&m->table);
}

/* --- Hugging Face's -------------------------------------------------------------------------- */

const char *forge_config(const forge_model *m, const char *gelu)
{
    const lks__model_config *c = &m->config;
    return lks_test_text(
        "{\"model_type\": \"gpt2\", \"activation_function\": \"%s\", \"n_layer\": %d, "
        "\"n_head\": %d, \"n_embd\": %d, \"n_positions\": %d, \"vocab_size\": %d, "
        "\"n_inner\": null, \"layer_norm_epsilon\": 1e-05}",
        gelu != NULL ? gelu : "gelu_new", c->n_layer, c->n_head, c->n_embd, c->block_size,
        c->vocab_size);
}

static bool is(const char *name, const char *wanted)
{
    return wanted != NULL && strcmp(name, wanted) == 0;
}

/* n values of `x` as `dtype`, malloc'd. */
static void *convert(const char *dtype, const float *x, size_t n)
{
    char *out = lks_test_calloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++) {
        uint16_t half =
            strcmp(dtype, "F16") == 0 ? lks__f16_from_float(x[i]) : lks__bf16_from_float(x[i]);
        if (strcmp(dtype, "F32") == 0)
            memcpy(out + i * 4, x + i, 4);
        else
            memcpy(out + i * 2, &half, 2);
    }
    return out;
}

static bool is_conv(const lks__table_tensor *t)
{
    return t->layer >= 0 && t->n_dims == 2;
}

static lks__st_tensor tensor_of(const forge_model *m, const lks__table_tensor *t, const char *name,
                                const forge_hf *how)
{
    const char *dtype = how->dtype != NULL ? how->dtype : "F32";
    const size_t rows = t->shape[0], columns = t->n_dims == 2 ? t->shape[1] : 1;
    const size_t more = is(t->name, how->longer) ? columns : 0;
    const bool turn = is_conv(t) && !how->linear;
    float *x = lks_test_calloc(t->count + more, sizeof *x);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            x[turn ? c * rows + r : r * columns + c] = m->params[t->offset + r * columns + c];
    if (is(t->name, how->nan))
        x[5] = NAN;
    if (how->other_head && strcmp(name, "lm_head.weight") == 0)
        x[t->count - 1] += 1.0f;
    lks__st_tensor out = {.name = name, .dtype = dtype, .n_dims = t->n_dims};
    out.shape[0] = turn ? columns + (more != 0) : rows + (more != 0);
    out.shape[1] = turn ? rows : columns;
    if (turn && more != 0) { /* one more row of the file's matrix */
        x = realloc(x, (columns + 1) * rows * sizeof *x);
        assert_non_null(x);
        memset(x + rows * columns, 0, rows * sizeof *x);
    }
    const size_t count = out.shape[0] * (t->n_dims == 2 ? out.shape[1] : 1);
    out.bytes = count * (strcmp(dtype, "F32") == 0 ? 4 : 2);
    out.data = convert(dtype, x, count);
    free(x);
    return out;
}

static void write_part(const char *folder, const char *file, const lks__st_tensor *tensors,
                       size_t n, json_t *map)
{
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    assert_ok(lks__st_write(lks_test_text("%s/%s", folder, file), tensors, n, metadata));
    json_decref(metadata);
    for (size_t i = 0; i < n; i++)
        json_object_set_new(map, tensors[i].name, json_string(file));
}

void forge_write_hf(const forge_model *m, const char *folder, const forge_hf *how)
{
    lks__st_tensor tensors[256];
    size_t n = 0;
    static const float zeros[16];
    for (size_t i = 0; i < m->table.n_tensors; i++) {
        const lks__table_tensor *t = &m->table.tensors[i];
        if (is(t->name, how->left_out))
            continue;
        const char *name = how->no_prefix ? t->name + strlen("transformer.") : t->name;
        tensors[n++] = tensor_of(m, t, name, how);
        if (how->lm_head && i == 0)
            tensors[n++] = tensor_of(m, t, "lm_head.weight", how);
    }
    const size_t own = n; /* data to free */
    if (how->added != NULL)
        tensors[n++] = (lks__st_tensor){how->added, "F32", 1, {2}, zeros, 8};
    if (how->buffers) {
        tensors[n++] =
            (lks__st_tensor){how->no_prefix ? "h.0.attn.bias" : "transformer.h.0.attn.bias",
                             "BOOL",
                             4,
                             {1, 1, 2, 2},
                             zeros,
                             4};
        tensors[n++] = (lks__st_tensor){how->no_prefix ? "h.1.attn.masked_bias"
                                                       : "transformer.h.1.attn.masked_bias",
                                        "F32",
                                        0,
                                        {0},
                                        zeros,
                                        4};
    }
    json_t *map = json_object();
    if (how->parts == 0)
        write_part(folder, "model.safetensors", tensors, n, map);
    for (int p = 0; p < how->parts; p++) {
        const size_t from = n * (size_t)p / (size_t)how->parts;
        const size_t to = n * ((size_t)p + 1) / (size_t)how->parts;
        write_part(folder, lks_test_text("model-%05d-of-%05d.safetensors", p + 1, how->parts),
                   tensors + from, to - from, map);
    }
    if (how->parts > 0) {
        char *text = json_dumps(map, 0);
        const char *index = lks_test_text("{\"metadata\": {}, \"weight_map\": %s}", text);
        lks_test_write(lks_test_text("%s/model.safetensors.index.json", folder), index,
                       strlen(index));
        free(text);
    }
    json_decref(map);
    for (size_t i = 0; i < own; i++)
        free((void *)tensors[i].data);
    const char *config = how->config != NULL ? how->config : forge_config(m, how->gelu);
    if (config[0] != '\0')
        lks_test_write(lks_test_text("%s/config.json", folder), config, strlen(config));
}

const char *forge_hf_folder(const forge_model *m, const forge_hf *how)
{
    const char *folder = lks_test_folder();
    forge_write_hf(m, folder, how);
    return folder;
}

/* --- llm.c's ---------------------------------------------------------------------------------- */

/* Its order: kind by kind, each of all layers. */
static const char *const kinds[] = {
    "wte.weight",         "wpe.weight",       "ln_1.weight",        "ln_1.bias",
    "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight",        "ln_2.bias",        "mlp.c_fc.weight",    "mlp.c_fc.bias",
    "mlp.c_proj.weight",  "mlp.c_proj.bias",  "ln_f.weight",        "ln_f.bias"};

const char *forge_llmc(const forge_model *m, int version, size_t *bytes_p)
{
    const lks__model_config *c = &m->config;
    const int padded = (c->vocab_size + 127) / 128 * 128, wide = version == 5 ? 2 : 4;
    const int32_t header[256] = {20240326,   version,   c->block_size, c->vocab_size,
                                 c->n_layer, c->n_head, c->n_embd,     padded};
    const size_t pad = (size_t)(padded - c->vocab_size) * (size_t)c->n_embd;
    const size_t bytes = sizeof header + (m->table.n_params + pad) * (size_t)wide;
    char *text = lks_test_calloc(bytes, 1), *at = text + sizeof header;
    memcpy(text, header, sizeof header);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int l = -1; l < c->n_layer; l++) {
            const char *name = l < 0 ? lks_test_text("transformer.%s", kinds[k])
                                     : lks_test_text("transformer.h.%d.%s", l, kinds[k]);
            const lks__table_tensor *t = lks__table_find(&m->table, name);
            if (t == NULL)
                continue;
            void *x = convert(wide == 4 ? "F32" : "BF16", m->params + t->offset, t->count);
            memcpy(at, x, t->count * (size_t)wide);
            at += t->count * (size_t)wide + (k == 0 ? pad * (size_t)wide : 0);
            free(x);
        }
    }
    assert_ptr_equal(at, text + bytes);
    const char *path = lks_test_text("%s/model.bin", lks_test_folder());
    lks_test_write(path, text, bytes);
    free(text);
    if (bytes_p != NULL)
        *bytes_p = bytes;
    return path;
}
