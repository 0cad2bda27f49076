/* Models and tables of characters that could make SentencePiece misbehave are refused, each with
 * the byte of its error. Everything that SentencePiece writes itself is accepted. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/module.h"
#include "data/text/sentencepiece/spm.h"
#include "data/text/sentencepiece/spm_check.h"
#include "spm_model.h"

/* ---- tables of characters ---------------------------------------------------------------- */

static void assert_map(const spm_bytes *map, const char *says, size_t at)
{
    size_t got_at;
    const char *why;
    lks_status st = lks__spm_map_check(map->data, map->n, &got_at, &why);
    assert_int_equal(st, says ? LKS_ERR_FORMAT : LKS_OK);
    if (!says)
        return;
    assert_contains(why, says);
    assert_int_equal(got_at, at);
}

/* The map of a trie, with texts at 0 and 2. */
static void assert_trie(const spm_trie *t, const char *says, size_t unit)
{
    spm_bytes map = {.n = 0};
    spm_put_map(&map, t, "x\0yz", 5);
    assert_map(&map, says, 4 + 4 * unit);
}

TEST(test_map_bounds)
{
    static const char size[] = "a wrong size";
    spm_bytes good = {.n = 0}, map;
    spm_put_small_map(&good);
    assert_map(&good, NULL, 0);
    const size_t texts_at = 4 + 4 * 256;

    for (size_t n = 0; n <= texts_at; n++) { /* cut */
        map = good;
        map.n = n;
        assert_map(&map, size, 0);
    }
    static const uint32_t sizes[] = {0, 1, 1022, 1023, 4 * 257 + 1, 1 << 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        map = good;
        memcpy(map.data, &sizes[i], 4);
        assert_map(&map, size, 0);
    }
    map = good;
    map.data[map.n - 1] = '!';
    assert_map(&map, "doesn't end", texts_at + 2);
    map.n = texts_at + 1;
    assert_map(&map, "doesn't end", texts_at);

    char text[4098];
    memset(text, 'y', sizeof text);
    text[0] = text[sizeof text - 1] = 0;
    map = good;
    map.n = texts_at;
    spm_put(&map, text, sizeof text);
    assert_map(&map, NULL, 0);
    map.data[map.n - 1] = 'y';
    spm_put(&map, "", 1);
    assert_map(&map, "too long", texts_at + 1);
}

TEST(test_map_lookups)
{
    static const char beyond[] = "beyond its end", none[] = "no beginning";
    spm_trie t;
    spm_trie_begin(&t, 256, 256);
    assert_trie(&t, none, 0);
    t.units[0] = 1u << 31;
    assert_trie(&t, none, 0);
    t.units[0] = UINT32_MAX >> 1; /* far beyond */
    assert_trie(&t, none, 0);

    static const size_t sizes[] = {256, 300, 512}; /* 300: some of the 256 bytes lead outside */
    for (size_t i = 0; i < 3; i++) {
        const char *says = sizes[i] < 512 ? beyond : NULL;
        spm_trie_begin(&t, sizes[i], 1);
        spm_trie_step(&t, 1, 'a', 256 + 8, false);
        assert_trie(&t, says, 1 ^ 'a');
        t.units[1 ^ 'a'] = 1 << 10 | 1 << 9 | 'a'; /* 256 in the other encoding */
        assert_trie(&t, says, 1 ^ 'a');
    }

    spm_trie_begin(&t, 256, 1);
    spm_trie_step(&t, 2, 'a', 256, true); /* nothing leads to 2 */
    assert_trie(&t, NULL, 0);
    spm_trie_step(&t, 1, 'c', 2, false); /* now something does */
    assert_trie(&t, beyond, 2 ^ 'a');
    spm_trie_step(&t, 1, 0, 256, false); /* a text may contain a 0 byte */
    assert_trie(&t, beyond, 1);
}

