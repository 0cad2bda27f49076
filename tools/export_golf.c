/* lockstep export --format=golf: parameter-golf's files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/artifact.h"
#include "export.h"
#include "pickle/torchsave.h"

static void print_sizes(const lks__artifact_stats *stats, uint64_t model_bytes, uint64_t code_bytes)
{
    char lines[LKS__ARTIFACT_LINES], warning[200];
    lks__artifact_lines(stats, model_bytes, code_bytes, lines);
    fputs(lines, stdout);
    fflush(stdout); /* earlier lines first */
    if (lks__artifact_too_large(stats, code_bytes, warning))
        fprintf(stderr, "lockstep export: %s\n", warning);
}

static lks_status write_artifact(const tool_model *e, uint64_t code_bytes)
{
    char path[sizeof e->ckpt.path + 32];
    lks__artifact_stats stats;
    uint64_t model_bytes;
    float *params;
    lks__artifact_about about = {
        .iter = e->ckpt.iter,
        .settings = json_object_get(e->ckpt.state, "settings"),
        .tokenizer = json_object_get(e->ckpt.state, "tokenizer"),
    };
    snprintf(path, sizeof path, "%s/model.safetensors", e->ckpt.path);
    LKS__TRY(lks__artifact_file_bytes(path, &model_bytes));
    LKS__TRY(tool_export_params(e, &params));
    lks_status st = lks__artifact_write(e->s->out, &e->table, params, &about, &stats);
    free(params);
    if (st == LKS_OK)
        print_sizes(&stats, model_bytes, code_bytes);
    return st;
}

/* ---- the raw model --------------------------------------------------------------------------- */

struct raw {
    const lks__table *table;
    const float *params;
};

static lks_status read_raw(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    const struct raw *r = ctx;
    memcpy(out, (const char *)(r->params + r->table->tensors[storage].offset) + first, bytes);
    return LKS_OK;
}

/* torch.save(base_model.state_dict(), FILE) */
static lks_status write_raw(const tool_model *e)
{
    const size_t n = e->table.n_tensors;
    lks__emit pickle = {0};
    float *params;
    uint64_t *bytes = calloc(n + 1, sizeof *bytes);
    if (!bytes)
        return lks__fail(LKS_ERR_NOMEM, "no memory for the sizes of %zu tensors", n);
    lks_status st = tool_export_params(e, &params);
    if (st != LKS_OK) {
        free(bytes);
        return st;
    }
    lks__emit_start(&pickle);
    lks__emit_dict(&pickle);
    for (size_t i = 0; i < n; i++) {
        const lks__tensor *t = &e->table.tensors[i];
        const uint64_t shape[2] = {t->shape[0], t->n_dims > 1 ? t->shape[1] : 0};
        bytes[i] = t->count * sizeof *params;
        lks__emit_text(&pickle, t->name);
        lks__emit_tensor(&pickle, "F32", t->n_dims, shape, (unsigned)i);
    }
    lks__emit_dict_end(&pickle);
    lks__emit_stop(&pickle);
    struct raw raw = {&e->table, params};
    const lks__torchsave_what what = {&pickle, bytes, n, read_raw, &raw};
    st = lks__torchsave_file(e->s->out, &what);
    free(pickle.at);
    free(params);
    free(bytes);
    return st;
}

static lks_status write_raw_and_print(const tool_model *e, uint64_t code_bytes)
{
    uint64_t bytes;
    LKS__TRY(write_raw(e));
    LKS__TRY(lks__artifact_file_bytes(e->s->out, &bytes));
    printf(
        "Serialized model: %llu bytes\nCode size: %llu bytes\nTotal submission size: %llu bytes\n",
        (unsigned long long)bytes, (unsigned long long)code_bytes,
        (unsigned long long)(bytes + code_bytes));
    return LKS_OK;
}

static bool is_raw(const char *name)
{
    size_t n = strlen(name);
    return n >= 3 && strcmp(name + n - 3, ".pt") == 0;
}

lks_status tool_export_golf(const tool_model *e)
{
    uint64_t code_bytes;
    LKS__TRY(lks__artifact_code_bytes(e->s->code, &code_bytes));
    return is_raw(e->s->out) ? write_raw_and_print(e, code_bytes) : write_artifact(e, code_bytes);
}
