/* Text up to a stop text (use/until.h), cut into pieces everywhere, beside a search in the whole.
 */
#include "support.h"

#include <string.h>

#include "weights/use/until.h"

enum { ROOM = 4096 };

struct out {
    char text[ROOM];
    size_t n;
};

static lks_status put(void *ctx, const char *text, size_t bytes)
{
    struct out *o = ctx;
    assert_true(bytes > 0 && o->n + bytes < ROOM);
    memcpy(o->text + o->n, text, bytes);
    o->n += bytes;
    return LKS_OK;
}

/* What stands before the stop text that ends first (of those, before the longest listed first). */
static size_t naive(const char *text, size_t n, const char *const *stops)
{
    for (size_t end = 1; end <= n; end++)
        for (const char *const *s = stops; *s != NULL; s++)
            if (strlen(*s) <= end && memcmp(text + end - strlen(*s), *s, strlen(*s)) == 0)
                return end - strlen(*s);
    return n;
}

static void check(const char *text, size_t n, const char *const *stops)
{
    const size_t want = naive(text, n, stops);
    for (size_t piece = 1; piece <= n; piece++) {
        struct out o = {.n = 0};
        lks__until u = {.stops = stops, .put = put, .ctx = &o};
        for (size_t at = 0; at < n; at += piece) {
            const size_t before = o.n;
            assert_ok(lks__until_add(&u, text + at, n - at < piece ? n - at : piece));
            assert_true(o.n >= before && o.n <= want);
        }
        assert_true(u.ended == (want < n));
        assert_ok(lks__until_end(&u));
        assert_int_equal(o.n, want);
        assert_memory_equal(o.text, text, want);
    }
}

TEST(test_stops)
{
    static const char *const lists[][4] = {
        {NULL},
        {"\n", NULL},
        {"aab", NULL},
        {"abcd", "bc", NULL},
        {"aa", "b", NULL},
        {"\xc3\xa9", NULL},
        {"ababac", "abac", NULL},
    };
    static const char *const texts[] = {
        "aaab", "abcabcd", "ababababac", "\xc3\xa8\xc3\xa9x", "x\n\ny", "abab", "a", "caaab\nabcd",
    };
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            check(texts[t], strlen(texts[t]), lists[l]);
}

/* All texts of seven letters over two. */
TEST(test_every_text)
{
    static const char *const stops[] = {"aba", "bb", "aaaa", NULL};
    for (unsigned bits = 0; bits < 128; bits++) {
        char text[7];
        for (unsigned i = 0; i < 7; i++)
            text[i] = bits >> i & 1 ? 'a' : 'b';
        check(text, 7, stops);
    }
}

/* Nothing that can't become a stop text is held back. */
TEST(test_at_once)
{
    static const char *const stops[] = {"stop", NULL};
    struct out o = {.n = 0};
    lks__until u = {.stops = stops, .put = put, .ctx = &o};
    assert_ok(lks__until_add(&u, "a st", 4));
    assert_int_equal(o.n, 2);
    assert_ok(lks__until_add(&u, "r", 1));
    assert_int_equal(o.n, 5);
    assert_ok(lks__until_add(&u, "sto", 3));
    assert_int_equal(o.n, 5);
    assert_ok(lks__until_end(&u));
    assert_int_equal(o.n, 8);
}

TEST(test_longest)
{
    static char text[2 * LKS__UNTIL_MOST], stop[LKS__UNTIL_MOST + 1];
    const char *const stops[] = {stop, NULL};
    struct out o = {.n = 0};
    lks__until u = {.stops = stops, .put = put, .ctx = &o};
    memset(text, 'a', sizeof text);
    memset(stop, 'a', LKS__UNTIL_MOST);
    stop[LKS__UNTIL_MOST - 1] = 'b';
    assert_ok(lks__until_add(&u, text, sizeof text));
    assert_int_equal(o.n, LKS__UNTIL_MOST + 1);
    assert_ok(lks__until_add(&u, "b", 1));
    assert_true(u.ended);
    assert_int_equal(o.n, LKS__UNTIL_MOST + 1);
}
