/* meta.json: round trips, encoding and decoding, and hostile files. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/text/byte_tokens.h"
#include "data/text/meta.h"

static const char *folder_with(const char *text, size_t bytes)
{
    const char *folder = lks_test_folder();
    lks_test_write(lks_test_text("%s/meta.json", folder), text, bytes);
    return folder;
}

static lks__meta load(const char *text)
{
    bool found = false;
    lks__meta meta = {0};
    assert_ok(lks__meta_load(folder_with(text, strlen(text)), &found, &meta));
    assert_true(found);
    return meta;
}

static void assert_round_trip(const lks__meta *meta, const char *text)
{
    json_t *json = lks__meta_to_json(meta);
    assert_non_null(json);
    char *got = json_dumps(json, JSON_COMPACT);
    assert_string_equal(got, text);
    free(got);
    lks__meta again = {0};
    assert_ok(lks__meta_from_json(json, "here", &again));
    json_decref(json);
    assert_int_equal(again.vocab_size, meta->vocab_size);
    assert_int_equal(again.chars != NULL, meta->chars != NULL);
    if (meta->chars)
        assert_memory_equal(again.chars, meta->chars, meta->vocab_size * sizeof *meta->chars);
    lks__meta_free(&again);
}

/* A meta with characters of 1, 2, 3 and 4 bytes, U+0000 among them. */
static const char every_length[] = "{\"kind\":\"char\",\"vocab_size\":6,\"chars\":"
                                   "\"\\u0000\\na\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"}";

TEST(test_round_trip)
{
    static const uint32_t chars[] = {0, '\n', 'a', 0xe9, 0x20ac, 0x1f600};
    lks__meta meta = load(every_length);
    assert_int_equal(meta.vocab_size, 6);
    assert_memory_equal(meta.chars, chars, sizeof chars);
    assert_round_trip(&meta, every_length);
    lks__meta_free(&meta);
    assert_null(meta.chars);

    lks__meta ids = load(" { \"vocab_size\" : 50304, \"other\": [1], \"kind\":\"ids\"} ");
    assert_int_equal(ids.vocab_size, 50304);
    assert_null(ids.chars);
    assert_round_trip(&ids, "{\"kind\":\"ids\",\"vocab_size\":50304}");

    static const char model[] = "{\"kind\":\"sentencepiece\",\"vocab_size\":1024,"
                                "\"file\":\"sp.model\",\"hash\":\"00fedcba98765432\"}";
    lks__meta pieces = load(model);
    assert_int_equal(pieces.vocab_size, 1024);
    assert_null(pieces.chars);
    assert_true(pieces.is_sentencepiece && !ids.is_sentencepiece && !meta.is_sentencepiece);
    assert_true(pieces.model_hash == UINT64_C(0xfedcba98765432));
    assert_round_trip(&pieces, model);

    /* Escaped in the file or not, it is the same character. */
    meta = load("{\"kind\":\"char\",\"vocab_size\":2,\"chars\":\"\\u00e9\\ud83d\\ude00\"}");
    assert_int_equal(meta.chars[0], 0xe9);
    assert_int_equal(meta.chars[1], 0x1f600);
    lks__meta_free(&meta);
}

TEST(test_missing)
{
    bool found = true;
    lks__meta meta = {0};
    assert_ok(lks__meta_load(lks_test_folder(), &found, &meta));
    assert_false(found);
    found = true;
    assert_ok(lks__meta_load(lks_test_text("%s/none", lks_test_folder()), &found, &meta));
    assert_false(found);
}

