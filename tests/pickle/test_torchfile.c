/* Files of torch.save: tests/figures/pickle/tensors.pt, made by record.py, and files with lies. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "../zip_file.h"
#include "files/pickle/torch/torchfile.h"
#include "files/zip/zip.h"
#include "files/zip/zip_module.h"
#include "files/zip/zip_write.h"

static const char *figure(const char *name)
{
    return lks_test_text("%s/tests/figures/pickle/%s", LKS_TEST_SOURCE_DIR, name);
}

static const lks__pickle_tensor *tensor(const lks__pickle_value *dict, const char *key)
{
    const lks__pickle_value *v = lks__pickle_find(dict, key);
    assert_int_equal(lks__pickle_kind_of(v), LKS__PICKLE_TENSOR);
    return lks__pickle_tensor_of(v);
}

static void check_read(lks__torchfile *f, const lks__pickle_value *dict, const char *key,
                       const char *dtype, int n_dims, const void *data, size_t bytes)
{
    char got[512];
    const lks__pickle_tensor *t = tensor(dict, key);
    assert_string_equal(t->storage->dtype, dtype);
    assert_int_equal(t->n_dims, n_dims);
    assert_int_equal(t->count * t->storage->item_bytes, bytes);
    assert_ok(lks__torchfile_read(f, t, got));
    assert_memory_equal(got, data, bytes);
}

#define READS(dict, key, dtype, n_dims, type, ...)                                                 \
    check_read(f, dict, key, dtype, n_dims, (const type[]){__VA_ARGS__},                           \
               sizeof((const type[]){__VA_ARGS__}))

static void check_views(lks__torchfile *f, const lks__pickle_value *v)
{
    float x[24], turned[24];
    for (int i = 0; i < 24; i++)
        x[i] = (float)i;
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 3; j++)
                turned[k * 6 + i * 3 + j] = x[i * 12 + j * 4 + k];
    check_read(f, v, "part", "F32", 2, x + 12, 48);
    check_read(f, v, "whole", "F32", 3, x, sizeof x);
    check_read(f, v, "turned", "F32", 3, turned, sizeof turned);
    READS(v, "steps", "F32", 2, float, 4, 6, 16, 18);
    for (uint64_t first = 0; first < 24; first++)
        for (size_t n = 0; first + n <= 24; n++) {
            float got[24];
            assert_ok(lks__torchfile_read_part(f, tensor(v, "turned"), first, n, got));
            assert_memory_equal(got, turned + first, n * sizeof *got);
            assert_ok(lks__torchfile_read_part(f, tensor(v, "whole"), first, n, got));
            assert_memory_equal(got, x + first, n * sizeof *got);
        }
    READS(v, "scalar", "F32", 0, float, 1.5f);
    READS(v, "one", "F32", 2, float, 7);
    READS(v, "parameter", "F32", 1, float, 0.5f, 0.25f);
    const lks__pickle_tensor *nothing = tensor(v, "nothing");
    assert_int_equal(nothing->count, 0);
    assert_int_equal(nothing->shape[1], 3);
    assert_ok(lks__torchfile_read(f, nothing, NULL));
}

TEST(test_tensors)
{
    lks__torchfile *f;
    assert_ok(lks__torchfile_open(figure("tensors.pt"), &f));
    const lks__pickle_value *v = lks__torchfile_root(f), *types = lks__pickle_find(v, "types");
    assert_non_null(types);
    READS(types, "float64", "F64", 1, double, 0, 1, 2, 100);
    READS(types, "float32", "F32", 1, float, 0, 1, 2, 100);
    READS(types, "float16", "F16", 1, uint16_t, 0, 0x3c00, 0x4000, 0x5640);
    READS(types, "bfloat16", "BF16", 1, uint16_t, 0, 0x3f80, 0x4000, 0x42c8);
    READS(types, "int64", "I64", 1, int64_t, 0, 1, 2, 100);
    READS(types, "int32", "I32", 1, int32_t, 0, 1, 2, 100);
    READS(types, "int16", "I16", 1, int16_t, 0, 1, 2, 100);
    READS(types, "int8", "I8", 1, int8_t, 0, 1, 2, 100);
    READS(types, "uint8", "U8", 1, uint8_t, 0, 1, 2, 100);
    READS(types, "bool", "BOOL", 1, uint8_t, 1, 0, 1);
    check_views(f, v);
    const lks__pickle_value *linear = lks__pickle_find(v, "state");
    READS(linear, "weight", "F32", 2, float, 0, 0.25f, 0.5f, 0.75f, 1, 1.25f);
    READS(linear, "bias", "F32", 1, float, -1, 2);
    assert_int_equal(lks__pickle_count(linear), 2);
    assert_true(lks__pickle_is(lks__pickle_find(v, "name"), "x"));
    lks__torchfile_close(f);
    assert_true(lks__torchfile_looks_like(figure("tensors.pt")));
    assert_true(lks__torchfile_looks_like(figure("legacy.pt")));
    assert_false(lks__torchfile_looks_like(figure("meta.pkl")));
    assert_false(lks__torchfile_looks_like("/nowhere"));
}

/* A tensor that isn't in C order is read from the file once, not once per part. */
TEST(test_parts)
{
    size_t bytes;
    char *data = lks_test_read(figure("tensors.pt"), &bytes);
    lks__torchfile *f;
    float first[23], again[23]; /* without the last one, which frees what is kept */
    assert_ok(lks__torchfile_open_bytes("x.pt", data, bytes, &f));
    const lks__pickle_tensor *t = tensor(lks__torchfile_root(f), "turned");
    assert_ok(lks__torchfile_read_part(f, t, 0, 23, first));
    for (size_t i = 0; i < bytes; i++) /* what is read now is no longer the tensor */
        data[i] ^= 1;
    for (size_t i = 0; i < 23; i++)
        assert_ok(lks__torchfile_read_part(f, t, i, 1, &again[i]));
    assert_memory_equal(again, first, sizeof first);
    lks__torchfile_close(f);
}

