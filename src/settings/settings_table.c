#include "settings/settings_table.h"
#include "settings/family.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/engines.h"
#include "compute/devices.h"

/* --- short names for the columns of LKS__SETTING_MAP (map.h) ---------------------------------- */

enum {
#define X(bit, command) bit = LKS__CMD_##bit,
    LKS__SETTING_COMMANDS(X)
#undef X
};

enum {
    SHAPE = LKS__SETTING_SHAPE,
    RUN = LKS__SETTING_RUN,
    SEGMENT = LKS__SETTING_SEGMENT,
    BARE = LKS__SETTING_BARE,
    FREE = LKS__SETTING_FREE,
    HOST = LKS__SETTING_HOST,
    AUTO = LKS__SETTING_AUTO,
    LIST = LKS__SETTING_LIST,
    GOLF = LKS__SETTING_GOLF,
    MUON = LKS__SETTING_MUON,
    LATER = LKS__SETTING_LATER,
    TYPED = LKS__SETTING_TYPED,
    SAME = LKS__SETTING_SAME,
    KEPT = LKS__SETTING_KEPT,
    FIRST = LKS__SETTING_FIRST,
    NONE = LKS__SETTING_NONE,
    SHORT = LKS__SETTING_SHORT,
};

const lks__setting_group lks__setting_groups[LKS__N_GROUPS] = {
#define X(group, word, title) {word, title},
    LKS__SETTING_GROUPS(X)
#undef X
};

/* clang-format off */
#define ANY                   .choices = NULL
#define TEXT                  .text = true
#define PATH                  .names = LKS__NAMES_PATH
#define A_PATH                .text = true, .names = LKS__NAMES_PATH
#define A_DATASET             .text = true, .names = LKS__NAMES_DATASET
#define A_RUN                 .text = true, .names = LKS__NAMES_RUN
#define A_CHECKPOINT          .names = LKS__NAMES_CHECKPOINT
#define WEIGHTS               .text = true, .names = LKS__NAMES_WEIGHTS
#define WORDS                 .built = false
#define WORDS_BUILT           .built = true
#define BUILT(list)           .choices = (list), .built = true
#define BEGINS(list)          .choices = (list), .begins = true
#define INTS(lo, hi)          .low_i = (lo), .high_i = (hi)
#define FROM_TO(lo, hi)       .low = (lo), .high = (hi)
#define FROM_BELOW(lo, hi)    .low = (lo), .high = (hi), .below_high = true
#define OVER_TO(lo, hi)       .low = (lo), .high = (hi), .over_low = true
#define BETWEEN(lo, hi)       .low = (lo), .high = (hi), .over_low = true, .below_high = true
#define OR(word)              , .zero = #word
#define ALSO(name)            , .alias = #name
#define PRESET_INT(name, x)   .preset.i = (x)
#define PRESET_FLOAT(name, x) .preset.f = (x)
#define PRESET_BOOL(name, x)  .preset.b = (x)
#define PRESET_STR(name, x)   .preset.s = (x)
#define PRESET_CHOICE(name, x) .preset.i = LKS__##name##_##x, .word = name##_word
#define PRESET_LISTED(name, x) .preset.i = (x), .word = lks__##name##_word, .about = lks__##name##_about
#define LKS__SETTING_IS_LISTED LKS__SETTING_IS_CHOICE

