/* `prep gpt2`: what lies in train.bin and val.bin, beside the ids of the text at once. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/prep/prep.h"
#include "data/read/numpy_order.h"
#include "data/read/sampler.h"
#include "data/read/shards.h"
#include "data/text/bpe/bpe.h"
#include "data/text/meta.h"

static const char *vocabulary; /* a folder with tokenizer.json */
static lks__bpe *bpe;

static int open_vocabulary(void **state)
{
    char *text;
    vocabulary = strdup(lks_test_folder());
    text = json_dumps(json_object_get(lks_test_figure("bpe_small.json"), "tokenizer"), 0);
    lks_test_write(lks_test_text("%s/tokenizer.json", vocabulary), text, strlen(text));
    free(text);
    return lks__bpe_open(vocabulary, &bpe) != LKS_OK;
}

static int close_vocabulary(void **state)
{
    lks__bpe_close(bpe);
    return 0;
}

/* Ids as they must stand in a file, appended to `want`. */
struct want {
    uint16_t *ids;
    size_t n;
};

static void add(struct want *w, const char *text, size_t bytes, bool ends)
{
    size_t n;
    lks__bpe_work *work = lks__bpe_work_open();
    int32_t *ids = malloc((bytes + 1) * sizeof *ids);
    assert_ok(lks__bpe_encode(bpe, work, text, bytes, ids, &n));
    if (ends)
        ids[n++] = lks__bpe_end_of_text(bpe);
    w->ids = realloc(w->ids, (w->n + n + 1) * sizeof *w->ids);
    for (size_t i = 0; i < n; i++)
        w->ids[w->n++] = (uint16_t)ids[i];
    free(ids);
    lks__bpe_work_close(work);
}

static void assert_ids(const char *out, const char *name, struct want w)
{
    size_t bytes;
    const char *got = lks_test_read(lks_test_text("%s/%s", out, name), &bytes);
    assert_int_equal(bytes, 2 * w.n);
    if (w.n > 0)
        assert_memory_equal(got, w.ids, bytes);
    free(w.ids);
}

static lks__prep_options options_of(const char *input, const char *out, double val_fraction)
{
    return (lks__prep_options){.input = input,
                               .out_dir = out,
                               .tokenizer = vocabulary,
                               .field = "body",
                               .val_fraction = val_fraction,
                               .n_threads = 2};
}

static const char *file(const char *dir, const char *name, const char *text)
{
    const char *path = lks_test_text("%s/%s", dir, name);
    lks_test_write(path, text, strlen(text));
    return path;
}

/* Split by characters, not by bytes; carriage returns and bytes that are no UTF-8 stay. */
TEST(test_plain)
{
    static const char text[] = "\xc3\xa9\xc3\xa9 two\r\nthree \xff four<|endoftext|>";
    const char *out = lks_test_text("%s/new", lks_test_folder());
    const char *input = file(lks_test_folder(), "a.txt", text);
    lks__prep_options o = options_of(input, out, 0.5);
    lks__prep_result r;
    struct want train = {0}, val = {0}, all = {0};
    const size_t cut = 18; /* 16 of 33 characters; two of them have two bytes */
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    add(&train, text, cut, false);
    add(&val, text + cut, sizeof text - 1 - cut, false);
    assert_int_equal(r.n_train, train.n);
    assert_int_equal(r.n_val, val.n);
    assert_int_equal(r.vocab_size, 640);
    assert_ids(out, "train.bin", train);
    assert_ids(out, "val.bin", val);
    assert_int_equal(lks_test_count_files(out), 4);

    o.val_fraction = 0.0;
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    add(&all, text, sizeof text - 1, false);
    assert_ids(out, "train.bin", all);
    assert_int_equal(r.n_val, 0);
    assert_int_equal(lks_test_count_files(out), 3); /* the old val.bin is gone */

    bool found;
    lks__meta meta;
    uint64_t hash;
    assert_ok(lks__meta_load(out, &found, &meta));
    assert_ok(lks__bpe_hash(bpe, &hash));
    assert_true(found && meta.is_bpe && meta.vocab_size == 640 && meta.model_hash == hash);
}