TEST(test_map_rules)
{
    spm_trie t;
    spm_trie_begin(&t, 256, 1);
    spm_trie_step(&t, 1, 'a', 4, true);
    for (uint32_t text_at = 0; text_at < 5; text_at++) {
        spm_trie_value(&t, 4, text_at);
        assert_trie(&t, NULL, 0);
    }
    static const uint32_t outside[] = {5, 1 << 20, INT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        spm_trie_value(&t, 4, outside[i]);
        assert_trie(&t, "names a text beyond its end", 1 ^ 'a');
    }
    t.units[4] = 0;
    assert_trie(&t, "has no value", 1 ^ 'a');

    /* Rules a, aa, aaa, …: each base has its value there, and its 'a' at base ^ 'a'. */
    for (uint32_t n_rules = 32; n_rules <= 33; n_rules++) {
        spm_trie_begin(&t, 256, 0x80);
        for (uint32_t i = 0; i < n_rules; i++) {
            spm_trie_step(&t, 0x80 + i, 'a', 0x81 + i, true);
            spm_trie_value(&t, 0x81 + i, 2);
        }
        assert_trie(&t, n_rules == 33 ? "more rules begin alike" : NULL, 0x80 ^ 'a');
        /* Three ways to the same rules; only C has one more rule on its way, and is visited
         * second. */
        spm_trie_step(&t, 0x80, 'B', 0x81, false);
        spm_trie_step(&t, 0x80, 'C', 0x81, true);
        spm_trie_step(&t, 0x80, 'a', 0x82, false);
        assert_trie(&t, n_rules == 33 ? "more rules begin alike" : NULL, 0x80 ^ 'C');
    }
}

TEST(test_map_rounds)
{
    static const char round[] = "contains a loop";
    spm_trie t;
    spm_trie_begin(&t, 256, 1);
    spm_trie_step(&t, 1, 'a', 1, false); /* a, aa, aaa, … */
    assert_trie(&t, round, 1 ^ 'a');
    spm_trie_begin(&t, 256, 1);
    spm_trie_step(&t, 1, 'a', 4, false);
    spm_trie_step(&t, 4, 'b', 8, false);
    spm_trie_step(&t, 8, 'c', 4, false);
    assert_trie(&t, round, 8 ^ 'c');
    spm_trie_step(&t, 8, 'c', 16, false);
    spm_trie_step(&t, 4, 'd', 16, false); /* two ways to one place are no circle */
    assert_trie(&t, NULL, 0);
    spm_trie_begin(&t, 256, 0); /* the root's own unit bears label 0 */
    assert_trie(&t, round, 0);
}

/* ---- models ------------------------------------------------------------------------------ */

static const char *at_byte(size_t at)
{
    return lks_test_text("at byte %zu,", at);
}

static lks_status check(const spm_bytes *b)
{
    char *plain = NULL;
    size_t bytes;
    lks_status st = lks__spm_check((const char *)b->data, b->n, "the model", &plain, &bytes);
    free(plain);
    return st;
}