/* static const char *on_nan_word(int i): "stop", …, NULL; for each CHOICE. */
#define WORD(of, word)        #word,
#define WORD_OF_INT(name)
#define WORD_OF_FLOAT(name)
#define WORD_OF_BOOL(name)
#define WORD_OF_STR(name)
#define WORD_OF_LISTED(name)
#define WORD_OF_CHOICE(name)                                                                       \
    static const char *name##_word(int i)                                                          \
    {                                                                                              \
        static const char *const words[] = {LKS__WORDS_##name(WORD, name) NULL};                   \
        return words[i];                                                                           \
    }
#define X(type, name, ...) WORD_OF_##type(name)
LKS__SETTING_MAP(X)
#undef X

const lks__setting lks__setting_table[LKS__N_SETTINGS] = {
#define X(type_, name_, preset_, range_, commands_, flags_, group_, help_)                         \
    {.name = #name_, .type = LKS__SETTING_IS_##type_, .offset = offsetof(lks__settings, name_),    \
     PRESET_##type_(name_, preset_), range_, .commands = (commands_), .flags = (flags_),                  \
     .group = &lks__setting_groups[LKS__GROUP_##group_], .help = help_},
    LKS__SETTING_MAP(X)
#undef X
};
/* clang-format on */

const char *lks__command_name(unsigned commands)
{
    static const char *const names[] = {
#define X(bit, command) command,
        LKS__SETTING_COMMANDS(X)
#undef X
    };
    if (commands & LKS__CMD_PLAN) /* it also accepts the settings of train */
        return "plan";
    for (int i = 0; i < LKS__N_COMMANDS; i++)
        if (commands >> i & 1)
            return names[i];
    return "";
}

lks__setting_value lks__setting_load(const lks__settings *s, const lks__setting *d)
{
    const char *field = (const char *)s + d->offset;
    lks__setting_value v = {0};
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        memcpy(&v.i, field, sizeof v.i);
        break;
    case LKS__SETTING_IS_FLOAT:
        memcpy(&v.f, field, sizeof v.f);
        break;
    case LKS__SETTING_IS_BOOL:
        memcpy(&v.b, field, sizeof v.b);
        break;
    case LKS__SETTING_IS_STR:
        v.s = field;
        break;
    case LKS__SETTING_IS_CHOICE:
        v.i = *(const int *)(const void *)field;
        break;
    }
    return v;
}

void lks__setting_store(lks__settings *s, const lks__setting *d, lks__setting_value v,
                        lks__setting_from from)
{
    char *field = (char *)s + d->offset;
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        memcpy(field, &v.i, sizeof v.i);
        break;
    case LKS__SETTING_IS_FLOAT:
        memcpy(field, &v.f, sizeof v.f);
        break;
    case LKS__SETTING_IS_BOOL:
        memcpy(field, &v.b, sizeof v.b);
        break;
    case LKS__SETTING_IS_STR:
        memmove(field, v.s, strlen(v.s) + 1);
        break;
    case LKS__SETTING_IS_CHOICE:
        *(int *)(void *)field = (int)v.i;
        break;
    }
    s->from[d - lks__setting_table] = (unsigned char)from;
}

bool lks__setting_same(const lks__setting *d, lks__setting_value a, lks__setting_value b)
{
    switch (d->type) {
    case LKS__SETTING_IS_INT:
    case LKS__SETTING_IS_CHOICE:
        return a.i == b.i;
    case LKS__SETTING_IS_FLOAT:
        return a.f == b.f;
    case LKS__SETTING_IS_BOOL:
        return a.b == b.b;
    case LKS__SETTING_IS_STR:
        return strcmp(a.s, b.s) == 0;
    }
    return false;
}

void lks__settings_defaults(lks__settings *s)
{
    memset(s, 0, sizeof *s);
    for (const lks__setting *d = lks__setting_table; d < lks__setting_table + LKS__N_SETTINGS; d++)
        lks__setting_store(s, d, d->preset, LKS__FROM_DEFAULT);
}

const char *lks__setting_name(int i)
{
    return lks__setting_table[i].name;
}

const char *lks__setting_word(const lks__settings *s, int i)
{
    const lks__setting *d = &lks__setting_table[i];
    return d->word((int)lks__setting_load(s, d).i);
}

bool lks__setting_is_text(int i)
{
    const lks__setting_type type = lks__setting_table[i].type;
    return type == LKS__SETTING_IS_STR || type == LKS__SETTING_IS_CHOICE;
}

bool lks__setting_is_bool(int i)
{
    return lks__setting_table[i].type == LKS__SETTING_IS_BOOL;
}

/* Copy the name with '_' for '-'; false if `key` is longer than any name. */
static bool fold_key(const char *key, char out[LKS__SETTING_KEY])
{
    size_t n = strlen(key);
    if (n >= LKS__SETTING_KEY)
        return false;
    for (size_t i = 0; i <= n; i++)
        out[i] = key[i] == '-' ? '_' : key[i];
    return true;
}

int lks__setting_find_for(unsigned command, const char *key)
{
    char name[LKS__SETTING_KEY];
    int found = -1;
    if (!fold_key(key, name))
        return -1;
    const char *ours = lks__family_setting(name);
    for (int i = LKS__N_SETTINGS - 1; i >= 0; i--) {
        const lks__setting *d = &lks__setting_table[i];
        const bool matches = strcmp(d->name, ours != NULL ? ours : name) == 0 ||
                             (d->alias != NULL && strcmp(d->alias, name) == 0);
        if (matches && d->commands & command)
            return i;
        found = matches ? i : found;
    }
    return found;
}

int lks__setting_find(const char *key)
{
    return lks__setting_find_for(~0u, key);
}

bool lks__setting_is_foreign(const char *key)
{
    char name[LKS__SETTING_KEY];
    return fold_key(key, name) && (strcmp(name, "compile") == 0 || strncmp(name, "wandb_", 6) == 0);
}

/* --- ranges ----------------------------------------------------------------------------------- */

int64_t lks__setting_choice(const lks__setting *d, const char *text)
{
    for (int i = 0; d->word(i) != NULL; i++)
        if (strcmp(d->word(i), text) == 0)
            return i;
    return -1;
}

/* "a, b or c". */
static void list_words(const char *(*word)(int i), char *out, size_t out_bytes)
{
    out[0] = '\0';
    for (int i = 0; word(i) != NULL; i++)
        lks__append(out, out_bytes, word(i + 1) == NULL ? " or " : ", ", "%s", word(i));
}

/* "a, b or c" from "a|b|c". */
static void list_choices(const char *choices, char *out, size_t out_bytes)
{
    size_t o = 0;
    const char *last = strrchr(choices, '|');
    for (const char *c = choices; *c && o + 5 < out_bytes; c++) {
        const char *piece = c == last ? " or " : ", ";
        size_t n = *c == '|' ? strlen(piece) : 1;
        memcpy(out + o, *c == '|' ? piece : c, n);
        o += n;
    }
    out[o] = '\0';
}

/* Insert commas between groups of three digits, in numbers of five or more digits. */
static void group_digits(char *text)
{
    size_t n = strlen(text), first = text[0] == '-';
    for (size_t i = n; n - first > 4 && i > first + 3;) {
        i -= 3;
        memmove(text + i + 1, text + i, strlen(text + i) + 1);
        text[i] = ',';
    }
}

const char *lks__number_text(double x, bool commas, char out[LKS__NUMBER_TEXT])
{
    if (x > -1e15 && x < 1e15 && x == (double)(int64_t)x) {
        snprintf(out, LKS__NUMBER_TEXT, "%" PRId64, (int64_t)x);
        if (commas)
            group_digits(out);
        return out;
    }
    snprintf(out, LKS__NUMBER_TEXT, "%g", x);
    char *e = strchr(out, 'e'); /* 1e-05, 1e+30: 1e-5, 1e30 */
    if (e != NULL) {
        char *to = e + 1 + (e[1] == '-'), *from = e + 2;
        while (*from == '0')
            from++;
        memmove(to, from, strlen(from) + 1);
    }
    return out;
}

bool lks__setting_means_zero(const lks__setting *d, const char *text)
{
    return (d->zero != NULL && strcmp(text, d->zero) == 0) ||
           (d->flags & LKS__SETTING_NONE && strcmp(text, "None") == 0);
}

const char *lks__setting_preset_text(const lks__setting *d, char out[LKS__NUMBER_TEXT])
{
    const double preset = d->type == LKS__SETTING_IS_INT ? (double)d->preset.i : d->preset.f;
    return d->zero != NULL && preset == 0 ? d->zero : lks__number_text(preset, false, out);
}

/* Append the word for 0. */
static void add_zero(const lks__setting *d, char out[LKS__SETTING_RANGE])
{
    if (d->zero != NULL)
        lks__append(out, LKS__SETTING_RANGE, ", or ", "%s", d->zero);
}

const char *lks__setting_describe(const lks__setting *d, char out[LKS__SETTING_RANGE])
{
    char choices[120], low[LKS__NUMBER_TEXT], high[LKS__NUMBER_TEXT];
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        lks__number_text((double)d->low_i, true, low);
        if (d->high_i == INT64_MAX)
            snprintf(out, LKS__SETTING_RANGE, "a whole number of at least %s", low);
        else
            snprintf(out, LKS__SETTING_RANGE, "a whole number from %s to %s", low,
                     lks__number_text((double)d->high_i, true, high));
        add_zero(d, out);
        break;
    case LKS__SETTING_IS_FLOAT:
        snprintf(out, LKS__SETTING_RANGE, "a number %s %s and %s %s",
                 d->over_low ? "over" : "of at least", lks__number_text(d->low, true, low),
                 d->below_high ? "below" : "at most", lks__number_text(d->high, true, high));
        add_zero(d, out);
        break;
    case LKS__SETTING_IS_BOOL:
        snprintf(out, LKS__SETTING_RANGE, "true or false");
        break;
    case LKS__SETTING_IS_STR:
        if (d->choices) {
            list_choices(d->choices, choices, sizeof choices);
            if (d->begins)
                snprintf(out, LKS__SETTING_RANGE,
                         "%s and a command, in one line of at most %d bytes", choices,
                         LKS__SETTING_STR - 1);
            else
                snprintf(out, LKS__SETTING_RANGE, "%s%s", choices,
                         d->built ? " in this build" : "");
        } else {
            snprintf(out, LKS__SETTING_RANGE, "text of 1 to %d bytes%s", LKS__SETTING_STR - 1,
                     d == &lks__setting_table[LKS__SETTING_start] ? ", or FILE:PATH" : "");
        }
        break;
    case LKS__SETTING_IS_CHOICE:
        list_words(d->word, choices, sizeof choices);
        snprintf(out, LKS__SETTING_RANGE, "%s%s", choices, d->built ? " in this build" : "");
        break;
    }
    return out;
}

