/* Pickles: what Python writes, and what it can't have written. tests/figures/pickle is made by
 * record.py. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "files/pickle/pickle.h"

static const lks__pickle_value *at(const lks__pickle_value *dict, const char *key)
{
    const lks__pickle_value *v = lks__pickle_find(dict, key);
    assert_non_null(v);
    return v;
}

static void assert_text(const lks__pickle_value *v, lks__pickle_kind kind, const void *text,
                        size_t bytes)
{
    size_t n;
    assert_int_equal(lks__pickle_kind_of(v), kind);
    const char *got = lks__pickle_text(v, &n);
    assert_int_equal(n, bytes);
    assert_memory_equal(got, text, bytes);
}

static void assert_ints(const lks__pickle_value *list, lks__pickle_kind kind, const int64_t *ints,
                        size_t n)
{
    assert_int_equal(lks__pickle_kind_of(list), kind);
    assert_int_equal(lks__pickle_count(list), n);
    for (size_t i = 0; i < n; i++) {
        const lks__pickle_value *v = lks__pickle_item(list, i);
        assert_int_equal(lks__pickle_kind_of(v), LKS__PICKLE_INT);
        assert_true(lks__pickle_int(v) == (ints ? ints[i] : (int64_t)i));
    }
}

static void check_scalars(const lks__pickle_value *v)
{
    static const int64_t ints[] = {0,
                                   1,
                                   255,
                                   256,
                                   65535,
                                   65536,
                                   -1,
                                   -128,
                                   -129,
                                   INT32_MAX,
                                   INT32_MIN,
                                   INT64_C(1) << 31,
                                   INT64_C(1) << 62,
                                   INT64_MIN,
                                   INT64_MAX};
    static const double floats[] = {0.0, -0.5, 1e300, 5e-324, INFINITY};
    char many[512];
    for (int i = 0; i < 512; i++)
        many[i] = (char)i;
    assert_int_equal(lks__pickle_kind_of(at(v, "none")), LKS__PICKLE_NONE);
    assert_int_equal(lks__pickle_kind_of(at(v, "yes")), LKS__PICKLE_BOOL);
    assert_true(lks__pickle_bool(at(v, "yes")));
    assert_int_equal(lks__pickle_kind_of(at(v, "no")), LKS__PICKLE_BOOL);
    assert_false(lks__pickle_bool(at(v, "no")));
    assert_text(at(v, "text"), LKS__PICKLE_TEXT, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0b", 12);
    assert_text(at(v, "empty"), LKS__PICKLE_TEXT, "", 0);
    assert_true(lks__pickle_is(at(v, "empty"), ""));
    assert_int_equal(lks__pickle_kind_of(at(v, "long")), LKS__PICKLE_TEXT);
    assert_text(at(v, "bytes"), LKS__PICKLE_BYTES, "\0\x7f\x80\xff", 4);
    assert_text(at(v, "no_bytes"), LKS__PICKLE_BYTES, "", 0);
    assert_text(at(v, "many_bytes"), LKS__PICKLE_BYTES, many, sizeof many);
    assert_ints(at(v, "ints"), LKS__PICKLE_LIST, ints, sizeof ints / sizeof ints[0]);
    for (size_t i = 0; i < 5; i++)
        assert_true(lks__pickle_float(lks__pickle_item(at(v, "floats"), i)) == floats[i]);
}

static void check_plain(const char *name)
{
    lks__pickle *p;
    assert_ok(lks__pickle_open(
        lks_test_text("%s/tests/figures/pickle/%s", LKS_TEST_SOURCE_DIR, name), &p));
    const lks__pickle_value *v = lks__pickle_root(p), *dicts = at(v, "dicts");
    check_scalars(v);
    for (size_t n = 0; n < 5; n++)
        for (size_t i = 0; i < n; i++)
            assert_int_equal(
                lks__pickle_int(lks__pickle_item(lks__pickle_item(at(v, "tuples"), n), i)), i + 1);
    assert_ints(lks__pickle_item(at(v, "lists"), 2), LKS__PICKLE_LIST, NULL, 1005);
    assert_int_equal(lks__pickle_count(lks__pickle_item(lks__pickle_item(at(v, "lists"), 1), 0)),
                     0);
    assert_true(lks__pickle_is(lks__pickle_find_int(lks__pickle_item(dicts, 1), 5), "five"));
    assert_true(lks__pickle_is(lks__pickle_find_int(lks__pickle_item(dicts, 1), -1), "minus"));
    assert_null(lks__pickle_find_int(lks__pickle_item(dicts, 1), 0));
    assert_null(lks__pickle_find(lks__pickle_item(dicts, 1), "5"));
    for (int i = 0; i < 1005; i++)
        assert_int_equal(lks__pickle_int(at(lks__pickle_item(dicts, 2), lks_test_text("%d", i))),
                         i);
    /* in the file's order, though found by key */
    assert_true(lks__pickle_is(lks__pickle_key(at(v, "ordered"), 0), "b"));
    assert_int_equal(lks__pickle_int(lks__pickle_item(at(v, "ordered"), 1)), 2);
    assert_ptr_equal(lks__pickle_item(at(v, "shared"), 0), lks__pickle_item(at(v, "shared"), 1));
    assert_null(lks__pickle_find(v, "nowhere"));
    assert_null(lks__pickle_find(dicts, "text"));
    lks__pickle_close(p);
}