/* Read every tensor in `v`; false: one can't be read. */
static bool read_all(lks__torchfile *f, const lks__pickle_value *v)
{
    if (lks__pickle_kind_of(v) == LKS__PICKLE_DICT)
        for (size_t i = 0; i < lks__pickle_count(v); i++)
            if (!read_all(f, lks__pickle_item(v, i)))
                return false;
    if (lks__pickle_kind_of(v) != LKS__PICKLE_TENSOR)
        return true;
    const lks__pickle_tensor *t = lks__pickle_tensor_of(v);
    char out[512];
    assert_true(t->count * t->storage->item_bytes <= sizeof out);
    return lks__torchfile_read(f, t, out) == LKS_OK;
}

/* Does byte `at` belong to the contents of an entry, or to what the directory says of one: name,
 * method, checksum, sizes? libzip reads the directory before these. */
static bool matters(const lks__zip *z, const char *data, size_t bytes, size_t at)
{
    for (size_t i = 0; i < lks__zip_count(z); i++) {
        const lks__zip_entry *e = lks__zip_entry_at(z, i);
        if (at >= e->offset && at < e->offset + e->bytes)
            return true;
    }
    for (size_t i = 0; i + 46 <= bytes; i++) {
        if (memcmp(data + i, "PK\1\2", 4) != 0)
            continue;
        const size_t name = (unsigned char)data[i + 28];
        if ((at >= i + 10 && at < i + 12) || (at >= i + 16 && at < i + 30) ||
            (at >= i + 46 && at < i + 46 + name))
            return true;
    }
    return false;
}

/* Each byte altered in turn. Contents and what the directory says of them: refused. Whatever is
 * still accepted (filling, dates, attributes, second copies of sizes) reads as before. */
