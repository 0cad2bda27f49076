#include "settings/config/config_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/system/sys.h"
#include "base/text/utf8.h"
#include "compute/devices.h"
#include "settings/config/config_expr.h"
#include "settings/settings_table.h"

enum { MAX_FILE = 1 << 20, MAX_LINE = 4096, MOST_NAMES = 128 };

/* A name that the file has assigned; later expressions may use it. */
typedef struct variable {
    char key[LKS__SETTING_KEY];
    lks__config_value value;
    char where[LKS__ARGS_PLACE];
    bool setting; /* or a name without a meaning here, which is allowed */
    bool used;
} variable;

typedef struct reader {
    lks__settings *s;
    unsigned command;
    lks__args *args;
    bool python;
    char where[LKS__ARGS_PLACE]; /* FILE:LINE, escaped */
    char line[MAX_LINE + 1];
    variable names[MOST_NAMES];
    int n_names;
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
 * path may contain '#'. In Python at a ';' outside strings, too: returns what follows it, or NULL.
 */
static char *cut_line(char *line, bool python)
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
            return NULL;
        } else if (*c == ';' && python) {
            *c = '\0';
            return c + 1;
        } else if ((*c == '\'' || *c == '"') &&
                   (python || c == line || is_space(c[-1]) || c[-1] == '=')) {
            quote = *c; /* an apostrophe inside a bare word begins no string */
        }
    }
    return NULL;
}

typedef enum literal { NOT_A_STRING, STRING, BROKEN } literal;

/* If `text` is a single string literal, write its value to `out` (of the same size). */
static literal read_string(const char *text, char *out)
{
    const char *why;
    if (*text != '\'' && *text != '"')
        return NOT_A_STRING;
    const char *end = lks__config_string(text, out, strlen(text), &why);
    return end != NULL && *end == '\0' ? STRING : BROKEN;
}

/* --- names ------------------------------------------------------------------------------------ */

static variable *find_variable(reader *r, const char *key)
{
    for (int i = 0; i < r->n_names; i++)
        if (strcmp(r->names[i].key, key) == 0)
            return &r->names[i];
    return NULL;
}

static lks_status remember(reader *r, const char *key, const lks__config_value *v, bool setting)
{
    variable *name = find_variable(r, key);
    if (name == NULL && r->n_names == MOST_NAMES)
        return lks__fail(LKS_ERR_CONFIG, "%s: a file may give values to %d names", r->where,
                         MOST_NAMES);
    if (name == NULL)
        name = &r->names[r->n_names++];
    snprintf(name->key, sizeof name->key, "%s", key);
    memcpy(name->where, r->where, sizeof name->where);
    name->value = *v;
    name->setting = setting;
    return LKS_OK;
}

static void value_of_setting(const reader *r, int setting, lks__config_value *v)
{
    lks__settings_text(r->s, setting, v->text);
    v->kind = LKS__CONFIG_TEXT;
    if (lks__setting_is_bool(setting)) {
        v->kind = LKS__CONFIG_BOOL;
        v->i = strcmp(v->text, "true") == 0;
    } else if (!lks__setting_is_text(setting)) {
        v->kind = lks__parse_int(v->text, &v->i)     ? LKS__CONFIG_INT
                  : lks__parse_float(v->text, &v->f) ? LKS__CONFIG_FLOAT
                                                     : LKS__CONFIG_NONE;
    }
}

/* The value that the file has assigned; else the setting's value, or its default. */
static bool find_name(void *ctx, const char *key, lks__config_value *v)
{
    reader *r = ctx;
    variable *name = find_variable(r, key);
    const int setting = lks__setting_find(key);
    if (name != NULL) {
        name->used = true;
        *v = name->value;
    } else if (setting >= 0) {
        value_of_setting(r, setting, v);
    }
    return name != NULL || setting >= 0;
}

static lks_status evaluate(reader *r, const char *text, lks__config_value *v)
{
    const lks__config_scope scope = {r->where, (size_t)(text - r->line) + 1, find_name, r};
    return lks__config_eval(text, &scope, v);
}

