/* Token shards: headers, and every way in which one can be wrong; the stream over them, compared
 * with a plain version of the script's loader. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/read/differ.h"
#include "data/read/shards.h"
#include "data/read/stream.h"
#include "data/tokens.h"

enum { HEADER = 1024 };

/* Write a shard with any header and contents. */
static const char *write_raw(const uint32_t head[3], const void *ids, size_t id_bytes)
{
    const char *path = lks_test_text("%s/shard.bin", lks_test_folder());
    uint8_t *bytes = lks_test_malloc(HEADER + id_bytes + 1);
    memset(bytes, 0xab, HEADER); /* words after the first three are ignored */
    for (int i = 0; i < 12; i++)
        bytes[i] = (uint8_t)(head[i / 4] >> (8 * (i % 4)));
    if (id_bytes > 0)
        memcpy(bytes + HEADER, ids, id_bytes);
    lks_test_write(path, bytes, HEADER + id_bytes);
    free(bytes);
    return path;
}

TEST(test_generated)
{
    static const char *const names[3] = {"fineweb_train_000000.bin", "fineweb_train_000001.bin",
                                         "fineweb_val_000000.bin"};
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/all", folder);
    char *all = malloc(440000);
    size_t at = 0;
    assert_non_null(all);
    lks_test_generated_golf(folder);
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        const char *data = lks_test_read(lks_test_text("%s/%s", folder, names[i]), &bytes);
        memcpy(all + at, data + HEADER, bytes - HEADER);
        at += bytes - HEADER;
    }
    assert_int_equal(at, 440000);
    lks_test_write(path, all, at);
    free(all);
    assert_string_equal(lks_test_sha256(path),
                        "7439503d2bd3c90f7f85fb83f95fc0f22c75e7ef2db3be910052a93bdf632faa");
}

TEST(test_both_widths)
{
    static const uint8_t narrow[] = {1, 0, 0, 1, 255, 255},
                         wide[] = {1, 0, 0, 0, 0, 1, 0, 0, 3, 255, 2, 0};
    static const int32_t want[2][3] = {{1, 256, 65535}, {1, 256, 196355}};
    for (int i = 0; i < 2; i++) {
        const uint32_t head[3] = {i == 0 ? 20240520 : 20240801, i == 0 ? 1 : 7, 3};
        const char *path = i == 0 ? write_raw(head, narrow, 6) : write_raw(head, wide, 12);
        for (int whole = 0; whole < 2; whole++) {
            lks__tokens *t;
            assert_ok(lks__tokens_open_shard(path, 1 << 20, whole, &t));
            assert_int_equal(lks__tokens_count(t), 3);
            for (size_t first = 0; first <= 3; first++)
                for (size_t n = 0; n <= 3 - first; n++) {
                    int32_t out[5];
                    memset(out, 0x55, sizeof out);
                    assert_ok(lks__tokens_read(t, first, n, out + 1));
                    assert_memory_equal(out + 1, want[i] + first, n * sizeof *out);
                    assert_int_equal(out[0], 0x55555555);
                    assert_int_equal(out[1 + n], 0x55555555);
                }
            uint64_t digest;
            size_t bytes;
            const char *data = lks_test_read(path, &bytes);
            assert_ok(lks__tokens_digest(t, &digest));
            assert_true(digest == XXH3_64bits(data, bytes));
            lks__tokens_close(t);
        }
    }
}

