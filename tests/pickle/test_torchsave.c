/* Files as torch.save writes them: what our reader and PyTorch's find in them. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/pickle/torch/torchfile.h"
#include "files/pickle/torch/torchsave.h"
#include "files/zip/zip.h"

enum { STORAGES = 4 };

static const float six[] = {1, 2, 3, 4, 5, 6};
static const signed char bytes3[] = {-127, 0, 127};
static const float half = 0.5f;
static const void *const contents[STORAGES] = {six, bytes3, NULL, &half};
static const uint64_t sizes[STORAGES] = {sizeof six, sizeof bytes3, 0, sizeof half};

static lks_status read_storage(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    int *failing = ctx;
    if (failing && (int)storage == *failing)
        return lks__fail(LKS_ERR_STOPPED, "storage %zu can't be read", storage);
    assert_true(first + bytes <= sizes[storage]);
    memcpy(out, (const char *)contents[storage] + first, bytes);
    return LKS_OK;
}

static void emit_all(lks__emit *e)
{
    lks__emit_start(e);
    lks__emit_dict(e);
    lks__emit_text(e, "matrix");
    lks__emit_tensor(e, "F32", 2, (const uint64_t[]){2, 3}, 0);
    lks__emit_text(e, "small");
    lks__emit_tensor(e, "I8", 1, (const uint64_t[]){3}, 1);
    lks__emit_text(e, "nothing");
    lks__emit_tensor(e, "F16", 2, (const uint64_t[]){0, 4}, 2);
    lks__emit_text(e, "scalar");
    lks__emit_tensor(e, "F32", 0, NULL, 3);
    lks__emit_text(e, "tied");
    lks__emit_tensor(e, "F32", 2, (const uint64_t[]){2, 3}, 0);
    lks__emit_text(e, "numbers");
    lks__emit_list(e);
    static const int64_t ints[] = {
        0, -1, INT32_MAX, INT32_MIN, INT64_C(5000000000), INT64_MIN, INT64_C(3000000000)};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        lks__emit_int(e, ints[i]);
    lks__emit_list_end(e);
    lks__emit_int(e, 7);
    lks__emit_tuple(e);
    lks__emit_float(e, -0.1);
    lks__emit_none(e);
    lks__emit_bool(e, true);
    lks__emit_bool(e, false);
    lks__emit_text(e, "\xc3\xa9");
    lks__emit_tuple_end(e);
    lks__emit_dict_end(e);
    lks__emit_stop(e);
}

static lks_status save(const char *path, int *failing)
{
    lks__emit e = {0};
    emit_all(&e);
    const lks__torchsave_what what = {&e, sizes, STORAGES, read_storage, failing};
    lks_status st = lks__torchsave_file(path, &what);
    free(e.at);
    return st;
}

static void check_tensor(lks__torchfile *f, const char *key, const void *data, size_t bytes)
{
    char got[64];
    const lks__pickle_value *v = lks__pickle_find(lks__torchfile_root(f), key);
    assert_int_equal(lks__pickle_kind_of(v), LKS__PICKLE_TENSOR);
    const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
    assert_int_equal(t->count * t->storage->item_bytes, bytes);
    assert_ok(lks__torchfile_read(f, t, got));
    assert_memory_equal(got, data, bytes);
}

static void check_content(lks__torchfile *f)
{
    const lks__pickle_value *v = lks__torchfile_root(f);
    check_tensor(f, "matrix", six, sizeof six);
    check_tensor(f, "tied", six, sizeof six);
    check_tensor(f, "small", bytes3, sizeof bytes3);
    check_tensor(f, "nothing", "", 0);
    check_tensor(f, "scalar", &half, sizeof half);
    const lks__pickle_value *numbers = lks__pickle_find(v, "numbers");
    assert_true(lks__pickle_int(lks__pickle_item(numbers, 1)) == -1);
    assert_true(lks__pickle_int(lks__pickle_item(numbers, 3)) == INT32_MIN);
    assert_true(lks__pickle_int(lks__pickle_item(numbers, 4)) == INT64_C(5000000000));
    assert_true(lks__pickle_int(lks__pickle_item(numbers, 5)) == INT64_MIN);
    assert_true(lks__pickle_int(lks__pickle_item(numbers, 6)) == INT64_C(3000000000));
    const lks__pickle_value *tuple = lks__pickle_find_int(v, 7);
    assert_true(lks__pickle_float(lks__pickle_item(tuple, 0)) == -0.1);
    assert_true(lks__pickle_bool(lks__pickle_item(tuple, 2)));
    assert_true(lks__pickle_is(lks__pickle_item(tuple, 4), "\xc3\xa9"));
}

TEST(test_round_trip)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a.pt", folder);
    const char *again = lks_test_text("%s/b.pt", folder);
    lks__torchfile *f;
    assert_ok(save(path, NULL));
    assert_ok(lks__torchfile_open(path, &f));
    check_content(f);
    lks__torchfile_close(f);
    assert_ok(save(again, NULL));
    assert_same_file(path, again);
    assert_ok(save(path, NULL)); /* in the place of another */
    assert_same_file(path, again);
    assert_int_equal(lks_test_count_files(folder), 2);

    lks__emit e = {0};
    unsigned char *data;
    size_t bytes, file_bytes;
    emit_all(&e);
    const lks__torchsave_what what = {&e, sizes, STORAGES, read_storage, NULL};
    assert_ok(lks__torchsave_bytes(&what, &data, &bytes));
    const char *file = lks_test_read(path, &file_bytes);
    assert_int_equal(bytes, file_bytes);
    assert_memory_equal(data, file, bytes);
    assert_memory_equal(file + 10, "\0\0\x21\0", 4); /* saved at midnight of 1980-01-01 */
    lks_test_free(data, e.at);
}