TEST(test_altered)
{
    static const char changes[] = {0x01, 0x15, (char)0xff};
    size_t bytes, n_read = 0;
    char *data = (char *)(uintptr_t)lks_test_read(figure("tensors.pt"), &bytes);
    char *sound = malloc(bytes);
    lks__zip *z;
    float x[24], got[24];
    for (int i = 0; i < 24; i++)
        x[i] = (float)i;
    memcpy(sound, data, bytes);
    assert_ok(lks__zip_open_bytes("x.pt", sound, bytes, &z));
    for (size_t i = 0; i < bytes; i++)
        for (size_t k = 0; k < sizeof changes; k++) {
            lks__torchfile *f = NULL;
            data[i] ^= changes[k];
            if (lks__torchfile_open_bytes("x.pt", data, bytes, &f) == LKS_OK) {
                const lks__pickle_value *root = lks__torchfile_root(f);
                if (read_all(f, root)) {
                    const lks__pickle_value *whole = lks__pickle_find(root, "whole");
                    assert_ok(lks__torchfile_read(f, lks__pickle_tensor_of(whole), got));
                    assert_memory_equal(got, x, sizeof x); /* its checksum is right */
                    n_read++;
                    if (matters(z, sound, bytes, i))
                        fail_msg("byte %zu of the file can be another one", i);
                }
                lks__torchfile_close(f);
            }
            data[i] ^= changes[k];
        }
    assert_true(n_read > 0);
    lks__zip_close(z);
    free(sound);
}

TEST(test_cut)
{
    size_t bytes;
    const char *data = lks_test_read(figure("tensors.pt"), &bytes);
    for (size_t n = 0; n < bytes; n += n < 300 ? 1 : 37) {
        lks__torchfile *f = NULL;
        char *copy = malloc(n + 1);
        memcpy(copy, data, n);
        assert_fails(LKS_ERR_FORMAT, lks__torchfile_open_bytes("x.pt", copy, n, &f), "x.pt");
        free(copy);
    }
}

/* ---- lies -------------------------------------------------------------------------------- */

/* A tensor of [2, 3] in storage 0 of `count`: {"a": tensor}. */
#define TENSOR(offset, count, shape, strides)                                                      \
    "\x80\2}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n" \
    "X\1\0\0\0000X\3\0\0\0cpuK" count "tQK" offset "(" shape "t(" strides "t\x89"                  \
    "ccollections\nOrderedDict\n)RtRs."

static const char sound[] = TENSOR("\0", "\6", "K\2K\3", "K\3K\1");
static const char part_of_it[] = TENSOR("\0", "\6", "K\2K\2", "K\2K\1");
static const float six[] = {1, 2, 3, 4, 5, 6};

enum { PARTS = 5 };

static void sound_parts(lks_zip_entry parts[PARTS], const char *pickle, size_t bytes)
{
    const lks_zip_entry all[PARTS] = {{.name = "x/data.pkl", .data = pickle, .bytes = bytes},
                                      {.name = "x/byteorder", .data = "little", .bytes = 6},
                                      {.name = "x/data/0", .data = six, .bytes = sizeof six},
                                      {.name = "x/version", .data = "3\n", .bytes = 2},
                                      {.name = "x/data/1", .data = "", .bytes = 0}};
    memcpy(parts, all, sizeof all);
}

static char archive[1 << 16];

static lks_status open_parts(const lks_zip_entry *parts, size_t n, lks__torchfile **f_p)
{
    size_t bytes = lks_zip_make(parts, n, archive, sizeof archive);
    assert_true(bytes > 0);
    return lks__torchfile_open_bytes("x.pt", archive, bytes, f_p);
}

static void refused(const lks_zip_entry *parts, size_t n, const char *why)
{
    lks__torchfile *f = NULL;
    assert_fails(LKS_ERR_FORMAT, open_parts(parts, n, &f), "x.pt", why);
    assert_null(f);
}

TEST(test_sound)
{
    lks_zip_entry parts[PARTS];
    lks__torchfile *f;
    sound_parts(parts, sound, sizeof sound - 1);
    assert_ok(open_parts(parts, PARTS, &f));
    check_read(f, lks__torchfile_root(f), "a", "F32", 2, six, sizeof six);
    lks__torchfile_close(f);
}