TEST(test_hostile)
{
    static const uint8_t ids[12] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0};
    static const struct {
        uint32_t head[3];
        size_t id_bytes;
        const char *says[3];
    } cases[] = {
        {{20240521, 1, 6}, 12, {"magic", "offset 0 is 20240521", "20240520"}},
        {{0, 0, 0}, 12, {"magic", "offset 0 is 0", "20240801"}},
        {{0x28d73401, 1, 6}, 12, {"magic", "offset 0 is ", "20240520"}}, /* the other byte order */
        {{20240520, 2, 6}, 12, {"version", "offset 4 is 2", "has version 1"}},
        {{20240520, 7, 6}, 12, {"version", "offset 4 is 7", "has version 1"}},
        {{20240801, 1, 3}, 12, {"version", "offset 4 is 1", "has version 7"}},
        {{20240520, 1, 7}, 12, {"1036 bytes", "7 tokens at byte offset 8", "1038 bytes"}},
        {{20240520, 1, 5}, 12, {"1036 bytes", "5 tokens", "1034 bytes"}},
        {{20240520, 1, 6}, 11, {"1035 bytes", "6 tokens", "cut off"}},
        {{20240520, 1, 6}, 0, {"1024 bytes", "6 tokens", "cut off"}},
        {{20240801, 7, 6}, 12, {"1036 bytes", "6 tokens", "1048 bytes"}},
        {{20240520, 1, 0xffffffff}, 12, {"number of tokens", "byte offset 8", "is -1;"}},
        {{20240520, 1, 0x80000000}, 0, {"number of tokens", "byte offset 8", "is -2147483648;"}},
        {{20240520, 1, 0x7fffffff}, 12, {"1036 bytes", "2147483647 tokens", "4294968318 bytes"}},
    };
    lks__tokens *t = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = write_raw(cases[i].head, ids, cases[i].id_bytes);
        assert_fails(LKS_ERR_FORMAT, lks__tokens_open_shard(path, 100, true, &t), path,
                     cases[i].says[0], cases[i].says[1], cases[i].says[2]);
    }

    /* A part of a header; an empty file; no file; things other than files. */
    const char *folder = lks_test_folder(), *path = lks_test_text("%s/x.bin", folder);
    char zeros[HEADER - 1] = {0};
    assert_fails(LKS_ERR_IO, lks__tokens_open_shard(path, 100, true, &t), path, "no token file",
                 "prep sentencepiece");
    lks_test_write(path, zeros, sizeof zeros);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open_shard(path, 100, true, &t), path, "1023 bytes",
                 "header of 1024 bytes");
    lks_test_write(path, "", 0);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open_shard(path, 100, true, &t), path, "0 bytes");
    assert_fails(LKS_ERR_IO, lks__tokens_open_shard(folder, 100, true, &t), folder, "a folder");
    assert_null(t);
}

TEST(test_beyond_vocabulary)
{
    static const uint8_t narrow[6] = {1, 0, 99, 0, 100, 0};
    static const uint8_t wide[8] = {1, 0, 0, 0, 0, 0, 0, 0x80}; /* 2^31 */
    const char *path = write_raw((const uint32_t[]){20240520, 1, 3}, narrow, 6);
    lks__tokens *t = NULL;
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open_shard(path, 100, true, &t), path, "token id 100",
                 "offset 1028 ", "vocabulary of 100");
    path = write_raw((const uint32_t[]){20240801, 7, 2}, wide, 8);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open_shard(path, 100, true, &t), path,
                 "token id 2147483648", "offset 1028 ");
    assert_null(t);
}

/* The name of an existing shard isn't a pattern. */
TEST(test_odd_name)
{
    const char *path = lks_test_text("%s/x[1].bin", lks_test_folder());
    lks__shards *shards;
    lks_test_write_shard(path, (const uint16_t[]){1}, 1);
    assert_ok(lks__shards_open_any(path, 65, &shards));
    assert_int_equal(lks__shards_count(shards), 1);
    lks__shards_close(shards);
}

/* Ids that begin as a shard does, in a file of another size, are ids. */
TEST(test_alike)
{
    const char *path = lks_test_text("%s/t.bin", lks_test_folder());
    const uint16_t ids[] = {20240520 & 0xffff, 20240520 >> 16, 1, 0, 6, 0};
    lks__shards *shards;
    lks_test_write(path, ids, sizeof ids);
    assert_ok(lks__shards_open_any(path, 65536, &shards));
    assert_int_equal(lks__shards_count(shards), 6);
    lks__shards_close(shards);
}

/* Over 16 MiB, and not to be checked completely: an error is found when it is read. */
TEST(test_large)
{
    const char *path = lks_test_text("%s/large.bin", lks_test_folder());
    const uint32_t n = 9 << 20;
    int32_t out[2];
    uint64_t digest[2];
    lks__tokens *t;
    lks_test_write_shard(path, (const uint16_t[]){1}, 1);
    lks_test_overwrite(path, 8, &n, sizeof n);
    assert_int_equal(truncate(path, HEADER + 2 * (off_t)n), 0);
    assert_ok(lks__tokens_open_shard(path, 65, false, &t));
    assert_ok(lks__tokens_digest(t, &digest[0]));
    assert_ok(lks__tokens_read(t, n - 2, 2, out));

    lks_test_overwrite(path, -2, "\x41", 1);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_read(t, n - 2, 2, out), path, "token id 65",
                 lks_test_text("offset %u ", HEADER + 2 * n - 2));
    assert_ok(lks__tokens_digest(t, &digest[1]));
    assert_true(digest[0] != digest[1]);
    lks__tokens_close(t);
    assert_fails(LKS_ERR_FORMAT, lks__tokens_open_shard(path, 65, true, &t), path, "token id 65");
}

