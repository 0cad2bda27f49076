/* `prep char`: ids, splits, line ends, bad text, and a full disk. Faults are read once from the
 * environment, so those cases run this program again: `test_prep INPUT OUT SHARD`. */
#include "support.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "data/prep/prep.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/text/meta.h"
#include "data/tokens.h"

static const char *text_file(const char *text, size_t bytes)
{
    const char *path = lks_test_text("%s/input.txt", lks_test_folder());
    lks_test_write(path, text, bytes);
    return path;
}

static uint64_t shard_tokens; /* of each prep() */

static lks_status prep(const char *input, const char *out, double val_fraction, lks__prep_result *r)
{
    const lks__prep_options o = {
        .input = input, .out_dir = out, .val_fraction = val_fraction, .shard_tokens = shard_tokens};
    return lks__prep(lks__prep_kind_of("char"), &o, r);
}

static void assert_file(const char *folder, const char *name, const char *want, size_t bytes)
{
    size_t n;
    const char *got = lks_test_read(lks_test_text("%s/%s", folder, name), &n);
    assert_int_equal(n, bytes);
    assert_memory_equal(got, want, bytes);
}

TEST(test_ids_and_split)
{
    const char *input = text_file("b\xc3\xa9"
                                  "a\n\nb\xf0\x9f\x98\x80"
                                  "bbbb",
                                  15);
    const char *out = lks_test_text("%s/new/folder", lks_test_folder());
    const char meta[] = "{\"kind\":\"char\",\"vocab_size\":5,"
                        "\"chars\":\"\\nab\xc3\xa9\xf0\x9f\x98\x80\","
                        "\"hashes\":{\"train.bin\":\"cb547ae194fc9867\","
                        "\"val.bin\":\"cd0a4fce20feabff\"}}"; /* xxhsum -H3 */
    lks__prep_result r;
    assert_ok(prep(input, out, 0.1, &r));
    assert_int_equal(r.vocab_size, 5);
    assert_int_equal(r.n_train, 9); /* int(11 * 0.9) = int(9.9) */
    assert_int_equal(r.n_val, 2);
    assert_file(out, "train.bin", "\2\0\3\0\1\0\0\0\0\0\2\0\4\0\2\0\2\0", 18);
    assert_file(out, "val.bin", "\2\0\2\0", 4);
    assert_file(out, "meta.json", meta, sizeof meta - 1);
    assert_int_equal(lks_test_count_files(out), 3);
    struct stat info;
    const mode_t mask = umask(022);
    umask(mask);
    assert_int_equal(stat(lks_test_text("%s/train.bin", out), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);

    /* Write over it, with another split. nanoGPT's description of other tokens goes. */
    lks_test_write(lks_test_text("%s/meta.pkl", out), "", 0);
    assert_ok(prep(input, out, 0.5, &r));
    assert_int_equal(r.n_train, 5);
    assert_file(out, "train.bin", "\2\0\3\0\1\0\0\0\0\0", 10);
    assert_int_equal(lks_test_count_files(out), 3);
}

/* With the characters of other data the ids are theirs, also of characters that don't occur. */
TEST(test_given_characters)
{
    uint32_t chars[] = {'a', '\n', 0xe9, 'c', 'b'};
    const lks__meta given = {.vocab_size = 5, .chars = chars};
    const char *out = lks_test_folder();
    const lks__prep_kind *kind = lks__prep_kind_of("char");
    lks__prep_options o = {.input = text_file("c\xc3\xa9\nc", 5), .out_dir = out, .chars = &given};
    lks__prep_result r;
    lks__meta meta = {0};
    bool found = false;
    assert_ok(lks__prep(kind, &o, &r));
    assert_int_equal(r.vocab_size, 5);
    assert_file(out, "train.bin", "\3\0\2\0\1\0\3\0", 8);
    assert_ok(lks__meta_load(out, &found, &meta));
    assert_true(found && !lks__meta_differ(&meta, &given));
    lks__meta_free(&meta);

    o.input = text_file("a\xc3\xa8z\tz", 6);
    assert_fails(LKS_ERR_FORMAT, lks__prep(kind, &o, &r),
                 "has 3 different characters not in the vocabulary of 5 characters, for example "
                 "U+0009 \"\\x09\": replace them in the text");
    o.input = text_file("ad", 2);
    assert_fails(LKS_ERR_FORMAT, lks__prep(kind, &o, &r),
                 "has 1 different character not in the vocabulary of 5 characters, for example "
                 "U+0064 \"d\": replace it in the text");
    assert_int_equal(lks_test_count_files(out), 2);
}

/* The readers accept what prep writes, and decoding gives the text back. */
TEST(test_readers_agree)
{
    static const char text[] = "To be, or not to be\0that is the question\n";
    const size_t n = sizeof text - 1;
    const char *out = lks_test_folder();
    lks__prep_result r;
    bool found = false;
    lks__meta meta = {0};
    assert_ok(prep(text_file(text, n), out, 0.1, &r));
    assert_ok(lks__meta_load(out, &found, &meta));
    assert_true(found);
    assert_int_equal(meta.vocab_size, r.vocab_size);
    char back[64];
    size_t at = 0;
    const char *const names[2] = {"train.bin", "val.bin"};
    for (int s = 0; s < 2; s++) {
        lks__tokens *t;
        int32_t ids[64];
        assert_ok(lks__tokens_open(lks_test_text("%s/%s", out, names[s]), meta.vocab_size, &t));
        size_t count = lks__tokens_count(t);
        assert_int_equal(count, s == 0 ? r.n_train : r.n_val);
        assert_ok(lks__tokens_read(t, 0, count, ids));
        for (size_t i = 0; i < count; i++)
            at += lks__meta_decode(&meta, ids[i], back + at);
        lks__tokens_close(t);
    }
    assert_int_equal(at, n);
    assert_memory_equal(back, text, n);
    lks__meta_free(&meta);
}

/* CRLF and CR become LF, also at the end; the length counts characters after that. */
TEST(test_line_ends)
{
    lks__prep_result a, b;
    const char *unix_out = lks_test_folder(), *other_out = lks_test_folder();
    assert_ok(prep(text_file("a\n\nb\n\nc\nd\n", 11), unix_out, 0.1, &a));
    assert_ok(prep(text_file("a\r\n\rb\n\rc\r\nd\r", 13), other_out, 0.1, &b));
    assert_int_equal(b.n_train + b.n_val, a.n_train + a.n_val);
    assert_same_file(lks_test_text("%s/train.bin", unix_out),
                     lks_test_text("%s/train.bin", other_out));
    assert_same_file(lks_test_text("%s/val.bin", unix_out), lks_test_text("%s/val.bin", other_out));
    assert_same_file(lks_test_text("%s/meta.json", unix_out),
                     lks_test_text("%s/meta.json", other_out));
}

/* int(n * 0.9) in double, as in Python. */
TEST(test_split_sizes)
{
    static const struct {
        uint64_t n, train;
        double val_fraction;
    } cases[] = {
        {2, 1, 0.1},   {10, 9, 0.1},     {11, 9, 0.1},         {19, 17, 0.1},  {20, 18, 0.1},
        {99, 89, 0.1}, {1003, 902, 0.1}, {10, 8, 0.15},        {10, 9, 0.001}, {10, 0, 0.9},
        {10, 0, 0.99}, {100, 70, 0.3},   {1000, 666, 1.0 / 3},
    };
    char text[1003];
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks__prep_result r;
        const char *input = text_file(text, cases[i].n), *out = lks_test_folder();
        if (cases[i].train == 0) {
            assert_fails(LKS_ERR_FORMAT, prep(input, out, cases[i].val_fraction, &r), input,
                         "train split empty");
            continue;
        }
        assert_ok(prep(input, out, cases[i].val_fraction, &r));
        assert_int_equal(r.n_train, cases[i].train);
        assert_int_equal(r.n_val, cases[i].n - cases[i].train);
        assert_int_equal(r.vocab_size, 1);
    }
}