TEST(test_every_protocol)
{
    for (int p = 2; p <= 5; p++)
        check_plain(lks_test_text("plain%d.pkl", p));
}

/* ---- what Python can't have written ------------------------------------------------------ */

#define PICKLE(text) text, sizeof(text) - 1

static void refused(const char *data, size_t bytes, const char *why)
{
    lks__pickle *p = NULL;
    assert_fails(LKS_ERR_FORMAT, lks__pickle_parse("x.pkl", data, bytes, NULL, NULL, &p), "x.pkl",
                 why);
    assert_null(p);
}

TEST(test_calls)
{
    refused(PICKLE("\x80\2cos\nsystem\nX\4\0\0\0true\x85R."), "offset 2: it names os.system");
    refused(PICKLE("\x80\4\x8c\5posix\x8c\6system\x93."), "offset 17: it names posix.system");
    refused(PICKLE("\x80\2c__builtin__\neval\nX\1\0\0\0001\x85R."), "names __builtin__.eval");
    refused(PICKLE("\x80\2cos\n\x1b[31m\n."), "os.\\x1b[31m");
    refused(PICKLE("\x80\2ctorch\nload\n."), "names torch.load");
    refused(PICKLE("\x80\2cos\nencode\n."), "names os.encode");
    refused(PICKLE("\x80\2ctorch\nFloatStorag\n."), "names torch.FloatStorag");
    refused(PICKLE("\x80\2(cos\nsystem\no."), "names os.system");
    refused(PICKLE("\x80\2(ios\nsystem\n."), "offset 3: opcode 0x69 (INST) is refused");
    refused(PICKLE("\x80\2}}\x81."), "opcode 0x81 (NEWOBJ)");
    refused(PICKLE("\x80\2\x82\1."), "opcode 0x82 (EXT1)");
    refused(PICKLE("\x80\2\x8f."), "opcode 0x8f (EMPTY_SET)");
    refused(PICKLE("\x80\2I01\n."), "opcode 0x49 (INT)");
    refused(PICKLE("\x80\2\xff."), "opcode 0xff");
    refused(PICKLE("\x80\2ctorch\nFloatStorage\n)R."), "a storage type is called");
    refused(PICKLE("\x80\2ccollections\nOrderedDict\n."), "its value is a name");
    refused(PICKLE("\x80\2ccollections\nOrderedDict\nK\1\x85R."), "take no arguments");
    refused(PICKLE("\x80\2K\1)R."), "calls a value that is not a name");
    refused(PICKLE("\x80\2X\1\0\0\0aQ."), "a tensor, which only files of torch.save");
    refused(PICKLE("\x80\2K\1}b."), "added to a value that is not a dict");
    refused(PICKLE("\x80\2}Nb."), "attributes are not a dict");
    refused(PICKLE("\x80\2ccollections\nOrderedDict\nNR."), "without a tuple of arguments");
    refused(PICKLE("\x80\4K\1\x8c\1a\x93."), "a name is not a text");
    refused(PICKLE("\x80\4\x8c\1aK\1\x93."), "a name is not a text");
    refused(PICKLE("\x80\2c_codecs\nencode\nX\1\0\0\0aX\5\0\0\0utf-8\x86R."), "'latin1'");
    refused(PICKLE("\x80\2c_codecs\nencode\nX\2\0\0\0\xc4\x80X\6\0\0\0latin1\x86R."),
            "a character that is not a byte");
}

