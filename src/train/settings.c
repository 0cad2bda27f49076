#include "train/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/nearest.h"

/* --- the table's words ------------------------------------------------------------------------ */

enum {
    PREP = LKS__CMD_PREP,
    TRAIN = LKS__CMD_TRAIN,
    SAMPLE = LKS__CMD_SAMPLE,
    EVAL = LKS__CMD_EVAL,
    BENCH = LKS__CMD_BENCH,
    EXPORT = LKS__CMD_EXPORT,
    DOCTOR = LKS__CMD_DOCTOR,

    SHAPE = LKS__SETTING_SHAPE,
    RUN = LKS__SETTING_RUN,
    FREE = LKS__SETTING_FREE,
    HOST = LKS__SETTING_HOST,
    AUTO = LKS__SETTING_AUTO,
    LIST = LKS__SETTING_LIST,
    GOLF = LKS__SETTING_GOLF,
};

typedef enum group {
    FILES,
    MODEL,
    BATCH,
    OPTIM,
    REPORT,
    MODEL_GOLF,
    SAMPLING,
    RANKS,
    N_GROUPS
} group;

static const char *const group_titles[N_GROUPS] = {
    [FILES] = "Files",
    [MODEL] = "Model",
    [BATCH] = "Batches and random numbers",
    [OPTIM] = "Optimizer",
    [REPORT] = "Evaluation, logs, checkpoints",
    [MODEL_GOLF] = "The golf family (names and defaults of parameter-golf's script)",
    [SAMPLING] = "Sampling",
    [RANKS] = "Ranks and machine",
};

typedef enum type { INT, FLOAT, BOOL, STR } type;

typedef union value {
    int64_t i;
    double f;
    bool b;
    const char *s;
} value;

typedef struct setting {
    const char *name;
    const char *help;
    const char *choices; /* STR: "a|b", or NULL */
    value preset;
    int64_t low_i, high_i; /* INT: inclusive */
    double low, high;      /* FLOAT */
    size_t offset;         /* in lks__settings */
    type type;
    group group;
    unsigned commands, flags;
    bool over_low, below_high; /* FLOAT: the border itself is outside */
    bool built;                /* the choices are those of this build */
    bool text;                 /* STR: free text, but not empty */
} setting;

/* clang-format off */
#define ANY                   .choices = NULL
#define TEXT                  .text = true
#define ONE_OF(list)          .choices = (list)
#define BUILT(list)           .choices = (list), .built = true
#define INTS(lo, hi)          .low_i = (lo), .high_i = (hi)
#define FROM_TO(lo, hi)       .low = (lo), .high = (hi)
#define FROM_BELOW(lo, hi)    .low = (lo), .high = (hi), .below_high = true
#define OVER_TO(lo, hi)       .low = (lo), .high = (hi), .over_low = true
#define BETWEEN(lo, hi)       .low = (lo), .high = (hi), .over_low = true, .below_high = true
#define PRESET_INT(x)         .preset.i = (x)
#define PRESET_FLOAT(x)       .preset.f = (x)
#define PRESET_BOOL(x)        .preset.b = (x)
#define PRESET_STR(x)         .preset.s = (x)

static const setting table[LKS__N_SETTINGS] = {
#define X(type_, name_, preset_, range_, commands_, flags_, group_, help_)                         \
    {.name = #name_, .type = type_, .offset = offsetof(lks__settings, name_),                      \
     PRESET_##type_(preset_), range_, .commands = (commands_), .flags = (flags_),                  \
     .group = group_, .help = help_},
    LKS__SETTING_MAP(X)
#undef X
};
/* clang-format on */

static const struct {
    unsigned command;
    const char *name;
} command_names[] = {
    {LKS__CMD_PREP, "prep"},     {LKS__CMD_TRAIN, "train"},   {LKS__CMD_SAMPLE, "sample"},
    {LKS__CMD_EVAL, "eval"},     {LKS__CMD_BENCH, "bench"},   {LKS__CMD_INFO, "info"},
    {LKS__CMD_EXPORT, "export"}, {LKS__CMD_DOCTOR, "doctor"},
};