/* A run opens all shards at once, so there must not be too many; here that is known before any is
 * written. */
TEST(test_many_shards)
{
    enum { N = 40000 };
    char *text = lks_test_malloc(N);
    for (int i = 0; i < N; i++)
        text[i] = (char)('a' + i % 7);
    const char *input = text_file(text, N), *out = lks_test_text("%s/out", lks_test_folder());
    free(text);
    lks__prep_options o = {.input = input, .out_dir = out, .val_fraction = 0.1, .shard_tokens = 3};
    lks__prep_result r;
    assert_fails(LKS_ERR_CONFIG, lks__prep(lks__prep_kind_of("char"), &o, &r), "--shards=3",
                 "over 10000 files");
    assert_int_not_equal(access(out, F_OK), 0);
    o.shard_tokens = 400;
    assert_ok(lks__prep(lks__prep_kind_of("char"), &o, &r));
    assert_int_equal(lks_test_count_files(out), 90 + 10 + 1);
}

/* Tokens in the folder of the texts would be text for the next preparation. */
TEST(test_folder_of_texts)
{
    const char *dir = lks_test_folder();
    lks__prep_result r;
    lks_test_write(lks_test_text("%s/a.txt", dir), "abcabcabcabc", 12);
    assert_fails(LKS_ERR_CONFIG,
                 prep(dir, lks_test_text("%s/../%s", dir, strrchr(dir, '/')), 0.1, &r),
                 "--out is the input folder");
    assert_int_equal(lks_test_count_files(dir), 1);
    assert_ok(prep(dir, lks_test_text("%s/tokens", dir), 0.1, &r)); /* folders in it aren't read */
    assert_ok(prep(dir, lks_test_text("%s/tokens", dir), 0.1, &r));
    assert_int_equal(r.n_train, 10);
}