TEST(test_hostile)
{
#define CHARS(size, chars) "{\"kind\":\"char\",\"vocab_size\":" size ",\"chars\":" chars "}"
#define SPM(file, hash)                                                                            \
    "{\"kind\":\"sentencepiece\",\"vocab_size\":9,\"file\":" file ",\"hash\":" hash "}"
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "not valid JSON"},
        {"{", "not valid JSON"},
        {"{\"kind\":\"char\"} x", "not valid JSON"},
        {"{\"kind\":\"char\",\"kind\":\"char\"}", "not valid JSON"},
        {"[]", "object is expected"},
        {"{}", "\"kind\" must be a string"},
        {"{\"kind\":1}", "\"kind\" must be a string"},
        {"{\"kind\":null,\"vocab_size\":2}", "\"kind\" must be a string"},
        {"{\"kind\":\"a\\u001b[2Jb\"}", "kind \"a\\x1b[2Jb\" are not supported"},
        {"{\"kind\":\"char\\u0000\",\"vocab_size\":1,\"chars\":\"ab\"}",
         "kind \"char\\x00\" are not"},
        {"{\"kind\":\"ids\"}", "\"vocab_size\" must be"},
        {"{\"kind\":\"ids\",\"vocab_size\":0}", "\"vocab_size\" must be"},
        {"{\"kind\":\"ids\",\"vocab_size\":-1}", "\"vocab_size\" must be"},
        {"{\"kind\":\"ids\",\"vocab_size\":16777217}", "\"vocab_size\" must be"},
        {"{\"kind\":\"ids\",\"vocab_size\":2.0}", "\"vocab_size\" must be"},
        {"{\"kind\":\"ids\",\"vocab_size\":99999999999999999999}", "not valid JSON"},
        {SPM("\"sp.model\"", "\"0123456789abcde\""), "\"hash\" must be 16 hex digits"},
        {SPM("\"sp.model\"", "\"0123456789abcdeF\""), "\"hash\" must be 16 hex digits"},
        {SPM("\"sp.model\"", "\"0123456789abcde\\u0000\""), "\"hash\" must be 16 hex digits"},
        {SPM("\"sp.model\"", "1"), "\"hash\" must be 16 hex digits"},
        {SPM("\"../sp.model\"", "\"0123456789abcdef\""), "\"file\" must be \"sp.model\""},
        {SPM("\"sp.model\\u0000\"", "\"0123456789abcdef\""), "\"file\" must be"},
        {SPM("null", "\"0123456789abcdef\""), "\"file\" must be"},
        {"{\"kind\":\"sentencepiece\",\"vocab_size\":0}", "\"vocab_size\" must be"},
        {CHARS("\"2\"", "\"ab\""), "\"vocab_size\" must be"},
        {CHARS("65537", "\"ab\""), "\"vocab_size\" must be a whole number from 1 to 65536"},
        {CHARS("4294967297", "\"a\""), "\"vocab_size\" must be"},
        {CHARS("65536", "\"ab\""), "has 2 characters"},
        {CHARS("2", "[\"a\",\"b\"]"), "\"chars\" must be a string"},
        {CHARS("2", "null"), "\"chars\" must be a string"},
        {"{\"kind\":\"char\",\"vocab_size\":2}", "\"chars\" must be a string"},
        {CHARS("1", "\"\""), "has 0 characters"},
        {CHARS("3", "\"ab\""), "has 2 characters, but \"vocab_size\" is 3"},
        {CHARS("1", "\"ab\""), "more characters"},
        {CHARS("3", "\"aba\""), "\"chars\" has U+0061 \"a\" twice"},
        {CHARS("3", "\"\\u001bc\\u001b\""), "has U+001B \"\\x1b\" twice"},
        {CHARS("1", "\"\\ud800\""), "not valid JSON"},
        {CHARS("1", "\"\\udc00\\ud800\""), "not valid JSON"},
        {CHARS("1", "\"\xed\xa0\x80\""), "not valid JSON"},
        {CHARS("1", "\"\xff\""), "not valid JSON"},
    };