static const char *command_name(unsigned commands)
{
    for (size_t i = 0; i < sizeof command_names / sizeof command_names[0]; i++)
        if (command_names[i].command & commands)
            return command_names[i].name;
    return "";
}

static value load(const lks__settings *s, const setting *d)
{
    const char *field = (const char *)s + d->offset;
    value v = {0};
    switch (d->type) {
    case INT:
        memcpy(&v.i, field, sizeof v.i);
        break;
    case FLOAT:
        memcpy(&v.f, field, sizeof v.f);
        break;
    case BOOL:
        memcpy(&v.b, field, sizeof v.b);
        break;
    case STR:
        v.s = field;
        break;
    }
    return v;
}

/* A string fits: parse checked it, and presets are short. */
static void store(lks__settings *s, const setting *d, value v, lks__setting_from from)
{
    char *field = (char *)s + d->offset;
    switch (d->type) {
    case INT:
        memcpy(field, &v.i, sizeof v.i);
        break;
    case FLOAT:
        memcpy(field, &v.f, sizeof v.f);
        break;
    case BOOL:
        memcpy(field, &v.b, sizeof v.b);
        break;
    case STR:
        memmove(field, v.s, strlen(v.s) + 1);
        break;
    }
    s->from[d - table] = (unsigned char)from;
}

static bool same(const setting *d, value a, value b)
{
    switch (d->type) {
    case INT:
        return a.i == b.i;
    case FLOAT:
        return a.f == b.f;
    case BOOL:
        return a.b == b.b;
    case STR:
        return strcmp(a.s, b.s) == 0;
    }
    return false;
}

void lks__settings_defaults(lks__settings *s)
{
    memset(s, 0, sizeof *s);
    for (const setting *d = table; d < table + LKS__N_SETTINGS; d++)
        store(s, d, d->preset, LKS__FROM_DEFAULT);
}

const char *lks__setting_name(int i)
{
    return table[i].name;
}

bool lks__setting_is_str(int i)
{
    return table[i].type == STR;
}

bool lks__setting_is_golf(int i)
{
    return (table[i].flags & GOLF) != 0;
}

bool lks__setting_is_bool(int i)
{
    return table[i].type == BOOL;
}

/* Names as the table has them; false where `key` is longer than any. */
static bool fold_key(const char *key, char out[LKS__SETTING_KEY])
{
    size_t n = strlen(key);
    if (n >= LKS__SETTING_KEY)
        return false;
    for (size_t i = 0; i <= n; i++)
        out[i] = key[i] == '-' ? '_' : key[i];
    return true;
}

int lks__setting_find(const char *key)
{
    char name[LKS__SETTING_KEY];
    if (!fold_key(key, name))
        return -1;
    const char *golf = lks__golf_setting(name);
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        if (strcmp(table[i].name, golf != NULL ? golf : name) == 0)
            return i;
    return -1;
}

bool lks__setting_is_foreign(const char *key)
{
    char name[LKS__SETTING_KEY];
    return fold_key(key, name) && (strcmp(name, "compile") == 0 || strncmp(name, "wandb_", 6) == 0);
}

/* --- ranges and values ------------------------------------------------------------------------ */

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

/* What a value of `d` must be, in words. */
static const char *describe(const setting *d, char out[160])
{
    char choices[120];
    switch (d->type) {
    case INT:
        if (d->high_i == INT64_MAX)
            snprintf(out, 160, "a whole number of at least %" PRId64, d->low_i);
        else
            snprintf(out, 160, "a whole number from %" PRId64 " to %" PRId64, d->low_i, d->high_i);
        break;
    case FLOAT:
        snprintf(out, 160, "a number %s %g and %s %g", d->over_low ? "over" : "of at least", d->low,
                 d->below_high ? "below" : "at most", d->high);
        break;
    case BOOL:
        snprintf(out, 160, "true or false");
        break;
    case STR:
        if (d->choices) {
            list_choices(d->choices, choices, sizeof choices);
            snprintf(out, 160, "%s%s", choices, d->built ? " in this build" : "");
        } else {
            snprintf(out, 160, "text of 1 to %d bytes", LKS__SETTING_STR - 1);
        }
        break;
    }
    return out;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t n = strlen(text);
    while (choices) {
        size_t n_choice = strcspn(choices, "|");
        if (n == n_choice && memcmp(choices, text, n) == 0)
            return true;
        choices = choices[n_choice] ? choices + n_choice + 1 : NULL;
    }
    return false;
}