TEST(test_bad_text)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *error;
    } cases[] = {
        {"", 0, "is empty"},
        {"a", 1, "1 character: with val_fraction 0.1 that leaves the train split empty"},
        {"\r\n", 2, "1 character:"},
        {"\xff", 1, "byte 0xff at offset 0"},
        {"abc\xc3", 4, "byte 0xc3 at offset 3"},
        {"abc\xc3(", 5, "byte 0xc3 at offset 3"},
        {"\xc3\xa9\xed\xa0\x80", 5, "byte 0xed at offset 2"},
        {"ab\xc0\x80", 4, "byte 0xc0 at offset 2"},
        {"\xff\xfe"
         "a\0b\0",
         6, "byte 0xff at offset 0"}, /* UTF-16 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *input = text_file(cases[i].text, cases[i].bytes);
        const char *out = lks_test_text("%s/out", lks_test_folder());
        lks__prep_result r;
        assert_fails(LKS_ERR_FORMAT, prep(input, out, 0.1, &r), input, cases[i].error);
        assert_false(lks_test_exists(out)); /* a bad text creates nothing */
    }
}

TEST(test_bad_places)
{
    const char *folder = lks_test_folder(), *input = text_file("abcdefghijkl", 12);
    const char *file = lks_test_text("%s/file", folder);
    lks__prep_result r;
    lks_test_write(file, "", 0);
    assert_fails(LKS_ERR_IO, prep(lks_test_text("%s/none", folder), folder, 0.1, &r), "/none",
                 "No such file");
    assert_fails(LKS_ERR_IO, prep(input, file, 0.1, &r), file);
    assert_fails(LKS_ERR_IO, prep(input, lks_test_text("%s/x", file), 0.1, &r), file);
    static const double bad[] = {1, 1.5, 1e300 * 1e300};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(LKS_ERR_CONFIG, prep(input, folder, bad[i], &r), "val_fraction");
    assert_fails(LKS_ERR_CONFIG, prep(input, folder, __builtin_nan(""), &r), "val_fraction");
    assert_int_equal(lks_test_count_files(folder), 1);
}

/* n code points, from the first that text files commonly contain, without surrogates. */
static const char *many_characters(uint32_t n)
{
    char *text = malloc(4 * (size_t)n);
    size_t bytes = 0;
    assert_non_null(text);
    for (uint32_t cp = ' ', i = 0; i < n; cp++)
        if (cp < 0xd800 || cp > 0xdfff) {
            bytes += lks__utf8_encode(cp, text + bytes);
            i++;
        }
    const char *path = text_file(text, bytes);
    free(text);
    return path;
}

TEST(test_vocabulary_limit)
{
    lks__prep_result r;
    lks__meta meta = {0};
    bool found = false;
    const char *out = lks_test_folder();
    assert_ok(prep(many_characters(65536), out, 0.1, &r));
    assert_int_equal(r.vocab_size, 65536);
    size_t bytes;
    const char *val = lks_test_read(lks_test_text("%s/val.bin", out), &bytes);
    assert_memory_equal(val + bytes - 2, "\xff\xff", 2);
    assert_ok(lks__meta_load(out, &found, &meta)); /* and the reader accepts such a vocabulary */
    assert_true(found);
    assert_int_equal(meta.vocab_size, 65536);
    lks__meta_free(&meta);
    assert_fails(LKS_ERR_FORMAT, prep(many_characters(65537), out, 0.1, &r),
                 "65537 different characters", "at most 65536");
}