#undef CHARS
#undef SPM
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = folder_with(cases[i].text, strlen(cases[i].text));
        bool found = false;
        lks__meta meta = {0};
        assert_fails(LKS_ERR_FORMAT, lks__meta_load(folder, &found, &meta),
                     lks_test_text("%s/meta.json", folder), cases[i].error);
        assert_null(strchr(lks_last_error(), '\x1b'));
        assert_false(found);
        assert_null(meta.chars);
        assert_int_equal(meta.vocab_size, 0);
    }
}

TEST(test_hostile_files)
{
    bool found = false;
    lks__meta meta = {0};
    const char nul[] = "{\"kind\":\"ids\",\0\"vocab_size\":2}";
    assert_fails(LKS_ERR_FORMAT, lks__meta_load(folder_with(nul, sizeof nul - 1), &found, &meta),
                 "not valid JSON");

    enum { DEEP = 100000, HUGE_META = 5 << 20 };
    char *text = lks_test_malloc(HUGE_META);
    memset(text, '[', DEEP);
    assert_fails(LKS_ERR_FORMAT, lks__meta_load(folder_with(text, DEEP), &found, &meta),
                 "not valid JSON");
    memset(text, ' ', HUGE_META);
    assert_fails(LKS_ERR_FORMAT, lks__meta_load(folder_with(text, HUGE_META), &found, &meta),
                 "meta.json", "at most");
    free(text);

    const char *folder = lks_test_folder();
    assert_int_equal(symlink("meta.json", lks_test_text("%s/meta.json", folder)), 0);
    assert_fails(LKS_ERR_IO, lks__meta_load(folder, &found, &meta), "meta.json");
}

static void assert_encodes(const lks__meta *meta, const char *text, size_t bytes,
                           const int32_t *want, size_t n)
{
    int32_t *ids;
    size_t got;
    assert_ok(lks__meta_encode(meta, text, bytes, &ids, &got));
    assert_int_equal(got, n);
    assert_memory_equal(ids, want, n * sizeof *want);
    free(ids);
}

TEST(test_encode)
{
    lks__meta meta = load(every_length);
    int32_t *ids = NULL;
    size_t n = 77;
    assert_encodes(&meta, "a\xc3\xa9\xf0\x9f\x98\x80\xe2\x82\xac", 10,
                   (const int32_t[]){2, 3, 5, 4}, 4);
    assert_encodes(&meta, "a\0a", 3, (const int32_t[]){2, 0, 2}, 3);
    assert_encodes(&meta, "\r\n\n\r\r\na\r", 8, (const int32_t[]){1, 1, 1, 1, 2, 1}, 6);
    assert_encodes(&meta, "", 0, (const int32_t[]){0}, 0);
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "aab", 3, &ids, &n), "U+0062 \"b\"",
                 "offset 2", "6 characters");
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "a\x1b", 2, &ids, &n), "U+001B \"\\x1b\"",
                 "offset 1");
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "\xc3\xa9\xc3", 3, &ids, &n), "0xc3",
                 "offset 2", "not valid UTF-8");
    assert_null(ids);
    assert_int_equal(n, 77);
    lks__meta_free(&meta);
}

TEST(test_decode)
{
    lks__meta meta = load(every_length);
    char text[64] = "";
    size_t n = 0;
    for (int32_t id = 0; id < 6; id++)
        n += lks__meta_decode(&meta, id, text + n);
    assert_int_equal(n, 12);
    assert_memory_equal(text, "\0\na\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 12);
    assert_int_equal(lks__meta_decode(&meta, 6, text), 3);
    assert_memory_equal(text, "\xef\xbf\xbd", 3);
    assert_int_equal(lks__meta_decode(&meta, -1, text), 3);
    lks__meta_free(&meta);
}

TEST(test_ids_without_text)
{
    lks__meta meta = {.vocab_size = 300};
    int32_t *ids = NULL;
    size_t n = 0;
    char text[16];
    assert_encodes(&meta, " 0 299\n\t12", 10, (const int32_t[]){0, 299, 12}, 3);
    assert_encodes(&meta, "\n", 1, (const int32_t[]){0}, 0);
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "1 300", 5, &ids, &n), "offset 2",
                 "0 to 299");
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "1x", 2, &ids, &n), "offset 0");
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "To be", 5, &ids, &n), "offset 0");
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "-1", 2, &ids, &n), "offset 0");
    assert_fails(LKS_ERR_FORMAT, lks__meta_encode(&meta, "18446744073709551617", 20, &ids, &n),
                 "offset 0");
    assert_int_equal(lks__meta_decode(&meta, 299, text), 4);
    assert_memory_equal(text, "299 ", 4);
}

