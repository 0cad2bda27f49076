#include "forge.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static json_t *settings_of(const lks__model_config *c)
{
    json_t *json = json_pack("{s:s, s:i, s:i, s:i}", "family", "golf", "n_layer", c->n_layer,
                             "n_embd", c->n_embd, "vocab_size", c->vocab_size);
    assert_non_null(json);
    return json;
}

forge_model forge_shape(int n_embd, int vocab_size)
{
    forge_model m = {.config = {.ops = &lks__model_golf,
                                .n_layer = 2,
                                .n_head = 4,
                                .n_kv_head = 2,
                                .n_embd = n_embd,
                                .mlp_mult = 2,
                                .block_size = 16,
                                .vocab_size = vocab_size,
                                .tie_embeddings = true,
                                .logit_softcap = 30,
                                .rope_base = 10000}};
    assert_ok(lks__model_table(&m.config, &m.table));
    m.about.iter = 7;
    m.about.settings = settings_of(&m.config);
    m.about.tokenizer = json_pack("{s:s, s:i}", "kind", "ids", "vocab_size", vocab_size);
    return m;
}

forge_model forge_open(uint32_t seed)
{
    forge_model m = forge_shape(64, 1100);
    m.params = lks_test_calloc(m.table.count, sizeof *m.params);
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        for (size_t j = 0; j < t->count; j++) {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            m.params[t->offset + j] = (float)((int32_t)seed >> 8) * 0x1p-20f;
        }
    }
    float *embedding = m.params + lks__table_find(&m.table, "tok_emb.weight")->offset;
    for (size_t j = 0; j < 64; j++) {
        embedding[5 * 64 + j] = 0.0f;
        embedding[9 * 64 + j] *= 1e-3f;
    }
    return m;
}

void forge_close(forge_model *m)
{
    free(m->params);
    lks__table_free(&m->table);
    json_decref((json_t *)(uintptr_t)m->about.settings);
    json_decref((json_t *)(uintptr_t)m->about.tokenizer);
}

void forge_list(const forge_model *m, forge_entries *list)
{
    memset(list, 0, sizeof *list);
    for (size_t i = 0; i < m->table.n_tensors; i++) {
        lks__artifact_part *part = &list->parts[i];
        lks__artifact_part_of(&m->table.tensors[i], part);
        list->tensors[list->n++] = part->values;
        if (part->has_scales)
            list->tensors[list->n++] = part->scales;
    }
    assert_true(list->n < 64);
}

json_t *forge_metadata(const forge_model *m)
{
    char *settings = json_dumps(m->about.settings, JSON_COMPACT);
    json_t *meta = json_pack("{s:s, s:s, s:s, s:s}", "quant_format", LKS__QUANT_FORMAT, "dtype",
                             "F32", "iter", "7", "settings", settings);
    free(settings);
    assert_non_null(meta);
    return meta;
}

void forge_compress(const char *path, const void *data, size_t bytes)
{
    uLongf room = compressBound(bytes);
    unsigned char *out = lks_test_malloc(room);
    assert_int_equal(compress2(out, &room, data, bytes, 9), Z_OK);
    lks_test_write(path, out, room);
    free(out);
}

void forge_write(const char *path, const lks__st_tensor *tensors, size_t n, const json_t *metadata,
                 size_t extra)
{
    char *head, *all;
    size_t head_bytes, total = extra;
    assert_ok(lks__st_head(path, tensors, n, metadata, false, &head, &head_bytes));
    for (size_t i = 0; i < n; i++)
        total += tensors[i].bytes;
    all = lks_test_calloc(1, head_bytes + total);
    memcpy(all, head, head_bytes);
    size_t at = head_bytes;
    for (size_t i = 0; i < n; at += tensors[i++].bytes)
        if (tensors[i].data)
            memcpy(all + at, tensors[i].data, tensors[i].bytes);
    forge_compress(path, all, head_bytes + total);
    lks_test_free(all, head);
}

char *forge_decompress(const char *path, size_t *bytes_p)
{
    size_t bytes;
    const char *file = lks_test_read(path, &bytes);
    uLongf room = 1 << 24;
    char *out = lks_test_malloc(room);
    assert_int_equal(uncompress((unsigned char *)out, &room, (const unsigned char *)file, bytes),
                     Z_OK);
    *bytes_p = room;
    return out;
}

lks_status forge_load(const char *path, const lks__table *table, float *params)
{
    lks__artifact a;
    lks_status st = lks__artifact_open(path, &a);
    if (st != LKS_OK)
        return st;
    st = lks__artifact_read(&a, table, params);
    lks__artifact_close(&a);
    return st;
}