/* ---- lists of shards --------------------------------------------------------------------- */

static void write_counting(const char *path, uint16_t first, size_t n)
{
    uint16_t ids[512];
    assert_true(n <= 512);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint16_t)(first + i);
    lks_test_write_shard(path, ids, n);
}

static lks__shards *open_shards(const char *pattern)
{
    lks__shards *s;
    assert_ok(lks__shards_open(pattern, 65536, &s));
    return s;
}

/* In the order of their bytes, whatever the locale and the order in the folder; other files are
 * ignored. */
TEST(test_order)
{
    static const char *const names[] = {"10", "9", "B", "a", "000001", "000000", "\xc3\xa9"};
    static const char *const sorted[] = {"000000", "000001", "10", "9", "B", "a", "\xc3\xa9"};
    const char *folder = lks_test_text("%s/[odd]*", lks_test_folder());
    assert_int_equal(system(lks_test_text("mkdir '%s'", folder)), 0);
    for (size_t i = 0; i < 7; i++)
        write_counting(lks_test_text("%s/fineweb_train_%s.bin", folder, names[i]), 0, 1);
    write_counting(lks_test_text("%s/fineweb_val_0.bin", folder), 0, 9);
    write_counting(lks_test_text("%s/.fineweb_train_0.bin", folder), 0, 9);
    write_counting(lks_test_text("%s/fineweb_train_0.bin.old", folder), 0, 9);
    lks__shards *s = open_shards(lks_test_text("%s/%s", folder, LKS__SHARDS_TRAIN));
    assert_int_equal(lks__shards_n_files(s), 7);
    assert_int_equal(lks__shards_count(s), 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(lks__shards_path(s, i),
                            lks_test_text("%s/fineweb_train_%s.bin", folder, sorted[i]));
    lks__shards_close(s);
    /* Another pattern, as a user may give. */
    s = open_shards(lks_test_text("%s/*_[0-9].bin", folder));
    assert_int_equal(lks__shards_n_files(s), 2);
    lks__shards_close(s);
    lks__shards_close(NULL);
}

TEST(test_wrong_lists)
{
    const char *folder = lks_test_folder();
    const char *pattern = lks_test_text("%s/" LKS__SHARDS_TRAIN, folder);
    lks__shards *s = NULL;
    assert_fails(LKS_ERR_IO, lks__shards_open(pattern, 100, &s), pattern, "no token shard",
                 "prep sentencepiece");
    assert_fails(LKS_ERR_IO, lks__shards_open(lks_test_text("%s/none/*", folder), 100, &s),
                 "no token shard");
    lks_test_write(lks_test_text("%s/file", folder), "", 0);
    assert_fails(LKS_ERR_IO, lks__shards_open(lks_test_text("%s/file/*", folder), 100, &s),
                 "cannot list");
    write_counting(lks_test_text("%s/fineweb_train_0.bin", folder), 0, 0);
    write_counting(lks_test_text("%s/fineweb_train_1.bin", folder), 0, 0);
    assert_fails(LKS_ERR_FORMAT, lks__shards_open(pattern, 100, &s), pattern, "hold no tokens");
    write_counting(lks_test_text("%s/fineweb_train_2.bin", folder), 98, 3);
    assert_fails(LKS_ERR_FORMAT, lks__shards_open(pattern, 100, &s), "fineweb_train_2.bin",
                 "token id 100", "offset 1028");
    assert_int_equal(system(lks_test_text("mkdir '%s/fineweb_train_12.bin'", folder)), 0);
    assert_fails(LKS_ERR_IO, lks__shards_open(pattern, 101, &s), "fineweb_train_12.bin", "folder");
    assert_null(s);
}

/* The digest depends on the order of files and on every token. */
TEST(test_list_digest)
{
    uint64_t digests[3];
    for (int i = 0; i < 3; i++) {
        const char *folder = lks_test_folder();
        write_counting(lks_test_text("%s/%d.bin", folder, i == 1), 1, 4);
        write_counting(lks_test_text("%s/%d.bin", folder, i != 1), 1, i == 2 ? 6 : 5);
        lks__shards *s = open_shards(lks_test_text("%s/*.bin", folder));
        assert_ok(lks__shards_digest(s, &digests[i]));
        if (i == 0) { /* the first token of a file, and a later one */
            const char *path = lks__shards_path(s, 1);
            uint64_t offset;
            assert_string_equal(lks__shards_place(s, 4, &offset), path);
            assert_int_equal(offset, HEADER);
            assert_string_equal(lks__shards_place(s, 6, &offset), path);
            assert_int_equal(offset, HEADER + 4);
        }
        lks__shards_close(s);
    }
    assert_true(digests[0] != digests[1] && digests[0] != digests[2] && digests[1] != digests[2]);

    /* A file without a header has its own digest: checkpoints contain it. */
    const char *path = lks_test_text("%s/train.bin", lks_test_folder());
    lks__shards *s;
    lks_test_write(path, "\1\0\2\0", 4);
    assert_ok(lks__shards_open_any(path, 3, &s));
    assert_ok(lks__shards_digest(s, digests));
    assert_true(digests[0] == XXH3_64bits("\1\0\2\0", 4));
    lks__shards_close(s);
}

/* ---- the stream -------------------------------------------------------------------------- */

/* The script's TokenStream, rewritten: a file, a position in it, and the next tokens. */
struct retold {
    const size_t *counts; /* of the files; token i of file f is 1000 f + i */
    int n_files, file;
    size_t at;
};

static void retold_take(struct retold *r, size_t n, int32_t *out)
{
    while (n > 0) {
        size_t left = r->counts[r->file] - r->at;
        if (left == 0) {
            r->file = (r->file + 1) % r->n_files;
            r->at = 0;
            continue;
        }
        *out++ = (int32_t)(1000 * r->file) + (int32_t)r->at++;
        n--;
    }
}

static void check_stream(const lks__shards *shards, const size_t *counts, int n_files, int V, int A,
                         size_t local)
{
    enum { STEPS = 23 };
    lks__stream stream = {.shards = shards, .V = V, .A = A, .local_tokens = local};
    struct retold r = {counts, n_files, 0, 0};
    int32_t *chunk = lks_test_malloc((size_t)V * (local + 1) * sizeof *chunk);
    int32_t *got = lks_test_malloc((local + 1) * sizeof *got);
    for (uint64_t step = 0; step < STEPS; step++)
        for (int m = 0; m < A; m++) { /* next_batch with V workers */
            retold_take(&r, (size_t)V * (local + 1), chunk);
            for (int v = 0; v < V; v++) {
                assert_ok(lks__shards_read(shards, lks__stream_start(&stream, step, v, m),
                                           local + 1, got));
                assert_memory_equal(got, chunk + (size_t)v * (local + 1),
                                    (local + 1) * sizeof *got);
            }
        }
    lks_test_free(chunk, got);
}

TEST(test_stream)
{
    static const struct {
        size_t counts[4];
        int n_files;
    } sets[] = {
        {{500}, 1}, {{1}, 1}, {{64, 64}, 2}, {{17, 1, 300}, 3}, {{0, 33, 0, 7}, 4}, {{5, 0}, 2},
    };
    static const int shapes[][2] = {{1, 1}, {8, 1}, {4, 2}, {3, 5}}; /* V, A */
    static const size_t locals[] = {1, 7, 63, 200, 1024}; /* 63: spans end where files end */
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        const char *folder = lks_test_folder();
        for (int f = 0; f < sets[i].n_files; f++)
            write_counting(lks_test_text("%s/fineweb_train_%06d.bin", folder, f),
                           (uint16_t)(1000 * f), sets[i].counts[f]);
        lks__shards *s = open_shards(lks_test_text("%s/" LKS__SHARDS_TRAIN, folder));
        for (size_t j = 0; j < 4; j++)
            for (size_t k = 0; k < 5; k++)
                check_stream(s, sets[i].counts, sets[i].n_files, shapes[j][0], shapes[j][1],
                             locals[k]);
        lks__shards_close(s);
    }
}