/* Longer than a chunk, with and without white space, on one thread and on three. */
TEST(test_chunks)
{
    enum { BYTES = 5 << 20 };
    char *text = malloc(BYTES + 1);
    uint32_t random = 1;
    for (size_t i = 0; i < BYTES; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = "etaoin shrdlu\n \xc3\xa9"[random >> 28];
    }
    memset(text + (2 << 20), 'x', 1 << 19);
    text[BYTES] = '\0';
    const char *input = file(lks_test_folder(), "a.txt", text), *out = lks_test_folder();
    struct want want = {0};
    lks__prep_result r;
    add(&want, text, BYTES, false);
    for (int threads = 1; threads <= 3; threads += 2) {
        lks__prep_options o = options_of(input, out, 0.0);
        struct want copy = {malloc(want.n * sizeof *want.ids), want.n};
        memcpy(copy.ids, want.ids, want.n * sizeof *want.ids);
        o.n_threads = threads;
        assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
        assert_ids(out, "train.bin", copy);
    }
    lks_test_free(want.ids, text);
}

/* A split that lies behind the first read of the text. */
TEST(test_late_split)
{
    enum { BYTES = 5 << 18, CUT = 9 << 17 };
    char *text = malloc(BYTES + 1);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "one two "[i % 8];
    text[BYTES] = '\0';
    const char *out = lks_test_folder(), *input = file(out, "a.txt", text);
    struct want train = {0}, val = {0};
    const lks__prep_options o = options_of(input, out, 0.1);
    lks__prep_result r;
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    add(&train, text, CUT, false);
    add(&val, text + CUT, BYTES - CUT, false);
    free(text);
    assert_ids(out, "train.bin", train);
    assert_ids(out, "val.bin", val);
}

/* JSON lines: the first documents are for validation, and end-of-text follows each. */
TEST(test_lines)
{
    const char *input = file(lks_test_folder(), "a.jsonl",
                             "{\"body\":\"one\"}\n{\"id\":1,\"body\":\"t\\u00e9 two\"}\n"
                             "{\"body\":\"\"}\n{\"body\":\"four\"}\n");
    const char *out = lks_test_folder();
    lks__prep_options o = options_of(input, out, 0.001);
    lks__prep_result r;
    struct want train = {0}, val = {0};
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    add(&val, "one", 3, true);
    add(&train, "t\xc3\xa9 two", 7, true);
    add(&train, "", 0, true);
    add(&train, "four", 4, true);
    assert_ids(out, "train.bin", train);
    assert_ids(out, "val.bin", val);
    o.input = file(lks_test_folder(), "empty.jsonl", "{\"body\":\"\"}\n{\"body\":\"\"}\n");
    o.val_fraction = 0.0;
    struct want ends = {0};
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    add(&ends, "", 0, true);
    add(&ends, "", 0, true);
    assert_ids(out, "train.bin", ends);
    o.input = input;
    o.field = "text";
    assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "line 1",
                 "a string \"text\"");
}

/* A folder: its files by name, hidden ones and folders left out. */
TEST(test_folder)
{
    const char *dir = lks_test_folder(), *out = lks_test_folder();
    lks__prep_result r;
    struct want train = {0}, val = {0};
    file(dir, "b.txt", "beta");
    file(dir, "a.txt", "alpha  ");
    file(dir, "c.jsonl", "{\"body\":\"gamma\"}\n{\"body\":\"delta\"}");
    file(dir, ".hidden", "no");
    assert_int_equal(mkdir(lks_test_text("%s/d", dir), 0777), 0);
    const lks__prep_options o = options_of(dir, out, 0.5);
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    assert_int_equal(r.n_docs, 4);
    add(&val, "alpha  ", 7, true);
    add(&val, "beta", 4, true);
    add(&train, "gamma", 5, true);
    add(&train, "delta", 5, true);
    assert_ids(out, "train.bin", train);
    assert_ids(out, "val.bin", val);
}

