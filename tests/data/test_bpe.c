/* GPT-2's tokens: ids beside those of Hugging Face's tokenizers and tiktoken, vocabularies in all
 * forms, and hostile ones. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "data/text/bpb.h"
#include "data/text/bpe/bpe_table.h"

static const json_t *figure(void)
{
    return lks_test_figure("bpe_small.json");
}

static lks__bpe *small(void)
{
    lks__bpe *bpe;
    char *text = json_dumps(json_object_get(figure(), "tokenizer"), JSON_COMPACT);
    assert_non_null(text);
    assert_ok(lks__bpe_parse(text, strlen(text), "here", &bpe));
    free(text);
    return bpe;
}

static char *unhex(const char *hex, size_t *bytes_p)
{
    const size_t n = strlen(hex) / 2;
    char *bytes = malloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        bytes[i] = (char)strtoul(digits, NULL, 16);
    }
    *bytes_p = n;
    return bytes;
}

struct ids {
    int32_t *at;
    size_t n;
};

static struct ids encode(const lks__bpe *bpe, const char *text, size_t bytes)
{
    lks__bpe_work *work = lks__bpe_work_open();
    struct ids ids = {malloc((bytes + 1) * sizeof *ids.at), 0};
    assert_ok(lks__bpe_encode(bpe, work, text, bytes, ids.at, &ids.n));
    assert_true(ids.n <= bytes);
    lks__bpe_work_close(work);
    return ids;
}

static void assert_text(const lks__bpe *bpe, struct ids ids, const char *text, size_t bytes)
{
    size_t at = 0, n;
    for (size_t i = 0; i < ids.n; i++, at += n) {
        const char *token = lks__bpe_bytes(bpe, ids.at[i], &n);
        assert_non_null(token);
        assert_true(at + n <= bytes);
        assert_memory_equal(token, text + at, n);
    }
    assert_int_equal(at, bytes);
}

/* Each case alone, and all of them with one work space, whose cache then has old pieces. */
static void check_cases(const lks__bpe *bpe, const json_t *cases)
{
    lks__bpe_work *work = lks__bpe_work_open();
    assert_true(json_array_size(cases) > 20);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < json_array_size(cases); i++) {
            size_t bytes, n;
            const json_t *want = lks_test_member(json_array_get(cases, i), "ids");
            char *text = unhex(lks_test_string(json_array_get(cases, i), "utf8_hex"), &bytes);
            int32_t *ids = malloc((bytes + 1) * sizeof *ids);
            assert_ok(lks__bpe_encode(bpe, work, text, bytes, ids, &n));
            if (n != json_array_size(want))
                fail_msg("case %zu: %zu ids, not %zu", i, n, json_array_size(want));
            for (size_t k = 0; k < n; k++)
                if (ids[k] != json_integer_value(json_array_get(want, k)))
                    fail_msg("case %zu: id %zu is %d", i, k, ids[k]);
            assert_text(bpe, (struct ids){ids, n}, text, bytes);
            lks_test_free(ids, text);
        }
    lks__bpe_work_close(work);
}

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* A vocabulary in tiktoken's form, which lists no merges, is the same: its text has the hash. */
static void check_ranks(const lks__bpe *bpe)
{
    const char *path = lks_test_text("%s/x.tiktoken", lks_test_folder());
    char *text = malloc(4 << 20), *to = text;
    lks__bpe *other;
    uint64_t want, got;
    for (uint32_t id = 0; id < lks__bpe_size(bpe); id++) {
        size_t n;
        const unsigned char *b = (const unsigned char *)lks__bpe_bytes(bpe, (int32_t)id, &n);
        if ((int32_t)id == lks__bpe_end_of_text(bpe))
            continue;
        for (size_t i = 0; i < n; i += 3) {
            const unsigned bits = (unsigned)b[i] << 16 | (unsigned)(i + 1 < n ? b[i + 1] : 0) << 8 |
                                  (i + 2 < n ? b[i + 2] : 0);
            for (unsigned k = 0; k < 4; k++)
                *to++ = i + k > n ? '=' : digits[bits >> (18 - 6 * k) & 63];
        }
        to += sprintf(to, " %u\n", id);
    }
    lks_test_write(path, text, (size_t)(to - text));
    free(text);
    assert_ok(lks__bpe_open(path, &other));
    assert_int_equal(lks__bpe_end_of_text(other), lks__bpe_end_of_text(bpe));
    assert_ok(lks__bpe_hash(bpe, &want));
    assert_ok(lks__bpe_hash(other, &got));
    assert_true(got == want);
    lks__bpe_close(other);
}