/* The texts are torch.save's, too (PyTorch 2.15). */
TEST(test_alignment)
{
    static const char *const texts[][2] = {{"archive/.format_version", "1"},
                                           {"archive/.storage_alignment", "64"},
                                           {"archive/byteorder", "little"},
                                           {"archive/version", "3\n"}};
    const char *path = lks_test_text("%s/a.pt", lks_test_folder());
    lks__zip *zip;
    assert_ok(save(path, NULL));
    assert_ok(lks__zip_open(path, &zip));
    assert_int_equal(lks__zip_count(zip), STORAGES + 5);
    for (size_t i = 0; i < lks__zip_count(zip); i++)
        assert_int_equal(lks__zip_entry_at(zip, i)->offset % 64, 0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char got[8] = "";
        const lks__zip_entry *e = lks__zip_find(zip, texts[i][0]);
        assert_true(e != NULL && e->bytes == strlen(texts[i][1]));
        assert_ok(lks__zip_read_all(zip, e, got));
        assert_string_equal(got, texts[i][1]);
    }
    lks__zip_close(zip);
}

/* Longer than the pieces that are read and written at once: 1 MiB of a storage, 8 KiB of a pickle.
 */
static lks_status read_count(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    memcpy(out, (const char *)ctx + first, bytes);
    return LKS_OK;
}

TEST(test_long)
{
    enum { COUNT = (1 << 18) + 1001, LETTERS = 20000, PARTS = 5 };
    const char *path = lks_test_text("%s/a.pt", lks_test_folder());
    static char text[LETTERS + 1];
    const uint64_t bytes = COUNT * sizeof(int32_t);
    int32_t *count = lks_test_malloc(bytes), *got = lks_test_malloc(bytes);
    for (int i = 0; i < COUNT; i++)
        count[i] = i;
    for (int i = 0; i < LETTERS; i++)
        text[i] = (char)('a' + i % 23);
    lks__emit e = {0};
    lks__emit_start(&e);
    lks__emit_dict(&e);
    lks__emit_text(&e, text);
    lks__emit_tensor(&e, "I32", 1, (const uint64_t[]){COUNT}, 0);
    lks__emit_dict_end(&e);
    lks__emit_stop(&e);
    const lks__torchsave_what what = {&e, &bytes, 1, read_count, count};
    assert_ok(lks__torchsave_file(path, &what));
    free(e.at);
    for (size_t k = 0; k < PARTS; k++) {
        static const size_t firsts[PARTS] = {COUNT - 7, 0, 0, (1 << 18) - 3, 12345};
        static const size_t ns[PARTS] = {7, COUNT, COUNT - 1, 900, 200000};
        lks__torchfile *f;
        assert_ok(lks__torchfile_open(path, &f));
        const lks__pickle_value *v = lks__pickle_find(lks__torchfile_root(f), text);
        assert_int_equal(lks__pickle_kind_of(v), LKS__PICKLE_TENSOR);
        const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
        assert_ok(lks__torchfile_read_part(f, t, firsts[k], ns[k], got));
        assert_memory_equal(got, count + firsts[k], ns[k] * sizeof *got);
        lks__torchfile_close(f);
    }
    lks_test_free(count, got);
}

TEST(test_failures)
{
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/a.pt", folder);
    int failing = 1;
    assert_fails(LKS_ERR_STOPPED, save(path, &failing), "storage 1 can't be read");
    assert_int_equal(lks_test_count_files(folder), 0);
    /* what a killed process of this number has left is no obstacle */
    lks_test_write(lks_test_text("%s.tmp-%ld", path, (long)getpid()), "old", 3);
    assert_ok(save(path, NULL));
    assert_int_equal(lks_test_count_files(folder), 1);
    assert_fails(LKS_ERR_IO, save(lks_test_text("%s/none/a.pt", folder), NULL), "none/a.pt");
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(NULL, NULL);
}