TEST(test_cut)
{
    size_t bytes;
    const char *data = lks_test_read(
        lks_test_text("%s/tests/figures/pickle/meta.pkl", LKS_TEST_SOURCE_DIR), &bytes);
    for (size_t n = 0; n < bytes; n++) {
        /* a copy of that size, so that a read beyond it is noticed */
        char *copy = malloc(n + 1);
        lks__pickle *p = NULL;
        memcpy(copy, data, n);
        assert_fails(LKS_ERR_FORMAT, lks__pickle_parse("x.pkl", copy, n, NULL, NULL, &p), "offset");
        free(copy);
    }
    refused(PICKLE("\x80\2N.N"), "bytes follow its end");
    refused(PICKLE("\x80\2NN."), "more than one value");
    refused(PICKLE("\x80\2(N."), "more than one value");
    refused(PICKLE("\x80\1N."), "protocol");
    refused(PICKLE("\x80\6N."), "protocol");
    refused(PICKLE("\x80\2\x80\2N."), "given twice");
    refused(PICKLE("N."), "not a pickle of protocol");
}

TEST(test_lies)
{
    refused(PICKLE("\x80\2X\xff\xff\xff\xff."), "a length is wrong");
    refused(PICKLE("\x80\2\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), "a length is wrong");
    refused(PICKLE("\x80\4\x95\xff\0\0\0\0\0\0\0N."), "a frame is longer");
    refused(PICKLE("\x80\2\x8a\x09\1\2\3\4\5\6\7\x08\x09."), "more than 64 bits");
    refused(PICKLE("\x80\2X\2\0\0\0\xc3\x28."), "not valid UTF-8");
    refused(PICKLE("\x80\2h\0."), "an empty place of its memo");
    refused(PICKLE("\x80\2Nr\xff\xff\xff\xff."), "its memo has gaps");
    refused(PICKLE("\x80\2a."), "stack");
    refused(PICKLE("\x80\2\x86."), "too short for a tuple");
    refused(PICKLE("\x80\2N(\x85."), "too short for a tuple");
    refused(PICKLE("\x80\2t."), "no mark");
    refused(PICKLE("\x80\2NNa."), "a value that is not a list");
    refused(PICKLE("\x80\2](NNu."), "a value that is not a dict");
    refused(PICKLE("\x80\2}(Nu."), "without a value");
    refused(PICKLE("\x80\2}(X\1\0\0\0aNX\1\0\0\0aNu."), "occurs twice in a dict");
    refused(PICKLE("\x80\2}(K\1NM\1\0Nu."), "occurs twice in a dict");
    refused(PICKLE("\x80\2}(NNu."), "neither text nor a whole number");
}

/* Whole numbers in fewer bytes than Python takes for them. */
TEST(test_short_numbers)
{
    static const struct {
        const char *data;
        size_t bytes;
        int64_t is;
    } cases[] = {{PICKLE("\x80\2\x8a\0."), 0},
                 {PICKLE("\x80\2\x8a\1\xff."), -1},
                 {PICKLE("\x80\2\x8a\1\x7f."), 127},
                 {PICKLE("\x80\2\x8a\2\0\x80."), -32768},
                 {PICKLE("\x80\2\x8b\3\0\0\0\0\0\1."), 65536}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lks__pickle *p = NULL;
        assert_ok(lks__pickle_parse("x.pkl", cases[i].data, cases[i].bytes, NULL, NULL, &p));
        assert_true(lks__pickle_int(lks__pickle_root(p)) == cases[i].is);
        lks__pickle_close(p);
    }
}

/* Values that contain themselves, that contain each other, or that grow by references. */
TEST(test_memo)
{
    char deep[300], laughs[2000];
    size_t n = 0;
    refused(PICKLE("\x80\2]q\0h\0a."), "after it became part");
    refused(PICKLE("\x80\2]q\0]q\1h\0ah\0h\1a."), "after it became part");
    refused(PICKLE("\x80\2}q\0(K\1h\0u."), "without a value");

    deep[n++] = '\x80';
    deep[n++] = 2;
    for (int i = 0; i < 64; i++)
        deep[n++] = ']';
    for (int i = 0; i < 63; i++)
        deep[n++] = 'a';
    deep[n++] = '.';
    lks__pickle *p = NULL;
    assert_ok(lks__pickle_parse("x.pkl", deep, n, NULL, NULL, &p));
    lks__pickle_close(p);
    n--;
    memmove(deep + 4, deep + 2, n - 2);
    deep[2] = deep[3] = ']';
    n += 2;
    deep[n++] = 'a';
    deep[n++] = 'a';
    deep[n++] = '.';
    refused(deep, n, "nested more than 64 deep");

    /* each of the tuples has the one before it three times: 3^30 parts */
    n = 0;
    laughs[n++] = '\x80';
    laughs[n++] = 2;
    laughs[n++] = 'N';
    for (int i = 0; i < 30; i++) {
        const char more[] = {'q', (char)i, 'h', (char)i, 'h', (char)i, '\x87'};
        memcpy(laughs + n, more, sizeof more);
        n += sizeof more;
    }
    laughs[n++] = '.';
    refused(laughs, n, "16,777,216 parts");
}

/* Few bytes that would need much memory, or much time. */
TEST(test_repeated)
{
    enum { TEXT = 1 << 20 };
    static char data[TEXT + 500];
    lks__pickle *p = NULL;
    /* 1 MiB of text, encoded 8 times: allowed; a ninth time: refused */
    size_t n = (size_t)snprintf(data, 40, "%s", "\x80\2c_codecs\nencode\nq");
    memcpy(data + n, "\0X\0\0\x10\0", 6);
    memset(data + n + 6, 'a', TEXT);
    n += 6 + TEXT;
    memcpy(data + n, "X\6\0\0\0latin1\x86q\1R", 15);
    n += 15;
    for (int i = 2; i <= 9; i++, n += 6) {
        memcpy(data + n, "0h\0h\1R.", 8);
        if (i == 9)
            refused(data, n + 7, "encode makes more than 8 MiB");
        else
            assert_ok(lks__pickle_parse("x.pkl", data, n + 7, NULL, NULL, &p));
        lks__pickle_close(p);
        p = NULL;
    }
    /* 1 MiB of text, the key of 64 dicts, and of one more */
    memcpy(data, "\x80\2X\0\0\x10\0", 7);
    memset(data + 7, 'k', TEXT);
    n = 7 + TEXT;
    memcpy(data + n, "q\0", 2);
    n += 2;
    for (int i = 1; i <= 65; i++, n += 6) {
        memcpy(data + n, "}h\0Ns0.", 7);
        if (i == 65)
            refused(data, n + 7, "keys of dicts have more than 64 MiB");
        else if (i == 64)
            assert_ok(lks__pickle_parse("x.pkl", data, n + 7, NULL, NULL, &p));
    }
    lks__pickle_close(p);
}

/* What Python may write, and none of the figures has. */
TEST(test_rare)
{
    lks__pickle *p;
    /* a place of the memo that is used again */
    static const char again[] = "\x80\2K\1q\0"
                                "0K\2q\0"
                                "0h\0.";
    assert_ok(lks__pickle_parse("x.pkl", PICKLE(again), NULL, NULL, &p));
    assert_true(lks__pickle_int(lks__pickle_root(p)) == 2);
    lks__pickle_close(p);
    /* bytes() by its name in Python 3; before it, a mark and what is above it go */
    assert_ok(
        lks__pickle_parse("x.pkl", PICKLE("\x80\2(NN1cbuiltins\nbytes\n)R."), NULL, NULL, &p));
    assert_text(lks__pickle_root(p), LKS__PICKLE_BYTES, "", 0);
    lks__pickle_close(p);
}

TEST(test_files)
{
    lks__pickle *p = NULL;
    const char *path = lks_test_text("%s/long.pkl", lks_test_folder());
    static char zeros[(8 << 20) + 1];
    lks_test_write(path, zeros, sizeof zeros);
    assert_fails(LKS_ERR_FORMAT, lks__pickle_open(path, &p), "long.pkl");
    assert_fails(LKS_ERR_IO, lks__pickle_open("/nowhere/x.pkl", &p), "/nowhere/x.pkl");
}
