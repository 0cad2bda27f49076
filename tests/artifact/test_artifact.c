/* Artifacts are written and read again, and compared byte for byte. */
#include "forge.h"
#include "old.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/system/sys.h"
#include "files/pickle/torch/torchfile.h"

/* Check a tensor after quantizing and back. */
static void check_tensor(const lks__table_tensor *t, const float *x, const float *got)
{
    lks__artifact_part part;
    lks__artifact_part_of(t, &part);
    float *want = lks_test_malloc(t->count * sizeof *want);
    void *values = lks_test_malloc(part.values.bytes),
         *scales = lks_test_malloc(part.scales.bytes + 1);
    assert_ok(lks__quantize(part.scheme, x, part.rows, part.cols, values, scales));
    assert_ok(lks__dequantize(part.scheme, values, scales, part.rows, part.cols, want));
    assert_memory_equal(got, want, t->count * sizeof *want);
    lks_test_free(scales, values, want);
}

TEST(test_round_trip)
{
    forge_model m = forge_open(1);
    const char *path = lks_test_text("%s/m.lks", lks_test_folder());
    lks__artifact_stats stats;
    lks__artifact a;
    struct stat info;
    float *got = lks_test_calloc(m.table.count, sizeof *got);
    assert_ok(lks__artifact_write(path, &m.table, m.params, &m.about, &stats));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(stats.file_bytes, info.st_size);

    assert_ok(lks__artifact_open(path, &a));
    assert_int_equal(a.iter, 7);
    assert_true(json_equal(a.settings, m.about.settings));
    assert_true(json_equal(a.tokenizer, m.about.tokenizer));
    assert_ok(lks__artifact_check(&a, &m.table));
    assert_ok(lks__artifact_read(&a, &m.table, got));
    lks__artifact_close(&a);
    lks__artifact_close(&a); /* a closed one is zeroed */

    size_t used = 0, zeros = 0;
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        check_tensor(t, m.params + t->offset, got + t->offset);
        used += t->count;
    }
    for (size_t i = 0; i < m.table.count; i++)
        zeros += got[i] != 0.0f;
    assert_true(zeros <= used);
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        for (size_t k = t->count; k % LKS__PADDED != 0; k++)
            assert_true(got[t->offset + k] == 0.0f); /* the padding */
    }
    free(got);
    forge_close(&m);
}

TEST(test_no_tokenizer)
{
    forge_model m = forge_open(2);
    const char *path = lks_test_text("%s/m.lks", lks_test_folder());
    lks__artifact a;
    json_decref((json_t *)(uintptr_t)m.about.tokenizer);
    m.about.tokenizer = NULL;
    m.about.iter = INT64_MAX; /* the largest that a pickle has here */
    assert_ok(lks__artifact_write(path, &m.table, m.params, &m.about, NULL));
    assert_ok(lks__artifact_open(path, &a));
    assert_null(a.tokenizer);
    assert_true(a.iter == m.about.iter);
    lks__artifact_close(&a);
    forge_close(&m);
}

TEST(test_same_bytes)
{
    const char *folder = lks_test_folder();
    const char *one = lks_test_text("%s/1", folder), *two = lks_test_text("%s/2", folder);
    forge_model m = forge_open(3), n = forge_open(3);
    assert_ok(lks__artifact_write(one, &m.table, m.params, &m.about, NULL));
    lks_test_write(two, "what was there is replaced", 26);
    assert_ok(lks__artifact_write(two, &n.table, n.params, &n.about, NULL));
    assert_same_file(one, two);
    assert_int_equal(lks_test_count_files(folder), 2); /* no temporary file is left */

    /* The order in which settings were read doesn't matter. */
    json_t *turned = json_object(), *value;
    const char *key;
    json_object_set(turned, "vocab_size", json_object_get(n.about.settings, "vocab_size"));
    json_object_foreach((json_t *)(uintptr_t)n.about.settings, key, value)
        json_object_set(turned, key, value);
    json_decref((json_t *)(uintptr_t)n.about.settings);
    n.about.settings = turned;
    assert_ok(lks__artifact_write(two, &n.table, n.params, &n.about, NULL));
    assert_same_file(one, two);

    /* Another bit of one weight gives another file. */
    size_t a, b;
    n.params[lks__table_find(&n.table, "skip_weights")->offset] += 0x1p-20f;
    assert_ok(lks__artifact_write(two, &n.table, n.params, &n.about, NULL));
    const char *x = lks_test_read(one, &a), *y = lks_test_read(two, &b);
    assert_true(a != b || memcmp(x, y, a) != 0);
    forge_close(&m);
    forge_close(&n);
}

