/* Token files: reading, and every way in which one can be wrong. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/system/sys.h"
#include "data/tokens.h"

static const char *write_ids(const uint16_t *ids, size_t n)
{
    const char *path = lks_test_text("%s/train.bin", lks_test_folder());
    uint8_t *bytes = lks_test_malloc(2 * n + 1);
    for (size_t i = 0; i < n; i++) {
        bytes[2 * i] = (uint8_t)ids[i];
        bytes[2 * i + 1] = (uint8_t)(ids[i] >> 8);
    }
    lks_test_write(path, bytes, 2 * n);
    free(bytes);
    return path;
}

TEST(test_generated)
{
    const char *folder = lks_test_folder();
    size_t n_train, n_val;
    lks_test_generated_tokens(folder);
    const char *train = lks_test_read(lks_test_text("%s/train.bin", folder), &n_train);
    const char *val = lks_test_read(lks_test_text("%s/val.bin", folder), &n_val);
    assert_int_equal(n_train, 400000);
    assert_int_equal(n_val, 40000);
    char *all = lks_test_malloc(n_train + n_val);
    memcpy(all, train, n_train);
    memcpy(all + n_train, val, n_val);
    const char *path = lks_test_text("%s/all.bin", folder);
    lks_test_write(path, all, n_train + n_val);
    free(all);
    /* the hash from the figure's README */
    assert_string_equal(lks_test_sha256(path),
                        "d5862b8904d0d712ba0e48183c292056200d519b48a07756d953a4373eb8e901");
}

TEST(test_read)
{
    static const uint16_t ids[] = {0, 1, 256, 65535, 4660, 7};
    const char *path = write_ids(ids, 6);
    lks__tokens *t;
    assert_ok(lks__tokens_open(path, 65536, &t));
    assert_int_equal(lks__tokens_count(t), 6);
    for (size_t first = 0; first <= 6; first++)
        for (size_t n = 0; n <= 6 - first; n++) {
            int32_t out[9];
            memset(out, 0x55, sizeof out);
            assert_ok(lks__tokens_read(t, first, n, out + 1));
            for (size_t i = 0; i < n; i++)
                assert_int_equal(out[1 + i], ids[first + i]);
            assert_int_equal(out[0], 0x55555555);
            assert_int_equal(out[1 + n], 0x55555555);
        }
    int32_t out[9];
    assert_fails(LKS_ERR_ARG, lks__tokens_read(t, 6, 1, out), path, "it has 6");
    assert_fails(LKS_ERR_ARG, lks__tokens_read(t, UINT64_MAX, 2, out), path);
    assert_fails(LKS_ERR_ARG, lks__tokens_read(t, 1, SIZE_MAX, out), path);
    lks__tokens_close(t);
    lks__tokens_close(NULL);
}

/* More than one block of the check, every token in its place. */
TEST(test_read_long)
{
    enum { N = 200001 };
    uint16_t *ids = lks_test_malloc(N * sizeof *ids);
    int32_t *out = lks_test_malloc(N * sizeof *out);
    for (int i = 0; i < N; i++)
        ids[i] = (uint16_t)(i * 7919u);
    lks__tokens *t;
    assert_ok(lks__tokens_open(write_ids(ids, N), 65536, &t));
    assert_ok(lks__tokens_read(t, 0, N, out));
    for (int i = 0; i < N; i++)
        if (out[i] != ids[i])
            fail_msg("token %d is %d, not %d", i, out[i], ids[i]);
    lks__tokens_close(t);
    lks_test_free(ids, out);
}

TEST(test_digest)
{
    static const uint16_t a[] = {1, 2, 3}, b[] = {1, 2, 4};
    static const uint8_t a_bytes[] = {1, 0, 2, 0, 3, 0};
    uint64_t digest[3];
    const uint16_t *files[3] = {a, a, b};
    for (int i = 0; i < 3; i++) {
        lks__tokens *t;
        assert_ok(lks__tokens_open(write_ids(files[i], 3), 10, &t));
        assert_ok(lks__tokens_digest(t, &digest[i]));
        lks__tokens_close(t);
    }
    assert_true(digest[0] == XXH3_64bits(a_bytes, sizeof a_bytes));
    assert_true(digest[0] == digest[1]);
    assert_true(digest[0] != digest[2]);
}

/* A text's pairs of bytes are valid ids of a large vocabulary. */
TEST(test_text)
{
    enum { CUT = 4096 };
    const char *path = lks_test_text("%s/train.bin", lks_test_folder());
    char text[CUT + 3];
    lks__tokens *t = NULL;
    memset(text, 'a', sizeof text);
    memcpy(text, "zw\xc3\xb6lf,\tA\r\n\n", 12);
    for (size_t n = 64; n < 66; n++) {
        lks_test_write(path, text, n);
        assert_fails(LKS_ERR_FORMAT, lks__tokens_open(path, 65536, &t), path, "is a text",
                     "`lockstep prep`");
    }
    for (size_t at = CUT - 3; at < CUT; at++) { /* the first 4 KiB end within a character */
        memcpy(text + at, "\xe2\x82\xac", 3);
        lks_test_write(path, text, sizeof text);
        assert_fails(LKS_ERR_FORMAT, lks__tokens_open(path, 65536, &t), path, "is a text");
        memset(text + at, 'a', 3);
    }
    assert_null(t);
    static const char *const others[] = {"\1", "\x1f", "\0", "\xff", "\xc4"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        text[60] = others[i][0];
        lks_test_write(path, text, 64);
        assert_ok(lks__tokens_open(path, 65536, &t));
        lks__tokens_close(t);
    }
    lks_test_write(path, "aaaa", 4); /* a few ids can be text by chance */
    assert_ok(lks__tokens_open(path, 65536, &t));
    lks__tokens_close(t);
}