enum { MOST_DIGITS = 6 };

/* True if text[n] matches the choice, which stands for any number if it ends with ":N". */
static bool is_this(const char *choice, size_t n_choice, const char *text, size_t n)
{
    const size_t name =
        n_choice >= 2 && memcmp(choice + n_choice - 2, ":N", 2) == 0 ? n_choice - 1 : 0;
    if (name > 0)
        return n > name && n <= name + MOST_DIGITS && memcmp(choice, text, name) == 0 &&
               strspn(text + name, "0123456789") == n - name;
    return n == n_choice && memcmp(choice, text, n) == 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    while (choices) {
        size_t n_choice = strcspn(choices, "|");
        if (is_this(choices, n_choice, text, n))
            return true;
        choices = choices[n_choice] ? choices + n_choice + 1 : NULL;
    }
    return false;
}

/* True for one line that begins with one of the choices. */
static bool begins_with_choice(const char *choices, const char *text)
{
    bool found = false;
    for (const char *c = choices; !found && *c; c += strcspn(c, "|"), c += *c == '|') {
        size_t n = strcspn(c, "|");
        found = strncmp(text, c, n) == 0 && text[n] != '\0';
    }
    return found && strchr(text, '\n') == NULL;
}

bool lks__setting_in_range(const lks__setting *d, lks__setting_value v)
{
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        return v.i >= d->low_i && v.i <= d->high_i;
    case LKS__SETTING_IS_FLOAT: /* written so that NaN is out of range */
        return (d->over_low ? v.f > d->low : v.f >= d->low) &&
               (d->below_high ? v.f < d->high : v.f <= d->high);
    case LKS__SETTING_IS_BOOL:
        return true;
    case LKS__SETTING_IS_STR:
        if (strlen(v.s) >= LKS__SETTING_STR || (d->text && !*v.s))
            return false;
        if (d->begins)
            return begins_with_choice(d->choices, v.s);
        return !d->choices || is_choice(d->choices, v.s);
    case LKS__SETTING_IS_CHOICE:
        return v.i >= 0;
    }
    return false;
}

/* --- numbers from text ------------------------------------------------------------------------ */

bool lks__parse_int(const char *text, int64_t *i_p)
{
    const char *const digits = text + (*text == '-');
    int64_t i = 0;
    for (const char *p = digits; *p != '\0'; p++) {
        if (*p == '_' && p > digits && p[-1] != '_' && p[1] != '\0')
            continue;
        const int digit = *text == '-' ? '0' - *p : *p - '0';
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(i, 10, &i) ||
            __builtin_add_overflow(i, digit, &i))
            return false;
    }
    if (*digits == '\0')
        return false;
    *i_p = i;
    return true;
}

bool lks__parse_float(const char *text, double *f_p)
{
    /* The first character excludes white space, "inf" and "nan"; the others exclude hexadecimal. */
    if (!*text || !strchr("+-.0123456789", *text) || text[strspn(text, "+-.0123456789eE")])
        return false;
    char *end;
    double f = strtod(text, &end);
    if (end == text || *end || !isfinite(f))
        return false;
    *f_p = f;
    return true;
}

bool lks__parse_bool(const char *text, bool *b_p)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "1") == 0)
        *b_p = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "False") == 0 || strcmp(text, "0") == 0)
        *b_p = false;
    else
        return false;
    return true;
}