TEST(test_edges)
{
    static const char *const empty_names[] = {"empty.txt", "empty.jsonl", "blank.jsonl"};
    static const char *const kinds[] = {"gpt2", "openwebtext"};
    const char *dir = lks_test_folder(), *out = lks_test_folder();
    const char *empty = file(dir, "empty.txt", ""),
               *one = file(dir, "one.jsonl", "{\"body\":\"x\"}");
    lks__prep_result r;
    lks__prep_options o = options_of(file(dir, "ab.txt", "ab"), out, 0.5);
    struct want train = {0};
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    file(dir, "empty.jsonl", "");
    file(dir, "blank.jsonl", "\n");
    for (int i = 0; i < 6; i++) {
        o.input = lks_test_text("%s/%s", dir, empty_names[i % 3]);
        assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of(kinds[i / 3]), &o, &r),
                     empty_names[i % 3], " is empty");
    }
    o.input = file(dir, "a.txt", "a");
    assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "a.txt",
                 "1 character: with val_fraction 0.5 that leaves the train split empty");
    o.input = one;
    assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "is one document",
                 "--val_fraction=0");
    o.input = file(dir, "list.jsonl", "[1]");
    assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "list.jsonl, line 1",
                 "--field=NAME");
    add(&train, "a", 1, false);
    assert_ids(out, "train.bin", train); /* as it was */
    assert_int_equal(lks_test_count_files(out), 4);
    o.input = file(dir, "one.txt", "a text");
    o.val_docs = 1;
    assert_fails(LKS_ERR_CONFIG, lks__prep(lks__prep_kind_of("gpt2"), &o, &r),
                 "one.txt is one document", "--val_fraction");
    o.val_docs = 0;
    o.input = lks_test_text("%s/missing", dir);
    assert_fails(LKS_ERR_IO, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "missing");
    o.input = "/dev/zero";
    assert_fails(LKS_ERR_IO, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "/dev/zero");
    o.input = empty;
    o.tokenizer = dir;
    assert_fails(LKS_ERR_IO, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "not a byte-level BPE");
}

/* The tokenizer of an earlier preparation goes with its tokens; any other file stays. */
TEST(test_earlier_tokenizer)
{
    const char *out = lks_test_folder(), *name = lks_test_text("%s/tokenizer.json", out);
    lks__prep_options o = options_of(file(lks_test_folder(), "a.txt", "some text"), out, 0.5);
    lks__prep_options chars = o;
    lks__prep_result r;
    chars.tokenizer = NULL;
    file(out, "tokenizer.json", "mine");
    assert_ok(lks__prep(lks__prep_kind_of("char"), &chars, &r));
    assert_true(lks_test_exists(name));
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    assert_true(lks_test_exists(name));
    assert_ok(lks__prep(lks__prep_kind_of("char"), &chars, &r));
    assert_false(lks_test_exists(name));
    assert_int_equal(lks_test_count_files(out), 3);
}

/* Many documents in a chunk, and chunks that end between them. */
TEST(test_many_documents)
{
    enum { N = 30000 };
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/a.jsonl", dir);
    FILE *f = fopen(path, "w");
    struct want want = {0};
    lks__bpe_work *work = lks__bpe_work_open();
    want.ids = malloc(N * 64 * sizeof *want.ids);
    for (int i = 0; i < N; i++) {
        char text[200];
        int32_t ids[200];
        size_t n;
        const int bytes = snprintf(text, sizeof text, "%.*s %d ", i % 100, /* up to 100 bytes */
                                   "one two three four five six seven eight nine ten eleven twelve "
                                   "thirteen fourteen fifteen sixteen",
                                   i);
        fprintf(f, "{\"body\":\"%s\"}\n", i % 7 == 0 ? "" : text);
        assert_ok(lks__bpe_encode(bpe, work, text, i % 7 == 0 ? 0 : (size_t)bytes, ids, &n));
        ids[n++] = lks__bpe_end_of_text(bpe);
        if ((want.n + n) / 64 >= N)
            want.ids = realloc(want.ids, (want.n + n) * 2 * sizeof *want.ids);
        for (size_t k = 0; k < n; k++)
            want.ids[want.n++] = (uint16_t)ids[k];
    }
    assert_int_equal(fclose(f), 0);
    lks__bpe_work_close(work);
    const lks__prep_options o = options_of(path, dir, 0.0);
    lks__prep_result r;
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    assert_ids(dir, "train.bin", want);
}

static uint64_t shown[8], shown_of;
static int n_shown;

