
#include "support.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "ckpt/scratch.h"
#include "files/safetensors/safetensors.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* ---- good files ---------------------------------------------------------------------------- */

TEST(round_trip)
{
    const float f32[6] = {1, -2, 3.5f, 0, -0.0f, 1e-40f};
    const uint16_t u16[3] = {1, 65535, 7};
    const uint16_t bf16[4] = {0x3f80, 0xbf80, 0x7f80, 1};
    const int64_t i64 = -5;
    const uint8_t u8[5] = {0, 1, 2, 254, 255};
    const lks__st_tensor tensors[] = {
        {"z.matrix", "F32", 2, {2, 3}, f32, 24},  {"empty", "F32", 2, {0, 768}, NULL, 0},
        {"a.odd", "U16", 1, {3}, u16, 6},         {"scalar", "I64", 0, {0}, &i64, 8},
        {"bf", "BF16", 4, {1, 2, 1, 2}, bf16, 8}, {"bytes \"\n\xc3\xa9", "U8", 1, {5}, u8, 5},
        {"last empty", "I8", 1, {0}, NULL, 0},
    };
    const char *path = in_scratch("round.safetensors");
    json_t *meta = json_pack("{s:s, s:s}", "kernels", "abc", "about", "x");
    assert_int_equal(lks__st_write(path, tensors, COUNT(tensors), meta), LKS_OK);
    json_decref(meta);

    lks__st_file *file;
    assert_int_equal(lks__st_open(path, &file), LKS_OK);
    assert_int_equal(lks__st_count(file), COUNT(tensors));
    assert_string_equal(lks__st_metadata(file, "kernels"), "abc");
    assert_null(lks__st_metadata(file, "nothing"));
    assert_null(lks__st_find(file, "nothing"));
    assert_null(lks__st_find(file, "__metadata__"));
    assert_null(lks__st_get(file, COUNT(tensors)));
    for (size_t i = 0; i < COUNT(tensors); i++) {
        char data[64];
        const lks__st_tensor *e = &tensors[i], *t = lks__st_find(file, e->name);
        assert_ptr_equal(t, lks__st_get(file, i)); /* the order of the data is the given one */
        assert_string_equal(t->dtype, e->dtype);
        assert_int_equal(t->n_dims, e->n_dims);
        assert_memory_equal(t->shape, e->shape, sizeof e->shape[0] * (size_t)e->n_dims);
        assert_int_equal(t->bytes, e->bytes);
        assert_null(t->data);
        memset(data, 0x55, sizeof data);
        assert_int_equal(lks__st_read(file, t, data), LKS_OK);
        if (e->bytes > 0)
            assert_memory_equal(data, e->data, e->bytes);
        assert_int_equal(data[e->bytes], 0x55);
    }
    uint64_t hashes[COUNT(tensors)];
    assert_int_equal(lks__st_verify(file, hashes), LKS_OK);
    assert_true(hashes[1] == 0x2d06800538d394c2); /* XXH3-64 of no bytes, from its specification */
    char out[64];
    /* Parts of one: what reaches beyond its end is another one's. */
    const lks__st_tensor *odd = lks__st_find(file, "a.odd");
    assert_int_equal(lks__st_read_part(file, odd, 2, out, 4), LKS_OK);
    assert_memory_equal(out, u16 + 1, 4);
    assert_int_equal(lks__st_read_part(file, odd, 6, out, 0), LKS_OK);
    assert_int_equal(lks__st_read_part(file, odd, 4, out, 3), LKS_ERR_ARG);
    assert_int_equal(lks__st_read_part(file, odd, 7, out, 0), LKS_ERR_ARG);
    lks__st_close(file);

    /* Equal arguments give equal bytes, and an existing file is not touched. */
    size_t a_bytes, b_bytes;
    const char *again = in_scratch("again.safetensors");
    meta = json_pack("{s:s, s:s}", "about", "x", "kernels", "abc");
    assert_int_equal(lks__st_write(again, tensors, COUNT(tensors), meta), LKS_OK);
    assert_int_equal(lks__st_write(again, tensors, 1, meta), LKS_ERR_IO);
    json_decref(meta);
    char *a = lks_test_read(path, &a_bytes), *b = lks_test_read(again, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
}

/* Data are synced every 64 MiB: here in the middle of the second tensor. */
TEST(large)
{
    enum { MIB = 1 << 20 };
    static const char cut[8] = "abcdefgh";
    char *zeros = calloc(64, MIB), back[8];
    const char *path = in_scratch("large.safetensors");
    const lks__st_tensor tensors[] = {{"zeros", "U8", 1, {64 * MIB - 4}, zeros, 64 * MIB - 4},
                                      {"cut", "U8", 1, {8}, cut, 8}};
    lks__st_file *file;
    assert_non_null(zeros);
    assert_int_equal(lks__st_write(path, tensors, 2, NULL), LKS_OK);
    assert_int_equal(lks__st_open(path, &file), LKS_OK);
    assert_int_equal(lks__st_read(file, lks__st_find(file, "cut"), back), LKS_OK);
    assert_memory_equal(back, cut, 8);
    lks__st_close(file);
    free(zeros);
    unlink(path);
}

/* A file that can't be written to its end doesn't stay. */
TEST(no_room)
{
    static const char data[4096];
    const lks__st_tensor tensor = {"x", "U8", 1, {sizeof data}, data, sizeof data};
    const char *path = in_scratch("no_room.safetensors");
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){1000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const lks_status st = lks__st_write(path, &tensor, 1, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(LKS_ERR_IO, st, path);
    assert_false(lks_test_exists(path));
}

TEST(no_tensors)
{
    lks__st_file *file;
    const char *path = in_scratch("none.safetensors");
    assert_int_equal(lks__st_write(path, NULL, 0, NULL), LKS_OK);
    assert_int_equal(lks__st_open(path, &file), LKS_OK);
    assert_int_equal(lks__st_count(file), 0);
    assert_int_equal(lks__st_verify(file, NULL), LKS_OK);
    lks__st_close(file);
}

/* The exact bytes: keys sorted, header padded with spaces to 64, data in the given order. libxxhash
 * 0.8.1 computed the hashes of the four and the two bytes. */
TEST(golden)
{
    static const char header[] = "{\"__metadata__\":{\"kernels\":\"k\",\"xxh3:a\":"
                                 "\"f87b05471331b3ae\",\"xxh3:b\":\"2a2300bbd7ea6e9a\"},"
                                 "\"a\":{\"data_offsets\":[2,6],\"dtype\":\"F32\",\"shape\":[1]},"
                                 "\"b\":{\"data_offsets\":[0,2],\"dtype\":\"U8\",\"shape\":[2,1]}}";
    char expected[512], text[400];
    const float one = 1;
    const lks__st_tensor tensors[] = {{"b", "U8", 2, {2, 1}, "hi", 2},
                                      {"a", "F32", 1, {1}, &one, 4}};
    const char *path = in_scratch("golden.safetensors");
    json_t *meta = json_pack("{s:s}", "kernels", "k");
    assert_int_equal(lks__st_write(path, tensors, 2, meta), LKS_OK);
    json_decref(meta);

    size_t text_bytes = strlen(header), bytes;
    memcpy(text, header, text_bytes + 1);
    uint64_t length = (8 + text_bytes + 63) / 64 * 64 - 8;
    memset(expected, ' ', sizeof expected);
    memcpy(expected, &length, 8);
    memcpy(expected + 8, text, text_bytes);
    memcpy(expected + 8 + length, "hi\0\0\x80\x3f", 6);
    char *data = lks_test_read(path, &bytes);
    assert_int_equal(bytes, 8 + length + 6);
    assert_memory_equal(data, expected, bytes);
}

TEST(writer_refuses)
{
    const float f[4] = {0};
    static const uint64_t big = UINT64_C(1) << 62;
    const struct {
        lks__st_tensor tensors[2];
        size_t n;
        const char *why;
    } cases[] = {
        {{{"a", "F33", 1, {1}, f, 4}}, 1, "dtype is unknown"},
        {{{"a", "F32", 1, {2}, f, 4}}, 1, "its shape and its bytes differ"},
        {{{"a", "F32", 1, {1}, NULL, 4}}, 1, "its shape and its bytes differ"},
        {{{"a", "F32", 65, {1}, f, 4}}, 1, "too many dimensions"},
        {{{"a", "F32", -1, {1}, f, 4}}, 1, "too many dimensions"},
        {{{"a", "F32", 2, {big, 4}, f, 0}}, 1, "shape is too large"},
        {{{"a", "F32", 1, {1}, f, 4}, {"a", "F32", 1, {1}, f, 4}}, 2, "twice"},
        {{{"__metadata__", "F32", 1, {1}, f, 4}}, 1, "reserved by the format"},
        {{{"\xff", "F32", 1, {1}, f, 4}}, 1, "not UTF-8"},
    };
    const char *path = in_scratch("refused.safetensors");
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_fails(LKS_ERR_ARG, lks__st_write(path, cases[i].tensors, cases[i].n, NULL),
                     cases[i].why);
        assert_false(lks_test_exists(path));
    }
    json_t *meta = json_pack("{s:i}", "iter", 3);
    assert_int_equal(lks__st_write(path, NULL, 0, meta), LKS_ERR_ARG);
    json_decref(meta);
}

/* ---- hostile files ------------------------------------------------------------------------- */

/* Write length, header and `data_bytes` zeros; length -1: the correct one. */
static const char *forge(const char *header, int64_t length, size_t data_bytes)
{
    const char *path = in_scratch("forged.safetensors");
    size_t text = strlen(header);
    uint64_t n = length == -1 ? text : (uint64_t)length;
    char *block = lks_test_calloc(1, 8 + text + data_bytes);
    memcpy(block, &n, 8);
    memcpy(block + 8, header, text);
    lks_test_write(path, block, 8 + text + data_bytes);
    free(block);
    return path;
}

static lks_status open_status(const char *path)
{
    lks__st_file *file;
    lks_status st = lks__st_open(path, &file);
    if (st == LKS_OK)
        lks__st_close(file);
    return st;
}

/* Check that it is refused as ERR_FORMAT with the file's name and `why`. */
static void refused(const char *path, const char *why)
{
    lks_status st = open_status(path);
    if (st != LKS_ERR_FORMAT || !strstr(lks_last_error(), why) || !strstr(lks_last_error(), path))
        print_error("expected \"%s\": %s, \"%s\"\n", why, lks_status_text(st), lks_last_error());
    assert_fails(LKS_ERR_FORMAT, st, path, why);
}

#define T(shape, range) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" range "}"

#define EIGHT "1,1,1,1,1,1,1,1,"

TEST(hostile_headers)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *why;
    } cases[] = {
        {"[]", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"{\"a\":", 0, "its header at byte"},
        {"{} x", 0, "its header at byte"},
        {"{\"\xff\":1}", 0, "its header at byte"},
        {"{\"\\u0000\":1}", 0, "its header at byte"},
        {"{\"a\":1}", 0, "does not consist of"},
        {"{\"a\":{}}", 0, "does not consist of"},
        {"{\"a\":null}", 0, "does not consist of"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4,
         "does not consist of"},
        {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "does not consist of"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":\"1\",\"data_offsets\":[0,4]}}", 4,
         "does not consist of"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
        {"{\"a\":" T("[" EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT "1]", "[0,4]") "}", 4,
         "too many dimensions"},
        {"{\"a\":" T("[-1]", "[0,4]") "}", 4, "not a whole number"},
        {"{\"a\":" T("[1.0]", "[0,4]") "}", 4, "not a whole number"},
        {"{\"a\":" T("[true]", "[0,4]") "}", 4, "not a whole number"},
        {"{\"a\":" T("[\"1\"]", "[0,4]") "}", 4, "not a whole number"},
        {"{\"a\":" T("[18446744073709551616]", "[0,4]") "}", 4, "its header at byte"},
        {"{\"a\":" T("[1e999]", "[0,4]") "}", 4, "its header at byte"},
        {"{\"a\":" T("[4294967296,4294967296]", "[0,0]") "}", 0, "overflows"},
        {"{\"a\":" T("[4611686018427387904]", "[0,0]") "}", 0, "overflows"},
        {"{\"a\":" T("[2]", "[0,4]") "}", 4, "does not fit its shape"},
        {"{\"a\":" T("[0]", "[0,4]") "}", 4, "does not fit its shape"},
        {"{\"a\":" T("[1]", "[4,0]") "}", 4, "not a range"},
        {"{\"a\":" T("[1]", "[0]") "}", 4, "not a range"},
        {"{\"a\":" T("[1]", "[0,4,8]") "}", 4, "not a range"},
        {"{\"a\":" T("[1]", "[-4,0]") "}", 4, "not a range"},
        {"{\"a\":" T("[1]", "[0,4.0]") "}", 4, "not a range"},
        {"{\"a\":" T("[1]", "[0,4]") "}", 3, "truncated"},
        {"{\"a\":" T("[1]", "[0,4]") "}", 5, "bytes follow"},
        {"{}", 1, "bytes follow"},
        {"{\"a\":" T("[1]", "[4,8]") "}", 8, "gap"},
        {"{\"a\":" T("[1]", "[0,4]") ",\"b\":" T("[1]", "[5,9]") "}", 9, "gap"},
        {"{\"a\":" T("[1]", "[0,4]") ",\"b\":" T("[1]", "[0,4]") "}", 4, "overlaps"},
        {"{\"a\":" T("[2]", "[0,8]") ",\"b\":" T("[1]", "[4,8]") "}", 8, "overlaps"},
        {"{\"a\":" T("[1]", "[0,4]") ",\"a\":" T("[1]", "[4,8]") "}", 8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "duplicate"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"x\":1}}", 0, "other than strings"},
        {"{\"__metadata__\":{\"x\":{}}}", 0, "other than strings"},
        {"{\"\\u001b[31m\":1}", 0, "tensor \"\\x1b[31m\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        refused(forge(cases[i].header, -1, cases[i].data_bytes), cases[i].why);
    /* The valid file from which the cases above differ does open. */
    assert_int_equal(open_status(forge("{\"a\":" T("[1]", "[0,4]") "}", -1, 4)), LKS_OK);
    assert_int_equal(open_status(forge("{}  ", -1, 0)), LKS_OK);
}

TEST(deep_header)
{
    const size_t depth = 1 << 20;
    char *text = lks_test_malloc(depth + 16);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', depth);
    text[5 + depth] = '\0';
    refused(forge(text, -1, 0), "maximum parsing depth");
    free(text);
}

TEST(lying_lengths)
{
    static const int64_t lengths[] = {0,
                                      1,
                                      -2, /* 2^64 - 2 */
                                      INT64_C(0x7fffffff),
                                      INT64_C(0x80000001),
                                      INT64_C(0x100000000),
                                      INT64_MAX,
                                      INT64_MIN,
                                      100000000,
                                      100000001};
    const char header[] = "{\"a\":" T("[1]", "[0,4]") "}";
    const int64_t text = (int64_t)strlen(header);
    for (size_t i = 0; i < COUNT(lengths); i++)
        refused(forge(header, lengths[i], 4), "not a sound safetensors file");
    for (int64_t off = -2; off <= 4; off++)
        if (off != 0)
            refused(forge(header, text + off, 4), "not a sound safetensors file");
    for (int64_t beyond = 1; beyond <= 9; beyond++)
        refused(forge(header, text + 4 + beyond, 4), "its header reaches beyond the end");
    /* Over the limit, in a file that is really as long: sparse. */
    const char *path = forge(header, 100000001, 4);
    assert_int_equal(truncate(path, 100000100), 0);
    refused(path, "its header of 100000001 bytes is over the limit of 100000000");
}

/* Replace each number of a good header by each of the usual wrong ones: refused, or right by
 * chance. */
TEST(lying_numbers)
{
    static const char *const lies[] = {"0",
                                       "1",
                                       "-1",
                                       "2147483647",
                                       "2147483649",
                                       "4294967296",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "18446744073709551615",
                                       "2",
                                       "4",
                                       "7",
                                       "9",
                                       "12",
                                       "-0",
                                       "8.0",
                                       "null"};
    static const char *const truth[] = {"2", "1", "0", "8", "1", "8", "12"};
    int opened = 0;
    for (size_t f = 0; f < COUNT(truth); f++) {
        for (size_t g = f; g < COUNT(truth); g++) {
            for (size_t i = 0; i < COUNT(lies); i++) {
                char header[512];
                const char *v[COUNT(truth)];
                memcpy(v, truth, sizeof truth);
                v[f] = lies[i];
                v[g] = lies[(i * 5 + g) % COUNT(lies)];
                snprintf(header, sizeof header,
                         "{\"a\":{\"dtype\":\"F32\",\"shape\":[%s,%s],\"data_offsets\":[%s,%s]},"
                         "\"b\":{\"dtype\":\"U32\",\"shape\":[%s],\"data_offsets\":[%s,%s]}}",
                         v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
                lks_status st = open_status(forge(header, -1, 12));
                opened += st == LKS_OK;
                if (st == LKS_OK) /* then the file has the same contents as the right one */
                    for (size_t t = 0; t < COUNT(truth); t++)
                        assert_int_equal(strtoll(v[t], NULL, 10), strtoll(truth[t], NULL, 10));
                else
                    assert_int_equal(st, LKS_ERR_FORMAT);
            }
        }
    }
    assert_in_range(opened, 1, 40);
}

TEST(every_truncation)
{
    const int open_files = lks_test_count_files("/proc/self/fd");
    const float f[4] = {1, 2, 3, 4};
    const lks__st_tensor tensors[] = {{"a", "F32", 1, {3}, f, 12}, {"b", "F32", 1, {1}, f + 3, 4}};
    const char *path = in_scratch("whole.safetensors"), *cut = in_scratch("cut.safetensors");
    assert_int_equal(lks__st_write(path, tensors, 2, NULL), LKS_OK);
    size_t bytes;
    char *data = lks_test_read(path, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        lks_test_write(cut, data, n);
        refused(cut, "truncated");
    }
    assert_int_equal(lks_test_count_files("/proc/self/fd"), open_files);
}

TEST(flipped_data)
{
    uint64_t random = 7;
    uint16_t words[300000]; /* hashed in more than one piece */
    char *out = malloc(sizeof words);
    for (size_t i = 0; i < COUNT(words); i++)
        words[i] = (uint16_t)next_random(&random);
    const lks__st_tensor tensors[] = {{"a", "U16", 1, {3}, words, 6},
                                      {"b\x1b", "U16", 2, {1000, 300}, words, sizeof words},
                                      {"c", "U16", 1, {5}, words, 10}};
    const char *path = in_scratch("flip.safetensors");
    assert_int_equal(lks__st_write(path, tensors, 3, NULL), LKS_OK);
    lks__st_file *file;
    size_t bytes;
    char *data = lks_test_read(path, &bytes);
    assert_int_equal(lks__st_open(path, &file), LKS_OK);
    assert_int_equal(lks__st_verify(file, NULL), LKS_OK);
    const lks__st_tensor *b = lks__st_find(file, "b\x1b");
    for (int i = 0; i < 50; i++) {
        size_t at = bytes - 10 - 1 - next_random(&random) % sizeof words;
        data[at] ^= (char)(1 << (next_random(&random) % 8));
        lks_test_write(path, data, bytes);
        assert_fails(LKS_ERR_FORMAT, lks__st_verify(file, NULL), "tensor \"b\\x1b\"");
        assert_fails(LKS_ERR_FORMAT, lks__st_read(file, b, out), path);
        assert_int_equal(lks__st_read(file, lks__st_get(file, 0), out), LKS_OK);
        assert_int_equal(lks__st_read(file, lks__st_get(file, 2), out), LKS_OK);
        memcpy(data + bytes - 10 - sizeof words, words, sizeof words);
    }
    /* Truncate it while it is open. */
    assert_int_equal(truncate(path, (off_t)bytes - 11), 0);
    assert_fails(LKS_ERR_FORMAT, lks__st_read(file, b, out), "truncated");
    lks__st_close(file);
    free(out);
}

/* Finding all of many tensors takes less time than reading the header. */
TEST(many)
{
    enum { MANY = 50000, ROOM = 200 };
    char *header = lks_test_malloc((size_t)MANY * ROOM), *name = lks_test_malloc((size_t)MANY * 64);
    size_t n = 0;
    for (int i = 0; i < MANY; i++) {
        snprintf(name + i * 64, 64, "transformer.h.%d.attention.weight", i);
        n += (size_t)snprintf(header + n, ROOM, "%c\"%s\":" T("[1]", "[%d,%d]"), i ? ',' : '{',
                              name + i * 64, 4 * i, 4 * i + 4);
    }
    header[n++] = '}';
    lks__st_file *file;
    const double start = lks__sys_cpu_seconds();
    assert_int_equal(lks__st_parse("many", header, n, &file), LKS_OK);
    const double parsed = lks__sys_cpu_seconds();
    for (size_t i = 0; i < MANY; i++)
        assert_ptr_equal(lks__st_find(file, name + i * 64), lks__st_get(file, i));
    assert_true(lks__sys_cpu_seconds() - parsed < parsed - start);
    lks__st_close(file);
    lks_test_free(header, name);
}

/* Files of other programs have no hashes: they are read, but not verified. */
TEST(without_hashes)
{
    lks__st_file *file;
    float out = 1;
    assert_int_equal(lks__st_open(forge("{\"a\":" T("[1]", "[0,4]") "}", -1, 4), &file), LKS_OK);
    assert_int_equal(lks__st_read(file, lks__st_get(file, 0), &out), LKS_OK);
    assert_true(out == 0);
    assert_fails(LKS_ERR_FORMAT, lks__st_verify(file, NULL), "has no hash");
    lks__st_close(file);
}

TEST(not_a_file)
{
    assert_fails(LKS_ERR_IO, open_status(in_scratch("absent\x1b")), "absent\\x1b: No such file");
    assert_int_equal(open_status(in_scratch("")), LKS_ERR_IO);
    assert_int_equal(mkfifo(in_scratch("pipe"), 0600), 0);
    assert_fails(LKS_ERR_IO, open_status(in_scratch("pipe")), "not a regular file");
}

/* Random changes to a good file: each is refused or opens, and reading stays within bounds. */
TEST(mutations)
{
    const uint32_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const lks__st_tensor tensors[] = {{"w", "U32", 2, {2, 3}, words, 24},
                                      {"x", "U32", 1, {2}, words + 6, 8}};
    static const char alphabet[] = "0123456789[]{}\",:-.eE\\ \x80truefalsn";
    const char *path = in_scratch("sound.safetensors"), *bad = in_scratch("mutant.safetensors");
    assert_int_equal(lks__st_write(path, tensors, 2, NULL), LKS_OK);
    size_t bytes;
    char *data = lks_test_read(path, &bytes), *copy = malloc(bytes);
    uint64_t random = 99;
    int refusals = 0;
    for (int i = 0; i < 5000; i++) {
        memcpy(copy, data, bytes);
        for (int k = 1 + (int)(next_random(&random) % 3); k > 0; k--)
            copy[next_random(&random) % bytes] =
                alphabet[next_random(&random) % (sizeof alphabet - 1)];
        lks_test_write(bad, copy, bytes - next_random(&random) % 3);
        lks__st_file *file;
        lks_status st = lks__st_open(bad, &file);
        refusals += st != LKS_OK;
        if (st != LKS_OK) {
            assert_int_equal(st, LKS_ERR_FORMAT);
            continue;
        }
        for (size_t t = 0; t < lks__st_count(file); t++) {
            char out[64];
            assert_true(lks__st_get(file, t)->bytes <= 32);
            st = lks__st_read(file, lks__st_get(file, t), out);
            assert_true(st == LKS_OK || st == LKS_ERR_FORMAT);
        }
        lks__st_close(file);
    }
    assert_in_range(refusals, 4000, 5000);
    free(copy);
}

static int open_scratch(void **state)
{
    struct statvfs shm;
    const bool fits = statvfs("/dev/shm", &shm) == 0 && /* large() writes 64 MiB */
                      (size_t)shm.f_bavail * shm.f_frsize >= 256 << 20;
    return fits ? scratch_open_in_memory(state) : scratch_open(state);
}

int main(void)
{
    return lks_test_run_all(open_scratch, NULL);
}