/* A tensor of a dict of the file. */
static const lks__pickle_tensor *tensor(lks__torchfile *file, const char *dict, const char *name)
{
    const lks__pickle_value *v =
        lks__pickle_find(lks__pickle_find(lks__torchfile_root(file), dict), name);
    assert_int_equal(lks__pickle_kind_of(v), LKS__PICKLE_TENSOR);
    return lks__pickle_tensor_of(v);
}

/* Decompressed it is what torch.save would write of the script's dict. */
TEST(test_container)
{
    const char *folder = lks_test_folder();
    const char *path = lks_test_text("%s/m.ptz", folder), *again = lks_test_text("%s/2", folder);
    forge_model m = forge_open(4);
    lks__artifact_stats stats;
    lks__torchfile *file;
    size_t bytes;
    assert_ok(lks__artifact_write(path, &m.table, m.params, &m.about, &stats));
    char *data = forge_decompress(path, &bytes);
    assert_int_equal(bytes, stats.container_bytes);
    forge_compress(again, data, bytes);
    assert_same_file(again, path); /* exactly zlib.compress(data, 9) */
    assert_ok(lks__torchfile_open_bytes("x", data, bytes, &file));
    const lks__pickle_value *root = lks__torchfile_root(file);
    assert_true(
        lks__pickle_is(lks__pickle_find(root, "__quant_format__"), "int8_clean_per_row_v1"));
    assert_int_equal(lks__pickle_count(lks__pickle_find(root, "quantized")), 1);
    assert_int_equal(lks__pickle_count(lks__pickle_find(root, "passthrough")),
                     m.table.n_tensors - 1);

    static const struct {
        const char *dict, *name, *dtype;
        uint64_t shape[2];
    } some[] = {{"passthrough", "skip_weights", "F32", {1, 64}},
                {"quantized", "tok_emb.weight", "I8", {1100, 64}},
                {"scales", "tok_emb.weight", "F16", {1100, 0}},
                {"passthrough", "blocks.1.attn.c_k.weight", "F16", {32, 64}},
                {"passthrough", "blocks.1.attn.q_gain", "F32", {4, 0}}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        const lks__pickle_tensor *t = tensor(file, some[i].dict, some[i].name);
        assert_string_equal(t->storage->dtype, some[i].dtype);
        assert_int_equal(t->n_dims, some[i].shape[1] ? 2 : 1);
        for (int d = 0; d < t->n_dims; d++)
            assert_int_equal(t->shape[d], some[i].shape[d]);
    }
    const lks__pickle_value *qmeta =
        lks__pickle_find(lks__pickle_find(root, "qmeta"), "tok_emb.weight");
    assert_true(lks__pickle_is(lks__pickle_find(qmeta, "scheme"), "per_row"));
    assert_int_equal(lks__pickle_int(lks__pickle_find(qmeta, "axis")), 0);
    const lks__pickle_value *dtypes = lks__pickle_find(root, "passthrough_orig_dtypes");
    assert_true(lks__pickle_is(lks__pickle_find(dtypes, "blocks.1.attn.c_k.weight"), "float32"));
    assert_null(lks__pickle_find(dtypes, "skip_weights"));
    uint16_t scales[1100];
    assert_ok(lks__torchfile_read(file, tensor(file, "scales", "tok_emb.weight"), scales));
    assert_int_equal(scales[5], 0x2008); /* for a row of zeros: 1/127 */
    assert_int_equal(scales[9], 0x2008);
    assert_true(scales[6] > 0x2a00);
    lks__torchfile_close(file);
    free(data);
    forge_close(&m);
}

/* As torch.save writes the script's dict: all int8 values, then their scales, then the rest.
 * Another order compresses worse. */