static bool in_range(const setting *d, value v)
{
    switch (d->type) {
    case INT:
        return v.i >= d->low_i && v.i <= d->high_i;
    case FLOAT: /* written so that NaN is outside */
        return (d->over_low ? v.f > d->low : v.f >= d->low) &&
               (d->below_high ? v.f < d->high : v.f <= d->high);
    case BOOL:
        return true;
    case STR:
        if (strlen(v.s) >= LKS__SETTING_STR || (d->text && !*v.s))
            return false;
        return !d->choices || is_choice(d->choices, v.s);
    }
    return false;
}

bool lks__parse_int(const char *text, int64_t *i_p)
{
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, "0123456789")])
        return false;
    errno = 0;
    long long i = strtoll(text, NULL, 10);
    if (errno)
        return false;
    *i_p = i;
    return true;
}

bool lks__parse_float(const char *text, double *f_p)
{
    /* The first character keeps out white space, "inf" and "nan"; the others hexadecimal. */
    if (!*text || !strchr("+-.0123456789", *text) || text[strspn(text, "+-.0123456789eE")])
        return false;
    char *end;
    double f = strtod(text, &end);
    if (end == text || *end || !isfinite(f))
        return false;
    *f_p = f;
    return true;
}

static bool parse_bool(const char *text, bool *b_p)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "1") == 0)
        *b_p = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "False") == 0 || strcmp(text, "0") == 0)
        *b_p = false;
    else
        return false;
    return true;
}

static bool parse_value(const setting *d, const char *text, value *v)
{
    switch (d->type) {
    case INT:
        return lks__parse_int(text, &v->i) && in_range(d, *v);
    case FLOAT:
        return lks__parse_float(text, &v->f) && in_range(d, *v);
    case BOOL:
        return parse_bool(text, &v->b);
    case STR:
        v->s = text;
        return in_range(d, *v);
    }
    return false;
}

static lks_status fail_value(const setting *d, const char *text, const char *where, lks_status st)
{
    char range[160], shown[120];
    return lks__fail(st, "%s: %s must be %s, not \"%s\"", where, d->name, describe(d, range),
                     lks__escape(shown, sizeof shown, text, strlen(text)));
}

static lks_status fail_unknown(const char *key, unsigned command, const char *where)
{
    const char *names[LKS__N_SETTINGS];
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        names[i] = table[i].commands & command ? table[i].name : NULL;
    const char *near = lks__nearest(key, names, LKS__N_SETTINGS);
    const char *name = command_name(command);
    char shown[120];
    lks__escape(shown, sizeof shown, key, strlen(key));
    if (near)
        return lks__fail(LKS_ERR_CONFIG, "%s: there is no setting \"%s\"; did you mean %s?", where,
                         shown, near);
    return lks__fail(LKS_ERR_CONFIG,
                     "%s: there is no setting \"%s\"; `lockstep %s --help` lists all", where, shown,
                     name);
}

lks_status lks__settings_set(lks__settings *s, unsigned command, const char *key, const char *text,
                             lks__setting_from from, const char *where)
{
    int i = lks__setting_find(key);
    if (i < 0)
        return fail_unknown(key, command, where);
    const setting *d = &table[i];
    bool taken = d->commands & command;
    if (!taken && !(from == LKS__FROM_FILE && d->commands & LKS__CMD_TRAIN))
        return lks__fail(LKS_ERR_CONFIG,
                         "%s: %s is a setting of `lockstep %s`, not of `lockstep %s`", where,
                         d->name, command_name(d->commands), command_name(command));
    value v;
    if (!parse_value(d, text, &v))
        return fail_value(d, text, where, LKS_ERR_CONFIG);
    if (!taken || s->from[i] > (unsigned char)from)
        return LKS_OK;
    char list[2 * LKS__SETTING_STR];
    if (d->flags & LIST && s->from[i] == (unsigned char)from) {
        snprintf(list, sizeof list, "%s\n%s", load(s, d).s, text);
        if (strlen(list) >= LKS__SETTING_STR)
            return lks__fail(LKS_ERR_CONFIG, "%s: all %s together have over %d bytes", where,
                             d->name, LKS__SETTING_STR - 1);
        v.s = list;
    }
    store(s, d, v, from);
    return LKS_OK;
}

