/* lockstep export --format=golf: parameter-golf's files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8.h"
#include "files/pickle/torch/torchsave.h"
#include "weights/artifact/artifact.h"
#include "weights/export/export.h"
#include "weights/export/form.h"

static void print_sizes(const lks__export_model *e, const lks__artifact_stats *stats,
                        uint64_t model_bytes, uint64_t code_bytes)
{
    char lines[LKS__ARTIFACT_LINES], warning[200];
    lks__artifact_lines(stats, model_bytes, code_bytes, lines);
    e->sink->result(lines);
    if (lks__artifact_too_large(stats, code_bytes, warning))
        lks__export_note(e, "%s", warning);
}

/* The model's settings for the artifact, as in a checkpoint. */
static json_t *settings_of(const lks__export_model *e)
{
    if (e->ckpt == NULL || e->s->gelu != LKS__gelu_auto)
        return lks__settings_to_json(&e->run);
    return json_incref(json_object_get(e->ckpt->state, "settings"));
}

static json_t *tokenizer_of(const lks__export_model *e)
{
    if (e->ckpt == NULL || e->s->tokenizer[0] != '\0')
        return lks__meta_to_json(&e->meta);
    return json_incref(json_object_get(e->ckpt->state, "tokenizer"));
}

/* Bytes of the weights in a file that stores each of them. */
static lks_status model_bytes_of(const lks__export_model *e, uint64_t *bytes_p)
{
    char path[LKS__CKPT_PATH + 32];
    *bytes_p = e->table.n_params * sizeof(float);
    if (e->ckpt == NULL)
        return LKS_OK;
    snprintf(path, sizeof path, "%s/" LKS__CKPT_MODEL, e->ckpt->path);
    return lks__artifact_file_bytes(path, bytes_p);
}

static lks_status write_artifact(const lks__export_model *e, uint64_t code_bytes)
{
    lks__artifact_stats stats;
    uint64_t model_bytes;
    float *params;
    LKS__TRY(model_bytes_of(e, &model_bytes));
    LKS__TRY(lks__export_params(e, &params));
    json_t *settings = settings_of(e), *tokenizer = tokenizer_of(e);
    const lks__artifact_about about = {e->w->iter, settings, tokenizer};
    lks_status st = LKS_OK;
    if (settings == NULL)
        st = lks__no_memory("for the settings of %s", e->w->shown);
    else
        st = lks__artifact_write(e->s->out, &e->table, params, &about, &stats);
    json_decref(settings);
    json_decref(tokenizer);
    free(params);
    if (st == LKS_OK)
        print_sizes(e, &stats, model_bytes, code_bytes);
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
static lks_status write_raw(const lks__export_model *e)
{
    const size_t n = e->table.n_tensors;
    lks__emit pickle = {0};
    float *params;
    uint64_t *bytes = calloc(n + 1, sizeof *bytes);
    LKS__MEMORY(bytes, "for the sizes of %zu tensors", n);
    lks_status st = lks__export_params(e, &params);
    if (st != LKS_OK) {
        free(bytes);
        return st;
    }
    lks__emit_start(&pickle);
    lks__emit_dict(&pickle);
    for (size_t i = 0; i < n; i++) {
        const lks__table_tensor *t = &e->table.tensors[i];
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

static lks_status write_raw_and_print(const lks__export_model *e, uint64_t code_bytes)
{
    char lines[200];
    uint64_t bytes;
    LKS__TRY(write_raw(e));
    LKS__TRY(lks__artifact_file_bytes(e->s->out, &bytes));
    snprintf(lines, sizeof lines,
             "Serialized model: %" PRIu64 " bytes\nCode size: %" PRIu64
             " bytes\nTotal submission size: %" PRIu64 " bytes\n",
             bytes, code_bytes, bytes + code_bytes);
    e->sink->result(lines);
    return LKS_OK;
}

lks_status lks__export_golf(const lks__export_model *e)
{
    uint64_t code_bytes;
    LKS__TRY(lks__artifact_code_bytes(e->s->code, &code_bytes));
    return lks__ends_with(e->s->out, ".pt") ? write_raw_and_print(e, code_bytes)
                                            : write_artifact(e, code_bytes);
}
