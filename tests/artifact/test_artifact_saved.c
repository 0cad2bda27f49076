/* Artifacts in the script's form with wrong contents. */
#include "forge.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "files/pickle/torch/torchsave.h"

static forge_model model;
static const char *path;
static float *arena;

static int set_up(void **state)
{
    model = forge_open(11);
    path = lks_test_text("%s/m.ptz", lks_test_folder());
    arena = calloc(model.table.count, sizeof *arena);
    return arena ? 0 : -1;
}

static int tear_down(void **state)
{
    free(arena);
    forge_close(&model);
    return 0;
}

/* One thing that is wrong; NULL and 0 are right. */
typedef struct lie {
    const char *format, *without, *settings, *iter_text, *more, *dtype;
    const char *tensor; /* the one that these change: */
    const char *name, *type, *values, *scales;
    size_t value_bytes, scale_bytes;
    bool turned, flat_scales;
} lie;

typedef struct forged {
    uint64_t bytes[64];
    const void *data[64]; /* NULL: zeros; a scale's are 1.0 */
    size_t data_bytes[64];
    bool is_scale[64];
    size_t n;
} forged;

static lks_status read_forged(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    const forged *f = ctx;
    for (size_t i = 0; i < bytes; i++)
        ((char *)out)[i] = f->is_scale[storage] && (first + i) % 2 ? 0x3c : 0;
    if (f->data[storage] && first == 0)
        memcpy(out, f->data[storage], f->data_bytes[storage]);
    return LKS_OK;
}

static void emit_tensor(lks__emit *e, forged *f, const lks__st_tensor *t, const char *type,
                        bool turned, bool is_scale, const void *data, size_t data_bytes)
{
    uint64_t shape[2] = {t->shape[turned], t->shape[!turned]};
    f->bytes[f->n] = strcmp(type, t->dtype) == 0 ? t->bytes : 2 * t->bytes;
    f->is_scale[f->n] = is_scale;
    f->data[f->n] = data;
    f->data_bytes[f->n] = data_bytes;
    lks__emit_tensor(e, type, t->n_dims, shape, (unsigned)f->n++);
}

static bool changes(const lie *l, const lks__artifact_part *part)
{
    return l->tensor && strcmp(l->tensor, part->tensor->name) == 0;
}

enum { QUANTIZED, SCALES, DTYPES, PASSED, PASSED_DTYPES };

static void emit_dict(lks__emit *e, forged *f, const lie *l, const char *key, int what)
{
    if (l->without && strcmp(l->without, key) == 0)
        return;
    lks__emit_text(e, key);
    lks__emit_dict(e);
    for (size_t i = 0; i < model.table.n_tensors; i++) {
        lks__artifact_part part;
        lks__artifact_part_of(&model.table.tensors[i], &part);
        bool here = changes(l, &part), of_scales = what == SCALES;
        if (part.has_scales != (what < PASSED) ||
            (what == PASSED_DTYPES && part.scheme == LKS__QUANT_FLOAT))
            continue;
        lks__emit_text(e, here && l->name ? l->name : part.tensor->name);
        const lks__st_tensor *t = of_scales ? &part.scales : &part.values;
        if (what == DTYPES || what == PASSED_DTYPES)
            lks__emit_text(e, here && l->dtype ? l->dtype : "float32");
        else
            emit_tensor(e, f, t, here && l->type && !of_scales ? l->type : t->dtype,
                        here && l->turned && !of_scales, of_scales,
                        here ? (of_scales ? l->scales : l->values) : NULL,
                        of_scales ? l->scale_bytes : l->value_bytes);
    }
    if (l->more && strcmp(l->more, key) == 0) {
        lks__emit_text(e, "more");
        lks__emit_tensor(e, "F16", 1, (const uint64_t[]){1}, (unsigned)f->n);
        f->bytes[f->n++] = 2;
    }
    lks__emit_dict_end(e);
}

static void write_with(const lie *l)
{
    lks__emit e = {0};
    forged f = {.n = 0};
    unsigned char *data;
    size_t bytes;
    char *settings = json_dumps(model.about.settings, JSON_COMPACT);
    lks__emit_start(&e);
    lks__emit_dict(&e);
    lks__emit_text(&e, "__quant_format__");
    lks__emit_text(&e, l->format ? l->format : "int8_clean_per_row_v1");
    emit_dict(&e, &f, l, "quantized", QUANTIZED);
    emit_dict(&e, &f, l, "scales", SCALES);
    emit_dict(&e, &f, l, "dtypes", DTYPES);
    emit_dict(&e, &f, l, "passthrough", PASSED);
    emit_dict(&e, &f, l, "passthrough_orig_dtypes", PASSED_DTYPES);
    if (!l->without || strcmp(l->without, "lockstep") != 0) {
        lks__emit_text(&e, "lockstep");
        lks__emit_dict(&e);
        lks__emit_text(&e, "iter");
        lks__emit_int(&e, l->iter_text ? -1 : 7);
        lks__emit_text(&e, "settings");
        lks__emit_text(&e, l->settings ? l->settings : settings);
        lks__emit_dict_end(&e);
    }
    lks__emit_dict_end(&e);
    lks__emit_stop(&e);
    const lks__torchsave_what what = {&e, f.bytes, f.n, read_forged, &f};
    assert_ok(lks__torchsave_bytes(&what, &data, &bytes));
    forge_compress(path, data, bytes);
    lks_test_free(settings, data, e.at);
}

