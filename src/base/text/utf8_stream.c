#include "base/text/utf8_stream.h"

#include <stdbool.h>

#include "base/text/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

/* Number of bytes of the character that begins with `c`, or of a line's end that begins with CR. */
static size_t length_of(unsigned char c)
{
    return c == '\r' ? 2 : c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static bool continues(const lks__utf8_stream *s, char c)
{
    return s->n_pending > 0 &&
           (s->pending[0] == '\r' ? c == '\n' : ((unsigned char)c & 0xc0) == 0x80);
}

static lks_status put_char(lks__utf8_stream *s, const char *bytes, size_t n, uint32_t cp)
{
    bool shown = cp == '\n' || cp == '\t' || !lks__is_control(cp);
    return shown ? s->put(s->ctx, bytes, n) : s->put(s->ctx, replacement, sizeof replacement - 1);
}

lks_status lks__utf8_stream_end(lks__utf8_stream *s)
{
    bool any = s->n_pending > 0;
    s->n_pending = 0;
    return any ? s->put(s->ctx, replacement, sizeof replacement - 1) : LKS_OK;
}

lks_status lks__utf8_stream_add(lks__utf8_stream *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t cp = '\n'; /* of CR LF */
        if (!continues(s, bytes[i]))
            LKS__TRY(lks__utf8_stream_end(s));
        s->pending[s->n_pending++] = bytes[i];
        if (s->n_pending < length_of((unsigned char)s->pending[0]))
            continue;
        size_t whole = s->pending[0] == '\r' ? 2 : lks__utf8_decode(s->pending, s->n_pending, &cp);
        if (whole == s->n_pending) {
            s->n_pending = 0;
            LKS__TRY(put_char(s, s->pending, whole, cp));
        } else {
            LKS__TRY(lks__utf8_stream_end(s));
        }
    }
    return LKS_OK;
}