TEST(test_figure)
{
    lks__bpe *bpe = small();
    assert_int_equal(lks__bpe_size(bpe), 640);
    assert_true(lks__bpe_end_of_text(bpe) >= 0);
    check_cases(bpe, lks_test_member(figure(), "cases"));
    check_ranks(bpe);
    lks__bpe_close(bpe);
}

/* GPT-2's own vocabulary and figures, where they lie beside the repository. */
TEST(test_gpt2)
{
    lks__bpe *bpe;
    assert_ok(lks__bpe_open(lks_test_shared("data/gpt2-bpe"), &bpe));
    assert_int_equal(lks__bpe_size(bpe), 50257);
    assert_int_equal(lks__bpe_end_of_text(bpe), 50256);
    check_cases(bpe, lks_test_member(
                         lks_test_figure(lks_test_shared("reference/tok_gpt2_bpe.json")), "cases"));
    check_ranks(bpe);
    lks__bpe_close(bpe);
}

/* Any bytes come back; a piece of any length has the ids that merging it by the rule gives, checked
 * where both ways are taken: 64 bytes are merged in one way, 65 in the other. */
TEST(test_bytes)
{
    lks__bpe *bpe = small();
    uint32_t random = 1;
    char text[4096];
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof text; i++) {
            random = random * 1664525 + 1013904223;
            text[i] = (char)(random >> 24);
        }
        struct ids ids = encode(bpe, text, sizeof text);
        assert_text(bpe, ids, text, sizeof text);
        free(ids.at);
    }
    lks__bpe_close(bpe);
}

/* The parts of a text that was cut give the ids of the whole, wherever it was cut. */
TEST(test_cut)
{
    lks__bpe *bpe = small();
    static const char text[] =
        "One two's  three\n\n  four five\t\tsix 7 8!! ab12'd9z'll?x3 nine \xc3\xa9 ten\r\nend ";
    const size_t all = sizeof text - 1;
    struct ids whole = encode(bpe, text, all);
    size_t cuts = 0, last = 0;
    for (size_t most = all; most > 0; most--) {
        const size_t cut = lks__bpe_cut(NULL, text, 0, most);
        assert_true(cut < most || cut == 0);
        cuts += cut != last;
        last = cut;
        struct ids a = encode(bpe, text, cut), b = encode(bpe, text + cut, all - cut);
        assert_int_equal(a.n + b.n, whole.n);
        assert_memory_equal(a.at, whole.at, a.n * sizeof *a.at);
        assert_memory_equal(b.at, whole.at + a.n, b.n * sizeof *b.at);
        lks_test_free(a.at, b.at);
    }
    assert_true(cuts > 8);
    assert_int_equal(lks__bpe_cut(NULL, "wordswithoutwhitespace", 0, 22), 0);
    free(whole.at);
    lks__bpe_close(bpe);
}

static void assert_special(const lks__bpe *bpe, const char *text, const int32_t *want, size_t n)
{
    size_t got;
    int32_t ids[64];
    lks__bpe_work *work = lks__bpe_work_open();
    assert_ok(lks__bpe_encode_special(bpe, work, text, strlen(text), ids, &got));
    assert_int_equal(got, n);
    assert_memory_equal(ids, want, n * sizeof *ids);
    lks__bpe_work_close(work);
}

/* The spelling of special tokens: ordinary text, or the tokens; the longest wins, and text between
 * them is encoded as if it stood alone. */