/* One worker with 8 micro-steps, 2 with 4, … take the same spans: span k of a step. */
TEST(test_stream_worlds)
{
    const char *folder = lks_test_folder();
    write_counting(lks_test_text("%s/0.bin", folder), 0, 499);
    lks__shards *s = open_shards(lks_test_text("%s/*.bin", folder));
    lks__stream eight = {.shards = s, .V = 8, .A = 1, .local_tokens = 16};
    for (int W = 1; W <= 8; W *= 2) {
        lks__stream other = {.shards = s, .V = W, .A = 8 / W, .local_tokens = 16};
        for (uint64_t step = 0; step < 50; step++)
            for (int k = 0; k < 8; k++)
                assert_int_equal(lks__stream_start(&other, step, k % W, k / W),
                                 lks__stream_start(&eight, step, k, 0));
    }
    /* Positions beyond 2^64: 2^32 steps of 65,535 spans of 2^30 + 1, reduced modulo 499 by hand. */
    lks__stream large = {.shards = s, .V = 65535, .A = 1, .local_tokens = (size_t)1 << 30};
    const uint64_t step = UINT64_C(4294967295);
    uint64_t span = (step % 499 * (65535 % 499) + 65534 % 499) % 499;
    uint64_t length = ((UINT64_C(1) << 30) + 1) % 499;
    assert_int_equal(lks__stream_start(&large, step, 65534, 0), span * length % 499);
    /* A segment with another batch reads on where the one before it ended. */
    lks__stream next = {.shards = s, .V = 2, .A = 3, .local_tokens = 5};
    next.from = (lks__data_start){.step = 20, .position = lks__stream_start(&eight, 20, 0, 0)};
    assert_int_equal(next.from.position, 20 * 8 * 17 % 499);
    assert_int_equal(lks__stream_start(&next, 20, 0, 0), next.from.position);
    assert_int_equal(lks__stream_start(&next, 21, 1, 2), (20 * 8 * 17 + 11 * 6) % 499);
    lks__shards_close(s);
}