const char *lks__settings_text(const lks__settings *s, int i, char out[LKS__SETTING_STR])
{
    value v = load(s, &table[i]);
    switch (table[i].type) {
    case INT:
        snprintf(out, LKS__SETTING_STR, "%" PRId64, v.i);
        break;
    case FLOAT:
        snprintf(out, LKS__SETTING_STR, "%.17g", v.f);
        break;
    case BOOL:
        snprintf(out, LKS__SETTING_STR, "%s", v.b ? "true" : "false");
        break;
    case STR:
        snprintf(out, LKS__SETTING_STR, "%s", v.s);
        break;
    }
    return out;
}

/* --- help ------------------------------------------------------------------------------------- */

enum { HELP_INDENT = 34, HELP_WIDTH = 96 };

/* `text` in lines that end before HELP_WIDTH; the cursor stands at HELP_INDENT. */
static void print_wrapped(FILE *out, const char *text)
{
    size_t room = HELP_WIDTH - HELP_INDENT;
    while (strlen(text) > room) {
        size_t n = room;
        while (n > 1 && text[n] != ' ')
            n--;
        fprintf(out, "%.*s\n%*s", (int)n, text, HELP_INDENT, "");
        text += n + 1;
    }
    fprintf(out, "%s\n", text);
}

static void print_setting(FILE *out, const setting *d)
{
    char left[80], text[400], range[160], shown[80];
    switch (d->type) {
    case INT:
        snprintf(left, sizeof left, "--%s=%" PRId64, d->name, d->preset.i);
        break;
    case FLOAT:
        snprintf(left, sizeof left, "--%s=%g", d->name, d->preset.f);
        break;
    case BOOL:
        snprintf(left, sizeof left, "--%s=%s", d->name, d->preset.b ? "true" : "false");
        break;
    case STR:
        if (!d->preset.s[0])
            snprintf(shown, sizeof shown, "%s", "...");
        else if (strcmp(d->preset.s, "\n") == 0)
            snprintf(shown, sizeof shown, "%s", "(line feed)");
        else
            lks__escape(shown, sizeof shown, d->preset.s, strlen(d->preset.s));
        snprintf(left, sizeof left, "--%s=%.40s", d->name, shown);
        break;
    }
    describe(d, range);
    bool has_range = d->type == INT || d->type == FLOAT || d->choices;
    snprintf(text, sizeof text, has_range ? "%s (%s)" : "%s", d->help, range);
    if (strlen(left) + 3 < HELP_INDENT)
        fprintf(out, "  %-*s", HELP_INDENT - 2, left);
    else
        fprintf(out, "  %s\n%*s", left, HELP_INDENT, "");
    print_wrapped(out, text);
}

void lks__settings_help(FILE *out, unsigned command)
{
    for (int g = 0; g < N_GROUPS; g++) {
        bool titled = false;
        for (const setting *d = table; d < table + LKS__N_SETTINGS; d++) {
            if ((int)d->group != g || !(d->commands & command))
                continue;
            if (!titled)
                fprintf(out, "\n%s\n", group_titles[g]);
            titled = true;
            print_setting(out, d);
        }
    }
}

/* --- relations -------------------------------------------------------------------------------- */

