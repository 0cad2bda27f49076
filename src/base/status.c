#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text/utf8.h"

static _Thread_local char last_error[2048];

static char explanation[16 << 10];
static pthread_once_t explained = PTHREAD_ONCE_INIT;
static _Thread_local const char *to_explain;

static void explain_once(void)
{
    snprintf(explanation, sizeof explanation, "%s", to_explain);
}

void lks__explain(const char *lines)
{
    to_explain = lines;
    pthread_once(&explained, explain_once);
}

const char *lks__explanation(void)
{
    return explanation;
}

const char *lks_status_text(lks_status st)
{
    switch (st) {
#define X(name, code, text)                                                                        \
    case LKS_##name:                                                                               \
        return text;
        LKS_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

int lks_version(void)
{
    return LKS_VERSION;
}

const char *lks_last_error(void)
{
    return last_error;
}

lks_status lks__fail(lks_status st, const char *fmt, ...)
{
    char text[sizeof last_error]; /* the arguments may point into last_error */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(last_error, text, sizeof text);
    return st;
}

lks_status lks__fail_in(lks_status st, const char *fmt, ...)
{
    char context[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    return lks__fail(st, "%s: %s", context, last_error);
}

bool lks__append(char *out, size_t bytes, const char *between, const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(out);
    n += n > 0 ? (size_t)snprintf(out + n, bytes - n, "%s", between) : 0;
    if (n >= bytes)
        return false;
    va_start(ap, fmt);
    n += (size_t)vsnprintf(out + n, bytes - n, fmt, ap);
    va_end(ap);
    return n < bytes;
}

/* Line ends and controls of direction, by which a text can show as another one. */
static bool reorders(uint32_t cp)
{
    return cp == 0x061c || cp == 0x200e || cp == 0x200f || (cp >= 0x2028 && cp <= 0x202e) ||
           (cp >= 0x2066 && cp <= 0x2069);
}

char *lks__escape(char *out, size_t out_bytes, const char *text, size_t text_bytes)
{
    size_t o = 0, i = 0;
    while (i < text_bytes) {
        char piece[8];
        size_t piece_bytes, used = 1;
        unsigned char c = (unsigned char)text[i];
        uint32_t cp;
        size_t len = lks__utf8_decode(text + i, text_bytes - i, &cp);
        if (c == '"' || c == '\\') {
            piece[0] = '\\';
            piece[1] = (char)c;
            piece_bytes = 2;
        } else if (len == 0 || lks__is_control(cp) || reorders(cp)) {
            piece_bytes = (size_t)snprintf(piece, sizeof piece, "\\x%02x", c);
        } else {
            memcpy(piece, text + i, len);
            piece_bytes = used = len;
        }
        if (o + piece_bytes + 4 > out_bytes) { /* room for "..." and the end */
            if (o + 4 <= out_bytes) {
                memcpy(out + o, "...", 3);
                o += 3;
            }
            break;
        }
        memcpy(out + o, piece, piece_bytes);
        o += piece_bytes;
        i += used;
    }
    if (out_bytes > 0)
        out[o] = '\0';
    return out;
}
