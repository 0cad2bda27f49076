/* tinyshakespeare, if it lies beside the repository: exactly the files that nanoGPT's prepare.py
 * makes. */
#include "support.h"

#include <string.h>

#include "data/prep/prep.h"
#include "data/text/meta.h"

static void check_bin(const char *folder, const char *name)
{
    const json_t *want = json_object_get(lks_test_figure("nanogpt_char_data.json"), name);
    const char *path = lks_test_text("%s/%s", folder, name);
    size_t bytes;
    const uint8_t *data = (const uint8_t *)lks_test_read(path, &bytes);
    assert_int_equal(bytes, (size_t)lks_test_number(want, "bytes"));
    const json_t *first = lks_test_member(want, "first16"), *last = lks_test_member(want, "last8");
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(data[2 * i] | data[2 * i + 1] << 8,
                         json_integer_value(json_array_get(first, i)));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(data[bytes - 16 + 2 * i] | data[bytes - 15 + 2 * i] << 8,
                         json_integer_value(json_array_get(last, i)));
    assert_string_equal(lks_test_sha256(path), lks_test_string(want, "sha256"));
}

TEST(test_equal)
{
    const char *text = lks_test_shared("data/tinyshakespeare/input.txt");
    const json_t *want = lks_test_figure("nanogpt_char_data.json");
    const char *chars = lks_test_string(want, "chars");
    const char *out = lks_test_folder();
    lks__prep_result r;
    lks__meta meta = {0};
    bool found = false;
    const lks__prep_options o = {.input = text, .out_dir = out, .val_fraction = -1.0};
    assert_ok(lks__prep(lks__prep_kind_of("char"), &o, &r));
    assert_int_equal(r.vocab_size, 65);
    assert_int_equal(r.n_train, 1003854);
    assert_int_equal(r.n_val, 111540);
    check_bin(out, "train.bin");
    check_bin(out, "val.bin");
    assert_ok(lks__meta_load(out, &found, &meta));
    assert_int_equal(strlen(chars), meta.vocab_size);
    for (uint32_t i = 0; i < meta.vocab_size; i++)
        assert_int_equal(meta.chars[i], (unsigned char)chars[i]);
    lks__meta_free(&meta);
}
