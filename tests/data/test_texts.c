/* What all kinds of `prep` read and write alike: files, folders, standard input, JSON lines; raw
 * files and shards; texts in other encodings. By `prep char`, unless another kind differs. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/prep/input/docs.h"
#include "data/prep/prep.h"
#include "data/read/shards.h"
#include "data/text/encoding.h"
#include "data/text/meta.h"
#include "data/tokens.h"

static lks__prep_result result;

static lks_status prep(lks__prep_options o)
{
    return lks__prep(lks__prep_kind_of("char"), &o, &result);
}

static const char *file(const char *dir, const char *name, const char *text)
{
    const char *path = lks_test_text("%s/%s", dir, name);
    lks_test_write(path, text, strlen(text));
    return path;
}

/* The text of n tokens from `first` on, by the folder's meta.json. */
static const char *text_of(const char *out, const lks__shards *shards)
{
    static char text[4096];
    bool found = false;
    lks__meta meta;
    size_t at = 0;
    int32_t ids[1000];
    const size_t n = (size_t)lks__shards_count(shards);
    assert_ok(lks__meta_load(out, &found, &meta));
    assert_true(found && n <= 1000);
    assert_ok(lks__shards_read(shards, 0, n, ids));
    for (size_t i = 0; i < n; i++)
        at += lks__meta_decode(&meta, ids[i], text + at);
    text[at] = '\0';
    lks__meta_free(&meta);
    return lks_test_text("%s", text);
}

/* The text of a raw file, which is written as a shard to be read. */
static const char *raw_text(const char *out, const char *name)
{
    size_t bytes;
    lks__shards *shards;
    const char *raw = lks_test_read(lks_test_text("%s/%s.bin", out, name), &bytes);
    const char *path = lks_test_text("%s/one", lks_test_folder());
    char *shard = calloc(1, LKS__SHARD_HEADER + bytes);
    lks__shard_header(2, (uint32_t)bytes / 2, (uint8_t *)shard);
    memcpy(shard + LKS__SHARD_HEADER, raw, bytes);
    lks_test_write(path, shard, LKS__SHARD_HEADER + bytes);
    free(shard);
    assert_ok(lks__shards_open(path, 65536, &shards));
    const char *text = text_of(out, shards);
    lks__shards_close(shards);
    return text;
}

/* Memory doesn't grow with the text. First, as it looks at all children so far. */
TEST(test_memory)
{
    enum { BYTES = 48 << 20 };
    struct rusage small, large;
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/t", dir);
    const char *input = lks_test_text("--input=%s", path), *out = lks_test_text("--out=%s", dir);
    char *text = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = (char)('a' + i % 23);
    lks_test_write(path, text, 1000);
    assert_int_equal(lks_test_tool("prep", "char", input, out).exit_code, 0);
    getrusage(RUSAGE_CHILDREN, &small);
    lks_test_write(path, text, BYTES);
    free(text);
    assert_int_equal(lks_test_tool("prep", "char", input, out).exit_code, 0);
    getrusage(RUSAGE_CHILDREN, &large);
    assert_in_range(large.ru_maxrss - small.ru_maxrss, 0, 16 << 10); /* KiB */
}