TEST(test_entries)
{
    lks_zip_entry parts[PARTS];
    char many[4096];
    memset(many, 0, sizeof many);
#define WITH(i, change, why)                                                                       \
    do {                                                                                           \
        sound_parts(parts, sound, sizeof sound - 1);                                               \
        parts[i].change;                                                                           \
        refused(parts, PARTS, why);                                                                \
    } while (0)
    WITH(0, crc_change = 1, "entry x/data.pkl is damaged");
    WITH(2, method = 8, "x/data/0 is compressed");
    /* consistent in itself: 12 bytes of it are the header of an encrypted entry */
    WITH(2, flags = 1; parts[2].plain_change = -12, "x/data/0 is compressed or encrypted");
    WITH(2, plain_change = 1 << 30, "compressed");
    WITH(2, size_change = 1 << 20, "zip file");
    WITH(3, name = "x/data/0", "occurs twice");
    WITH(3, name = "y/version", "outside of the folder");
    WITH(3, name = "../version", "outside of the folder");
    WITH(0, name = "x/other.pkl", "the entry data.pkl is missing");
    WITH(1, data = "bigger", "byteorder");
    WITH(3, data = "x\n", "version");
    WITH(3, data = "11", "not one from 1 to 10");
    WITH(3, name = "x/nothing", "no entry version");
    WITH(4, name = "x/constants.pkl", "TorchScript");
    WITH(2, name = "x/data/9", "storage 0 has no entry data/0");
    WITH(2, bytes = 20, "storage 0 has 6 elements of F32, but its entry has 20 bytes");
    WITH(0, data = many, "offset 0: it is not a pickle");
#undef WITH
    lks__torchfile *f = NULL;
    sound_parts(parts, sound, sizeof sound - 1);
    parts[2].crc_change = 1;
    assert_ok(open_parts(parts, PARTS, &f)); /* noticed when it is read */
    assert_fails(LKS_ERR_FORMAT, lks__torchfile_read(f, tensor(lks__torchfile_root(f), "a"), many),
                 "entry x/data/0 is damaged");
    lks__torchfile_close(f);
    /* also if only a part of it is wanted */
    sound_parts(parts, part_of_it, sizeof part_of_it - 1);
    parts[2].crc_change = 1;
    parts[3].data = "10"; /* the last version that is read */
    assert_ok(open_parts(parts, PARTS, &f));
    assert_fails(LKS_ERR_FORMAT, lks__torchfile_read(f, tensor(lks__torchfile_root(f), "a"), many),
                 "entry x/data/0 is damaged");
    lks__torchfile_close(f);
}

/* The second entry's place is inside of the first one, whose bytes are a header of its own. */
TEST(test_overlap)
{
    lks_zip_entry inner = {.name = "x/data/1", .data = six, .bytes = sizeof six};
    lks_zip_entry parts[PARTS];
    char inside[512];
    sound_parts(parts, sound, sizeof sound - 1);
    assert_true(lks_zip_make(&inner, 1, inside, sizeof inside) > 0);
    parts[2].data = inside; /* header, name and data of data/1 */
    parts[2].bytes = 30 + strlen(inner.name) + sizeof six;
    parts[3] = inner;
    parts[4] = (lks_zip_entry){.name = "x/version", .data = "3\n", .bytes = 2};
    parts[3].moved = (int64_t)parts[2].bytes;
    refused(parts, PARTS, "overlaps another entry");
}