TEST(test_bytes)
{
    lks__meta meta = {.vocab_size = 260, .is_bytes = true}, other = {.vocab_size = 260}, back;
    char text[16];
    assert_encodes(&meta, "\0a\r\n\xff", 5, (const int32_t[]){4, 101, 17, 14, 259}, 5);
    for (int32_t id = 0; id < 4; id++)
        assert_int_equal(lks__meta_decode(&meta, id, text), 0);
    for (int32_t id = 4; id < 260; id++) {
        assert_int_equal(lks__meta_decode(&meta, id, text), 1);
        assert_int_equal((unsigned char)text[0], id - 4);
    }
    assert_int_equal(lks__meta_decode(&meta, 260, text), 0);
    assert_int_equal(lks__meta_decode(&meta, INT32_MIN, text), 0);
    json_t *json = lks__meta_to_json(&meta);
    char *dump = json_dumps(json, JSON_COMPACT);
    assert_string_equal(dump, "{\"kind\":\"bytes\",\"vocab_size\":260}");
    free(dump);
    assert_ok(lks__meta_from_json(json, "x", &back));
    assert_true(back.is_bytes && back.vocab_size == 260);
    json_object_set_new(json, "vocab_size", json_integer(256));
    assert_fails(LKS_ERR_FORMAT, lks__meta_from_json(json, "x", &back), "must be 260");
    json_decref(json);
    assert_false(lks__meta_differ(&meta, &meta));
    assert_false(lks__meta_differ(&meta, &other)); /* nothing is known of ids */
    other.is_bpe = true;
    other.model_hash = 1;
    assert_true(lks__meta_differ(&meta, &other));
    assert_true(lks__meta_differ(&other, &meta));
}

/* Characters differ at any place that both have; one list may go on where the other ends. */
TEST(test_differ)
{
    uint32_t abcd[] = {'a', 'b', 'c', 'd'}, abce[] = {'a', 'b', 'c', 'e'};
    const lks__meta one = {.vocab_size = 4, .chars = abcd},
                    other = {.vocab_size = 4, .chars = abce};
    const lks__meta begin = {.vocab_size = 3, .chars = abce},
                    bytes = {.vocab_size = 260, .is_bytes = true};
    assert_false(lks__meta_differ(&one, &one));
    assert_true(lks__meta_differ(&one, &other));
    assert_false(lks__meta_differ(&one, &begin));
    assert_false(lks__meta_differ(&begin, &one));
    assert_true(lks__meta_differ(&one, &bytes));
    assert_true(lks__meta_differ(&bytes, &one));
}

/* The file that was read is named. */
TEST(test_file)
{
    const char *folder = lks_test_folder();
    lks_test_write(lks_test_text("%s/meta.pkl", folder), "", 0);
    assert_string_equal(lks__meta_file(folder), "meta.pkl");
    lks_test_write(lks_test_text("%s/meta.json", folder), "", 0);
    assert_string_equal(lks__meta_file(folder), "meta.json");
}