TEST(test_special)
{
    const json_t *figure = lks_test_member(lks_test_figure("bpe_small.json"), "tokenizer");
    json_t *more = json_deep_copy(figure);
    json_t *list = json_object_get(more, "added_tokens");
    static const char *const names[] = {"<a>", "<a> b", "a\n"};
    const int32_t first = 700;
    for (int i = 0; i < 3; i++)
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:b}", "id", first + i, "content", names[i], "special", 1));
    char *text = json_dumps(more, 0);
    lks__bpe *bpe;
    assert_ok(lks__bpe_parse(text, strlen(text), "t", &bpe));
    free(text);
    json_decref(more);
    const int32_t eot = lks__bpe_end_of_text(bpe);
    struct ids two = encode(bpe, "  ", 2), x = encode(bpe, "x", 1);
    assert_special(bpe, "<|endoftext|>", &eot, 1);
    assert_special(bpe, "<a> b<a>", (int32_t[]){701, 700}, 2);
    assert_special(bpe, "a\n<|endoftext|>", (int32_t[]){702, eot}, 2);
    int32_t want[16] = {0};
    memcpy(want, two.at, two.n * sizeof *want); /* both blanks: nothing follows them */
    want[two.n] = eot;
    memcpy(want + two.n + 1, x.at, x.n * sizeof *want);
    assert_special(bpe, "  <|endoftext|>x", want, two.n + 1 + x.n);
    lks_test_free(two.at, x.at);
    struct ids plain = encode(bpe, "<|endoftext|>", 13);
    assert_true(plain.n > 1); /* without asking it is text */
    free(plain.at);

    /* No cut within a spelling, or what may become one. */
    assert_int_equal(lks__bpe_cut(NULL, "x <a> b", 0, 7), 5);
    assert_int_equal(lks__bpe_cut(bpe, "x <a> b", 0, 7), 1);
    assert_int_equal(lks__bpe_cut(bpe, "x <a> ", 0, 6), 1);
    assert_int_equal(lks__bpe_cut(bpe, "x <|endoftext|>", 0, 15), 1);
    assert_int_equal(lks__bpe_cut(NULL, "x <|endoftext|>", 0, 15), 13);
    assert_int_equal(lks__bpe_cut(bpe, "x <a> c", 0, 7), 5);
    lks__bpe_close(bpe);
}

/* The text that we write is read again, to the same text; and so it is if the same vocabulary comes
 * as vocab.bpe and encoder.json, or as merges.txt and vocab.json. */
TEST(test_forms)
{
    char *text, *again;
    uint64_t hash, hash_again;
    size_t bytes, n;
    lks__bpe *bpe = small(), *other;
    const char *folder = lks_test_folder();
    assert_ok(lks__bpe_text(bpe, &text, &bytes, &hash));
    assert_ok(lks__bpe_parse(text, bytes, "here", &other));
    assert_ok(lks__bpe_text(other, &again, &n, &hash_again));
    assert_true(hash_again == hash);
    assert_string_equal(again, text);
    free(again);
    lks__bpe_close(other);

    json_t *json = json_loads(text, 0, NULL), *model = json_object_get(json, "model");
    const json_t *from = lks_test_member(figure(), "tokenizer");
    static const char *const alike[] = {"added_tokens", "pre_tokenizer"};
    for (int i = 0; i < 2; i++) /* of what other programs read, too, nothing has changed */
        assert_true(json_equal(json_object_get(json, alike[i]), lks_test_member(from, alike[i])));
    from = lks_test_member(from, "model");
    assert_true(json_equal(json_object_get(model, "vocab"), lks_test_member(from, "vocab")));
    assert_true(json_equal(json_object_get(model, "merges"), lks_test_member(from, "merges")));
    /* as in GPT-2's published file */
    assert_int_equal(json_object_del(model, "type"), 0);
    char *untyped = json_dumps(json, 0);
    assert_ok(lks__bpe_parse(untyped, strlen(untyped), "here", &other));
    assert_ok(lks__bpe_text(other, &again, &n, &hash_again));
    assert_true(hash_again == hash);
    lks_test_free(again, untyped);
    lks__bpe_close(other);
    char *vocab = json_dumps(json_object_get(model, "vocab"), 0);
    const char *merges = "#version: 0.2\n";
    for (size_t i = 0; i < json_array_size(json_object_get(model, "merges")); i++) {
        const json_t *m = json_array_get(json_object_get(model, "merges"), i);
        merges = lks_test_text("%s%s %s\n", merges, json_string_value(json_array_get(m, 0)),
                               json_string_value(json_array_get(m, 1)));
    }
    static const char *const names[2][2] = {{"vocab.bpe", "encoder.json"},
                                            {"merges.txt", "vocab.json"}};
    for (int i = 0; i < 2; i++) {
        const char *dir = i == 0 ? folder : lks_test_folder();
        const char *lines = merges;
        if (i == 1) { /* with the line ends of Windows */
            char *at = calloc(2 * strlen(merges) + 1, 1);
            size_t to = 0;
            for (const char *c = merges; *c != '\0'; at[to++] = *c++)
                if (*c == '\n')
                    at[to++] = '\r';
            lines = lks_test_text("%s", at);
            free(at);
        }
        uint64_t want, got;
        lks_test_write(lks_test_text("%s/%s", dir, names[i][0]), lines, strlen(lines));
        lks_test_write(lks_test_text("%s/%s", dir, names[i][1]), vocab, strlen(vocab));
        assert_true(lks__bpe_is_at(dir));
        assert_ok(lks__bpe_open(dir, &other));
        assert_ok(lks__bpe_hash(bpe, &want));
        assert_ok(lks__bpe_hash(other, &got));
        assert_true(want == got);
        lks__bpe_close(other);
    }
    lks_test_free(vocab, text);
    json_decref(json);
    lks__bpe_close(bpe);
}