/* Several documents are one text; a line feed follows each that doesn't end in one. */
TEST(test_documents)
{
    const char *dir = lks_test_folder(), *out = lks_test_folder();
    const int n_open = lks_test_count_files("/proc/self/fd");
    file(dir, "b.txt", "beta\r\n");
    file(dir, "a.txt", "alpha\r");
    file(dir, "c.jsonl", "{\"text\":\"g\\u00e9\\n\"}\n{\"text\":\"\"}\n{\"text\":\"del\\r\\nta\"}");
    file(dir, "d.txt", "end");
    file(dir, ".hidden", "\xff");
    assert_int_equal(mkdir(lks_test_text("%s/e", dir), 0777), 0);
    /* what a killed process of this number has left is no obstacle */
    const char *left = file(out, lks_test_text("train.bin.new-%ld", (long)getpid()), "old");
    const char *shard =
        file(out, lks_test_text("fineweb_val_000001.bin.old-%ld", (long)getpid()), "old");
    /* and files of a process that is at work, or of a number that none has, aren't touched */
    static const char *const others[] = {"train.bin.new-1", "train.bin.new-99999999999",
                                         "train.bin.new-9999999x", "train.bin.new-0"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        file(out, others[i], "new");
    assert_ok(prep((lks__prep_options){.input = dir, .out_dir = out}));
    assert_false(lks_test_exists(left) || lks_test_exists(shard));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_true(lks_test_exists(lks_test_text("%s/%s", out, others[i])));
    assert_string_equal(raw_text(out, "train"), "alpha\nbeta\ng\xc3\xa9\n\ndel\nta\nend\n");
    assert_int_equal(result.n_val, 0);
    assert_int_equal(result.n_docs, 6);
    assert_int_equal(result.n_empty, 1);
    assert_false(lks_test_exists(lks_test_text("%s/val.bin", out)));

    /* The last characters are for validation, wherever documents end. */
    assert_ok(prep((lks__prep_options){.input = dir, .out_dir = out, .val_fraction = 0.25}));
    assert_string_equal(raw_text(out, "train"), "alpha\nbeta\ng\xc3\xa9\n\ndel\n");
    assert_string_equal(raw_text(out, "val"), "ta\nend\n");

    /* An empty file is a document, too, whatever the one before it ended in. */
    const char *empty = lks_test_text("%s/b.txt\n%s", dir, file(lks_test_folder(), "none.txt", ""));
    assert_ok(prep((lks__prep_options){.input = empty, .out_dir = out}));
    assert_string_equal(raw_text(out, "train"), "beta\n\n");

    /* Several inputs, in the order in which they are given. */
    const char *folder = lks_test_folder();
    const char *few = lks_test_text("%s/d.txt\n%s/a.txt\n%s", dir, dir, folder);
    file(folder, "f.txt", "\nfirst");
    assert_ok(prep((lks__prep_options){.input = few, .out_dir = out}));
    assert_string_equal(raw_text(out, "train"), "end\nalpha\n\nfirst\n");
    const char *field = file(dir, "f.JSONL", "{\"text\":1,\"body\":\"x\"}");
    assert_ok(prep((lks__prep_options){.input = field, .out_dir = out, .field = "body"}));
    assert_string_equal(raw_text(out, "train"), "x\n");
    assert_int_equal(lks_test_count_files("/proc/self/fd"), n_open);
}

/* The kind of tokens that `train TEXT` chooses. A character may lie at the border of two blocks
 * that are read, but none may be cut off at the end. */
TEST(test_guess)
{
    static const char *const rows[][2] = {{"caf\xc3\xa9", "char"},
                                          {"caf\xc3", "raw"},
                                          {"a face: \xf0\x9f\x98", "raw"},
                                          {"caf\xe9 noir", "raw"}};
    const char *kind;
    const int n_open = lks_test_count_files("/proc/self/fd");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ok(lks__prep_guess(file(lks_test_folder(), "a.txt", rows[i][0]), &kind));
        assert_string_equal(kind, rows[i][1]);
    }
    assert_contains(lks_last_error(), "a.txt is not valid UTF-8: byte 0xe9 at offset 3; it looks");
    static char large[3 << 20] = "a";
    for (size_t i = 1; i + 2 < sizeof large; i += 2)
        memcpy(large + i, "\xc3\xa9", 2);
    assert_ok(lks__prep_guess(file(lks_test_folder(), "a.txt", large), &kind));
    assert_string_equal(kind, "char");
    char *late = large + LKS__TEXT_HEAD - 1; /* a zero that a folder's files may contain, too */
    const char *path = lks_test_text("%s/a.txt", lks_test_folder());
    memcpy(late, "a", 2);
    lks_test_write(path, large, sizeof large - 1);
    assert_ok(lks__prep_guess(path, &kind));
    assert_string_equal(kind, "char");
    memcpy(late, "\xc3\xa9", 2);
    large[(2 << 20) + 1] = '\xff'; /* instead of the first byte of a character */
    assert_ok(lks__prep_guess(file(lks_test_folder(), "a.txt", large), &kind));
    assert_string_equal(kind, "raw");
    assert_contains(lks_last_error(), "byte 0xff at offset 2097153; text before it is UTF-8");
    assert_int_equal(lks_test_count_files("/proc/self/fd"), n_open);
}

static char notes[4096];