lks_status lks__settings_check(lks__settings *s, int world_size)
{
    if (strcmp(s->family, "golf") == 0)
        LKS__TRY(lks__golf_check(s));
    int64_t N = s->gradient_accumulation_steps, W = world_size;
    if (s->n_embd % s->n_head)
        return lks__fail(LKS_ERR_CONFIG,
                         "n_embd=%" PRId64 " is no multiple of n_head=%" PRId64
                         ": every head gets n_embd / n_head columns",
                         s->n_embd, s->n_head);
    if (s->virtual_ranks == 0)
        for (s->virtual_ranks = 8; N % s->virtual_ranks; s->virtual_ranks /= 2)
            ;
    int64_t V = s->virtual_ranks;
    if (N % V)
        return lks__fail(LKS_ERR_CONFIG,
                         "virtual_ranks=%" PRId64
                         " does not divide gradient_accumulation_steps=%" PRId64
                         ": each virtual rank does an equal share; make one a multiple of the "
                         "other",
                         V, N);
    if (W > V)
        return lks__fail(LKS_ERR_CONFIG,
                         "%" PRId64 " ranks are more than the run's %" PRId64
                         " virtual ranks (gradient_accumulation_steps=%" PRId64
                         "): start at most %" PRId64
                         " ranks, or raise gradient_accumulation_steps to a multiple of %" PRId64
                         " and set virtual_ranks",
                         W, V, N, V, W);
    if (V % W && !s->allow_uneven)
        return lks__fail(LKS_ERR_CONFIG,
                         "%" PRId64 " virtual ranks can't be dealt evenly to %" PRId64
                         " ranks: raise gradient_accumulation_steps (now %" PRId64
                         ") to a multiple of %" PRId64 " with virtual_ranks=%" PRId64
                         ", or give --allow_uneven",
                         V, W, N, W, W);
    return LKS_OK;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

lks_status lks__settings_data_dir(const lks__settings *s, char out[LKS__SETTING_STR + 8])
{
    snprintf(out, LKS__SETTING_STR + 8, "%s", s->dataset);
    if (is_folder(out))
        return LKS_OK;
    snprintf(out, LKS__SETTING_STR + 8, "data/%s", s->dataset);
    if (s->dataset[0] != '/' && is_folder(out))
        return LKS_OK;
    char shown[LKS__SETTING_STR];
    lks__escape(shown, sizeof shown, s->dataset, strlen(s->dataset));
    return lks__fail(LKS_ERR_CONFIG,
                     "dataset \"%s\": there is no such folder, nor data/ with that name in it; "
                     "`lockstep prep char --input=TEXT --out=DIR` makes one",
                     shown);
}

/* --- checkpoints, metrics --------------------------------------------------------------------- */

/* Settings of `command` of the kinds in `flags`: for (d = next(NULL, …); d; d = next(d, …)). */
static const setting *next(const setting *d, unsigned command, unsigned flags)
{
    for (d = d ? d + 1 : table; d < table + LKS__N_SETTINGS; d++)
        if (d->commands & command && d->flags & flags)
            return d;
    return NULL;
}

/* golf's own settings say nothing about a run of another family. */
static bool relevant(const lks__settings *s, const setting *d)
{
    return !(d->flags & GOLF) || strcmp(s->family, "golf") == 0;
}

json_t *lks__settings_to_json(const lks__settings *s, unsigned command, unsigned flags)
{
    json_t *json = json_object();
    for (const setting *d = next(NULL, command, flags); json && d; d = next(d, command, flags)) {
        value v = load(s, d);
        if (!relevant(s, d))
            continue;
        json_t *member = d->type == INT     ? json_integer(v.i)
                         : d->type == FLOAT ? json_real(v.f)
                         : d->type == BOOL  ? json_boolean(v.b)
                                            : json_string(v.s);
        if (!member && d->type == STR) { /* a path that isn't UTF-8 */
            char shown[LKS__SETTING_STR];
            member = json_string(lks__escape(shown, sizeof shown, v.s, strlen(v.s)));
        }
        if (json_object_set_new(json, d->name, member) != 0) {
            json_decref(json);
            json = NULL;
        }
    }
    return json;
}

void lks__settings_write(const lks__settings *s, unsigned command, unsigned flags,
                         const lks__settings *other, lks__jsonw *w)
{
    for (const setting *d = next(NULL, command, flags); d; d = next(d, command, flags)) {
        value v = load(s, d);
        if (!relevant(s, d) || (other && same(d, v, load(other, d))))
            continue;
        switch (d->type) {
        case INT:
            lks__jsonw_int(w, d->name, v.i);
            break;
        case FLOAT:
            lks__jsonw_double(w, d->name, v.f);
            break;
        case BOOL:
            lks__jsonw_bool(w, d->name, v.b);
            break;
        case STR:
            lks__jsonw_str(w, d->name, v.s);
            break;
        }
    }
}

/* The type is checked here, the range by the caller. A string points into `json`. */
static bool json_value(const setting *d, const json_t *json, value *v)
{
    switch (d->type) {
    case INT:
        v->i = json_integer_value(json);
        return json_is_integer(json);
    case FLOAT: /* %.17g writes 1.0 as 1 */
        v->f = json_number_value(json);
        return json_is_number(json);
    case BOOL:
        v->b = json_is_true(json);
        return json_is_boolean(json);
    case STR:
        v->s = json_string_value(json);
        return v->s && strlen(v->s) == json_string_length(json);
    }
    return false;
}

lks_status lks__settings_from_json(const json_t *json, unsigned command, unsigned flags,
                                   const char *where, lks__settings *s_p)
{
    if (!json_is_object(json))
        return lks__fail(LKS_ERR_FORMAT, "%s: the settings are no JSON object", where);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)json, key, member)
    {
        if (lks__setting_find(key) < 0 || strchr(key, '-')) {
            char shown[120];
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: there is no setting \"%s\" in this version of lockstep", where,
                             lks__escape(shown, sizeof shown, key, strlen(key)));
        }
    }
    lks__settings s;
    lks__settings_defaults(&s);
    for (const setting *d = next(NULL, command, flags); d; d = next(d, command, flags)) {
        const json_t *member_d = json_object_get(json, d->name);
        char range[160];
        value v;
        if (!member_d &&
            (!(d->flags & (LKS__SETTING_SHAPE | LKS__SETTING_RUN)) || !relevant(&s, d)))
            continue; /* of a version that didn't have it: the default did the same */
        if (!member_d)
            return lks__fail(LKS_ERR_FORMAT, "%s: the setting %s is missing", where, d->name);
        if (!json_value(d, member_d, &v) || !in_range(d, v))
            return lks__fail(LKS_ERR_FORMAT, "%s: the setting %s is not %s", where, d->name,
                             describe(d, range));
        store(&s, d, v, LKS__FROM_CHECKPOINT);
    }
    *s_p = s;
    return LKS_OK;
}