/* Words of 8 and of 9 bytes, which no merge changes, have their bytes' ids, also if they come
 * again, and after more words of their length than the work space can keep. */
static void test_words(const lks__bpe *bpe)
{
    enum { BYTES = 1 << 18 };
    char *text = malloc(BYTES);
    lks__bpe_work *work = lks__bpe_work_open();
    int32_t *ids = malloc(BYTES * sizeof *ids);
    uint32_t random = 1;
    size_t n;
    for (size_t i = 0; i < BYTES; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = i % 17 == 0 || i % 17 == 8 ? ' ' : (char)('d' + (random >> 24) % 20);
    }
    for (int pass = 0; pass < 2; pass++) {
        assert_ok(lks__bpe_encode(bpe, work, text, BYTES, ids, &n));
        assert_int_equal(n, BYTES);
        for (size_t i = 0; i < BYTES; i++)
            if (ids[i] != text[i])
                fail_msg("byte %zu has id %d, not %d", i, ids[i], text[i]);
    }
    lks__bpe_work_close(work);
    lks_test_free(ids, text);
}

/* tiktoken's form: 256 bytes, "ab" and "abc", which "a" + "bc" would make as well if "bc" were
 * there. */
TEST(test_tiktoken)
{
    const char *text = "";
    for (int i = 0; i < 256; i++)
        text = lks_test_text("%s%c%c== %d\n", text, digits[i >> 2], digits[(i & 3) << 4], i);
    const char *bytes = text;
    text = lks_test_text("%sYWI= 256\nYWJj 257\n", text);
    const char *path = lks_test_text("%s/x.tiktoken", lks_test_folder());
    lks__bpe *bpe;
    lks_test_write(path, text, strlen(text));
    assert_ok(lks__bpe_open(path, &bpe));
    assert_int_equal(lks__bpe_size(bpe), 259);
    assert_int_equal(lks__bpe_end_of_text(bpe), 258);
    struct ids ids = encode(bpe, "abcab", 5);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.at[0], 257);
    assert_int_equal(ids.at[1], 256);
    free(ids.at);
    for (int i = 0; i < 256; i++) { /* all digits of base64 mean what they should */
        const char byte = (char)i;
        ids = encode(bpe, &byte, 1);
        assert_int_equal(ids.at[0], i);
        free(ids.at);
    }
    assert_special(bpe, "<|endoftext|>", &(int32_t){258}, 1);
    size_t n;
    assert_non_null(lks__bpe_bytes(bpe, 258, &n));
    assert_null(lks__bpe_bytes(bpe, 259, &n));
    assert_null(lks__bpe_bytes(bpe, -1, &n));
    lks__byte_table table;
    assert_ok(lks__byte_table_bpe(bpe, 300, &table));
    assert_int_equal(table.bytes[256], 2);
    assert_int_equal(table.bytes[257], 3);
    assert_int_equal(table.bytes[258], 0); /* the end of a text is none of its bytes */
    assert_int_equal(table.bytes[259], 0);
    lks__byte_table_free(&table);
    test_words(bpe);
    lks__bpe_close(bpe);
    /* one that has <|endoftext|> itself, and no line feed at its end */
    text = lks_test_text("%sPHxlbmRvZnRleHR8Pg== 300", bytes);
    lks_test_write(path, text, strlen(text));
    assert_ok(lks__bpe_open(path, &bpe));
    assert_int_equal(lks__bpe_end_of_text(bpe), 300);
    assert_int_equal(lks__bpe_size(bpe), 301);
    lks__bpe_close(bpe);
    /* "abcd" after "ab", without "abc" and "cd": merges can't make it */
    text = lks_test_text("%sYWI= 256\nYWJjZA== 257", bytes);
    lks_test_write(path, text, strlen(text));
    assert_fails(LKS_ERR_FORMAT, lks__bpe_open(path, &bpe), "token \"abcd\" of rank 257 is not");
}