static void show(uint64_t done, uint64_t all)
{
    if (n_shown < 8)
        shown[n_shown++] = done;
    shown_of = n_shown == 1 ? all : shown_of;
}

/* Behind a document that is longer than a chunk, chunks end as before it: two are full, are
 * encoded, and are shown as progress, with all their bytes; the rest doesn't wait for the end. */
TEST(test_long_document)
{
    enum { LONG = (1 << 20) + 3, SHORT = 1 << 19, N = 5 };
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/a.jsonl", dir);
    struct want want = {0};
    lks__prep_result r;
    char *text = malloc(LONG);
    for (size_t i = 0; i < LONG; i++)
        text[i] = "one "[i % 4];
    FILE *f = fopen(path, "w");
    for (int i = 0; i < N; i++) {
        const int bytes = i == 0 ? LONG : SHORT;
        fprintf(f, "{\"body\":\"%.*s\"}\n", bytes, text);
        add(&want, text, (size_t)bytes, true);
    }
    const long all = ftell(f);
    assert_int_equal(fclose(f), 0);
    free(text);
    lks__prep_options o = options_of(path, dir, 0.0);
    o.n_threads = 1;
    o.progress = show;
    n_shown = 0;
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    assert_ids(dir, "train.bin", want);
    assert_int_equal(shown_of, all);
    assert_int_equal(n_shown, 3);
    assert_int_equal(shown[0], LONG + 2 * SHORT);
    assert_int_equal(shown[1], LONG + 4 * SHORT);
    assert_int_equal(shown[2], 1); /* of 1: the end */
}

/* Documents in the order of numpy.random.default_rng(2357).permutation(n), the first
 * ceil(n * val_fraction) of them for validation, as datasets' train_test_split() has it. */
TEST(test_openwebtext)
{
    static const int order[10] = {8, 3, 0, 9, 5, 6, 2, 7, 4, 1};
    const char *dir = lks_test_folder(), *out = lks_test_folder();
    lks__prep_result r;
    struct want split[2] = {{0}, {0}};
    const char *lines = "";
    for (int i = 0; i < 4; i++) /* documents 0 to 3 */
        lines = lks_test_text("%s{\"body\":\"document %d\"}\n", lines, i);
    file(dir, "a.jsonl", lines);
    file(dir, "b.txt", "document 4");
    lines = "";
    for (int i = 5; i < 10; i++)
        lines = lks_test_text("%s{\"body\":\"document %d\"}\n", lines, i);
    file(dir, "c.jsonl", lines);
    for (int i = 0; i < 10; i++)
        add(&split[i < 2], lks_test_text("document %d", order[i]), 10, true);
    lks__prep_options o = options_of(dir, out, 0.15); /* 1.5 of 10 */
    const int n_open = lks_test_count_files("/proc/self/fd");
    assert_ok(lks__prep(lks__prep_kind_of("openwebtext"), &o, &r));
    assert_int_equal(lks_test_count_files("/proc/self/fd"), n_open);
    assert_ids(out, "train.bin", split[0]);
    assert_ids(out, "val.bin", split[1]);
    o.val_fraction = 0.95; /* one is left for training */
    assert_ok(lks__prep(lks__prep_kind_of("openwebtext"), &o, &r));
    assert_in_range(r.n_train, 1, r.n_val / 8);

    /* As NumPy 2.4 has it for a larger number. */
    static const uint32_t first[12] = {388, 151, 457, 984, 2, 430, 579, 824, 983, 969, 810, 366};
    uint32_t large[1000];
    lks__numpy_permutation(2357, large, 1000);
    assert_memory_equal(large, first, sizeof first);
    file(dir, "c.jsonl", "{\"body\":\"x\"}\n{\"body\":7}\n");
    assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of("openwebtext"), &o, &r), "c.jsonl",
                 "byte offset 13");
    o.input = file(dir, "one", "a text");
    assert_fails(LKS_ERR_FORMAT, lks__prep(lks__prep_kind_of("openwebtext"), &o, &r),
                 "one document");
}

