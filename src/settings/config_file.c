#include "settings/config_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "base/utf8.h"

enum { MAX_FILE = 1 << 20, MAX_LINE = 4096 };

typedef struct reader {
    lks__settings *s;
    unsigned command;
    lks__args *args;
    bool python;
    char where[160]; /* FILE:LINE, escaped */
} reader;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cut white space from both ends, in place. */
static char *trim(char *text)
{
    while (is_space(*text))
        text++;
    size_t n = strlen(text);
    while (n > 0 && is_space(text[n - 1]))
        text[--n] = '\0';
    return text;
}

/* End the line at its comment: a '#' outside strings; in recipes only after white space, so that a
 * path may contain '#'. */
static void cut_comment(char *line, bool python)
{
    char quote = 0;
    for (char *c = line; *c; c++) {
        if (quote) {
            if (*c == '\\' && c[1])
                c++;
            else if (*c == quote)
                quote = 0;
        } else if (*c == '#' && (python || c == line || is_space(c[-1]))) {
            *c = '\0';
            return;
        } else if ((*c == '\'' || *c == '"') &&
                   (python || c == line || is_space(c[-1]) || c[-1] == '=')) {
            quote = *c; /* an apostrophe within a bare word begins no string */
        }
    }
}

typedef enum literal { NOT_A_STRING, STRING, BROKEN } literal;

/* If `text` is a single string literal, write its value to `out` (as long as `text`). */
static literal read_string(const char *text, char *out)
{
    char quote = *text;
    if (quote != '\'' && quote != '"')
        return NOT_A_STRING;
    for (text++; *text && *text != quote; text++) {
        if (*text != '\\') {
            *out++ = *text;
            continue;
        }
        static const char escapes[] = "n\nt\t\\\\'\'\"\"";
        const char *e = escapes;
        text++;
        while (*e && *e != *text)
            e += 2;
        if (!*e)
            return BROKEN;
        *out++ = e[1];
    }
    *out = '\0';
    return *text == quote && !text[1] ? STRING : BROKEN;
}

/* `5 * 8`: the product of two or more numbers, as text; false if `text` is none. An integer if all
 * factors are. */
static bool read_product(const char *text, char out[40])
{
    int64_t product_i = 1, i;
    double product_f = 1, f;
    bool whole = true;
    int n_factors = 0;
    while (text) {
        char factor[64];
        size_t n = strcspn(text, "*");
        if (n >= sizeof factor)
            return false;
        memcpy(factor, text, n);
        factor[n] = '\0';
        const char *trimmed = trim(factor);
        if (!lks__parse_float(trimmed, &f))
            return false;
        whole = whole && lks__parse_int(trimmed, &i) &&
                !__builtin_mul_overflow(product_i, i, &product_i);
        product_f *= f;
        n_factors++;
        text = text[n] ? text + n + 1 : NULL;
    }
    if (whole)
        snprintf(out, 40, "%" PRId64, product_i);
    else
        snprintf(out, 40, "%.17g", product_f);
    if (!whole && !strpbrk(out, ".en"))
        strcat(out, ".0"); /* 2 * 1.5 is not an integer, in Python neither */
    return n_factors > 1;
}

static bool is_word(const char *text)
{
    return *text && !strpbrk(text, " \t");
}

/* Note a line that is not used, with its place. */
static lks_status note(reader *r, const char *line)
{
    lks__args_note(r->args, r->where, line);
    return LKS_OK;
}

static bool is_about_the_machine(const char *key)
{
    return strcmp(key, "device") == 0 || strcmp(key, "backend") == 0 || strcmp(key, "dtype") == 0;
}