/* What the small vocabulary's ids can't tell: where pieces end, and that of equal merges the first
 * one is made, in short pieces and in long ones. */
TEST(test_pieces)
{
    static const struct {
        const char *text;
        size_t end;
    } cases[] = {{"'ve x", 3}, {"'re", 3}, {"'ll", 3},  {"'s", 2},   {"'d", 2},  {"'m", 2},
                 {"'t", 2},    {"'vx", 1}, {"'S", 1},   {" 've", 2}, {"ab1", 2}, {" 12a", 3},
                 {" a", 2},    {"  a", 1}, {" \n ", 3}, {"!?'s", 3}};
    lks__bpe *bpe = small();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (lks__bpe_piece_end(bpe, cases[i].text, 0, strlen(cases[i].text)) != cases[i].end)
            fail_msg("the first piece of \"%s\" is another", cases[i].text);
    lks__bpe_close(bpe);
    assert_int_equal(lks__bpe_cut(NULL, "ab  cd", 0, 4), 2); /* not within white space */
    assert_int_equal(lks__bpe_cut(NULL, "ab\n\ncd", 0, 5), 2);

    const char *text = "", *path = lks_test_text("%s/x.tiktoken", lks_test_folder());
    for (int i = 0; i < 256; i++)
        text = lks_test_text("%s%c%c== %d\n", text, digits[i >> 2], digits[(i & 3) << 4], i);
    text = lks_test_text("%sYWE= 256\n", text);
    lks_test_write(path, text, strlen(text));
    assert_ok(lks__bpe_open(path, &bpe));
    char many[101];
    memset(many, 'a', sizeof many);
    for (size_t n = 3; n <= sizeof many;
         n += 98) { /* 3 and 101: "aa" as often as it fits, then "a" */
        struct ids ids = encode(bpe, many, n);
        assert_int_equal(ids.n, n / 2 + 1);
        assert_int_equal(ids.at[0], 256);
        assert_int_equal(ids.at[ids.n - 1], 'a');
        free(ids.at);
    }
    lks__bpe_close(bpe);
}

/* The same the slow way: of all neighbours that together are a token, those of the
 * lowest rank are merged, the first of them first. */
static size_t merge_slowly(const char *const *tokens, int n_tokens, const char *text, size_t bytes,
                           int32_t *ids)
{
    size_t start[512], n = bytes;
    assert_true(bytes < 512);
    for (size_t i = 0; i <= bytes; i++)
        start[i] = i;
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text[i];
    for (int rank = 0; rank < n_tokens; rank++) {
        const size_t length = strlen(tokens[rank]);
        for (size_t i = 0; i + 1 < n; i++)
            if (start[i + 2] - start[i] == length &&
                memcmp(text + start[i], tokens[rank], length) == 0) {
                ids[i] = 256 + rank;
                memmove(start + i + 1, start + i + 2, (n - i - 1) * sizeof *start);
                memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
                n--;
                rank = -1; /* again from the lowest */
                break;
            }
    }
    return n;
}

