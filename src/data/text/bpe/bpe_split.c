/* data/text/bpe/bpe_split.c - splits text into pieces, like this expression from left to right:
 *     '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */

#include "base/text/utf8.h"
#include "data/text/bpe/bpe.h"
#include "data/text/bpe/bpe_table.h"

/* The class of the character at text[i], and its length. A byte that isn't UTF-8 is a mark. */
static int class_at(const lks__bpe *bpe, const char *text, size_t i, size_t bytes, size_t *len_p)
{
    const unsigned char c = (unsigned char)text[i];
    uint32_t cp = 0;
    *len_p = 1;
    if (c < 0x80)
        return bpe->classes[c];
    const size_t len = lks__utf8_decode(text + i, bytes - i, &cp);
    if (len == 0)
        return LKS__CLASS_MARK;
    *len_p = len;
    return bpe->classes[cp];
}

/* The end of the run of characters of `class` that continues at text[i]. */
static size_t run_end(const lks__bpe *bpe, int class, const char *text, size_t i, size_t bytes)
{
    size_t len;
    while (i < bytes && class_at(bpe, text, i, bytes, &len) == class)
        i += len;
    return i;
}

/* Length of 's, 'd, 'm, 't, 'll, 've, 're at `text`; 0: none of them. */
static size_t contraction(const char *text, size_t bytes)
{
    if (bytes < 2 || text[0] != '\'')
        return 0;
    if (text[1] == 's' || text[1] == 'd' || text[1] == 'm' || text[1] == 't')
        return 2;
    if (bytes < 3)
        return 0;
    const bool two = (text[1] == 'l' && text[2] == 'l') || (text[1] == 'v' && text[2] == 'e') ||
                     (text[1] == 'r' && text[2] == 'e');
    return two ? 3 : 0;
}

/* Split off white space: all of it at the end of the text, otherwise all but its last character.
 * That character is a separate piece, or begins the next piece if it is a blank. */
static size_t space_end(const lks__bpe *bpe, const char *text, size_t i, size_t bytes)
{
    size_t end = i, last = i, len;
    while (end < bytes && class_at(bpe, text, end, bytes, &len) == LKS__CLASS_SPACE) {
        last = end;
        end += len;
    }
    return end == bytes || last == i ? end : last;
}

size_t lks__bpe_piece_end(const lks__bpe *bpe, const char *text, size_t i, size_t bytes)
{
    const size_t short_end = contraction(text + i, bytes - i);
    size_t len;
    if (short_end > 0)
        return i + short_end;
    if (text[i] == ' ' && i + 1 < bytes) {
        const int class = class_at(bpe, text, i + 1, bytes, &len);
        if (class != LKS__CLASS_SPACE)
            return run_end(bpe, class, text, i + 1 + len, bytes);
    }
    const int class = class_at(bpe, text, i, bytes, &len);
    if (class == LKS__CLASS_SPACE)
        return space_end(bpe, text, i, bytes);
    return run_end(bpe, class, text, i + len, bytes);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_number(char c)
{
    return c >= '0' && c <= '9';
}

/* True if a piece always ends between these ASCII characters. White space ends the piece before it
 * and begins one. A letter ends a run of numbers, a number a run of letters, and a mark ends both.
 * After white space the border depends on the following text. After a mark, too: it may belong to
 * 's, or to a run of marks. */
static bool can_cut(char before, char after)
{
    const bool space_after = after == ' ' || (after >= '\t' && after <= '\r');
    if (space_after)
        return before > ' ' && before < 0x7f;
    if (after <= ' ' || after >= 0x7f)
        return false;
    return (is_letter(before) && !is_letter(after)) || (is_number(before) && !is_number(after));
}

size_t lks__bpe_cut(const lks__bpe *special, const char *text, size_t from, size_t bytes)
{
    for (size_t n = bytes; n-- > from + 1;)
        if (can_cut(text[n - 1], text[n]) &&
            (special == NULL || !lks__bpe_in_special(special, text, bytes, n)))
            return n;
    return 0;
}