TEST(test_usable)
{
    static const struct {
        uint64_t n, seq_len, usable;
    } cases[] = {{20, 4, 17}, {21, 4, 21}, {22, 4, 21}, {5, 4, 5}, {300, 1, 300}, {300, 299, 300}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = lks_test_folder();
        uint64_t usable;
        write_counting(lks_test_text("%s/a.bin", folder), 0, 3);
        write_counting(lks_test_text("%s/b.bin", folder), 0, cases[i].n - 3);
        lks__shards *s = open_shards(lks_test_text("%s/*", folder));
        assert_ok(lks__shards_usable(s, cases[i].seq_len, &usable));
        assert_int_equal(usable, cases[i].usable);
        assert_fails(LKS_ERR_CONFIG, lks__shards_usable(s, cases[i].n, &usable), folder,
                     lks_test_text("%d tokens are too few", (int)cases[i].n));
        lks__shards_close(s);
    }
}

/* Two datasets that differ in two tokens, and of which one is longer: the first token of a read
 * that differs, also if the read begins after the other dataset's end, or again at the beginning.
 */
TEST(test_differ)
{
    static const struct {
        int side;
        uint64_t position, n, token;
    } reads[] = {{0, 0, 70, LKS__DIFFER_NONE},
                 {0, 60, 20, 70},
                 {1, 71, 9, 75},
                 {1, 76, 24, LKS__DIFFER_NONE},
                 {1, 76, 25, 100},
                 {1, 60, 50, 70},
                 {1, 103, 2, 103},
                 {1, 105, 75, 105},
                 {1, 119, 71, 119},
                 {0, 99, 72, 70},
                 {0, 76, 94, LKS__DIFFER_NONE}};
    const char *folder = lks_test_folder(), *names[] = {"a", "b"};
    lks__shards *sides[2];
    lks__differ d;
    for (int i = 0; i < 2; i++) {
        const char *path = lks_test_text("%s/%s", folder, names[i]);
        write_counting(path, 0, i == 0 ? 100 : 120);
        if (i == 1) {
            lks_test_overwrite(path, HEADER + 2 * 70, "\x77", 1);
            lks_test_overwrite(path, HEADER + 2 * 75, "\x77", 1);
        }
        assert_ok(lks__shards_open_any(path, 65536, &sides[i]));
    }
    assert_ok(lks__differ_open(sides[0], sides[1], &d));
    assert_int_equal(d.common, 100);
    assert_int_equal(d.different, 2 + 20);
    assert_int_equal(d.first, 70);
    assert_true(d.ids[0] == 70 && d.ids[1] == 0x77);
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        uint64_t token;
        assert_ok(
            lks__differ_reads(&d, reads[i].side, reads[i].position, (size_t)reads[i].n, &token));
        assert_int_equal(token, reads[i].token);
    }
    lks__differ_close(&d);
    for (int i = 0; i < 2; i++)
        lks__shards_close(sides[i]);
}