/* All bytes, and tokens with a merge for each way to make them of two others. */
static lks__bpe *with_all_splits(const char *const *tokens, int n_tokens)
{
    const char *text = "", *path = lks_test_text("%s/x.tiktoken", lks_test_folder());
    lks__bpe *bpe;
    char *all;
    size_t bytes;
    uint64_t hash;
    for (int i = 0; i < 256; i++)
        text = lks_test_text("%s%c%c== %d\n", text, digits[i >> 2], digits[(i & 3) << 4], i);
    lks_test_write(path, text, strlen(text));
    assert_ok(lks__bpe_open(path, &bpe));
    assert_ok(lks__bpe_text(bpe, &all, &bytes, &hash));
    lks__bpe_close(bpe);
    json_t *json = json_loads(all, 0, NULL), *model = json_object_get(json, "model");
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    free(all);
    assert_int_equal(json_object_del(json, "added_tokens"), 0);
    assert_int_equal(json_object_del(vocab, "<|endoftext|>"), 0);
    for (int i = 0; i < n_tokens; i++)
        json_object_set_new(vocab, tokens[i], json_integer(256 + i));
    for (int i = 0; i < n_tokens; i++)
        for (int cut = 1; tokens[i][cut] != '\0'; cut++) {
            const char *left = lks_test_text("%.*s", cut, tokens[i]), *right = tokens[i] + cut;
            if (json_object_get(vocab, left) != NULL && json_object_get(vocab, right) != NULL)
                json_array_append_new(merges, json_pack("[s, s]", left, right));
        }
    all = json_dumps(json, 0);
    assert_ok(lks__bpe_parse(all, strlen(all), "here", &bpe));
    free(all);
    json_decref(json);
    return bpe;
}

TEST(test_long_pieces)
{
    static const char *const tokens[] = {"ab", "ca", "abc",  "dd", "bcd", "cab",
                                         "bc", "da", "abca", "cd", "aa",  "ddab"};
    enum { N = sizeof tokens / sizeof *tokens };
    lks__bpe *bpe = with_all_splits(tokens, N);
    uint32_t random = 1;
    for (size_t bytes = 40; bytes < 140; bytes++) { /* from 65 on by a heap */
        char piece[140];
        int32_t want[140];
        for (size_t i = 0; i < bytes; i++) {
            random = random * 1664525 + 1013904223;
            piece[i] = (char)('a' + (random >> 30));
        }
        const size_t n = merge_slowly(tokens, N, piece, bytes, want);
        struct ids ids = encode(bpe, piece, bytes);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.at, want, n * sizeof *want);
        free(ids.at);
    }
    lks__bpe_close(bpe);
}

/* --- hostile --------------------------------------------------------------------------------- */

#define MODEL(rest)                                                                                \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                      \
    "\"model\":{\"type\":\"BPE\"," rest "}}"

#define ADDED(token)                                                                               \
    "{\"added_tokens\":[{" token "}],\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"                  \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}"

