/* parameter-golf's figures: SentencePiece's ids, byte tables, counts of tokens and bytes. The tests
 * are skipped if the model and the shards don't lie beside the repository. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/read/shards.h"
#include "data/text/bpb.h"

static const char *golf_data(const char *name)
{
    const char *path = lks_test_shared(lks_test_text("reference/golf-data/%s", name));
    return path;
}

static const char *model_path(void)
{
    lks_test_need_sentencepiece();
    return golf_data("sp1024.model");
}

TEST(test_encode)
{
    const json_t *cases = lks_test_member(lks_test_figure("tok_sp1024.json"), "cases"), *c;
    lks__spm *spm;
    size_t i;
    assert_ok(lks__spm_open(model_path(), &spm));
    assert_int_equal(lks__spm_size(spm), 1024);
    assert_int_equal(lks__spm_bos(spm), 1);
    assert_true(json_array_size(cases) > 20);
    json_array_foreach(cases, i, c)
    {
        const char *hex = lks_test_string(c, "utf8_hex");
        const json_t *want = lks_test_member(c, "ids");
        char text[4096];
        size_t bytes = strlen(hex) / 2, n;
        int32_t *ids;
        assert_true(bytes <= sizeof text);
        for (size_t j = 0; j < bytes; j++)
            text[j] = (char)strtoul(lks_test_text("%.2s", hex + 2 * j), NULL, 16);
        assert_ok(lks__spm_encode(spm, text, bytes, &ids, &n));
        bool equal = n == json_array_size(want);
        for (size_t j = 0; equal && j < n; j++)
            equal = ids[j] == json_integer_value(json_array_get(want, j));
        if (!equal)
            fail_msg("case %zu: \"%s\" has other ids", i,
                     json_string_value(json_object_get(c, "text")));
        free(ids);
    }
    lks__spm_close(spm);
}

static bool in_list(const json_t *list, uint32_t id)
{
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) if (json_integer_value(item) == (json_int_t)id) return true;
    return false;
}

static lks__byte_table table_of_figures(void)
{
    const json_t *lut = lks_test_member(lks_test_figure("golf_data.json"), "lut");
    const json_t *bytes = lks_test_member(lut, "base_bytes");
    lks__byte_table t = {.size = (uint32_t)json_array_size(bytes)};
    t.bytes = lks_test_calloc(t.size, sizeof *t.bytes);
    t.leading_space = lks_test_calloc(t.size, sizeof *t.leading_space);
    t.boundary = lks_test_calloc(t.size, sizeof *t.boundary);
    for (uint32_t i = 0; i < t.size; i++) {
        t.bytes[i] = (uint16_t)json_integer_value(json_array_get(bytes, i));
        t.leading_space[i] = in_list(lks_test_member(lut, "leading_space_ids"), i);
        t.boundary[i] = in_list(lks_test_member(lut, "boundary_ids"), i);
    }
    return t;
}

TEST(test_tables)
{
    const char *model = model_path();
    lks__byte_table got, want = table_of_figures();
    assert_int_equal(want.size, 1024);
    assert_ok(lks__byte_table_open(model, 1024, &got));
    assert_int_equal(got.size, 1024);
    assert_memory_equal(got.bytes, want.bytes, 1024 * sizeof *got.bytes);
    assert_memory_equal(got.leading_space, want.leading_space, 1024 * sizeof *got.leading_space);
    assert_memory_equal(got.boundary, want.boundary, 1024 * sizeof *got.boundary);
    lks__byte_table_free(&got);
    lks__byte_table_free(&want);
}

/* Counting with tables from the figures, which needs no model. */
TEST(test_count)
{
    lks__byte_table t = table_of_figures();
    const json_t *lut = lks_test_member(lks_test_figure("golf_data.json"), "lut");
    int32_t space =
        (int32_t)json_integer_value(json_array_get(lks_test_member(lut, "leading_space_ids"), 5));
    const int32_t plain = 300, bos = 1, byte = 40;
    assert_true(t.boundary[bos] && t.bytes[byte] == 1 && t.leading_space[space]);
    assert_true(!t.boundary[plain] && !t.leading_space[plain]);
    const uint64_t own = t.bytes[space];
    const int32_t prev[] = {bos, plain, byte, space, plain, plain, plain};
    const int32_t next[] = {space, space, space, space, plain, byte, bos};
    assert_int_equal(lks__byte_count(&t, prev, next, 1), own);
    assert_int_equal(lks__byte_count(&t, prev + 1, next + 1, 1), own + 1);
    assert_int_equal(lks__byte_count(&t, prev, next, 7),
                     4 * own + 3 + (uint64_t)t.bytes[plain] + 1 + 0);
    assert_int_equal(lks__byte_count(&t, prev, next, 0), 0);
    lks__byte_table_free(&t);

    assert_near(lks__bpb(log(2.0), 10, 5), 2.0, 1e-15);
    assert_true(isinf(lks__bpb(1.0, 10, 0)));
}