/* ---- faults ------------------------------------------------------------------------------ */

static lks_test_result prep_with(const char *input, const char *out, const char *fault)
{
    const char *env[] = {lks_test_text("LOCKSTEP_FAULT=%s", fault), NULL};
    const char *shard = lks_test_text("%d", (int)shard_tokens);
    return lks_test_run((const char *const[]){"/proc/self/exe", input, out, shard, NULL}, env, 20);
}

/* Each write, sync and rename fails in turn, until a run makes fewer of them. Every failure names
 * the cause, leaves the old data set complete, and leaves no other file: also if some of the new
 * files have their names by then. */
TEST(test_full_disk)
{
    static const struct {
        const char *call, *what, *cause;
        int n_calls;
    } faults[] = {
        {"open", "EMFILE", "no file descriptor is left",
         10}, /* input thrice, three files, the old meta.json, the folder thrice */
        {"read", "EIO", "Input/output error", 4},
        {"write", "ENOSPC", "No space left", 3},
        {"write", "short", "No space left", 3},
        {"fsync", "EIO", "Input/output error", 6},
        {"rename", "EACCES", "Permission denied", 7},
    };
    const char *old = text_file("the old text", 12), *input = text_file("another text, longer", 20);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        for (int n = 1;; n++) {
            const char *out = lks_test_folder(), *reference = lks_test_folder();
            lks__prep_result r;
            assert_ok(prep(old, out, 0.1, &r));
            assert_ok(prep(old, reference, 0.1, &r));
            lks_test_result run =
                prep_with(input, out, lks_test_text("%s:%d:%s", faults[i].call, n, faults[i].what));
            assert_int_equal(lks_test_count_files(out), 3);
            if (run.exit_code == 0) {
                assert_int_equal(n, faults[i].n_calls + 1);
                break;
            }
            assert_int_equal(run.exit_code, 1);
            assert_contains(run.out, faults[i].cause);
            static const char *const names[] = {"train.bin", "val.bin", "meta.json"};
            for (int f = 0; f < 3; f++)
                assert_same_file(lks_test_text("%s/%s", out, names[f]),
                                 lks_test_text("%s/%s", reference, names[f]));
        }
    /* Without older files the folder is empty again: also if a killed process had its number. */
    const char *out = lks_test_folder(), *exe = lks_test_text("/proc/%d/exe", (int)getpid());
    static const char script[] = "echo old >$2/train.bin.old-$$; exec $0 $1 $2 0";
    const char *argv[] = {"sh", "-c", script, exe, input, out, NULL};
    const char *env[] = {"LOCKSTEP_FAULT=rename:6:EACCES", NULL};
    assert_contains(assert_exits(1, lks_test_run(argv, env, 20)).out, "Permission denied");
    assert_int_equal(lks_test_count_files(out), 0);
}

/* An old file that can't be restored, either: its backup stays, and the message names it. */
TEST(test_no_way_back)
{
    const char *old = text_file("the old text", 12), *input = text_file("another text, longer", 20);
    static const char *const faults[] = {
        "rename:3:EACCES,rename:4:EIO", /* val.bin moved away, then back to the old train.bin */
        "rename:7:EACCES,rename:10:EIO" /* the new train.bin, then back to the three old files */
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        const char *out = lks_test_folder(), *reference = lks_test_folder();
        lks__prep_result r;
        assert_ok(prep(old, out, 0.1, &r));
        assert_ok(prep(old, reference, 0.1, &r));
        lks_test_result run = assert_exits(1, prep_with(input, out, faults[i]));
        const char *backup = lks_test_find(run.out, "; rename ");
        backup += strlen("; rename ");
        assert_same_file(lks_test_text("%.*s", (int)strcspn(backup, " "), backup),
                         lks_test_text("%s/train.bin", reference));
    }
}

static int pieces_left;

static bool stop_asked(void)
{
    return pieces_left-- <= 0;
}