TEST(test_order)
{
    static const char *const dicts[] = {"quantized", "scales", "passthrough"};
    const char *path = lks_test_text("%s/m.ptz", lks_test_folder());
    forge_model m = forge_shape(192, 400); /* 5 large matrices */
    lks__torchfile *file;
    size_t bytes, next = 0;
    m.params = lks_test_calloc(m.table.count, sizeof *m.params);
    assert_ok(lks__artifact_write(path, &m.table, m.params, &m.about, NULL));
    char *data = forge_decompress(path, &bytes);
    assert_ok(lks__torchfile_open_bytes("x", data, bytes, &file));
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < m.table.n_tensors; i++) {
            const lks__pickle_value *dict = lks__pickle_find(lks__torchfile_root(file), dicts[d]);
            if (!lks__pickle_find(dict, m.table.tensors[i].name))
                continue;
            const lks__pickle_storage *s = tensor(file, dicts[d], m.table.tensors[i].name)->storage;
            const char *key = lks_test_text("%.*s", (int)s->key_bytes, s->key);
            assert_string_equal(key, lks_test_text("%zu", next++));
        }
    assert_int_equal(next, m.table.n_tensors + 5);
    lks__torchfile_close(file);
    free(data);
    forge_close(&m);
}

/* Files in the form of before are read, with the same result. */
TEST(test_form_of_before)
{
    const char *folder = lks_test_folder();
    const char *one = lks_test_text("%s/1", folder), *two = lks_test_text("%s/2", folder);
    forge_model m = forge_open(6);
    lks__artifact a;
    float *x = lks_test_calloc(m.table.count, sizeof *x),
          *y = lks_test_calloc(m.table.count, sizeof *y);
    assert_ok(lks__artifact_write(one, &m.table, m.params, &m.about, NULL));
    assert_ok(old_artifact_write(two, &m.table, m.params, &m.about));
    assert_ok(forge_load(one, &m.table, x));
    assert_ok(forge_load(two, &m.table, y));
    assert_memory_equal(x, y, m.table.count * sizeof *x);
    assert_ok(lks__artifact_open(two, &a));
    assert_int_equal(a.iter, 7);
    assert_true(json_equal(a.settings, m.about.settings));
    assert_true(json_equal(a.tokenizer, m.about.tokenizer));
    lks__artifact_close(&a);
    lks_test_free(x, y);
    forge_close(&m);
}

TEST(test_cannot_write)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/m.lks", folder);
    forge_model m = forge_open(5);
    float *fc = m.params + lks__table_find(&m.table, "blocks.1.mlp.fc.weight")->offset;
    float keep = fc[17];
    fc[17] = 1e6f;
    assert_fails(LKS_ERR_NAN, lks__artifact_write(path, &m.table, m.params, &m.about, NULL),
                 "blocks.1.mlp.fc.weight", "half precision");
    fc[17] = 0.0f / 0.0f * keep;
    assert_fails(LKS_ERR_NAN, lks__artifact_write(path, &m.table, m.params, &m.about, NULL),
                 "blocks.1.mlp.fc.weight", "not finite");
    assert_int_equal(lks_test_count_files(folder), 0);
    fc[17] = keep;
    assert_fails(
        LKS_ERR_IO,
        lks__artifact_write(lks_test_text("%s/none/m", folder), &m.table, m.params, &m.about, NULL),
        "none/m");
    forge_close(&m);
}

TEST(test_lines)
{
    lks__artifact_stats stats = {.baseline_tensor_bytes = 2368576,
                                 .int8_payload_bytes = 1059904,
                                 .container_bytes = 1073378,
                                 .file_bytes = 984997};
    char lines[LKS__ARTIFACT_LINES], warning[200];
    lks__artifact_lines(&stats, 2400000, 48000, lines);
    assert_string_equal(lines, "Serialized model: 2400000 bytes\n"
                               "Code size: 48000 bytes\n"
                               "Total submission size: 2448000 bytes\n"
                               "Serialized model int8+zlib: 984997 bytes (payload:1059904 "
                               "raw_torch:1073378 payload_ratio:2.23x)\n"
                               "Total submission size int8+zlib: 1032997 bytes\n");
    assert_false(lks__artifact_too_large(&stats, 16000000 - stats.file_bytes, warning));
    assert_true(lks__artifact_too_large(&stats, 16000001 - stats.file_bytes, warning));
    assert_contains(warning, "16000001 bytes together, 1 over the limit of 16000000");
    memset(&stats, 0xff, sizeof stats);
    lks__artifact_lines(&stats, 0, 0, lines);
    assert_contains(lines, "Total submission size int8+zlib: 18446744073709551615 bytes\n");
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(NULL, NULL);
}