TEST(test_hostile)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "\"model\" must be"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "\"model\" must be"},
        {"{\"model\":{\"type\":null}}", "\"model\" must be"},
        {"{\"model\":{\"type\":\"BPE\"}}", "\"pre_tokenizer\" must be"},
        {"{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"type\":\"BPE\"}}", "a \"normalizer\""},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},"
         "\"model\":{\"type\":\"BPE\"}}",
         "add_prefix_space"},
        {MODEL("\"byte_fallback\":true"), "byte_fallback"},
        {MODEL("\"dropout\":0.1"), "dropout"},
        {MODEL("\"ignore_merges\":true"), "ignore_merges"},
        {MODEL("\"fuse_unk\":true"), "fuse_unk"},
        {MODEL("\"continuing_subword_prefix\":\"##\""), "continuing_subword_prefix"},
        {MODEL("\"end_of_word_suffix\":\"</w>\""), "end_of_word_suffix"},
        {MODEL("\"end_of_word_suffix\":\"\",\"vocab\":[]"), "an object of tokens and ids"},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false},"
         "\"model\":{\"type\":\"BPE\"}}",
         "with its regular expression"},
        {ADDED("\"id\":5,\"content\":\"a\""), "entry 1 of \"added_tokens\" has id 5, but its text"},
        {ADDED("\"id\":5"), "lacks its id or content"},
        {ADDED("\"id\":\"5\",\"content\":\"x\""), "lacks its id or content"},
        {MODEL("\"vocab\":[]"), "an object of tokens and ids"},
        {MODEL("\"vocab\":{\"a\":0,\"a\":1}"), "not valid JSON"},
        {MODEL("\"vocab\":{\"a\":0,\"b\":0}"), "another token has"},
        {MODEL("\"vocab\":{\"a\":-1}"), "ids are 0 to"},
        {MODEL("\"vocab\":{\"a\":1048576}"), "ids are 0 to"},
        {MODEL("\"vocab\":{\"a\":\"1\"}"), "not a whole number"},
        {MODEL("\"vocab\":{\"a b\":1}"), "spelling of bytes"},
        {MODEL("\"vocab\":{\"\":1}"), "spelling of bytes"},
        {MODEL("\"vocab\":{\"\xe4\xb8\xad\":1}"), "spelling of bytes"},
        {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]"), "their combination"},
        {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a c\"]"), "the second"},
        {MODEL("\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[\"b a\"]"), "the first"},
        {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"aa\"]"), "is not two tokens"},
        {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), "is not two tokens"},
        {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"a\",\"a\",\"a\"]]"),
         "is not two tokens"},
        {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a \"]"), "is not two tokens"},
        {MODEL("\"vocab\":{\"a\":0},\"merges\":{}"), "must be a list"},
        {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\",\"a a\"]"), "are the same"},
        {MODEL("\"vocab\":{\"a\":0},\"merges\":[]"), "all 256"},
    };
    lks__bpe *bpe;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_status st = lks__bpe_parse(cases[i].text, strlen(cases[i].text), "here", &bpe);
        if (st == LKS_OK)
            fail_msg("case %zu was read", i);
        assert_contains(lks_last_error(), cases[i].says, "here");
    }
    assert_fails(LKS_ERR_IO, lks__bpe_open(lks_test_folder(), &bpe), "not a byte-level BPE");
    assert_fails(LKS_ERR_IO, lks__bpe_open("/nowhere", &bpe), "/nowhere: No such file",
                 "lockstep fetch gpt2-vocab");
    assert_false(lks__bpe_is_at(lks_test_folder()));
    const char *path = lks_test_text("%s/x.tiktoken", lks_test_folder());
    char *most = malloc((64 << 10) + 2);
    memset(most, 'a', (64 << 10) + 1);
    most[(64 << 10) + 1] = '\0';
    const char *long_token = lks_test_text(MODEL("\"vocab\":{\"%s\":0}"), most);
    assert_fails(LKS_ERR_FORMAT, lks__bpe_parse(long_token, strlen(long_token), "here", &bpe),
                 "has 65537 bytes; 1 to 65536 are possible");
    free(most);
    static const char *const lines[][2] = {
        {"?? 1\n", "line 1 is not a token of at most 1023 bytes in base64"},
        {"YQ==\n", "line 1 is not"},
        {"Y!Q== 1\n", "line 1 is not"},
        {"YQ== x\n", "line 1 is not"},
        {"YQ== 1x\n", "line 1 is not"},
        {"YQ== -1\n", "line 1 is not"},
        {"YQ== 1\nYg== 1\n", "which another token has"},
        {"YQ== 1\nYQ== 2\n", "occurs twice"}};
    lks_test_write(path, "YQ== 100255", 11);
    assert_fails(LKS_ERR_SUPPORT, lks__bpe_open(path, &bpe), "as many ranks as cl100k_base");
    lks_test_write(path, "YQ== 199997", 11);
    assert_fails(LKS_ERR_SUPPORT, lks__bpe_open(path, &bpe), "as many ranks as o200k_base");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        lks_test_write(path, lines[i][0], strlen(lines[i][0]));
        assert_fails(LKS_ERR_FORMAT, lks__bpe_open(path, &bpe), "x.tiktoken", lines[i][1]);
    }
    for (int n = 1364; n <= 1368; n += 4) { /* a token of 1,023 bytes, and of 1,026 */
        char digits64[1369] = "";
        const char *line = lks_test_text("%s 1\n", (char *)memset(digits64, 'Y', (size_t)n));
        lks_test_write(path, line, strlen(line));
        assert_fails(LKS_ERR_FORMAT, lks__bpe_open(path, &bpe), "x.tiktoken",
                     n == 1364 ? "is not made of two tokens" : "line 1 is not");
    }
    for (int n = 1026; n <= 1027; n++) { /* 1,026 tokens of 1,023 bytes, and 1,027 */
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        for (int i = 0; i < n; i++)
            fprintf(file, "%04d%01360d %d\n", i, 0, i);
        assert_int_equal(fclose(file), 0);
        assert_fails(LKS_ERR_FORMAT, lks__bpe_open(path, &bpe), "x.tiktoken",
                     n == 1026 ? "is not made of two tokens" : "it has too many long tokens");
    }
}

int main(int argc, char **argv)
{
    lks_test_choose(argc, argv, "test_gpt2");
    return lks_test_run_all(NULL, NULL);
}