/* More ids than 16 bits can hold take shards of 32-bit ids. */
TEST(test_large_vocabulary)
{
    enum { IDS = 65800 };
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/large.json", dir);
    json_t *json = json_deep_copy(lks_test_member(lks_test_figure("bpe_small.json"), "tokenizer"));
    json_t *far = json_pack("{s:i, s:s, s:b}", "id", IDS - 1, "content", "<far>", "special", 1);
    json_array_append_new(json_object_get(json, "added_tokens"), far);
    assert_int_equal(json_dump_file(json, path, 0), 0);
    lks__prep_options o = options_of(file(dir, "t", "near<far>"), lks_test_folder(), 0.0);
    lks__prep_result r;
    o.tokenizer = path;
    o.special = true;
    assert_fails(LKS_ERR_CONFIG, lks__prep(lks__prep_kind_of("gpt2"), &o, &r), "65800", "--shards");
    o.shard_tokens = 100;
    assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
    assert_int_equal(r.vocab_size, IDS);
    lks__shards *s;
    int32_t last;
    assert_ok(lks__split_open(o.out_dir, LKS__SPLIT_TRAIN, false, IDS, &s));
    assert_int_equal(lks__shards_count(s), r.n_train);
    assert_ok(lks__shards_read(s, r.n_train - 1, 1, &last));
    assert_int_equal(last, IDS - 1);
    lks__shards_close(s);
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    for (int i = 0; i < 3; i++) {
        json_object_set_new(far, flags[i], json_true());
        assert_int_equal(json_dump_file(json, path, 0), 0);
        assert_fails(LKS_ERR_SUPPORT, lks__prep(lks__prep_kind_of("gpt2"), &o, &r),
                     "token <far> has");
        o.special = false;
        assert_ok(lks__prep(lks__prep_kind_of("gpt2"), &o, &r));
        o.special = json_object_del(far, flags[i]) == 0;
    }
    json_decref(json);
}

/* What can't be found is named, with a way to get it. */
TEST(test_missing)
{
    const char *out = lks_test_text("--out=%s", lks_test_folder());
    assert_exits(2, lks_test_tool("prep", "shakespeare", out), "--input=TEXT is missing",
                 "`lockstep fetch shakespeare`");
    assert_exits(2, lks_test_tool("prep", "openwebtext", out, "--input=x"),
                 "--tokenizer=DIR is missing", "`lockstep fetch gpt2-vocab`");
    assert_exits(2, lks_test_tool("prep", "char", out, "--input=x", "--special"),
                 "--special doesn't apply to char tokens");
}

/* The tool: a model trained on such tokens samples text, by the vocabulary that the run keeps. */
TEST(test_tool)
{
    const char *text = "";
    for (int i = 0; i < 60; i++)
        text = lks_test_text("%sThe quick brown fox jumps over %d lazy dogs.\n", text, i);
    const char *dir = lks_test_folder(), *run = lks_test_text("%s/run", lks_test_folder());
    const char *input = file(lks_test_folder(), "a.txt", text);
    lks_test_result r = assert_exits(
        0, lks_test_tool("prep", "gpt2", lks_test_text("--input=%s", input),
                         lks_test_text("--out=%s", dir),
                         lks_test_text("--tokenizer=%s", vocabulary), "--val_fraction=0.1"));
    assert_contains(r.out, "vocab size: 640");
    assert_exits(0, lks_test_tool("train", lks_test_text("--dataset=%s", dir),
                                  lks_test_text("--out_dir=%s", run), "--n_layer=1", "--n_head=1",
                                  "--n_embd=8", "--block_size=8", "--batch_size=1",
                                  "--gradient_accumulation_steps=1", "--max_iters=2",
                                  "--eval_iters=1", "--eval_interval=2", "--threads=1"));
    assert_int_equal(unlink(lks_test_text("%s/tokenizer.json", dir)), 0);
    r = assert_exits(0, lks_test_tool("sample", lks_test_text("--out_dir=%s", run),
                                      "--start=The caf\xc3\xa9", "--num_samples=1",
                                      "--max_new_tokens=5", "--threads=1"));
    assert_memory_equal(r.out, "The caf\xc3\xa9", 9);
    assert_exits(2,
                 lks_test_tool("prep", "gpt2", lks_test_text("--input=%s", input),
                               lks_test_text("--out=%s", dir)),
                 "--tokenizer=DIR is missing");
}

int main(void)
{
    return lks_test_run_all(open_vocabulary, close_vocabulary);
}
