#include "base/text/jsonw.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text/utf8.h"

enum { MAX_DEPTH = 31 };

void lks__jsonw_open(lks__jsonw *w, char *buf, size_t size)
{
    memset(w, 0, sizeof *w);
    w->buf = buf;
    w->size = size;
}

static void put(lks__jsonw *w, const char *text, size_t bytes)
{
    if (w->overflow || bytes > w->size - w->len) {
        w->overflow = true;
        return;
    }
    memcpy(w->buf + w->len, text, bytes);
    w->len += bytes;
}

static void put_string(lks__jsonw *w, const char *s)
{
    size_t n = strlen(s);
    put(w, "\"", 1);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = lks__utf8_decode(s + i, n - i, &cp);
        char piece[8];
        if (len == 0) {
            put(w, "\\ufffd", 6);
            len = 1;
        } else if (cp == '"' || cp == '\\') {
            piece[0] = '\\';
            piece[1] = (char)cp;
            put(w, piece, 2);
        } else if (cp == '\n') {
            put(w, "\\n", 2);
        } else if (cp < 0x20 || cp == 0x7f) {
            put(w, piece, (size_t)snprintf(piece, sizeof piece, "\\u%04x", (unsigned)cp));
        } else {
            put(w, s + i, len);
        }
        i += len;
    }
    put(w, "\"", 1);
}

/* Write the part before a value: a comma and the key. Members of objects need a key; other values
 * have none. */
static void begin_value(lks__jsonw *w, const char *key)
{
    bool in_object = w->depth > 0 && !(w->arrays >> w->depth & 1);
    if (in_object != (key != NULL) || (w->depth == 0 && w->len > 0))
        w->overflow = true;
    if (w->comma)
        put(w, ",", 1);
    w->comma = true;
    if (key) {
        put_string(w, key);
        put(w, ":", 1);
    }
}

static void begin_group(lks__jsonw *w, const char *key, bool array)
{
    begin_value(w, key);
    if (w->depth == MAX_DEPTH) {
        w->overflow = true;
        return;
    }
    w->depth++;
    w->arrays &= ~(UINT32_C(1) << w->depth);
    w->arrays |= (uint32_t)array << w->depth;
    w->comma = false;
    put(w, array ? "[" : "{", 1);
}

void lks__jsonw_object(lks__jsonw *w, const char *key)
{
    begin_group(w, key, false);
}

void lks__jsonw_array(lks__jsonw *w, const char *key)
{
    begin_group(w, key, true);
}

void lks__jsonw_end(lks__jsonw *w)
{
    if (w->depth == 0) {
        w->overflow = true;
        return;
    }
    put(w, w->arrays >> w->depth & 1 ? "]" : "}", 1);
    w->depth--;
    w->comma = true;
}

void lks__jsonw_str(lks__jsonw *w, const char *key, const char *value)
{
    begin_value(w, key);
    if (value)
        put_string(w, value);
    else
        put(w, "null", 4);
}

void lks__jsonw_int(lks__jsonw *w, const char *key, int64_t value)
{
    char text[32];
    begin_value(w, key);
    put(w, text, (size_t)snprintf(text, sizeof text, "%" PRId64, value));
}

void lks__jsonw_u64(lks__jsonw *w, const char *key, uint64_t value)
{
    char text[32];
    begin_value(w, key);
    put(w, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, value));
}

void lks__jsonw_bool(lks__jsonw *w, const char *key, bool value)
{
    begin_value(w, key);
    put(w, value ? "true" : "false", value ? 4 : 5);
}

/* The decimal point is that of the C locale, because the program never calls setlocale(). */
static void put_number(lks__jsonw *w, const char *key, double value, int digits)
{
    char text[40];
    begin_value(w, key);
    if (isfinite(value))
        put(w, text, (size_t)snprintf(text, sizeof text, "%.*g", digits, value));
    else
        put(w, "null", 4);
}

void lks__jsonw_float(lks__jsonw *w, const char *key, double value)
{
    put_number(w, key, value, 9);
}

void lks__jsonw_double(lks__jsonw *w, const char *key, double value)
{
    put_number(w, key, value, 17);
}

lks_status lks__jsonw_close(lks__jsonw *w, size_t *len_p)
{
    bool misused = w->depth > 0 && !w->overflow;
    put(w, "\n", 2); /* with its 0 byte */
    if (misused)
        return lks__fail(LKS_ERR_ARG, "a JSON line was ended with %d objects still open", w->depth);
    if (w->overflow)
        return lks__fail(LKS_ERR_NOMEM,
                         "a JSON line is malformed or longer than its buffer of %zu bytes",
                         w->size);
    *len_p = w->len - 1;
    return LKS_OK;
}