/* The script's description of byte tokens: every number in it counts, and none is a limit. */
TEST(test_description)
{
    const char *path = lks_test_text("%s/t.json", lks_test_folder());
    static const char *const keys[] = {"pad_id", "bos_id",      "eos_id",
                                       "unk_id", "byte_offset", "byte_count"};
    for (int k = 0; k <= 6; k++)
        for (int by = -1; by <= 1; by++) {
            json_t *json =
                json_pack("{s:s, s:i, s:{s:i, s:i, s:i, s:i, s:i, s:i}}", "tokenizer_type",
                          "pure_byte", "vocab_size", 260, "config", "pad_id", 0, "bos_id", 1,
                          "eos_id", 2, "unk_id", 3, "byte_offset", 4, "byte_count", 256);
            json_t *in = k == 6 ? json : json_object_get(json, "config");
            const char *key = k == 6 ? "vocab_size" : keys[k];
            json_object_set_new(in, key,
                                json_integer(json_integer_value(json_object_get(in, key)) + by));
            char *text = json_dumps(json, 0);
            lks_test_write(path, text, strlen(text));
            free(text);
            json_decref(json);
            bool found = false;
            const lks_status st = lks__byte_tokens_at(path, &found);
            assert_int_equal(st, by == 0 ? LKS_OK : LKS_ERR_FORMAT);
            assert_true(found);
        }
}

/* ---- meta.pkl ---------------------------------------------------------------------------- */

/* {"vocab_size": 2, "stoi": {first: 0, second: 1}, "itos": …} by opcodes; texts of one byte. */
#define PKL(size, first, second, itos0, itos1)                                                     \
    "\x80\4}(\x8c\12vocab_sizeK" size "\x8c\4stoi}(\x8c\1" first "K\0\x8c\1" second                \
    "K\1u\x8c\4itos}(K\0\x8c\1" itos0 "K\1\x8c\1" itos1 "uu."

static lks_status load_pickle(const char *data, size_t bytes, lks__meta *meta)
{
    bool found = false;
    const char *folder = lks_test_folder();
    lks_test_write(lks_test_text("%s/meta.pkl", folder), data, bytes);
    lks_status st = lks__meta_load(folder, &found, meta);
    assert_int_equal(found, st == LKS_OK);
    return st;
}

#define LOAD(text, meta) load_pickle(text, sizeof(text) - 1, meta)

TEST(test_pickle)
{
    static const uint32_t chars[] = {'\n', ' ', '!', 'X', 'Y', 'Z', 'a', 'b', 'c', 0xe9, 0x20ac};
    lks__meta meta = {0};
    size_t bytes;
    const char *figure = lks_test_read(
        lks_test_text("%s/tests/figures/pickle/meta.pkl", LKS_TEST_SOURCE_DIR), &bytes);
    assert_ok(load_pickle(figure, bytes, &meta));
    assert_int_equal(meta.vocab_size, 11);
    assert_memory_equal(meta.chars, chars, sizeof chars);
    lks__meta_free(&meta);
    assert_ok(LOAD("\x80\4}\x8c\12vocab_sizeM\x80\xc4s.", &meta));
    assert_int_equal(meta.vocab_size, 50304);
    assert_null(meta.chars);
    /* a script that doesn't sort them */
    assert_ok(LOAD(PKL("\2", "b", "a", "b", "a"), &meta));
    assert_true(meta.vocab_size == 2 && !meta.has_other_texts);
    assert_encodes(&meta, "baa", 3, (const int32_t[]){0, 1, 1}, 3);
    assert_round_trip(&meta, "{\"kind\":\"char\",\"vocab_size\":2,\"chars\":\"ba\"}");
    lks__meta_free(&meta);
    /* not as prepare.py makes them: a size only */
    assert_ok(LOAD(PKL("\3", "a", "b", "a", "b"), &meta));
    assert_int_equal(meta.vocab_size, 3);
    assert_true(meta.chars == NULL && meta.has_other_texts);
    /* {"vocab_size": 2, "stoi": {"a": 0, "b": 1}, "itos": ["a", "b"]}, and with "itos": "ab" */
#define ITOS(itos)                                                                                 \
    "\x80\4}(\x8c\12vocab_sizeK\2\x8c\4stoi}(\x8c\1aK\0\x8c\1bK\1u\x8c\4itos" itos "u."
    assert_ok(LOAD(ITOS("](\x8c\1a\x8c\1be"), &meta));
    assert_true(meta.vocab_size == 2 && meta.chars != NULL && meta.chars[1] == 'b');
    lks__meta_free(&meta);
    assert_ok(LOAD(ITOS("\x8c\2ab"), &meta));
    assert_true(meta.vocab_size == 2 && meta.chars == NULL && meta.has_other_texts);
#undef ITOS
    /* {"vocab_size": 1, "stoi": {"ab": 0}, "itos": {0: "ab"}}: no characters either */
    assert_ok(LOAD("\x80\4}(\x8c\12vocab_sizeK\1\x8c\4stoi}\x8c\2abK\0s\x8c\4itos}K\0\x8c\2ab"
                   "su.",
                   &meta));
    assert_int_equal(meta.vocab_size, 1);
    assert_null(meta.chars);
}