/* The shards and the figures' tables, without SentencePiece or its model. */
TEST(test_validation)
{
    const json_t *counts = lks_test_member(lks_test_figure("golf_data.json"), "val_counts"), *c;
    const char *val = golf_data("fineweb_val_000000.bin");
    lks__byte_table t = table_of_figures();
    lks__shards *s;
    size_t i;
    assert_ok(lks__shards_open(
        lks_test_text("%.*s/%s", (int)(strrchr(val, '/') - val), val, LKS__SHARDS_VAL), 1024, &s));
    assert_int_equal(lks__shards_count(s), 37333);
    json_array_foreach(counts, i, c)
    {
        uint64_t usable;
        uint64_t seq_len = (uint64_t)lks_test_number(c, "train_seq_len");
        assert_ok(lks__shards_usable(s, seq_len, &usable));
        assert_int_equal(usable, (uint64_t)lks_test_number(c, "usable_tokens"));
        int32_t *ids = lks_test_malloc(usable * sizeof *ids);
        assert_ok(lks__shards_read(s, 0, usable, ids));
        uint64_t bytes = lks__byte_count(&t, ids, ids + 1, usable - 1);
        assert_int_equal(usable - 1, (uint64_t)lks_test_number(c, "val_token_count"));
        assert_int_equal(bytes, (uint64_t)lks_test_number(c, "val_byte_count"));
        assert_near(lks__bpb(1.0, usable - 1, bytes), lks_test_number(c, "bpb_of_loss_1_nat"),
                    1e-15);
        free(ids);
    }
    lks__shards_close(s);
    lks__byte_table_free(&t);
}

TEST(test_train_shards)
{
    const json_t *files = lks_test_member(lks_test_figure("golf_data.json"), "files");
    const char *train = golf_data("fineweb_train_000000.bin");
    int folder = (int)(strrchr(train, '/') - train);
    lks__shards *s;
    assert_ok(
        lks__shards_open(lks_test_text("%.*s/%s", folder, train, LKS__SHARDS_TRAIN), 1024, &s));
    assert_int_equal(lks__shards_n_files(s), 2);
    assert_int_equal(lks__shards_count(s), 397032);
    uint64_t at = 0;
    for (int i = 0; i < 2; i++) {
        const json_t *want = json_object_get(
            files, lks_test_text("fineweb_train_%06d.bin", i)); /* a name that contains dots */
        size_t n = (size_t)lks_test_number(want, "tokens");
        int32_t *ids = lks_test_malloc(n * sizeof *ids);
        assert_ok(lks__shards_read(s, at, n, ids));
        uint64_t sum = 0, bos = 0;
        for (size_t j = 0; j < n; j++) {
            sum += (uint64_t)ids[j];
            bos += ids[j] == 1;
        }
        assert_int_equal(sum, (uint64_t)lks_test_number(want, "sum"));
        assert_int_equal(bos, (uint64_t)lks_test_number(want, "bos_count"));
        for (size_t j = 0; j < 16; j++)
            assert_int_equal(ids[j], (int)lks_test_number(want, lks_test_text("first16.%zu", j)));
        for (size_t j = 0; j < 8; j++)
            assert_int_equal(ids[n - 8 + j],
                             (int)lks_test_number(want, lks_test_text("last8.%zu", j)));
        at += n;
        free(ids);
    }
    lks__shards_close(s);
}

TEST(test_other_vocabulary)
{
    const char *path = model_path();
    lks__byte_table t;
    assert_fails(LKS_ERR_CONFIG, lks__byte_table_open(path, 1025, &t), "sp1024.model", "1024",
                 "1025");
}