static lks_status read_value(reader *r, const char *key, const char *text, const char *line)
{
    char string[MAX_LINE + 1], product[40];
    int setting = lks__setting_find(key);
    bool is_text = setting >= 0 && lks__setting_is_text(setting);
    literal kind = read_string(text, string);
    if (!is_text && setting >= 0) {
        if (kind != NOT_A_STRING)
            return lks__fail(LKS_ERR_CONFIG, "%s: %s is no text: write its value without quotes",
                             r->where, key);
        return lks__settings_set(r->s, r->command, key,
                                 read_product(text, product) ? product : text, LKS__FROM_FILE,
                                 r->where);
    }
    if (is_text && kind != STRING) {
        /* 'ft-' + str(time.time()): only Python could compute it */
        if (r->python && strpbrk(text, "'\"("))
            return note(r, line);
        if (r->python || kind == BROKEN || !is_word(text))
            return lks__fail(LKS_ERR_CONFIG, "%s: the value of %s must be one string in quotes",
                             r->where, key);
    }
    lks_status st = lks__settings_set(r->s, r->command, key, kind == STRING ? string : text,
                                      LKS__FROM_FILE, r->where);
    if (st == LKS_ERR_CONFIG && r->python && is_about_the_machine(key))
        return note(r, line);
    return st;
}

static lks_status read_line(reader *r, char *line)
{
    cut_comment(line, r->python);
    line = trim(line);
    if (!*line)
        return LKS_OK;
    if (r->python && (strncmp(line, "import ", 7) == 0 || strncmp(line, "from ", 5) == 0))
        return note(r, line);
    size_t n_key = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    char *equals = line + n_key;
    while (is_space(*equals))
        equals++;
    if (n_key == 0 || *equals != '=' || equals[1] == '=') {
        char shown[80];
        return lks__fail(LKS_ERR_CONFIG, "%s: expected KEY = VALUE, not \"%s\"", r->where,
                         lks__escape(shown, sizeof shown, line, strlen(line)));
    }
    char key[LKS__SETTING_KEY];
    if (n_key >= sizeof key)
        return lks__fail(LKS_ERR_CONFIG, "%s: no setting has a name of %zu bytes", r->where, n_key);
    memcpy(key, line, n_key);
    key[n_key] = '\0';
    if (lks__setting_is_foreign(key))
        return note(r, line);
    return read_value(r, key, trim(equals + 1), line);
}

/* Read line by line; `data` ends with a 0 byte that isn't counted. */
static lks_status read_text(reader *r, const char *shown, char *data, size_t bytes)
{
    size_t at = 0, number = 1;
    if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        at = 3; /* skip a byte order mark */
    for (; at < bytes; number++) {
        char line[MAX_LINE + 1];
        const char *end = memchr(data + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - (data + at)) : bytes - at;
        snprintf(r->where, sizeof r->where, "%s:%zu", shown, number);
        if (n > MAX_LINE)
            return lks__fail(LKS_ERR_FORMAT, "%s: a line of %zu bytes is over the limit of %d",
                             r->where, n, MAX_LINE);
        for (size_t i = 0, len; i < n; i += len) {
            uint32_t cp = 0;
            len = lks__utf8_decode(data + at + i, n - i, &cp);
            if (len == 0 || cp == 0)
                return lks__fail(LKS_ERR_FORMAT,
                                 "%s: byte 0x%02x at column %zu does not belong in a UTF-8 text",
                                 r->where, (unsigned char)data[at + i], i + 1);
        }
        memcpy(line, data + at, n);
        line[n] = '\0';
        LKS__TRY(read_line(r, line));
        at += n + 1;
    }
    return LKS_OK;
}

lks_status lks__config_file_read(lks__settings *s, unsigned command, const char *path,
                                 lks__args *args)
{
    size_t n_path = strlen(path), bytes;
    char *data, shown[120];
    reader r = {.s = s, .command = command, .args = args};
    r.python = n_path > 3 && strcmp(path + n_path - 3, ".py") == 0;
    LKS__TRY(lks__sys_read_file(path, MAX_FILE, &data, &bytes));
    lks__escape(shown, sizeof shown, path, n_path);
    lks_status st = read_text(&r, shown, data, bytes);
    free(data);
    return st;
}
