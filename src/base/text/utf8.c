#include "base/text/utf8.h"

#include <string.h>

size_t lks__utf8_decode(const char *s, size_t n, uint32_t *cp_p)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000}; /* by length */
    if (n == 0)
        return 0;
    unsigned char c = (unsigned char)s[0];
    size_t len;
    uint32_t cp;
    if (c < 0x80) {
        *cp_p = c;
        return 1;
    } else if ((c & 0xe0) == 0xc0) {
        len = 2;
        cp = c & 0x1f;
    } else if ((c & 0xf0) == 0xe0) {
        len = 3;
        cp = c & 0x0f;
    } else if ((c & 0xf8) == 0xf0) {
        len = 4;
        cp = c & 0x07;
    } else {
        return 0;
    }
    if (n < len)
        return 0;
    for (size_t i = 1; i < len; i++) {
        unsigned char b = (unsigned char)s[i];
        if ((b & 0xc0) != 0x80)
            return 0;
        cp = cp << 6 | (b & 0x3f);
    }
    if (cp < least[len] || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return 0;
    *cp_p = cp;
    return len;
}

size_t lks__utf8_encode(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Replace invalid bytes and, with `controls`, control characters. */
static void replace(char *text, bool controls, bool lines)
{
    const size_t n = strlen(text);
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = lks__utf8_decode(text + i, n - i, &cp);
        if (len == 0 || (controls && lks__is_control(cp) && !(lines && cp == '\n'))) {
            len = len == 0 ? 1 : len;
            memset(text + i, '?', len);
        }
    }
}

void lks__utf8_make(char *text)
{
    replace(text, false, false);
}

void lks__utf8_printable(char *text, bool lines)
{
    replace(text, true, lines);
}

bool lks__utf8_is_valid(const char *text, size_t bytes)
{
    uint32_t cp;
    for (size_t i = 0, n; i < bytes; i += n)
        if ((n = lks__utf8_decode(text + i, bytes - i, &cp)) == 0)
            return false;
    return true;
}

int lks__utf8_length(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

bool lks__ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool lks__is_one_of(const char *text, const char *const *words)
{
    while (*words != NULL && strcmp(*words, text) != 0)
        words++;
    return *words != NULL;
}