static void refused(const lie *l, const char *why)
{
    write_with(l);
    assert_fails(LKS_ERR_FORMAT, forge_load(path, &model.table, arena), path, why);
}

TEST(test_sound)
{
    write_with(&(lie){0});
    assert_ok(forge_load(path, &model.table, arena));
    /* the script's own models are bfloat16 in part: values are rounded as it does */
    lie l = {.tensor = "tok_emb.weight", .dtype = "bfloat16", .values = "\x7f", .value_bytes = 1};
    l.scales = "\x01\x3c"; /* 1 + 2^-10 */
    l.scale_bytes = 2;
    write_with(&l);
    assert_ok(forge_load(path, &model.table, arena));
    const float *x = arena + lks__table_find(&model.table, "tok_emb.weight")->offset;
    assert_true(x[0] == 127.0f); /* 127.124 */
    /* written with other INT8_KEEP_FLOAT_FP32_NAME_PATTERNS: fp32 for fp16 */
    l = (lie){.tensor = "blocks.0.mlp.fc.weight", .type = "F32"};
    l.values = "\x01\0\x80\x3f"; /* 1 + 2^-23 */
    l.value_bytes = 4;
    write_with(&l);
    assert_ok(forge_load(path, &model.table, arena));
    x = arena + lks__table_find(&model.table, "blocks.0.mlp.fc.weight")->offset;
    assert_true(x[0] > 1.0f && x[0] < 1.0001f && x[1] == 0.0f);
}

TEST(test_wrong)
{
    refused(&(lie){.format = "int8_v2"}, "its __quant_format__ is not");
    refused(&(lie){.without = "quantized"}, "its \"quantized\" is not a dict");
    refused(&(lie){.without = "passthrough"}, "its \"passthrough\" is not a dict");
    refused(&(lie){.without = "passthrough_orig_dtypes"}, "neither float32 nor bfloat16");
    refused(&(lie){.settings = "[1]"}, "settings are not a JSON object");
    refused(&(lie){.settings = "{\"a\":1,\"a\":2}"}, "settings are not a JSON object");
    refused(&(lie){.iter_text = "-1"}, "iter is not a count");
    refused(&(lie){.more = "passthrough"}, "more tensors than");
    refused(&(lie){.more = "quantized"}, "more tensors than");
    refused(&(lie){.more = "scales"}, "more tensors than");
    refused(&(lie){.tensor = "skip_weights", .name = "other"}, "tensor skip_weights is missing");
    refused(&(lie){.tensor = "tok_emb.weight", .name = "x"}, "tensor tok_emb.weight is missing");
    refused(&(lie){.tensor = "tok_emb.weight", .turned = true}, "another type or shape");
    refused(&(lie){.tensor = "skip_weights", .turned = true}, "another type or shape");
    refused(&(lie){.tensor = "tok_emb.weight", .dtype = "float64"}, "neither float32 nor");
    refused(&(lie){.tensor = "tok_emb.weight", .type = "F16"}, "another type or shape");
    refused(&(lie){.tensor = "tok_emb.weight", .values = "\x80", .value_bytes = 1}, "int8");
    refused(&(lie){.tensor = "tok_emb.weight", .scales = "\0\0", .scale_bytes = 2}, "scale");
    refused(&(lie){.tensor = "skip_weights", .values = "\0\0\xc0\x7f", .value_bytes = 4},
            "not finite");
}

/* As the script writes it. */
TEST(test_without_settings)
{
    lks__artifact a;
    uint64_t shape[2];
    write_with(&(lie){.without = "lockstep"});
    assert_ok(lks__artifact_open(path, &a));
    assert_null(a.settings);
    assert_true(lks__artifact_shape(&a, "tok_emb.weight", shape));
    assert_true(shape[0] == 1100 && shape[1] == 64);
    assert_true(lks__artifact_shape(&a, "blocks.1.attn.q_gain", shape));
    assert_true(shape[0] == 4 && shape[1] == 1);
    assert_false(lks__artifact_shape(&a, "blocks.2.attn.q_gain", shape));
    lks__artifact_close(&a);
    assert_exits(1,
                 lks_test_tool("eval", lks_test_text("--artifact=%s", path), "--dataset=/nowhere"),
                 "written by train_gpt.py");
}

TEST(test_cut_and_bombs)
{
    size_t bytes;
    struct rusage before, after;
    assert_ok(lks__artifact_write(path, &model.table, model.params, &model.about, NULL));
    const char *whole = lks_test_read(path, &bytes);
    for (size_t n = 8; n < bytes; n += bytes / 40) {
        lks_test_write(path, whole, n);
        assert_fails(LKS_ERR_FORMAT, forge_load(path, &model.table, arena), path, "truncated");
    }
    char *longer = calloc(1, bytes + 1);
    memcpy(longer, whole, bytes);
    lks_test_write(path, longer, bytes + 1);
    assert_fails(LKS_ERR_FORMAT, forge_load(path, &model.table, arena), "bytes follow");
    free(longer);

    const size_t big = 200 << 20;
    char *zeros = lks_test_calloc(1, big);
    memcpy(zeros, "PK\3\4", 4);
    forge_compress(path, zeros, big);
    free(zeros);
    getrusage(RUSAGE_SELF, &before);
    assert_fails(LKS_ERR_FORMAT, forge_load(path, &model.table, arena), "16 times as large");
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 40 << 10);
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(set_up, tear_down);
}
