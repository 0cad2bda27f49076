/* base/text/utf8.h - strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LKS__CODE_POINTS = 0x110000 };

/* Decode the code point at `s` (of `n` bytes). Returns its length 1..4, or 0 if the bytes are not
 * valid UTF-8 (also for n == 0). */
size_t lks__utf8_decode(const char *s, size_t n, uint32_t *cp_p);

/* Write `cp` to `out` (4 bytes of room); returns the length. */
size_t lks__utf8_encode(uint32_t cp, char *out);

/* Characters that a terminal may obey. */
static inline bool lks__is_control(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
}

bool lks__utf8_is_valid(const char *text, size_t bytes);
/* Number of characters of a valid text. */
int lks__utf8_length(const char *text);

bool lks__ends_with(const char *text, const char *end);
bool lks__is_one_of(const char *text, const char *const *words); /* NULL after the last */

/* Make a text valid UTF-8, in place: each invalid byte becomes '?', for example in a folder's name,
 * or in a text that was cut within a character. JSON, SVG and PNG accept only UTF-8. */
void lks__utf8_make(char *text);
/* Text from peers goes to terminals, often through several processes, so lks__escape() would escape
 * its own escapes. Replace invalid bytes and control characters by question marks instead, except
 * line feeds in a text of several `lines`. */
void lks__utf8_printable(char *text, bool lines);