/* A name that is neither a setting nor used by an expression is a mistyped setting. */
static lks_status check_names(const reader *r)
{
    for (int i = 0; i < r->n_names; i++)
        if (!r->names[i].setting && !r->names[i].used)
            return lks__settings_set(r->s, r->command, r->names[i].key, "", LKS__FROM_FILE,
                                     r->names[i].where);
    return LKS_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

static bool is_word(const char *text)
{
    return *text && !strpbrk(text, " \t");
}

/* Note an unused line, with its position. */
static lks_status note(reader *r, const char *line)
{
    lks__args_note(r->args, r->where, line);
    return LKS_OK;
}

static bool is_about_the_machine(const char *key)
{
    return strcmp(key, "device") == 0 || strcmp(key, "backend") == 0 || strcmp(key, "dtype") == 0;
}

/* Read a value that is not a string, except the word for 0, or "auto" for batch_size, which may be
 * in quotes. A single number or word is passed on unchanged. */
static lks_status read_number(reader *r, const char *key, const char *text, const char *line)
{
    lks__config_value v = {.kind = LKS__CONFIG_FOREIGN, .text = ""};
    char out[40], word[MAX_LINE + 1];
    double f;
    const lks__setting *d = &lks__setting_table[lks__setting_find(key)];
    const char *own = d == &lks__setting_table[LKS__SETTING_batch_size] ? "auto" : d->zero;
    if (own != NULL && read_string(text, word) == STRING && strcmp(word, own) == 0)
        text = own;
    const bool is_own = own != NULL && strcmp(text, own) == 0;
    const bool plain = *text == '\0' || lks__parse_float(text, &f) || is_own;
    if (*text != '\0' && !is_own)
        LKS__TRY(evaluate(r, text, &v));
    LKS__TRY(remember(r, key, &v, true));
    if (plain)
        return lks__settings_set(r->s, r->command, key, text, LKS__FROM_FILE, r->where);
    if (v.kind == LKS__CONFIG_NONE)
        return d->flags & LKS__SETTING_NONE
                   ? lks__settings_set(r->s, r->command, key, "None", LKS__FROM_FILE, r->where)
                   : note(r, line);
    if (v.kind == LKS__CONFIG_TEXT)
        return lks__fail(LKS_ERR_CONFIG, "%s: %s is not a text: write its value without quotes",
                         r->where, key);
    if (v.kind == LKS__CONFIG_FOREIGN)
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: the value of %s is not arithmetic%s%s%s, and lockstep runs no other "
                         "code: write the value itself, %s = VALUE",
                         r->where, key, v.text[0] != '\0' ? " (" : "", v.text,
                         v.text[0] != '\0' ? ")" : "", key);
    return lks__settings_set(r->s, r->command, key, lks__config_text(&v, out), LKS__FROM_FILE,
                             r->where);
}

/* A script for a machine with a GPU (device = 'cuda') should run here, too. */
static bool lacks_device(const char *key, const char *text)
{
    int number;
    const lks__device_row *row =
        strcmp(key, "device") == 0 ? lks__device_find(text, &number) : NULL;
    return row != NULL && !row->look(NULL);
}

static lks_status set_text(reader *r, const char *key, const char *text, const char *line)
{
    if (r->python && lacks_device(key, text))
        return note(r, line);
    lks_status st = lks__settings_set(r->s, r->command, key, text, LKS__FROM_FILE, r->where);
    if (st == LKS_ERR_CONFIG && r->python && is_about_the_machine(key))
        return note(r, line);
    return st;
}

static lks_status read_text_value(reader *r, const char *key, const char *text, const char *line)
{
    lks__config_value v = {.kind = LKS__CONFIG_TEXT};
    char string[MAX_LINE + 1];
    const literal kind = read_string(text, string);
    if (!r->python && kind != STRING && (kind == BROKEN || !is_word(text)))
        return lks__fail(LKS_ERR_CONFIG, "%s: the value of %s must be one string in quotes",
                         r->where, key);
    if (!r->python || kind == STRING) {
        const char *value = kind == STRING ? string : text;
        if (strlen(value) < sizeof v.text)
            strcpy(v.text, value);
        else
            v.kind = LKS__CONFIG_FOREIGN;
        LKS__TRY(remember(r, key, &v, true));
        return set_text(r, key, value, line);
    }
    LKS__TRY(evaluate(r, text, &v));
    LKS__TRY(remember(r, key, &v, true));
    if (v.kind == LKS__CONFIG_FOREIGN || v.kind == LKS__CONFIG_NONE) /* needs Python: note it */
        return note(r, line);
    if (v.kind != LKS__CONFIG_TEXT)
        return lks__fail(LKS_ERR_CONFIG, "%s: the value of %s must be one string in quotes",
                         r->where, key);
    return set_text(r, key, v.text, line);
}

/* Read a name that only the file defines: an expression may need it. Any other name is a mistyped
 * setting. */
static lks_status read_name(reader *r, const char *key, const char *text)
{
    lks__config_value v;
    if (evaluate(r, text, &v) != LKS_OK)
        return lks__settings_set(r->s, r->command, key, text, LKS__FROM_FILE, r->where);
    return remember(r, key, &v, false);
}

