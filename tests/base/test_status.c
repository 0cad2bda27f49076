/* Error sentences, escaping, UTF-8 and checked sizes: the functions that keep hostile bytes off a
 * terminal. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number/checked.h"
#include "base/number/units.h"
#include "base/status.h"
#include "base/text/nearest.h"
#include "base/text/shell.h"
#include "base/text/utf8.h"
#include "base/text/utf8_stream.h"

TEST(test_sentences)
{
    assert_int_equal(lks__fail(LKS_ERR_IO, "file %d", 7), LKS_ERR_IO);
    assert_string_equal(lks_last_error(), "file 7");
    assert_int_equal(lks__fail_in(LKS_ERR_ARG, "rank %d", 2), LKS_ERR_ARG);
    assert_string_equal(lks_last_error(), "rank 2: file 7");
    lks__fail(LKS_ERR_IO, "again: %s", lks_last_error()); /* the sentence may quote the last one */
    assert_string_equal(lks_last_error(), "again: rank 2: file 7");
    assert_string_equal(lks_status_text(LKS_ERR_IO), "input or output failed");
    assert_string_equal(lks_status_text((lks_status)-999), "unknown status");
}

/* However long the parts are, the result is cut and ends with a 0 byte. */
TEST(test_long_sentences)
{
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    lks__fail(LKS_ERR_IO, "%s", text);
    size_t n = strlen(lks_last_error());
    assert_true(n > 1000 && n < sizeof text - 1);
    for (int i = 0; i < 10; i++)
        lks__fail_in(LKS_ERR_IO, "%s", text);
    assert_true(strlen(lks_last_error()) <= n);
}