TEST(test_tensor_lies)
{
    lks_zip_entry parts[PARTS];
#define ONES "K\1K\1K\1K\1K\1K\1K\1K\1K\1"
#define PICKLED(text, why)                                                                         \
    do {                                                                                           \
        sound_parts(parts, text, sizeof(text) - 1);                                                \
        refused(parts, PARTS, why);                                                                \
    } while (0)
    PICKLED(TENSOR("\1", "\6", "K\2K\3", "K\3K\1"), "beyond its storage");
    PICKLED(TENSOR("\0", "\6", "K\2K\3", "K\4K\1"), "beyond its storage");
    PICKLED(TENSOR("\0", "\6", "K\7K\1", "K\0K\0"), "beyond its storage"); /* one, seven times */
    PICKLED(TENSOR("\0", "\6", "K\2K\3", "K\3"), "another number of strides");
    PICKLED(TENSOR("\0", "\6", ONES, "K\1"), "more than 8 dimensions");
    PICKLED(TENSOR("\0", "\6", ONES, ONES), "more than 8 dimensions");
    PICKLED(TENSOR("\7", "\6", "K\0K\3", "K\3K\1"), "beyond its storage"); /* though it is empty */
    /* 2^62 elements of four bytes: 2^64 bytes */
    PICKLED(TENSOR("\0",
                   "\1"
                   "0\x8a\x08\0\0\0\0\0\0\0\x40",
                   "K\0", "K\1"),
            "a storage's size overflows");
    PICKLED(TENSOR("\0", "\6", "J\xff\xff\xff\xffK\3", "K\3K\1"),
            "not whole numbers of at least 0");
    PICKLED(TENSOR("\0", "\6", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\3", "K\3K\1"),
            "beyond its");
    PICKLED(TENSOR("\0", "\7", "K\2K\3", "K\3K\1"), "storage 0 has 7 elements of F32");
    PICKLED(TENSOR("\0", "\6", "NK\3", "K\3K\1"), "not whole numbers");
    PICKLED("\x80\2K\1Q.", "a storage is not described by");
    PICKLED("\x80\2(X\7\0\0\0storageccollections\nOrderedDict\nX\1\0\0\0"
            "0X\3\0\0\0cpuK\6tQ.",
            "a storage is not described by");
    PICKLED("\x80\2ctorch._utils\n_rebuild_parameter\n(K\1\x89}tR.",
            "a parameter has other arguments");
#undef ONES
#undef PICKLED
}

TEST(test_other_forms)
{
    lks__torchfile *f = NULL;
    assert_fails(LKS_ERR_FORMAT, lks__torchfile_open(figure("legacy.pt"), &f),
                 "before PyTorch 1.6");
    assert_fails(LKS_ERR_FORMAT, lks__torchfile_open(figure("meta.pkl"), &f), "meta.pkl");
    assert_fails(LKS_ERR_IO, lks__torchfile_open("/nowhere/x.pt", &f), "/nowhere/x.pt");
    assert_fails(LKS_ERR_IO, lks__torchfile_open(lks_test_folder(), &f), "not a regular file");
}

TEST(test_info)
{
    assert_contains(lks_test_tool("info").out, "libzip: ready");
    setenv("LOCKSTEP_MODULES", "/nowhere", 1);
    lks_test_result r =
        lks_test_tool("info"); /* the one beside the program is found all the same */
    assert_contains(r.out, "libzip: ready");
}

static int make_many(const char *path)
{
    lks__zip_writer *w;
    lks_status st = lks__zip_writer_open(path, NULL, NULL, &w);
    for (int i = 0; st == LKS_OK && i < 30000; i++)
        st = lks__zip_writer_add(w, lks_test_text("an-entry/%d", i), 0, 0);
    return lks__zip_writer_close(w, st == LKS_OK ? lks__zip_writer_finish(w) : st) != LKS_OK;
}

static int open_many(const char *path)
{
    lks__zip *zip;
    return -lks__zip_open(path, &zip);
}

/* Without memory a sound archive isn't called damaged. With much less than it needs, libzip says so
 * itself. */
TEST(test_no_memory)
{
    const char *path = lks_test_text("%s/many.zip", lks_test_folder());
    assert_ok(lks__zip_available());
    assert_int_equal(lks_test_in_little_memory(make_many, path, 1 << 30), 0);
    int st = -LKS_ERR_NOMEM, last = st;
    for (size_t more = 1 << 20; st != 0; more *= 2) {
        last = st;
        st = lks_test_in_little_memory(open_many, path, more);
    }
    assert_int_equal(last, -LKS_ERR_NOMEM);
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(NULL, NULL);
}
