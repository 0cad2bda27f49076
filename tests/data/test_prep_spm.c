/* `prep sentencepiece`: documents, shards, bad input, a full disk; and exactly the bytes of the
 * exporter, if its data lie beside the repository. Faults are read once from the environment, so
 * those cases run this program again: `test_prep_spm INPUT OUT`. */
#include "support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "data/prep/input/docs.h"
#include "data/prep/prep.h"
#include "data/read/shards.h"
#include "data/text/bpb.h"
#include "data/text/meta.h"

/* ---- documents --------------------------------------------------------------------------- */

static const char *write_input(const char *name, const char *text, size_t bytes)
{
    const char *path = lks_test_text("%s/%s", lks_test_folder(), name);
    lks_test_write(path, text, bytes);
    return path;
}

static lks__texts texts;

static lks__docs *open_docs(const char *path)
{
    lks__docs *d;
    assert_ok(lks__texts_open(path, false, &texts));
    assert_ok(lks__docs_open(&texts, 0, texts.n, "text", &d));
    return d;
}

static void close_docs(lks__docs *d)
{
    lks__docs_close(d);
    lks__texts_close(&texts);
}

/* All documents of a file, each followed by '|'. */
static const char *all_docs(const char *path)
{
    lks__docs *d;
    const char *text, *all = "", *again = "";
    size_t n;
    d = open_docs(path);
    for (int pass = 0; pass < 2; pass++, lks__docs_rewind(d))
        for (;;) {
            assert_ok(lks__docs_next(d, &text, &n));
            if (!text)
                break;
            const char **to = pass == 0 ? &all : &again;
            *to = lks_test_text("%s%.*s|", *to, (int)n, text);
        }
    close_docs(d);
    assert_string_equal(all, again);
    return all;
}