TEST(test_escape)
{
    static const struct {
        const char *in;
        size_t bytes;
        const char *out;
    } cases[] = {
        {"plain text", 10, "plain text"},
        {"a\x1b[2Jb", 6, "a\\x1b[2Jb"},
        {"nul\0.", 5, "nul\\x00."},
        {"\"\\", 2, "\\\"\\\\"},
        {"\xc3\xa9\xe2\x82\xac", 5, "\xc3\xa9\xe2\x82\xac"},
        {"\xff\xc3", 2, "\\xff\\xc3"},
        {"\n\t\x7f", 3, "\\x0a\\x09\\x7f"},
        {"", 0, ""},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(lks__escape(out, sizeof out, cases[i].in, cases[i].bytes),
                            cases[i].out);
    /* C1 controls are two bytes in UTF-8, and terminals obey some of them. */
    assert_string_equal(lks__escape(out, sizeof out, "\xc2\x9b", 2), "\\xc2\\x9b");
    assert_string_equal(lks__escape(out, sizeof out, "\xe2\x80\xae", 3), "\\xe2\\x80\\xae");
}

TEST(test_escape_is_cut)
{
    char out[32];
    for (size_t room = 1; room < 20; room++) {
        memset(out, '#', sizeof out);
        lks__escape(out, room, "0123456789\x1b\x1b\x1b", 13);
        assert_true(memchr(out, '\0', room) != NULL);
        for (size_t i = room; i < sizeof out; i++)
            assert_int_equal(out[i], '#');
    }
    assert_string_equal(lks__escape(out, 10, "0123456789", 10), "012345...");
}

/* The name that was meant: signs for each other are none of its mistakes, and it may have few. */
TEST(test_nearest)
{
    static const char *const names[] = {"a_b_c_d", NULL, "decay_lr", "seed"};
    const size_t n = sizeof names / sizeof *names;
    assert_string_equal(lks__nearest("A-B-C-D", names, n), "a_b_c_d");
    assert_string_equal(lks__nearest("deacy-lr", names, n), "decay_lr");
    assert_string_equal(lks__nearest("see", names, n), "seed");
    assert_null(lks__nearest("sd", names, n));
    assert_null(lks__nearest("", names, n));
}

/* A pasted word is the same word, or "...". */
TEST(test_shell_words)
{
    static const char *const cases[][2] = {{"out/my-run_1", "out/my-run_1"},
                                           {"", "''"},
                                           {"a b", "'a b'"},
                                           {"it's", "'it'\\''s'"},
                                           {"--dataset=a b", "--dataset='a b'"},
                                           {"--x=1=2;3", "--x='1=2;3'"},
                                           {"--$(id)=1", "'--$(id)=1'"},
                                           {"--a b=c", "'--a b=c'"},
                                           {"--dataset=\x1b[31m", "..."},
                                           {"a\xff", "..."},
                                           {"0123456789012345678901234567", "..."}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(lks__quoted(cases[i][0], 28), cases[i][1]);
}

TEST(test_utf8)
{
    static const struct {
        const char *bytes;
        size_t n, len;
        uint32_t cp;
    } cases[] = {
        {"A", 1, 1, 0x41},
        {"\0", 1, 1, 0},
        {"\xc3\xa9", 2, 2, 0xe9},
        {"\xe2\x82\xac!", 4, 3, 0x20ac},
        {"\xf0\x9f\x98\x80", 4, 4, 0x1f600},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0x10ffff},
        {"\xef\xbf\xbf", 3, 3, 0xffff},
        /* invalid: nothing, lone continuation, overlong, surrogate, too large, cut, bad byte */
        {"", 0, 0, 0},
        {"\x80", 1, 0, 0},
        {"\xc0\x80", 2, 0, 0},
        {"\xc1\xbf", 2, 0, 0},
        {"\xe0\x9f\xbf", 3, 0, 0},
        {"\xf0\x8f\xbf\xbf", 4, 0, 0},
        {"\xed\xa0\x80", 3, 0, 0},
        {"\xed\xbf\xbf", 3, 0, 0},
        {"\xf4\x90\x80\x80", 4, 0, 0},
        {"\xf5\x80\x80\x80", 4, 0, 0},
        {"\xe2\x82", 2, 0, 0},
        {"\xc3(", 2, 0, 0},
        {"\xff", 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t cp = 0;
        char back[4];
        assert_int_equal(lks__utf8_decode(cases[i].bytes, cases[i].n, &cp), cases[i].len);
        if (cases[i].len == 0)
            continue;
        assert_int_equal(cp, cases[i].cp);
        assert_int_equal(lks__utf8_encode(cp, back), cases[i].len);
        assert_memory_equal(back, cases[i].bytes, cases[i].len);
    }
    uint32_t cut;
    assert_int_equal(lks__utf8_decode("\xe2\x82\xac", 2, &cut), 0); /* the third byte is missing */
}

/* What stays of a text: characters of JSON, of some lines, of one line. */
TEST(test_replaced)
{
    static const char text[] = "\xff\xc3\xa9\n\x1b\xc2\x9bz\xc3";
    char made[sizeof text], lines[sizeof text], line[sizeof text];
    lks__utf8_make(memcpy(made, text, sizeof text));
    assert_string_equal(made, "?\xc3\xa9\n\x1b\xc2\x9bz?");
    lks__utf8_printable(memcpy(lines, text, sizeof text), true);
    assert_string_equal(lines, "?\xc3\xa9\n???z?");
    lks__utf8_printable(memcpy(line, text, sizeof text), false);
    assert_string_equal(line, "?\xc3\xa9????z?");
}

static lks_status append(void *ctx, const char *text, size_t bytes)
{
    strncat(ctx, text, bytes);
    return LKS_OK;
}

/* Whatever pieces the bytes come in: whole characters, and nothing that a terminal obeys. */
TEST(test_stream)
{
#define BAD "\xef\xbf\xbd"
    static const char in[] = "a\t\n\xc3\xa9\x1b[2J\x7f\xc2\x9b\xc2\x80\xc2\xa0\xff\xe2\x82"
                             "b\xe2\x82\xac\r\xf0\x9f\x98\x80\r\n\r\r\n\r\x80\r\xc3",
                      out[] = "a\t\n\xc3\xa9" BAD "[2J" BAD BAD BAD "\xc2\xa0" BAD BAD
                              "b\xe2\x82\xac" BAD "\xf0\x9f\x98\x80\r\n" BAD "\r\n" BAD BAD BAD BAD;
#undef BAD
    for (size_t piece = 1; piece < sizeof in; piece++) {
        char got[200] = "";
        lks__utf8_stream s = {.put = append, .ctx = got};
        for (size_t at = 0; at < sizeof in - 1; at += piece) {
            const size_t left = sizeof in - 1 - at;
            assert_ok(lks__utf8_stream_add(&s, in + at, left < piece ? left : piece));
        }
        assert_ok(lks__utf8_stream_end(&s));
        assert_string_equal(got, out);
    }
}

TEST(test_checked)
{
    uint64_t r = 5;
    assert_true(lks__add(UINT64_MAX - 1, 1, &r));
    assert_true(r == UINT64_MAX);
    r = 5;
    assert_false(lks__add(UINT64_MAX, 1, &r));
    assert_false(lks__mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &r));
    assert_int_equal(r, 5);
    assert_true(lks__mul(UINT64_C(1) << 32, 3, &r));
    assert_true(r == UINT64_C(3) << 32);
    assert_int_equal(lks__round_up(0, 64), 0);
    assert_int_equal(lks__round_up(1, 64), 64);
    assert_int_equal(lks__round_up(64, 64), 64);
}

TEST(test_units)
{
    static const struct {
        double bytes;
        const char *text;
    } cases[] = {
        {0, "0 bytes"},
        {1, "1 byte"},
        {999, "999 bytes"},
        {999.6, "1.0 kB"},
        {999949, "999.9 kB"},
        {999960, "1.0 MB"},
        {12545024, "12.5 MB"},
        {999.96e6, "1.00 GB"},
        {66532.8e6, "66.53 GB"},
        {999.996e9, "1.00 TB"},
        {19465368.1e6, "19.47 TB"},
    };
    char out[LKS__UNITS_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(lks__units_bytes(cases[i].bytes), cases[i].text);
    snprintf(out, sizeof out, "%.2f", lks__units_plain(-(double)NAN));
    assert_string_equal(out, "nan");
    assert_true(lks__units_plain(-1.5) == -1.5 && lks__units_plain(-(double)INFINITY) < -1e300);
}

TEST(test_append)
{
    char text[8] = "";
    assert_true(lks__append(text, sizeof text, ", ", "%c", 'a'));
    assert_true(lks__append(text, sizeof text, ", ", "bc"));
    assert_false(lks__append(text, sizeof text, ", ", "d"));
    assert_string_equal(text, "a, bc, ");
    assert_false(lks__append(text, sizeof text, "", "e")); /* full */
    assert_string_equal(text, "a, bc, ");
}