TEST(test_hostile_pickle)
{
    lks__meta meta = {0};
    assert_ok(LOAD(PKL("\2", "a", "b", "a", "b"), &meta));
    assert_non_null(meta.chars);
    lks__meta_free(&meta);
#define REFUSED(text, ...) assert_fails(LKS_ERR_FORMAT, LOAD(text, &meta), "meta.pkl", __VA_ARGS__)
    REFUSED(PKL("\1", "a", "b", "a", "b"), "at most \"vocab_size\" = 1,");
    REFUSED(PKL("\2", "a", "b", "b", "a"), "id 0 has no text");
    REFUSED(PKL("\2", "a", "b", "a", "c"), "id 1 has no text");
    REFUSED(PKL("\0", "a", "b", "a", "b"), "whole number from 1");
    /* {"vocab_size": 1, "stoi": {"a": 0}, "itos": {0: "a", 1: "b"}} */
    REFUSED("\x80\4}(\x8c\12vocab_sizeK\1\x8c\4stoi}\x8c\1aK\0s\x8c\4itos}(K\0\x8c\1aK\1\x8c\1bu"
            "u.",
            "equally many items");
    REFUSED(PKL("\2", "a", "a", "a", "b"), "occurs twice in a dict");
    REFUSED("\x80\4].", "a dict with");
    REFUSED("\x80\4}.", "\"vocab_size\" must be");
    REFUSED("\x80\4}\x8c\12vocab_sizeG\0\0\0\0\0\0\0\0s.", "\"vocab_size\" must be");
    REFUSED("\x80\2cos\nsystem\nX\4\0\0\0true\x85R.", "names os.system");
    REFUSED("", "not a pickle");
#undef REFUSED
}

/* meta.json comes first, if meta.pkl says the same. */
TEST(test_both)
{
    static const char text[] = PKL("\2", "a", "b", "a", "b");
    static const struct {
        const char *json;
        bool same;
    } rows[] = {{"{\"kind\":\"ids\",\"vocab_size\":2}", true},
                {"{\"kind\":\"char\",\"vocab_size\":2,\"chars\":\"ab\"}", true},
                {"{\"kind\":\"char\",\"vocab_size\":2,\"chars\":\"ac\"}", false},
                {"{\"kind\":\"ids\",\"vocab_size\":7}", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *folder = folder_with(rows[i].json, strlen(rows[i].json));
        bool found = false;
        lks__meta meta = {0};
        lks_test_write(lks_test_text("%s/meta.pkl", folder), text, sizeof text - 1);
        const lks_status st = lks__meta_load(folder, &found, &meta);
        if (rows[i].same)
            assert_ok(st);
        else
            assert_fails(LKS_ERR_CONFIG, st, "contradict each other", folder);
        assert_int_equal(found, rows[i].same);
        lks__meta_free(&meta);
    }
}