/* Keep all notes, each with a line feed. */
static void keep_note(const char *text)
{
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", text);
}

static void link_to(const char *target, const char *dir, const char *name)
{
    assert_int_equal(symlink(target, lks_test_text("%s/%s", dir, name)), 0);
}

/* A folder with folders in it: all texts, by their paths; what isn't read is named. */
TEST(test_tree)
{
    const char *dir = lks_test_folder_in_memory(), /* has a short name, which notes show whole */
        *out = lks_test_text("%s/b/tokens", dir);
    const lks__prep_options o = {.input = dir, .out_dir = out, .note = keep_note};
    static const char *const folders[] = {"b", "b/deep", "b/deep/est", "a", "none"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        assert_int_equal(mkdir(lks_test_text("%s/%s", dir, folders[i]), 0777), 0);
    file(dir, "b/deep/est/z", "four");
    file(dir, "b/deep.txt", "three"); /* '.' comes before '/' */
    file(dir, "c.txt", "five");
    file(dir, "a.txt", "one");
    file(dir, "a/y.ndjson", "{\"text\":\"two\"}");
    notes[0] = '\0';
    assert_ok(prep(o));
    assert_string_equal(raw_text(out, "train"), "one\ntwo\nthree\nfour\nfive\n");
    assert_string_equal(notes, "");
    assert_ok(prep(o)); /* its own tokens are no text */
    assert_string_equal(raw_text(out, "train"), "one\ntwo\nthree\nfour\nfive\n");
    assert_string_equal(notes,
                        lks_test_text("left out 1 entry of folders: %s (folder of tokens)\n", out));

    /* Links to folders lead in circles; a link to a file is that file. */
    link_to("..", dir, "b/up");
    link_to("nowhere", dir, "a/lost");
    link_to("a.txt", dir, "zero");
    assert_int_equal(mkdir(lks_test_text("%s/.git", dir), 0777), 0);
    file(dir, ".git/config", "no");
    file(dir, ".hidden", "no");
    assert_int_equal(mkdir(lks_test_text("%s/run", dir), 0777), 0);
    file(dir, "run/metrics.jsonl", "{\"kind\":\"config\"}");
    assert_int_equal(mkdir(lks_test_text("%s/starting", dir), 0777), 0);
    file(dir, "starting/data.tmp", "no");
    lks_test_write(lks_test_text("%s/a/picture", dir), "P\0P", 3);
    file(dir, "a/pack.gz", "\x1f\x8b\x08");
    assert_int_equal(mkfifo(lks_test_text("%s/pipe", dir), 0600), 0);
    notes[0] = '\0';
    const int n_open = lks_test_count_files("/proc/self/fd");
    assert_ok(prep(o));
    assert_int_equal(lks_test_count_files("/proc/self/fd"), n_open);
    assert_string_equal(raw_text(out, "train"), "one\ntwo\nthree\nfour\nfive\none\n");
    assert_string_equal(notes,
                        lks_test_text("left out 10 entries of folders: %s/.git (hidden), "
                                      "%s/.hidden (hidden), %s/a/lost (broken link), "
                                      "%s/a/pack.gz (gzip), %s/a/picture (binary) and 5 more\n"
                                      "read more than once: %s/a.txt (also as %s/zero)\n",
                                      dir, dir, dir, dir, dir, dir, dir));
    /* A file that is named itself is read, or refused, as before. */
    assert_fails(
        LKS_ERR_FORMAT,
        prep((lks__prep_options){.input = lks_test_text("%s/a/pack.gz", dir), .out_dir = out}),
        "is a gzip file");
}

/* How much of all files has been read, at the end and on the way; white space around documents is
 * none of theirs. */
TEST(test_done)
{
    static const char *const want[] = {"one", "two", "beta"};
    const char *dir = lks_test_folder(), *text;
    lks__texts texts;
    lks__docs *docs;
    size_t bytes;
    const int n_open = lks_test_count_files("/proc/self/fd");
    file(dir, "a.txt", "one\n\n two  \n\n\n");
    file(dir, "b.txt", "beta");
    assert_ok(lks__texts_open(dir, false, &texts));
    assert_int_equal(texts.bytes, 14 + 4);
    assert_ok(lks__docs_open(&texts, 0, texts.n, "text", &docs));
    for (size_t i = 0; i < 3; i++) {
        assert_ok(lks__docs_next(docs, &text, &bytes));
        assert_int_equal(bytes, strlen(want[i]));
        assert_memory_equal(text, want[i], bytes);
        assert_int_equal(lks__docs_done(docs), i == 0 ? 5 : i == 1 ? 13 : 18);
    }
    assert_ok(lks__docs_next(docs, &text, &bytes));
    assert_null(text);
    assert_int_equal(lks__docs_done(docs), texts.bytes);
    lks__docs_close(docs);
    assert_int_equal(lks_test_count_files("/proc/self/fd"), n_open);
    lks__texts_close(&texts);
}

/* Shards of either form hold the same tokens, and each form replaces the other. */
TEST(test_shards)
{
    const char *input = file(lks_test_folder(), "t", "one two three four five six"),
               *out = lks_test_folder();
    lks__shards *shards;
    size_t bytes;
    assert_ok(prep((lks__prep_options){.input = input, .out_dir = out, .val_fraction = 0.1}));
    const char *train = raw_text(out, "train"), *val = raw_text(out, "val");
    const lks__prep_result raw = result;
    assert_ok(prep((lks__prep_options){
        .input = input, .out_dir = out, .val_fraction = 0.1, .shard_tokens = 10}));
    assert_int_equal(result.n_train, raw.n_train);
    assert_int_equal(lks_test_count_files(out), 3 + 1 + 1); /* 24 and 3 tokens, and meta.json */
    lks_test_read(lks_test_text("%s/fineweb_train_000001.bin", out), &bytes);
    assert_int_equal(bytes, 1024 + 2 * 10);
    lks_test_read(lks_test_text("%s/fineweb_train_000002.bin", out), &bytes);
    assert_int_equal(bytes, 1024 + 2 * 4);
    assert_ok(lks__shards_open(lks_test_text("%s/%s", out, LKS__SHARDS_TRAIN), 100, &shards));
    assert_string_equal(text_of(out, shards), train);
    lks__shards_close(shards);
    assert_ok(lks__shards_open(lks_test_text("%s/%s", out, LKS__SHARDS_VAL), 100, &shards));
    assert_string_equal(text_of(out, shards), val);
    lks__shards_close(shards);
    assert_ok(prep((lks__prep_options){.input = input, .out_dir = out}));
    assert_int_equal(lks_test_count_files(out), 2);
    assert_fails(LKS_ERR_CONFIG,
                 prep((lks__prep_options){
                     .input = input, .out_dir = out, .shard_tokens = UINT64_C(1) << 31}),
                 "2147483648");
}

/* A shard longer than the writer's buffer has its count, too. */
TEST(test_long_shard)
{
    enum { N = 300000 };
    char *text = malloc(N);
    memset(text, 'x', N);
    const char *path = lks_test_text("%s/t", lks_test_folder()), *out = lks_test_folder();
    lks_test_write(path, text, N);
    free(text);
    lks__shards *shards;
    assert_ok(prep((lks__prep_options){.input = path, .out_dir = out, .shard_tokens = 2 * N}));
    assert_ok(lks__shards_open(lks_test_text("%s/%s", out, LKS__SHARDS_TRAIN), 1, &shards));
    assert_int_equal(lks__shards_count(shards), N);
    lks__shards_close(shards);
}

/* --- texts in other encodings ---------------------------------------------------------------- */

TEST(test_encodings)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *says[2];
    } cases[] = {
        {"caf\xe9 noir", 9, {"byte 0xe9 at offset 3", "iconv -f LATIN1 -t UTF-8 '/"}},
        {"caf\xe9", 4, {"byte 0xe9 at offset 3", "iconv -f LATIN1 -t UTF-8"}},
        {"\x93so\x94 caf\xe9", 9, {"byte 0x93 at offset 0", "iconv -f WINDOWS-1252 -t UTF-8"}},
        {"\xff\xfe"
         "a\0b\0",
         6,
         {"byte 0xff at offset 0", "iconv -f UTF-16 -t UTF-8"}},
        {"\xfe\xff\0a\0b", 6, {"byte 0xfe at offset 0", "iconv -f UTF-16 -t UTF-8"}},
        {"\xff\xfe\0\0a\0\0\0", 8, {"byte 0xff at offset 0", "iconv -f UTF-32 -t UTF-8"}},
        {"\0\0\xfe\xff\0\0\0a", 8, {"byte 0xfe at offset 2", "iconv -f UTF-32 -t UTF-8"}},
        {"f\0\xfc\0r\0", 6, {"byte 0xfc at offset 2", "iconv -f UTF-16LE -t UTF-8"}},
        {"\xc3\xa9t\xc3\xa9 \xff x", 8, {"byte 0xff at offset 6", "iconv -c -f UTF-8"}},
        {"\xc3\xa9t\xc3", 4, {"byte 0xc3 at offset 3", "cut off within a character"}},
        {"\x82\xb1\x82\xf1\x82\xc9\x82\xbf", 8, {"byte 0x82 at offset 0", "iconv -f ENCODING"}},
        {"\x1f\x8b\x08\0", 4, {"is a gzip file", "gzip -dc '/"}},
        {"\x28\xb5\x2f\xfd", 4, {"is a zstd file", "zstd -dc "}},
        {"PK\3\4", 4, {"is a zip file", "unzip -p "}},
        {"\xfd"
         "7zXZ\0",
         6,
         {"is an xz file", "xz -dc "}},
        {"%PDF-1.7", 8, {"is a PDF file", "plain text"}},
        {"{\\rtf1\\ansi", 10, {"is a rich-text file", "plain text"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = lks_test_text("%s/my text", lks_test_folder());
        const char *out = lks_test_text("%s/out", lks_test_folder());
        lks_test_write(path, cases[i].text, cases[i].bytes);
        assert_fails(LKS_ERR_FORMAT, prep((lks__prep_options){.input = path, .out_dir = out}), path,
                     cases[i].says[0], cases[i].says[1]);
        assert_false(lks_test_exists(out));
    }
    assert_fails(LKS_ERR_FORMAT, lks__check_container("my/t.docx", "PK\3\4", 4),
                 "my/t.docx is a document", "save it as plain text");
    assert_fails(LKS_ERR_FORMAT, lks__check_container("my/ckpt.pt", "PK\3\4", 4),
                 "--init_from=my/ckpt.pt");
}

/* A character that two reads of a file cut. */
TEST(test_cut_character)
{
    enum { BLOCK = 1 << 20 };
    char *text = malloc(BLOCK + 16);
    for (int before = 1; before <= 4; before++) {
        const char *path = lks_test_text("%s/t", lks_test_folder()), *out = lks_test_folder();
        memset(text, 'x', BLOCK + 16);
        memcpy(text + BLOCK - before, "\xf0\x9f\x98\x80", 4);
        lks_test_write(path, text, BLOCK + 16);
        assert_ok(prep((lks__prep_options){.input = path, .out_dir = out}));
        assert_int_equal(result.vocab_size, 2);
        assert_int_equal(result.n_train, BLOCK + 16 - 3);
        const char *lines = lks_test_text("%s/t.jsonl", lks_test_folder()); /* the same in memory */
        FILE *f = fopen(lines, "w");
        fprintf(f, "{\"text\":\"%.*s\"}\n", BLOCK + 16, text);
        assert_int_equal(fclose(f), 0);
        assert_ok(prep((lks__prep_options){.input = lines, .out_dir = out}));
        assert_int_equal(result.vocab_size, 3);
        assert_int_equal(result.n_train, BLOCK + 16 - 3 + 1);
        text[BLOCK - before + 3] = 'x';
        lks_test_write(path, text, BLOCK + 16);
        assert_fails(LKS_ERR_FORMAT, prep((lks__prep_options){.input = path, .out_dir = out}),
                     lks_test_text("byte 0xf0 at offset %d", BLOCK - before));
    }
    free(text);
}

TEST(test_remarks)
{
    char out[LKS__REMARK];
    static const struct {
        const char *text, *says;
        int keeps; /* without it there is nothing to say */
    } cases[] = {
        {"", "", LKS__KEEPS_ALL},
        {"plain\ntext \xc3\xa9\r", "", LKS__KEEPS_ALL},
        {"cut \xc3", "", LKS__KEEPS_ALL},
        {"\xe9 or", "(byte 0xe9 at offset 0)",
         LKS__KEEPS_BYTES}, /* too long for a character that was cut */
        {"\xe9 o", "", LKS__KEEPS_ALL},
        {"\xef\xbb\xbftext", "byte order mark", LKS__KEEPS_MARK},
        {"a\r\nb", "tr -d '\\r' < t", LKS__KEEPS_CRLF},
        {"caf\xe9 noir", "iconv -f LATIN1 -t UTF-8 t", LKS__KEEPS_BYTES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t n = strlen(cases[i].text);
        assert_string_equal(
            lks__text_remark("t", cases[i].text, n, LKS__KEEPS_ALL & ~cases[i].keeps, out), "");
        lks__text_remark("t", cases[i].text, n, cases[i].keeps, out);
        if (cases[i].says[0] == '\0')
            assert_string_equal(out, "");
        else
            assert_contains(out, cases[i].says);
    }
    lks__text_remark("t", "a\0b", 4, LKS__KEEPS_NUL, out);
    assert_contains(out, "are kept; it looks like UTF-16LE: `iconv ");
}

/* One remark of each kind, with the number of other files; JSON lines have none. Without validation
 * there is no such file. */
TEST(test_notes)
{
    const char *dir = lks_test_folder_in_memory();
    lks__prep_options o = {.input = dir, .out_dir = lks_test_folder_in_memory(), .note = keep_note};
    for (int i = 0; i < 3; i++) {
        file(dir, lks_test_text("a%d.txt", i), "caf\xe9 noir");
        file(dir, lks_test_text("b%d.txt", i), "one\r\ntwo\r\n");
    }
    file(dir, "c0.txt", "\xef\xbb\xbfone\r\ntwo");
    file(dir, "c1.txt", "\xef\xbb\xbftext");
    notes[0] = '\0';
    assert_ok(lks__prep(lks__prep_kind_of("bytes"), &o, &result));
    assert_contains(notes, "/a0.txt is not valid UTF-8",
                    "/a0.txt > utf8.txt` (and 2 more files like it)\n",
                    "/b0.txt > new.txt` makes it LF (and 3 more files like it)\n",
                    "/c0.txt > new.txt` drops it (and 1 more file like it)\n");
    const char *nul = lks_test_text("%s/nul.txt", lks_test_folder_in_memory());
    lks_test_write(nul, "ab\0", 3);
    notes[0] = '\0';
    assert_ok(prep((lks__prep_options){.input = nul, .out_dir = o.out_dir, .note = keep_note}));
    assert_string_equal(notes, lks_test_text("%s contains NUL characters, which are kept: "
                                             "`tr -d '\\0' < %s > new.txt` drops them\n",
                                             nul, nul));
    /* Twice in the list, and not for each time. */
    const char *x = file(lks_test_folder_in_memory(), "x", "x"),
               *y = file(lks_test_folder_in_memory(), "y", "y");
    notes[0] = '\0';
    assert_ok(prep((lks__prep_options){.input = lks_test_text("%s\n%s\n%s\n%s\n%s", x, y, x, y, x),
                                       .out_dir = o.out_dir,
                                       .val_fraction = 0.5,
                                       .note = keep_note}));
    assert_contains(notes, "read more than once: /", " and 1 more; a text may");
    assert_fails(LKS_ERR_CONFIG,
                 prep((lks__prep_options){.input = lks_test_text("%s\n%s", x, y),
                                          .out_dir = o.out_dir,
                                          .field = "t",
                                          .field_given = true}),
                 lks_test_text("JSON lines, but there are none in %s and 1 more: ", x));
    o = (lks__prep_options){.input = file(lks_test_folder_in_memory(), "t.jsonl",
                                          "{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n"),
                            .out_dir = lks_test_folder_in_memory(),
                            .note = keep_note};
    notes[0] = '\0';
    assert_ok(lks__prep(lks__prep_kind_of("bytes"), &o, &result));
    assert_string_equal(notes, "");
    assert_int_equal(result.n_train, 4);
    assert_int_equal(lks_test_count_files(o.out_dir), 2); /* and meta.json */
}

/* --- the tool -------------------------------------------------------------------------------- */

/* `prep` with standard input from a shell's pipe, or from a file. */
static lks_test_result shell(const char *before, const char *after, const char *out,
                             const char *words)
{
    const char *command = lks_test_text("%s '%s' prep char --input=- --out=%s %s %s", before,
                                        LKS_TEST_TOOL, out, words, after);
    return lks_test_shell(command);
}

TEST(test_stdin)
{
    const char *dir = lks_test_folder(), *out = lks_test_folder(), *text = file(dir, "t", "a text"),
               *lines = file(dir, "l", "{\"text\":\"one\"}\n{\"text\":\"two\"}\n");
    lks_test_result r = assert_exits(0, shell("printf 'a text' |", "", out, "--val_fraction=0"));
    assert_contains(r.out, "train has 6 tokens\n");
    assert_string_equal(raw_text(out, "train"), "a text");
    assert_exits(0, shell("", lks_test_text("< %s", text), out, "--val_fraction=0"));
    assert_string_equal(raw_text(out, "train"), "a text");
    assert_exits(0, shell(lks_test_text("(head -c 2 > /dev/null; "), lks_test_text(") < %s", text),
                          out, "--val_fraction=0"));
    assert_string_equal(raw_text(out, "train"), "text"); /* from where the file is read */
    assert_exits(0,
                 shell(lks_test_text("cat %s |", lines), "", out, "--field=text --val_fraction=0"));
    assert_string_equal(raw_text(out, "train"), "one\ntwo\n");
    assert_exits(2,
                 lks_test_tool("prep", "char", lks_test_text("--input=%s", lines),
                               lks_test_text("--out=%s", out), "--field=text"),
                 "--field is for JSON lines, but ", "NAME.jsonl");
    assert_exits(0,
                 shell("printf a |", "", out, lks_test_text("--input=%s --val_fraction=0", text)));
    assert_string_equal(raw_text(out, "train"), "a\na text\n");
    assert_exits(0, lks_test_shell(lks_test_text(
                        "printf a | '%s' prep char --input=%s --input=- --out=%s --val_fraction=0",
                        LKS_TEST_TOOL, text, out)));
    assert_string_equal(raw_text(out, "train"), "a text\na\n");
    assert_exits(1, shell("printf 'caf\\351 noir' |", "", out, ""),
                 "standard input is not valid UTF-8", "`iconv -f LATIN1 -t UTF-8 > utf8.txt`");
    assert_exits(1, shell("printf '\\037\\213' |", "", out, ""),
                 "with `gzip -dc > unpacked.txt`, or pipe it to `lockstep prep` with --input=- ");
    assert_exits(0, shell("printf '\\357\\273\\277some text' |", "", out, ""),
                 "note: standard input begins with a byte order mark, which is kept: "
                 "`tail -c +4 > new.txt`");
    assert_exits(1, shell("printf text | TMPDIR=/nowhere", "", out, ""), "/nowhere", "set TMPDIR");
    assert_exits(2, shell("printf text |", "", out, "--input=-"), "was given twice");
}

TEST(test_bad_inputs)
{
    const char *dir = lks_test_folder(), *out = lks_test_folder(),
               *pipe = lks_test_text("%s/pipe", dir);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    lks__prep_options o = {.input = pipe, .out_dir = out};
    assert_fails(LKS_ERR_IO, prep(o), "a pipe",
                 "`lockstep prep` as standard input, with --input=-");
    o.input = "/dev/zero";
    assert_fails(LKS_ERR_IO, prep(o), "/dev/zero is not a regular file");
    o.input = lks_test_text("%s/none", dir);
    assert_fails(LKS_ERR_IO, prep(o), "none", "No such file");
    o.input = dir; /* no file but the pipe */
    assert_fails(LKS_ERR_FORMAT, prep(o), "is empty");
    o.input = file(dir, "x.jsonl", "{\"text\":\"a\"}\n7\n");
    assert_fails(LKS_ERR_FORMAT, prep(o), "line 2 (byte offset 13)");
    assert_int_equal(lks_test_count_files(out), 0);

    lks__texts texts;
    int fd;
    const char *odd = file(dir, "\33[1m", "a text");
    assert_ok(lks__texts_open(odd, false, &texts));
    assert_int_equal(rename(pipe, odd), 0);
    assert_fails(LKS_ERR_IO, lks__texts_file(&texts, 0, &fd), "\\x1b[1m is no longer a regular");
    lks__texts_close(&texts);
}
