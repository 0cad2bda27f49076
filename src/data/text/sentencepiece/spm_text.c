#include "data/text/sentencepiece/spm_text.h"

#include <stdbool.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd", space_mark[] = "\xe2\x96\x81";

/* The value of a byte token, whose piece is for example "<0x0A>". */
static bool byte_of(const char *piece, size_t n, char *byte_p)
{
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(piece, "<0x", 3) != 0)
        return false;
    const char *high = memchr(digits, piece[3], 16), *low = memchr(digits, piece[4], 16);
    if (high == NULL || low == NULL)
        return false;
    *byte_p = (char)((high - digits) << 4 | (low - digits));
    return true;
}

/* Add a piece, with its marks replaced by spaces. */
static lks_status add_piece(lks__utf8_stream *out, const char *piece, size_t n)
{
    const size_t mark = sizeof space_mark - 1;
    const char *end = piece + n;
    for (const char *next; (next = memmem(piece, (size_t)(end - piece), space_mark, mark)) != NULL;
         piece = next + mark) {
        LKS__TRY(lks__utf8_stream_add(out, piece, (size_t)(next - piece)));
        LKS__TRY(lks__utf8_stream_add(out, " ", 1));
    }
    return lks__utf8_stream_add(out, piece, (size_t)(end - piece));
}

lks_status lks__spm_text_add(const lks__spm *spm, int32_t id, lks__utf8_stream *out)
{
    size_t n;
    char byte;
    if (id < 0 || (uint32_t)id >= lks__spm_size(spm))
        return lks__utf8_stream_add(out, replacement, sizeof replacement - 1);
    unsigned kind = lks__spm_kind(spm, (uint32_t)id);
    const char *piece = lks__spm_piece(spm, (uint32_t)id, &n);
    if (kind & (LKS__SPM_CONTROL | LKS__SPM_UNUSED))
        return LKS_OK;
    if (kind & LKS__SPM_UNKNOWN)
        return lks__utf8_stream_add(out, replacement, sizeof replacement - 1);
    if (kind & LKS__SPM_BYTE && byte_of(piece, n, &byte))
        return lks__utf8_stream_add(out, &byte, 1);
    LKS__TRY(lks__utf8_stream_end(out)); /* a piece begins a new character */
    return add_piece(out, piece, n);
}