/* Stopped at any piece, it leaves the folder as it was; not stopped, it succeeds. */
TEST(test_stopped)
{
    enum { BYTES = 3 << 20 };
    static const char *const names[] = {"train.bin", "val.bin", "meta.json"};
    char *text = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "a text, long"[i % 12];
    const char *input = text_file(text, BYTES), *out = lks_test_folder(), *good = lks_test_folder();
    free(text);
    lks__prep_result r;
    assert_ok(prep(text_file("the old text", 12), out, 0.1, &r));
    assert_ok(prep(text_file("the old text", 12), good, 0.1, &r));
    int n = 0;
    for (bool stopped = true; stopped; n++) {
        pieces_left = n;
        lks__sys_stop_when(stop_asked);
        lks_status st = prep(input, out, 0.1, &r);
        lks__sys_stop_when(NULL);
        stopped = st != LKS_OK;
        assert_int_equal(lks_test_count_files(out), 3);
        for (int f = 0; f < 3 && stopped; f++)
            assert_same_file(lks_test_text("%s/%s", out, names[f]),
                             lks_test_text("%s/%s", good, names[f]));
    }
    assert_in_range(n, 1 + 2 * 3 + 3, 60); /* two passes of three pieces, three files */
    assert_int_equal(r.n_train + r.n_val, BYTES);
}

static const char *changing, *changed;

static bool change_text(void)
{
    if (pieces_left-- == 0)
        lks_test_write_text(changing, changed);
    return false;
}

/* A text that changes while it is read, but not in size: another character, or fewer of them. */
TEST(test_changed)
{
    static const char *const others[] = {"abcdefgh\xc3\xa8ij", "abcdefghijab"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        int n_failed = 0;
        for (int n = 0; n < 4; n++) {
            const char *out = lks_test_folder();
            lks__prep_result r;
            changing = text_file("abcdefgh\xc3\xa9ij", 12);
            changed = others[i];
            pieces_left = n;
            lks__sys_stop_when(change_text);
            const lks_status st = prep(changing, out, 0.1, &r);
            lks__sys_stop_when(NULL);
            if (st == LKS_OK)
                continue;
            assert_int_equal(st, LKS_ERR_IO);
            assert_contains(lks_last_error(), "changed while it was read");
            assert_int_equal(lks_test_count_files(out), 0);
            n_failed++;
        }
        assert_true(n_failed > 0);
    }
}

static bool readable(const char *folder)
{
    lks__shards *train = NULL;
    const bool can =
        lks__split_open(folder, LKS__SPLIT_TRAIN, shard_tokens != 0, 20, &train) == LKS_OK;
    lks__shards_close(train);
    return can;
}

static const char *sum_of(const char *folder)
{
    return lks_test_shell("cd \"$0\" && cat *train*.bin meta.json | sha256sum", folder).out;
}

/* Killed at a call: if a run can read the folder, it reads all tokens of the old data set or of the
 * new one, and the next call removes all other files. */
static void check_killed(const char *call, uint64_t old_shards, uint64_t new_shards)
{
    const char *input = text_file("another text, longer", 20), *old = lks_test_folder();
    const char *good = lks_test_folder();
    lks__prep_result r;
    int deaths = 0;
    shard_tokens = old_shards;
    assert_ok(prep(text_file("the old text, longest of all", 28), old, 0.1, &r));
    shard_tokens = new_shards;
    assert_ok(prep(input, good, 0.1, &r));
    const char *const sums[] = {sum_of(old), sum_of(good)};
    for (int n = 1; n < 50; n++) {
        const char *out = lks_test_copy_of(old);
        lks_test_result run = prep_with(input, out, lks_test_text("%s:%d:die", call, n));
        if (run.signal == 0)
            break;
        assert_int_equal(run.signal, SIGKILL);
        deaths++;
        if (readable(out)) {
            const char *sum = sum_of(out);
            assert_true(strcmp(sum, sums[0]) == 0 || strcmp(sum, sums[1]) == 0);
        }
        assert_ok(prep(input, out, 0.1, &r));
        assert_int_equal(lks_test_count_files(out), lks_test_count_files(good));
    }
    assert_in_range(deaths, 8, 48);
    lks_test_shell("rm \"$0\"/*val*.bin", good);
    assert_true(readable(good)); /* without the other split, too */
    shard_tokens = 0;
}

TEST(test_killed)
{
    check_killed("any", 0, 0);
    check_killed("rename", 5, 5); /* six shards, then four */
    check_killed("rename", 0, 5);
    check_killed("rename", 5, 0);
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        lks__prep_result r;
        shard_tokens = strtoull(argv[3], NULL, 10);
        if (prep(argv[1], argv[2], 0.1, &r) == LKS_OK)
            return 0;
        printf("%s\n", lks_last_error());
        return 1;
    }
    return lks_test_run_all(NULL, NULL);
}
