#include "ckpt/content.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "ckpt/scratch.h"

enum { N_MODEL = 3, N_OPTIMIZER = 6, MAX_FLOATS = 64 };

typedef struct made {
    float data[N_MODEL + N_OPTIMIZER][MAX_FLOATS];
    char names[N_OPTIMIZER][64];
    lks__st_tensor model[N_MODEL], optimizer[N_OPTIMIZER];
} made;

static const struct {
    const char *name;
    int n_dims;
    uint64_t shape[2];
} table[N_MODEL] = {{"transformer.wte.weight", 2, {7, 5}},
                    {"transformer.h.0.ln_1.weight", 1, {5}},
                    {"transformer.h.0.attn.c_attn.weight", 2, {3, 5}}};

static void fill(lks__st_tensor *t, const char *name, int like, float *data, uint64_t *random)
{
    *t = (lks__st_tensor){.name = name, .dtype = "F32", .n_dims = table[like].n_dims, .data = data};
    size_t n = 1;
    for (int d = 0; d < t->n_dims; d++) {
        t->shape[d] = table[like].shape[d];
        n *= t->shape[d];
    }
    t->bytes = 4 * n;
    for (size_t i = 0; i < n; i++)
        data[i] = (float)(int32_t)next_random(random) * 0x1p-31f;
}

static void make(made *m, uint64_t iter, int variant)
{
    uint64_t random = 1 + iter * 1000 + (uint64_t)variant;
    for (int i = 0; i < N_MODEL; i++)
        fill(&m->model[i], table[i].name, i, m->data[i], &random);
    for (int i = 0; i < N_OPTIMIZER; i++) {
        snprintf(m->names[i], sizeof m->names[i], "%s.%s", table[i / 2].name,
                 i % 2 ? "exp_avg_sq" : "exp_avg");
        fill(&m->optimizer[i], m->names[i], i / 2, m->data[N_MODEL + i], &random);
    }
}

static lks_status save(const char *out, uint64_t iter, int variant, int keep, bool best)
{
    made m;
    char name[32], hash[17], expected[17], folder[32];
    make(&m, iter, variant);
    json_t *state = json_pack("{s:i, s:f, s:s, s:{s:i}}", "variant", variant, "best", 0.1, "chars",
                              "\n \"\xc3\xa9", "nested", "state_hash", 1);
    assert_non_null(state);
    lks__ckpt_content content = {
        iter, m.model, N_MODEL, m.optimizer, N_OPTIMIZER, "00112233445566ff", state, .best = best};
    lks_status st = lks__sys_make_dirs(out);
    LKS__THEN(st, lks__ckpt_save(out, &content, keep, name, hash));
    assert_int_equal(json_object_size(state), 4); /* borrowed: unchanged */
    json_decref(state);
    if (st == LKS_OK) {
        snprintf(folder, sizeof folder, "ckpt-%08d", (int)iter);
        lks__ckpt_params_hash(m.model, N_MODEL, expected);
        assert_string_equal(name, folder);
        assert_string_equal(hash, expected);
    }
    return st;
}

lks_status save_content(const char *out, uint64_t iter, int variant, int keep)
{
    return save(out, iter, variant, keep, false);
}

lks_status save_best(const char *out, uint64_t iter, int variant, int keep)
{
    return save(out, iter, variant, keep, true);
}

static bool same_tensors(lks__st_file *file, const lks__st_tensor *expected, size_t n)
{
    const char *kernels = lks__st_metadata(file, "kernels");
    bool same = lks__st_count(file) == n && kernels && strcmp(kernels, "00112233445566ff") == 0;
    for (size_t i = 0; same && i < n; i++) {
        char data[4 * MAX_FLOATS];
        const lks__st_tensor *t = lks__st_get(file, i), *e = &expected[i];
        same = strcmp(t->name, e->name) == 0 && strcmp(t->dtype, "F32") == 0 &&
               t->n_dims == e->n_dims && t->bytes == e->bytes &&
               memcmp(t->shape, e->shape, sizeof e->shape[0] * (size_t)e->n_dims) == 0 &&
               lks__st_read(file, t, data) == LKS_OK && memcmp(data, e->data, e->bytes) == 0;
    }
    return same;
}

bool has_content(lks__ckpt *ckpt, uint64_t iter, int variant)
{
    made m;
    char hash[17];
    make(&m, iter, variant);
    lks__ckpt_params_hash(m.model, N_MODEL, hash);
    const char *stored = json_string_value(json_object_get(ckpt->state, "params_hash"));
    return ckpt->iter == iter &&
           json_integer_value(json_object_get(ckpt->state, "variant")) == variant &&
           json_real_value(json_object_get(ckpt->state, "best")) == 0.1 && stored &&
           strcmp(stored, hash) == 0 && same_tensors(ckpt->model, m.model, N_MODEL) &&
           ckpt->optimizer && same_tensors(ckpt->optimizer, m.optimizer, N_OPTIMIZER);
}

bool opens_as(const char *out, uint64_t iter, int variant)
{
    lks__ckpt ckpt;
    if (lks__ckpt_open(out, 1, &ckpt) != LKS_OK)
        return false;
    bool same = has_content(&ckpt, iter, variant);
    lks__ckpt_close(&ckpt);
    return same;
}
