#include "data/spm_text.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";
static const uint32_t space_mark = 0x2581;

/* Number of bytes of the character that begins with `c`. */
static size_t length_of(unsigned char c)
{
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static lks_status put_char(lks__spm_text *t, const char *s, size_t n, uint32_t cp)
{
    bool shown = cp == '\n' || cp == '\t' || (cp >= 0x20 && !(cp >= 0x7f && cp < 0xa0));
    if (cp == space_mark)
        return t->put(t->ctx, " ", 1);
    return shown ? t->put(t->ctx, s, n) : t->put(t->ctx, replacement, sizeof replacement - 1);
}

lks_status lks__spm_text_end(lks__spm_text *t)
{
    bool any = t->n_pending > 0;
    t->n_pending = 0;
    return any ? t->put(t->ctx, replacement, sizeof replacement - 1) : LKS_OK;
}

/* Add any bytes; pass on characters once they are complete. */
static lks_status add_bytes(lks__spm_text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool continues = ((unsigned char)s[i] & 0xc0) == 0x80;
        uint32_t cp;
        if (!continues || t->n_pending == 0)
            LKS__TRY(lks__spm_text_end(t));
        t->pending[t->n_pending++] = s[i];
        if (t->n_pending < length_of((unsigned char)t->pending[0]))
            continue;
        size_t whole = lks__utf8_decode(t->pending, t->n_pending, &cp);
        if (whole == t->n_pending) {
            t->n_pending = 0;
            LKS__TRY(put_char(t, t->pending, whole, cp));
        } else {
            LKS__TRY(lks__spm_text_end(t));
        }
    }
    return LKS_OK;
}

/* The value of a byte token, whose piece is "<0x0A>", for example. */
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

lks_status lks__spm_text_add(lks__spm_text *t, int32_t id)
{
    size_t n;
    char byte;
    if (id < 0 || (uint32_t)id >= lks__spm_size(t->spm))
        return add_bytes(t, replacement, sizeof replacement - 1);
    unsigned kind = lks__spm_kind(t->spm, (uint32_t)id);
    const char *piece = lks__spm_piece(t->spm, (uint32_t)id, &n);
    if (kind & (LKS__SPM_CONTROL | LKS__SPM_UNUSED))
        return LKS_OK;
    if (kind & LKS__SPM_UNKNOWN)
        return add_bytes(t, replacement, sizeof replacement - 1);
    if (kind & LKS__SPM_BYTE && byte_of(piece, n, &byte))
        return add_bytes(t, &byte, 1);
    LKS__TRY(lks__spm_text_end(t)); /* a piece begins a new character */
    return add_bytes(t, piece, n);
}