/* Read a foreign name, such as wandb_*: it is listed once. */
static lks_status read_foreign(reader *r, const char *key, const char *text, const char *line)
{
    const bool known = find_variable(r, key) != NULL;
    lks__config_value v;
    if (evaluate(r, text, &v) != LKS_OK)
        v.kind = LKS__CONFIG_FOREIGN;
    LKS__TRY(remember(r, key, &v, true));
    return known ? LKS_OK : note(r, line);
}

static lks_status read_value(reader *r, const char *key, const char *text, const char *line)
{
    const int setting = lks__setting_find(key);
    if (lks__setting_is_foreign(key))
        return read_foreign(r, key, text, line);
    if (setting < 0)
        return read_name(r, key, text);
    return lks__setting_is_text(setting) ? read_text_value(r, key, text, line)
                                         : read_number(r, key, text, line);
}

/* Note an import. `from MODULE import NAMES` must not be one of settings. */
static lks_status read_import(reader *r, const char *line)
{
    static const char ends[] = " \t,()";
    const char *names = strncmp(line, "from ", 5) == 0 ? strstr(line, " import ") : NULL;
    for (const char *at = names != NULL ? names + strlen(" import") : ""; *at != '\0';) {
        char name[LKS__SETTING_KEY];
        at += strspn(at, ends);
        const size_t n = strcspn(at, ends);
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        const int setting = lks__setting_find(name);
        if (strcmp(name, "*") == 0 ||
            (setting >= 0 && lks__setting_table[setting].commands & LKS__CMD_TRAIN))
            return lks__fail(LKS_ERR_CONFIG,
                             "%s: lockstep can't import settings: write them into this file, or "
                             "give both files",
                             r->where);
        at += n;
    }
    return note(r, line);
}

static lks_status read_statement(reader *r, char *line)
{
    line = trim(line);
    if (!*line)
        return LKS_OK;
    if (r->python && (strncmp(line, "import ", 7) == 0 || strncmp(line, "from ", 5) == 0))
        return read_import(r, line);
    size_t n_key = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    char *equals = line + n_key;
    while (is_space(*equals))
        equals++;
    if (r->python && *equals == ':') /* a type: key: int = value */
        equals += strcspn(equals, "=");
    if (n_key == 0 || *equals != '=' || equals[1] == '=')
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: expected KEY = VALUE, not \"%s\"; to train on this file's text, give "
                         "the file another name than NAME.conf or NAME.py",
                         r->where, lks__shown(line, 80));
    char key[LKS__SETTING_KEY];
    if (n_key >= sizeof key)
        return lks__fail(LKS_ERR_CONFIG, "%s: no setting has a name of %zu bytes", r->where, n_key);
    memcpy(key, line, n_key);
    key[n_key] = '\0';
    return read_value(r, key, trim(equals + 1), line);
}

static lks_status read_line(reader *r)
{
    for (char *line = r->line, *next; line != NULL; line = next) {
        next = cut_line(line, r->python);
        LKS__TRY(read_statement(r, line));
    }
    return LKS_OK;
}

/* The end of a script's docstring that begins at data + at, or `at`; counts its line feeds. */
static size_t skip_docstring(const char *data, size_t at, size_t *lines)
{
    const bool begins = strncmp(data + at, "\"\"\"", 3) == 0 || strncmp(data + at, "'''", 3) == 0;
    const char quotes[4] = {data[at], data[at], data[at], '\0'};
    const char *end = begins ? strstr(data + at + 3, quotes) : NULL;
    if (end == NULL)
        return at;
    for (const char *c = data + at; c < end; c++)
        *lines += *c == '\n';
    return (size_t)(end - data) + 3;
}

/* Read line by line; `data` ends with a 0 byte that isn't counted. */
static lks_status read_text(reader *r, const char *shown, char *data, size_t bytes)
{
    size_t at = 0, number = 1;
    if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        at = 3; /* skip a byte order mark */
    for (; at < bytes; number++) {
        if (r->python)
            at = skip_docstring(data, at, &number);
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
        memcpy(r->line, data + at, n);
        r->line[n] = '\0';
        LKS__TRY(read_line(r));
        at += n + 1;
    }
    return check_names(r);
}

lks_status lks__config_file_read(lks__settings *s, unsigned command, const char *path,
                                 lks__args *args)
{
    size_t n_path = strlen(path), bytes;
    char *data, shown[512];
    LKS__TRY(lks__sys_read_file(path, MAX_FILE, &data, &bytes));
    reader *r = calloc(1, sizeof *r);
    lks_status st = LKS_OK;
    lks__escape(shown, sizeof shown, path, n_path);
    if (r == NULL) {
        st = lks__no_memory("to read %s", shown);
    } else {
        r->s = s;
        r->command = command;
        r->args = args;
        r->python = n_path > 3 && strcmp(path + n_path - 3, ".py") == 0;
        st = read_text(r, shown, data, bytes);
    }
    free(r);
    free(data);
    return st;
}