lks_status lks__settings_resume(lks__settings *s, const lks__settings *run, const char *where)
{
    const unsigned flags = LKS__SETTING_CONFIG;
    lks__settings merged = *s;
    for (const setting *d = next(NULL, TRAIN, flags); d; d = next(d, TRAIN, flags)) {
        value mine = load(s, d), theirs = load(run, d);
        bool given = s->from[d - table] >= LKS__FROM_FILE;
        if (given && d->flags & FREE)
            continue;
        if (given && !same(d, mine, theirs) && !(d->flags & AUTO && mine.i == 0)) {
            char a[LKS__SETTING_STR], b[LKS__SETTING_STR];
            int i = (int)(d - table);
            return lks__fail(LKS_ERR_CONFIG,
                             "%s=%s was given, but the run in %s has %s=%s, which it keeps; leave "
                             "the setting out, or start a new run in another out_dir",
                             d->name, lks__settings_text(s, i, a), where, d->name,
                             lks__settings_text(run, i, b));
        }
        store(&merged, d, theirs, LKS__FROM_CHECKPOINT);
    }
    *s = merged;
    return LKS_OK;
}

int lks__settings_diff(const lks__settings *a, const lks__settings *b, unsigned command,
                       unsigned flags, const char **names_p)
{
    int n = 0;
    for (const setting *d = next(NULL, command, flags); d; d = next(d, command, flags)) {
        if (same(d, load(a, d), load(b, d)))
            continue;
        if (names_p)
            names_p[n] = d->name;
        n++;
    }
    return n;
}