TEST(test_not_a_token_file)
{
    const char *folder = lks_test_folder();
    const char *path = lks_test_text("%s/train.bin", folder);
    const char *fifo = lks_test_text("%s/fifo", folder);
    const char *ugly = lks_test_text("%s/\x1b[31m", folder);
    lks__tokens *t = NULL;
    assert_fails(LKS_ERR_IO, lks__tokens_open(path, 65, &t), path, "there is no token file",
                 "prep");
    lks_test_write(path, "", 0);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open(path, 65, &t), path, "is empty");
    lks_test_write(path, "\1\0\2", 3);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open(path, 65, &t), path, "3 bytes", "odd");
    assert_fails(LKS_ERR_IO, lks__tokens_open(folder, 65, &t), folder, "a folder");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_fails(LKS_ERR_IO, lks__tokens_open(fifo, 65, &t), fifo, "not a regular file");
    assert_fails(LKS_ERR_IO, lks__tokens_open("/dev/zero", 65, &t), "/dev/zero",
                 "not a regular file");
    assert_fails(LKS_ERR_IO, lks__tokens_open(ugly, 65, &t), "\\x1b[31m");
    assert_null(t);
}

TEST(test_beyond_vocabulary)
{
    enum { N = 150000 };
    static uint16_t ids[N];
    static const size_t places[] = {0, 5, 65535, 65536, 149999}; /* ends of blocks are among them */
    lks__tokens *t = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        ids[places[i]] = 65;
        const char *path = write_ids(ids, N);
        assert_fails(LKS_ERR_FORMAT, lks__tokens_open(path, 65, &t), path, "token id 65",
                     lks_test_text("offset %zu ", 2 * places[i]), "vocabulary of 65");
        ids[places[i]] = 64;
    }
    assert_null(t);
    assert_ok(lks__tokens_open(write_ids(ids, N), 65, &t));
    lks__tokens_close(t);
}

/* The file changes after it was opened and checked. */
TEST(test_changed_while_open)
{
    static const uint16_t ids[100] = {1, 2, 3};
    const char *path = write_ids(ids, 100);
    int32_t out[100];
    lks__tokens *t;
    assert_ok(lks__tokens_open(path, 65, &t));
    assert_int_equal(truncate(path, 101), 0);
    assert_ok(lks__tokens_read(t, 0, 50, out));
    assert_fails(LKS_ERR_IO, lks__tokens_read(t, 40, 20, out), path, "became shorter", "200 bytes");
    assert_true(lks__sys_is_lasting(lks_last_error()));
    assert_fails(LKS_ERR_IO, lks__tokens_read(t, 99, 1, out), path, "became shorter");

    lks_test_write(path, "\377\377\377\377", 4); /* the same file, other contents */
    assert_fails(LKS_ERR_FORMAT, lks__tokens_read(t, 1, 1, out), path, "token id 65535",
                 "offset 2 ");
    lks__tokens_close(t);
}

/* Above 256 MiB ids are not checked at the start but as they are read, and the digest covers the
 * size, the first bytes and the last. The file is sparse. */
TEST(test_large)
{
    const char *path = lks_test_text("%s/large.bin", lks_test_folder());
    const off_t bytes = ((off_t)256 << 20) + 10;
    uint64_t digest[3];
    int32_t out[5];
    lks__tokens *t;
    lks_test_write(path, "\1\0", 2);
    assert_int_equal(truncate(path, bytes), 0);
    assert_ok(lks__tokens_open(path, 65, &t));
    assert_int_equal(lks__tokens_count(t), bytes / 2);
    assert_ok(lks__tokens_digest(t, &digest[0]));
    assert_ok(lks__tokens_read(t, (uint64_t)bytes / 2 - 5, 5, out));
    assert_int_equal(out[4], 0);

    lks_test_overwrite(path, -2, "\x41", 1); /* 65 */
    assert_ok(lks__tokens_digest(t, &digest[1]));
    assert_true(digest[0] != digest[1]);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_read(t, (uint64_t)bytes / 2 - 5, 5, out), path,
                 lks_test_text("offset %lld ", (long long)bytes - 2));
    lks__tokens_close(t);

    assert_int_equal(truncate(path, bytes + 2), 0);
    lks_test_overwrite(path, -4, "\0", 1); /* only the size differs from the first */
    assert_ok(lks__tokens_open(path, 65, &t));
    assert_ok(lks__tokens_digest(t, &digest[2]));
    assert_true(digest[2] != digest[1] && digest[2] != digest[0]);
    assert_int_equal(truncate(path, 2), 0);
    assert_fails(LKS_ERR_IO, lks__tokens_digest(t, &digest[2]), path, "became shorter");
    lks__tokens_close(t);
}