TEST(test_model_fields)
{
    static const struct {
        const char *bytes;
        size_t n, at;
        const char *says;
    } cases[] = {
        {"\x0a\x80", 2, 1, "a number that doesn't end"},
        {"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11, 0, "a number that doesn't end"},
        {"\x0a\x05\x0a\x02xy", 6, 0, "a field of 5 bytes, but 4 are left"},
        {"\x0a\x04\x0a\x03xy", 6, 2, "a field of 3 bytes, but 2 are left"},
        {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 0, "but 0 are left"},
        {"\x55\0\0\0", 4, 0, "a field of 4 bytes, but 3 are left"},
        {"\x51\0\0\0\0\0\0\0", 8, 0, "a field of 8 bytes, but 7 are left"},
        {"\x0b\x0c", 2, 0, "a field of kind 3"},
        {"\x58\x01\x0c", 3, 2, "a field of kind 4"},
        {"\x00\x00", 2, 0, "no field begins"},
        {"\x9a\x80\x80\x80\x10\x00", 6, 0, "no field begins"}, /* 2^32 more than a normalizer's */
        {"\x0a\x00", 2, 0, "a piece without text"},
        {"\x0a\x02\x0a\x00", 4, 0, "a piece without text"},
        {"\x12\x02\x1a\x05", 4, 2, "a field of 5 bytes, but 0 are left"},
        {"\x1a\x03\x12\x01!", 5, 4, "a wrong size"},
        {"\x2a\x03\x12\x01!", 5, 4, "a wrong size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        spm_bytes b = {.n = 0};
        spm_put(&b, cases[i].bytes, cases[i].n);
        assert_fails(LKS_ERR_FORMAT, check(&b), "the model", at_byte(cases[i].at), cases[i].says);
    }
    /* Unknown fields, of all kinds except groups. */
    spm_bytes b = {.n = 0};
    spm_put(&b, "\x78\x01\x79\0\0\0\0\0\0\0\0\x7a\x01?\x7d\0\0\0\0", 19);
    assert_ok(check(&b));
}

/* If a table is given twice, SentencePiece takes the last; neither may be wrong. */
TEST(test_model_twice)
{
    spm_bytes good = {.n = 0}, bad;
    spm_put_small_map(&good);
    bad = good;
    bad.data[4 + 4 * (1 ^ 'a') + 3] = 0x40; /* "a" leads outside */
    for (unsigned field = SPM_NORMALIZER; field <= SPM_DENORMALIZER; field += 2)
        for (int bad_one = 0; bad_one < 2; bad_one++) {
            spm_bytes b = {.n = 0};
            spm_put_piece(&b, "x", 1, SPM_NORMAL);
            spm_put_normalizer(&b, field, &good);
            assert_ok(check(&b));
            size_t at = b.n;
            spm_put_normalizer(&b, field, bad_one == 0 ? &bad : &good);
            if (bad_one == 1)
                at = b.n;
            spm_put_normalizer(&b, field, bad_one == 1 ? &bad : &good);
            at += 6 + 4 + 4 * (1 ^ 'a'); /* after two tags with lengths of two bytes */
            assert_fails(LKS_ERR_FORMAT, check(&b), at_byte(at), "leads beyond its end");
        }
}

TEST(test_model_pieces)
{
    char text[4097];
    memset(text, 'a', sizeof text);
    spm_bytes b = {.n = 0};
    spm_put_piece(&b, text, 4096, SPM_NORMAL);
    assert_ok(check(&b));
    size_t at = b.n;
    spm_put_piece(&b, text, 4097, SPM_NORMAL);
    assert_fails(LKS_ERR_FORMAT, check(&b), at_byte(at), "a piece of 4097 bytes");

    for (unsigned kind = SPM_NORMAL; kind <= SPM_USER_DEFINED; kind += 3) {
        b.n = 0;
        for (size_t n = 64; n > 0; n--) /* aa…, …, aa, a, and others */
            spm_put_piece(&b, text, n, kind);
        spm_put_piece(&b, "aab", 3, kind);
        spm_put_piece(&b, "b", 1, kind);
        assert_ok(check(&b));
        at = b.n + 4;
        spm_put_piece(&b, text, 65, kind);
        if (kind == SPM_NORMAL)
            assert_ok(check(&b));
        else
            assert_fails(LKS_ERR_FORMAT, check(&b), at_byte(at), "more than 64 user-defined");
    }
}

TEST(test_model_entries)
{
    static const struct {
        const char *entry;
        size_t n, head; /* of the message that holds the entries */
    } cases[] = {{"\x0a\x03\x0a\x01x", 5, 0}, {"\x0a\x00", 2, 5}};
    const size_t most = 1 << 20;
    for (size_t i = 0; i < 2; i++) {
        const size_t n = cases[i].n, head = cases[i].head, bytes = (most + 1) * n;
        char *model = malloc(head + bytes), *plain = NULL;
        size_t plain_bytes;
        assert_non_null(model);
        for (size_t over = 0; over < 2; over++) {
            for (size_t at = 0, left = bytes; at < head; at++, left >>= 7) {
                const size_t length = bytes - n + over * n;
                model[at] =
                    at == 0 ? SPM_TRAINER << 3 | 2
                            : (char)((length >> 7 * (at - 1) & 0x7f) | (at + 1 < head ? 0x80 : 0));
            }
            for (size_t at = 0; at < bytes; at += n)
                memcpy(model + head + at, cases[i].entry, n);
            lks_status st = lks__spm_check(model, head + bytes - n + over * n, "the model", &plain,
                                           &plain_bytes);
            if (over == 0)
                assert_ok(st);
            else
                assert_fails(LKS_ERR_FORMAT, st, at_byte(head + most * n), "more than 1048576");
        }
        free(model);
    }
}

/* ---- with SentencePiece ------------------------------------------------------------------ */

static const char *pieces_of(const lks__spm *spm, const char *text)
{
    const char *pieces = "";
    int32_t *ids;
    size_t n_ids, n;
    assert_ok(lks__spm_encode(spm, text, strlen(text), &ids, &n_ids));
    for (size_t i = 0; i < n_ids; i++) {
        const char *piece = lks__spm_piece(spm, (uint32_t)ids[i], &n);
        pieces = lks_test_text("%s%s%.*s", pieces, i > 0 ? " " : "", (int)n, piece);
    }
    free(ids);
    return pieces;
}

/* SentencePiece reads the table as our check does. */
TEST(test_small)
{
    lks_test_need_sentencepiece();
    spm_bytes b = {.n = 0};
    lks__spm *spm;
    spm_put_small_model(&b, SPM_BPE);
    assert_ok(lks__spm_open_bytes((const char *)b.data, b.n, "the model", &spm));
    assert_string_equal(pieces_of(spm, "ab--xa"), "yz -- x x");
    assert_string_equal(pieces_of(spm, "aab"), "x y z"); /* through xy, which is not used */
    lks__spm_close(spm);
}

/* Samples are not evaluated: this one is wrong. */
TEST(test_samples)
{
    lks_test_need_sentencepiece();
    spm_bytes b = {.n = 0};
    lks__spm *spm, *with;
    char *plain;
    size_t bytes;
    spm_put_small_model(&b, SPM_CHAR);
    assert_ok(lks__spm_open_bytes((const char *)b.data, b.n, "the model", &spm));
    spm_put_sample(&b, "a", "b");
    spm_put_piece(&b, "w", 1, SPM_NORMAL);
    assert_ok(lks__spm_check((const char *)b.data, b.n, "the model", &plain, &bytes));
    assert_non_null(plain);
    assert_true(bytes < b.n);
    free(plain);
    assert_ok(lks__spm_open_bytes((const char *)b.data, b.n, "the model", &with));
    /* Fields after the samples are kept. */
    assert_int_equal(lks__spm_size(with), lks__spm_size(spm) + 1);
    assert_string_equal(pieces_of(with, "aw"), "x w");
    lks__spm_close(spm);
    lks__spm_close(with);
}

static int next_sentence(void *ctx, const char **text_p, size_t *bytes_p)
{
    static const char *const sentences[] = {
        "the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs",
        "how vexingly quick daft zebras jump", "caf\xc3\xa9 \xef\xac\x81n \xe2\x91\xa0 1234"};
    int *left = ctx;
    if (*left == 0)
        return 0;
    *text_p = sentences[--*left % 4];
    *bytes_p = strlen(*text_p);
    return 1;
}

/* Train with one more option, then open the model. */
static void assert_opens(const char *type, const char *name, const char *value)
{
    char why[512];
    const char *const options[] = {"model_type",
                                   type,
                                   "vocab_size",
                                   "48",
                                   "hard_vocab_limit",
                                   "false",
                                   "minloglevel",
                                   "2",
                                   "user_defined_symbols",
                                   "<sep>,<sepa>,--",
                                   "control_symbols",
                                   "<a>,<b>",
                                   "self_test_sample_size",
                                   "3",
                                   name,
                                   value,
                                   NULL};
    const lks__spm_module *module =
        lks__module_load(LKS__SPM_MODULE_FILE, LKS__SPM_MODULE_VERSION, why, sizeof why);
    assert_non_null(module);
    int left = 400;
    char *model;
    size_t bytes;
    lks__spm *spm;
    if (module->train(options, next_sentence, &left, &model, &bytes, why, sizeof why) != 0)
        fail_msg("%s, %s=%s: %s", type, name, value, why);
    assert_ok(lks__spm_open_bytes(model, bytes, "the model", &spm));
    assert_true(lks__spm_size(spm) > 8);
    lks__spm_close(spm);
    free(model);
}

TEST(test_all_it_writes)
{
    lks_test_need_sentencepiece();
    static const char *const types[] = {"unigram", "bpe", "char", "word"};
    static const char *const rules[] = {"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"};
    /* a becomes bc, ab becomes nothing, q becomes a text of its own */
    static const char tsv[] = "61\t62 63\n61 62\t\n71\t1F600 20 71\n";
    const char *path = lks_test_text("%s/rules.tsv", lks_test_folder());
    lks_test_write(path, tsv, sizeof tsv - 1);
    for (size_t i = 0; i < 4; i++)
        assert_opens(types[i], "normalization_rule_name", rules[0]);
    for (size_t i = 1; i < 5; i++)
        assert_opens("bpe", "normalization_rule_name", rules[i]);
    assert_opens("bpe", "normalization_rule_tsv", path);
    assert_opens("unigram", "max_sentencepiece_length", "512");
}