TEST(test_docs)
{
    static const struct {
        const char *text, *docs;
    } cases[] = {
        {"", ""},
        {"\n \n\t\n", ""},
        {"a", "a|"},
        {"a\n", "a|"},
        {"a\nb\n\nc", "a\nb|c|"},
        {"\n\n a\n  b \n\n\n \t\nc\n\n", "a\n  b|c|"},
        {"a\r\nb\r\n\r\nc\r\n", "a\r\nb|c|"},
        {"\xc3\xa9\n\n\xe2\x80\x83", "\xc3\xa9|\xe2\x80\x83|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(all_docs(write_input("t.txt", cases[i].text, strlen(cases[i].text))),
                            cases[i].docs);
    static const char json[] = "{\"text\":\"a\\n\\n b \"}\n"
                               " {\"id\":1e30,\"text\":\"\"}\r\n"
                               "{\"text\":\"\xc3\xa9\\ud83d\\ude00\",\"big\":99999999999999999999}";
    assert_string_equal(all_docs(write_input("t.jsonl", json, sizeof json - 1)),
                        "a\n\n b ||\xc3\xa9\xf0\x9f\x98\x80|");
    /* a byte order mark, and blank lines, of which some editors leave one at the end */
    static const char marked[] = "\xef\xbb\xbf{\"text\":\"a\"}\n\n \t\r\n{\"text\":\"b\"}\n\n";
    assert_string_equal(all_docs(write_input("t.jsonl", marked, sizeof marked - 1)), "a|b|");
    assert_string_equal(all_docs(write_input("t.jsonl", "\n\n", 2)), "");
}

/* Lines and documents longer than one read. */
TEST(test_long_docs)
{
    enum { LINE = 700001, LINES = 5 };
    char *text = lks_test_malloc((size_t)(LINE + 1) * LINES);
    for (int i = 0; i < LINES; i++) {
        memset(text + (size_t)i * (LINE + 1), 'a' + i, LINE);
        text[(size_t)(i + 1) * (LINE + 1) - 1] = '\n';
    }
    text[(size_t)3 * (LINE + 1)] = '\n'; /* "\n\n" after the third line */
    lks__docs *d;
    const char *doc;
    size_t n;
    d = open_docs(write_input("t.txt", text, (size_t)(LINE + 1) * LINES));
    assert_ok(lks__docs_next(d, &doc, &n));
    assert_int_equal(n, 3 * (LINE + 1) - 1);
    assert_memory_equal(doc, text, n);
    assert_ok(lks__docs_next(d, &doc, &n));
    assert_int_equal(n, 2 * (LINE + 1) - 2);
    assert_memory_equal(doc, text + 3 * (LINE + 1) + 1, n);
    assert_ok(lks__docs_next(d, &doc, &n));
    assert_null(doc);
    close_docs(d);
    free(text);
}

TEST(test_bad_docs)
{
    static const struct {
        const char *name, *text, *says[2];
    } cases[] = {
        {"t.txt", "ab\n\nc\xff", {"byte 0xff at offset 5 (line 3)", "not valid UTF-8"}},
        {"t.txt", "\xe2\x82", {"byte 0xe2 at offset 0 (line 1)", "not valid UTF-8"}},
        {"t.jsonl", "{\"text\":\"a\"}\n\n{}", {"line 3 (byte offset 14)", "a string \"text\""}},
        {"t.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"", {"line 2 (byte offset 13)", "JSON"}},
        {"t.jsonl", "{\"text\":\"\xff\"}", {"line 1 (byte offset 0)", "JSON"}},
        {"t.jsonl",
         "{\"text\":\"\\ud800\"}",
         {"line 1 (byte offset 0) can't be read as JSON: invalid Unicode", ", at column 16"}},
        {"t.jsonl",
         "{\"text\":\"a\",\"n\":1e999}",
         {"line 1 (byte offset 0) can't be read as JSON: real number overflow", "'1e999'"}},
        {"t.jsonl", "{\"text\":\"a\"} x", {"line 1", "JSON"}},
        {"t.jsonl", "[\"text\"]", {"line 1", "a string \"text\" is expected"}},
        {"t.jsonl", "{\"text\":7}", {"line 1", "a string \"text\" is expected"}},
        {"t.jsonl", "{}\n", {"a string \"text\" is expected", "--field=NAME` reads another"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = write_input(cases[i].name, cases[i].text, strlen(cases[i].text)), *text;
        lks__docs *d;
        size_t n;
        lks_status st;
        d = open_docs(path);
        do
            st = lks__docs_next(d, &text, &n);
        while (st == LKS_OK && text);
        assert_fails(LKS_ERR_FORMAT, st, path, cases[i].says[0], cases[i].says[1]);
        close_docs(d);
    }
}

static lks_status prep(const lks__prep_options *o, lks__prep_result *r)
{
    return lks__prep(lks__prep_kind_of("sentencepiece"), o, r);
}

/* ---- shards ------------------------------------------------------------------------------ */

/* 40 documents of generated words. */
static const char *words_input(void)
{
    static char text[40 * 200];
    uint32_t x = 1;
    size_t at = 0;
    for (int doc = 0; doc < 40; doc++) {
        for (int word = 0; word < 30; word++) {
            x = x * 1664525 + 1013904223;
            at += (size_t)sprintf(text + at, "%c%c%c ", "bcdfghkl"[x >> 29], "aeiou"[(x >> 24) % 5],
                                  "nrst"[(x >> 20) % 4]);
        }
        at += (size_t)sprintf(text + at, "\n\n");
    }
    assert_true(at < sizeof text);
    return write_input("words.txt", text, at);
}

static lks__prep_options options_for(const char *input, const char *out)
{
    return (lks__prep_options){.input = input,
                               .out_dir = out,
                               .vocab_size = 320,
                               .val_fraction = 0.1,
                               .shard_tokens = 1000};
}

/* A model is trained; every document is BOS and its ids; all shards but the last are full. */
TEST(test_shards)
{
    lks_test_need_sentencepiece();
    const char *input = words_input(), *out = lks_test_text("%s/a/b", lks_test_folder());
    lks__prep_options o = options_for(input, out);
    lks__prep_result r;
    assert_ok(prep(&o, &r));

    lks__meta meta = {0};
    lks__spm *spm;
    bool found = false;
    assert_ok(lks__meta_load(out, &found, &meta));
    assert_true(found && meta.is_sentencepiece);
    assert_ok(lks__spm_open(lks_test_text("%s/%s", out, LKS__META_MODEL), &spm));
    assert_true(lks__spm_hash(spm) == meta.model_hash);
    assert_int_equal(lks__spm_size(spm), r.vocab_size);
    assert_int_equal(meta.vocab_size, r.vocab_size);
    assert_in_range(r.vocab_size, 260, 320);                   /* never more than asked for */
    assert_int_equal(lks__spm_kind(spm, 0), LKS__SPM_CONTROL); /* padding */
    assert_int_equal(lks__spm_bos(spm), 1);
    assert_int_equal(lks__spm_kind(spm, 2), LKS__SPM_CONTROL);
    assert_int_equal(lks__spm_kind(spm, 3), LKS__SPM_UNKNOWN);
    assert_int_equal(lks__spm_kind(spm, 4), LKS__SPM_BYTE);

    const char *splits[2] = {LKS__SHARDS_VAL, LKS__SHARDS_TRAIN};
    const uint64_t counts[2] = {r.n_val, r.n_train};
    lks__docs *d;
    d = open_docs(input);
    for (int i = 0; i < 2; i++) {
        lks__shards *s;
        assert_ok(lks__shards_open(lks_test_text("%s/%s", out, splits[i]), r.vocab_size, &s));
        assert_int_equal(lks__shards_count(s), counts[i]);
        assert_int_equal(lks__shards_n_files(s), (counts[i] + 999) / 1000);
        for (int f = 0; f < lks__shards_n_files(s); f++) {
            size_t bytes;
            const char *name = i == 0 ? "val" : "train";
            lks_test_read(lks_test_text("%s/fineweb_%s_%06d.bin", out, name, f), &bytes);
            uint64_t rest = counts[i] - (uint64_t)f * 1000;
            assert_int_equal(bytes, 1024 + 2 * (rest < 1000 ? rest : 1000));
        }
        uint64_t at = 0;
        for (int doc = 0; doc < (i == 0 ? 4 : 36); doc++) {
            const char *text;
            size_t bytes, n;
            int32_t *ids, got[4096];
            assert_ok(lks__docs_next(d, &text, &bytes));
            assert_ok(lks__spm_encode(spm, text, bytes, &ids, &n));
            assert_true(n < 4096 && n > 0);
            assert_ok(lks__shards_read(s, at, n + 1, got));
            assert_int_equal(got[0], 1);
            assert_memory_equal(got + 1, ids, n * sizeof *ids);
            at += n + 1;
            free(ids);
        }
        assert_int_equal(at, counts[i]);
        lks__shards_close(s);
    }
    close_docs(d);
    lks__spm_close(spm);
    assert_true(r.n_train > 2000); /* so there are several shards */

    /* Again with larger shards and the existing model: extra shards are removed, the tokens stay
     * the same. */
    const char *model = lks_test_text("%s/model", lks_test_folder());
    size_t bytes;
    const char *data = lks_test_read(lks_test_text("%s/%s", out, LKS__META_MODEL), &bytes);
    lks_test_write(model, data, bytes);
    lks__prep_result again;
    o.tokenizer = model;
    o.vocab_size = 0;
    o.shard_tokens = 1000000;
    assert_ok(prep(&o, &again));
    assert_int_equal(again.vocab_size, r.vocab_size);
    assert_int_equal(again.n_train, r.n_train);
    assert_int_equal(again.n_val, r.n_val);
    assert_int_equal(lks_test_count_files(out), 4);
    assert_same_file(lks_test_text("%s/%s", out, LKS__META_MODEL), model);
}

/* The model is trained without the documents of the validation split, which come first. */
TEST(test_model_unseen)
{
    lks_test_need_sentencepiece();
    enum { VAL_DOCS = 4 }; /* of 40 */
    size_t bytes, at = 0;
    const char *input = words_input(), *text = lks_test_read(input, &bytes);
    char *other = test_malloc(bytes);
    memcpy(other, text, bytes);
    for (int doc = 0; doc < VAL_DOCS; at++) {
        doc += other[at] == '\n' && other[at + 1] == '\n';
        if (other[at] != '\n' && other[at] != ' ')
            other[at] = 'z';
    }
    const char *inputs[] = {input, write_input("other.txt", other, bytes)}, *models[2];
    test_free(other);
    for (int i = 0; i < 2; i++) {
        const char *out = lks_test_folder();
        lks__prep_options o = options_for(inputs[i], out);
        lks__prep_result r;
        assert_ok(prep(&o, &r));
        models[i] = lks_test_text("%s/%s", out, LKS__META_MODEL);
    }
    assert_same_file(models[0], models[1]);
}

static char notes[1024];

static void keep_note(const char *sentence)
{
    const size_t n = strlen(notes);
    snprintf(notes + n, sizeof notes - n, "%s\n", sentence);
}

/* Documents in which the model changes white space are counted, unless it has no such rules. */
TEST(test_layout)
{
    lks_test_need_sentencepiece();
    static const char text[] = "{\"text\":\"a b c\"}\n{\"text\":\"a\\nb\"}\n{\"text\":\"a\\tb\"}\n"
                               "{\"text\":\"a  b\"}\n{\"text\":\"\"}\n";
    const char *one = write_input("one.jsonl", text, strcspn(text, "\n"));
    const char *all = write_input("all.jsonl", text, sizeof text - 1);
    lks__prep_options o = options_for(one, lks_test_folder());
    lks__prep_result r;
    size_t bytes;
    o.note = keep_note;
    o.val_fraction = 0;
    notes[0] = '\0';
    assert_ok(prep(&o, &r));
    assert_string_equal(notes, "");
    o.input = all;
    assert_ok(prep(&o, &r));
    assert_contains(notes, "3 of 5 documents contain line feeds, tabs or runs of blanks");
    assert_int_equal(r.n_docs, 5);
    assert_int_equal(r.n_empty, 1);

    /* Appended to the model, an empty table of characters replaces the model's. */
    const char *model = lks_test_read(lks_test_text("%s/%s", o.out_dir, LKS__META_MODEL), &bytes);
    char *same = test_malloc(bytes + 4);
    memcpy(same, model, bytes);
    memcpy(same + bytes, "\x1a\2\x12\0", 4);
    o.tokenizer = write_input("same.model", same, bytes + 4);
    o.vocab_size = 0;
    test_free(same);
    notes[0] = '\0';
    assert_ok(prep(&o, &r));
    assert_string_equal(notes, "");
}

static int pieces_left;

static bool stop_asked(void)
{
    return pieces_left-- <= 0;
}

/* Stopped at any document or write, it leaves the folder as it was, and no other file. */
TEST(test_stopped)
{
    lks_test_need_sentencepiece();
    const char *out = lks_test_folder(), *good = lks_test_folder();
    lks__prep_options o = options_for(words_input(), out);
    lks__prep_result r;
    assert_ok(prep(&o, &r));
    o.out_dir = good;
    assert_ok(prep(&o, &r));
    o.tokenizer = lks_test_text("%s/%s", good, LKS__META_MODEL);
    o.vocab_size = 0;
    o.out_dir = out;
    const int n_files = lks_test_count_files(out);
    int n = 0;
    o.shard_tokens = 1000000; /* fewer files, if it isn't stopped */
    for (bool stopped = true; stopped; n += 1 + n / 10) {
        pieces_left = n;
        lks__sys_stop_when(stop_asked);
        stopped = prep(&o, &r) != LKS_OK;
        lks__sys_stop_when(NULL);
        if (!stopped)
            break;
        assert_int_equal(lks_test_count_files(out), n_files);
        assert_same_file(lks_test_text("%s/fineweb_train_000000.bin", out),
                         lks_test_text("%s/fineweb_train_000000.bin", good));
    }
    assert_true(n > 20);
    assert_int_equal(lks_test_count_files(out), 4);
}

/* The tables are those of exactly the model that meta.json names. */
TEST(test_model_beside)
{
    lks_test_need_sentencepiece();
    const char *out = lks_test_folder(), *model = lks_test_text("%s/%s", out, LKS__META_MODEL);
    lks__prep_options o = options_for(words_input(), out);
    lks__prep_result r;
    lks__byte_table t;
    bool found = true;
    assert_ok(lks__byte_table_in(out, 320, &found, &t));
    assert_false(found);
    assert_ok(prep(&o, &r));
    assert_ok(lks__byte_table_in(out, r.vocab_size, &found, &t));
    assert_true(found);
    assert_int_equal(t.size, r.vocab_size);
    lks__byte_table_free(&t);
    assert_fails(LKS_ERR_CONFIG, lks__byte_table_in(out, r.vocab_size + 1, &found, &t), model,
                 lks_test_text("%u tokens", r.vocab_size));

    size_t bytes;
    const char *data = lks_test_read(model, &bytes);
    char *changed = lks_test_malloc(bytes);
    memcpy(changed, data, bytes);
    char *at = memmem(changed, bytes, "<0x41>", 6);
    assert_non_null(at);
    at[4] = '7'; /* <0x47>, a second time */
    lks_test_write(model, changed, bytes);
    assert_int_not_equal(lks__byte_table_in(out, r.vocab_size, &found, &t), LKS_OK);
    memcpy(changed, data, bytes);
    at = memmem(changed, bytes, "nmt_nfkc", 8);
    assert_non_null(at);
    at[0] = 'N'; /* a byte of a name that isn't used */
    lks_test_write(model, changed, bytes);
    assert_fails(LKS_ERR_FORMAT, lks__byte_table_in(out, r.vocab_size, &found, &t), model, "hash");
    free(changed);
    assert_int_equal(unlink(model), 0);
    assert_fails(LKS_ERR_IO, lks__byte_table_in(out, r.vocab_size, &found, &t), model);
}

TEST(test_bad_model)
{
    lks_test_need_sentencepiece();
    const char *input = words_input(), *out = lks_test_text("%s/out", lks_test_folder());
    lks__prep_options o = options_for(input, lks_test_folder());
    lks__prep_result r;
    assert_ok(prep(&o, &r));
    size_t bytes;
    const char *good = lks_test_read(lks_test_text("%s/%s", o.out_dir, LKS__META_MODEL), &bytes);

    o.out_dir = out;
    o.vocab_size = 0;
    const struct {
        const char *data;
        size_t bytes;
    } cases[] = {{"", 0}, {"not a model", 11}, {good, bytes / 2}, {good, bytes - 1}, {good, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        o.tokenizer = write_input("x.model", cases[i].data, cases[i].bytes);
        assert_fails(LKS_ERR_FORMAT, prep(&o, &r), o.tokenizer, "SentencePiece model");
    }
    o.tokenizer = lks_test_text("%s/none.model", lks_test_folder());
    assert_fails(LKS_ERR_IO, prep(&o, &r), o.tokenizer);
    o.tokenizer = write_input("y.model", good, bytes);
    o.vocab_size = 319;
    assert_fails(LKS_ERR_CONFIG, prep(&o, &r), "vocab_size = 319", o.tokenizer);
    assert_false(lks_test_exists(out));
}

static lks__spm *opened;

static int encode_long(const char *text)
{
    int32_t *ids;
    size_t n;
    return -lks__spm_encode(opened, text, strlen(text), &ids, &n);
}

/* Without memory a good text isn't called wrong. */
TEST(test_no_memory)
{
    enum { BYTES = 1 << 20 };
    lks_test_need_sentencepiece();
    lks__prep_options o = options_for(words_input(), lks_test_folder());
    lks__prep_result r;
    assert_ok(prep(&o, &r));
    assert_ok(lks__spm_open(lks_test_text("%s/%s", o.out_dir, LKS__META_MODEL), &opened));
    char *text = lks_test_calloc(BYTES + 1, 1);
    memset(text, 'a', BYTES);
    const int st = lks_test_in_little_memory(encode_long, text, 256 << 10);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_int_equal(st, -LKS_ERR_NOMEM);
#else
    assert_int_equal(st, 0);
#endif
    free(text);
    lks__spm_close(opened);
}

TEST(test_bad_input)
{
    lks_test_need_sentencepiece();
    const char *out = lks_test_text("%s/out", lks_test_folder());
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "is empty"},
        {"\n\n", "is empty or blank"},
        {"one\ndocument", "is one document"},
        {"a\n\n\xff", "not valid UTF-8"},
    };
    lks__prep_result r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *input = write_input("t.txt", cases[i].text, strlen(cases[i].text));
        lks__prep_options o = options_for(input, out);
        assert_fails(LKS_ERR_FORMAT, prep(&o, &r), input, cases[i].says);
    }
    lks__prep_options o = options_for(write_input("t.jsonl", "{\"body\":\"a\"}\n", 13), out);
    assert_fails(LKS_ERR_FORMAT, prep(&o, &r), "t.jsonl, line 1", "a string \"text\"");
    o.input = write_input("t.jsonl", "{\"text\":\"a\"}\n", 13);
    assert_fails(LKS_ERR_FORMAT, prep(&o, &r), "is one document", ": give more, or");
    o.input = write_input("t.txt", "a\n\nb", 4);
    o.vocab_size = 100; /* the 256 byte tokens alone are more */
    assert_fails(LKS_ERR_CONFIG, prep(&o, &r), "vocabulary of 100 tokens is too small",
                 "give --vocab_size=261 or more");
    o.vocab_size = 261;
    o.out_dir = lks_test_folder();
    assert_ok(prep(&o, &r));
    o.tokenizer = lks_test_text("%s/%s", o.out_dir, LKS__META_MODEL);
    o.out_dir = out;
    o.input = write_input("t.txt", "", 0);
    assert_fails(LKS_ERR_FORMAT, prep(&o, &r), o.input, "is empty");
    o.tokenizer = NULL;
    o.input = write_input("empty.jsonl", "{\"text\":\" \"}\n{\"text\":\"\"}\n", 25);
    assert_fails(LKS_ERR_FORMAT, prep(&o, &r), o.input, "its training documents have no text");
    o.input = write_input("t.txt", "a\n\nb", 4);
    o.vocab_size = 65537;
    assert_fails(LKS_ERR_CONFIG, prep(&o, &r), "65537", "65536");
    o = options_for(o.input, out);
    o.val_fraction = 1;
    assert_fails(LKS_ERR_CONFIG, prep(&o, &r), "val_fraction is 1");
    assert_false(lks_test_exists(out));
}

/* Every write, sync and open fails in turn: the folder stays as it was. */
TEST(test_full_disk)
{
    lks_test_need_sentencepiece();
    static const char *const calls[] = {"write", "fsync", "open"};
    const char *input = words_input();
    int failures = 0;
    for (int c = 0; c < 3; c++)
        for (int n = 1;; n++) {
            const char *out = lks_test_folder(), *old = lks_test_text("%s/meta.json", out);
            lks_test_write(old, "{}", 2);
            const char *const argv[] = {"/proc/self/exe", input, out, NULL};
            const char *const env[] = {lks_test_text("LOCKSTEP_FAULT=%s:%d:ENOSPC", calls[c], n),
                                       NULL};
            lks_test_result run = lks_test_run(argv, env, 60);
            if (run.exit_code == 0)
                break;
            assert_int_equal(run.exit_code, 1);
            assert_contains(run.out, strerror(ENOSPC));
            failures++;
            assert_int_equal(lks_test_count_files(out), 1);
            assert_string_equal(lks_test_read(old, NULL), "{}");
        }
    /* val, three of train, the model and meta.json are each opened, written and synced; the input
     * is opened twice, the old meta.json once; the folder is opened and synced thrice */
    assert_int_equal(failures, 3 * 6 + 2 + 1 + 6);
}

/* ---- the tool ---------------------------------------------------------------------------- */

TEST(test_tool)
{
    lks_test_need_sentencepiece();
    const char *input = lks_test_text("--input=%s", words_input()), *folder = lks_test_folder();
    const char *out = lks_test_text("--out=%s", folder);
    lks_test_result r = assert_exits(0, lks_test_tool("prep", "sentencepiece", input, out,
                                                      "--vocab_size=320", "--val_fraction=0.25"));
    assert_contains(r.out, "vocab size: ");
    assert_true(lks_test_exists(lks_test_text("%s/fineweb_val_000000.bin", folder)));
    static const char *const models[] = {"/sp.model", ""}; /* the file, or its folder */
    for (size_t i = 0; i < 2; i++) {
        const char *tokenizer = lks_test_text("--tokenizer=%s%s", folder, models[i]);
        assert_exits(0, lks_test_tool("prep", "sentencepiece", input, out, tokenizer));
        assert_exits(2, lks_test_tool("prep", "raw", input, out, tokenizer),
                     "--tokenizer doesn't apply to raw");
    }
    r = lks_test_tool("prep", "raw", input, out, "--tokenizer=gpt2");
    assert_contains(r.err, "--tokenizer doesn't apply to raw");
    assert_exits(2,
                 lks_test_tool("prep", "char", input, out, lks_test_text("--tokenizer=%s", folder)),
                 "has no characters: give a folder of `lockstep prep char`");
}

/* A program without the module beside it can do all but this, and names the package to install. */
TEST(test_no_module)
{
    const char *folder = lks_test_folder(), *tool = lks_test_text("%s/lockstep", folder);
    const char *input = words_input();
    lks_test_do("cp", LKS_TEST_TOOL, tool);
    const char *const env[] = {"LOCKSTEP_MODULES=", NULL};
    const char *in = lks_test_text("--input=%s", input), *out = lks_test_text("--out=%s/o", folder);
    assert_exits(
        1,
        lks_test_run((const char *const[]){tool, "prep", "sentencepiece", in, out, NULL}, env, 60),
        "libsentencepiece-dev");
    assert_false(lks_test_exists(lks_test_text("%s/o", folder)));
    assert_exits(0,
                 lks_test_run((const char *const[]){tool, "prep", "char", in, out, NULL}, env, 60));

    /* A file that is no library, or not lockstep's. */
    lks_test_write(lks_test_text("%s/lockstep_sentencepiece.so", folder), "no library", 10);
    assert_exits(
        1,
        lks_test_run((const char *const[]){tool, "prep", "sentencepiece", in, out, NULL}, env, 60),
        "lockstep_sentencepiece.so", "; correct this, or build lockstep again");
}

/* ---- compared with the exporter ----------------------------------------------------------- */

/* The documents of the figures: the text cut at empty lines, 40 parts each. */
static const char *shakespeare_jsonl(const char *text)
{
    const char *path = lks_test_text("%s/docs.jsonl", lks_test_folder()), *p = text;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    while (p) {
        const char *end = p;
        for (int part = 0; part < 40 && end; part++) {
            end = strstr(end, "\n\n");
            if (end)
                end += 2;
        }
        json_t *doc = json_pack("{s:s%}", "text", p, end ? (size_t)(end - p - 2) : strlen(p));
        assert_int_equal(json_dumpf(doc, f, JSON_COMPACT), 0);
        fputc('\n', f);
        json_decref(doc);
        p = end;
    }
    assert_int_equal(fclose(f), 0);
    return path;
}

/* Twenty documents: a number in place of a share gives the same files, and the model is trained on
 * as many as are allowed: that of a text which ends there. */
TEST(test_numbers)
{
    lks_test_need_sentencepiece();
    const char *dir = lks_test_folder(), *all = "", *some = "";
    for (int i = 0; i < 20; i++) {
        all = lks_test_text("%sthe document %d of a text with %d words, and others\n\n", all, i,
                            i * i * 7);
        if (i == 3 + 9)
            some = all;
    }
    const char *input = lks_test_text("%s/all", dir), *less = lks_test_text("%s/some", dir);
    lks_test_write(input, all, strlen(all));
    lks_test_write(less, some, strlen(some));
    lks__prep_result r;
    lks__prep_options o = {.input = input,
                           .out_dir = lks_test_text("%s/share", dir),
                           .vocab_size = 300,
                           .val_fraction = 0.15};
    assert_ok(prep(&o, &r));
    o.out_dir = lks_test_text("%s/number", dir);
    o.val_fraction = -1;
    o.val_docs = 3;
    assert_ok(prep(&o, &r));
    static const char *const files[] = {"fineweb_train_000000.bin", "fineweb_val_000000.bin",
                                        "sp.model"};
    for (int i = 0; i < 3; i++)
        assert_same_file(lks_test_text("%s/share/%s", dir, files[i]),
                         lks_test_text("%s/number/%s", dir, files[i]));
    o.train_docs = 10;
    o.out_dir = lks_test_text("%s/ten", dir);
    assert_ok(prep(&o, &r));
    const uint64_t n_val = r.n_val;
    o.train_docs = 0;
    o.input = less;
    o.out_dir = lks_test_text("%s/less", dir);
    assert_ok(prep(&o, &r));
    assert_int_equal(r.n_val, n_val);
    assert_same_file(lks_test_text("%s/ten/sp.model", dir), lks_test_text("%s/less/sp.model", dir));
    o.val_docs = 13;
    assert_fails(LKS_ERR_CONFIG, prep(&o, &r), "num_val_docs is 13, but", "has 13 documents");
}

TEST(test_exporter)
{
    lks_test_need_sentencepiece();
    const char *text = lks_test_shared("data/tinyshakespeare/input.txt");
    const char *model = lks_test_shared("reference/golf-data/sp1024.model");
    const json_t *figure = lks_test_figure("golf_data.json");
    const char *out = lks_test_folder();
    lks__prep_options o = {
        .input = shakespeare_jsonl(lks_test_read(text, NULL)),
        .out_dir = out,
        .tokenizer = model,
        .val_fraction = 0.1,
        .shard_tokens = (uint64_t)lks_test_number(figure, "config.shard_size_tokens"),
    };
    lks__prep_result r;
    assert_ok(prep(&o, &r));
    assert_int_equal(r.vocab_size, 1024);
    assert_int_equal(r.n_train, (uint64_t)lks_test_number(figure, "stats.tokens_train"));
    assert_int_equal(r.n_val, (uint64_t)lks_test_number(figure, "stats.tokens_val"));
    static const char *const names[3] = {"fineweb_train_000000.bin", "fineweb_train_000001.bin",
                                         "fineweb_val_000000.bin"};
    for (int i = 0; i < 3; i++) {
        const json_t *file = json_object_get(lks_test_member(figure, "files"), names[i]);
        assert_string_equal(lks_test_sha256(lks_test_text("%s/%s", out, names[i])),
                            lks_test_string(file, "sha256"));
    }
    assert_int_equal(lks_test_count_files(out), 5);
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        lks__prep_result r;
        lks__prep_options o = options_for(argv[1], argv[2]);
        if (prep(&o, &r) == LKS_OK)
            return 0;
        printf("%s\n", lks_last_error());
        return 1;
    }
    lks_test_choose(argc, argv, "test_exporter");
    return lks_test_run_all(NULL, NULL);
}
