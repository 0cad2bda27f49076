/* settings/settings_json.c - settings in checkpoints and metrics. */
#include <stdio.h>
#include <string.h>

#include "base/text/jsontext.h"
#include "base/text/shell.h"
#include "settings/family.h"
#include "settings/settings.h"
#include "settings/settings_table.h"

/* The next setting of `command` with a role in `flags`: for (d = next(NULL, …); d; d = next(d,
 * …)). */
static const lks__setting *next(const lks__setting *d, unsigned command, unsigned flags)
{
    for (d = d ? d + 1 : lks__setting_table; d < lks__setting_table + LKS__N_SETTINGS; d++)
        if (d->commands & command && d->flags & flags)
            return d;
    return NULL;
}

/* A family's own settings are recorded for its runs, and Muon's settings for runs with Muon. */
bool lks__setting_is_used(const lks__settings *s, const lks__setting *d)
{
    const unsigned mine = lks__family_of(s)->settings | lks__optimizer_settings(s->optimizer);
    return !(d->flags & LKS__SETTING_OF_FAMILY) || d->flags & mine;
}

json_t *lks__settings_to_json(const lks__settings *s)
{
    json_t *json = json_object();
    for (const lks__setting *d = next(NULL, LKS__CMD_TRAIN, LKS__SETTING_CONFIG); json && d;
         d = next(d, LKS__CMD_TRAIN, LKS__SETTING_CONFIG)) {
        lks__setting_value v = lks__setting_load(s, d);
        if (!lks__setting_is_used(s, d))
            continue;
        json_t *member = d->type == LKS__SETTING_IS_INT      ? json_integer(v.i)
                         : d->type == LKS__SETTING_IS_FLOAT  ? json_real(v.f)
                         : d->type == LKS__SETTING_IS_BOOL   ? json_boolean(v.b)
                         : d->type == LKS__SETTING_IS_CHOICE ? json_string(d->word((int)v.i))
                                                             : json_string(v.s);
        if (!member && d->type == LKS__SETTING_IS_STR) /* text that isn't UTF-8 */
            member = json_string(lks__shown(v.s, LKS__SETTING_STR));
        if (json_object_set_new(json, d->name, member) != 0) {
            json_decref(json);
            json = NULL;
        }
    }
    return json;
}

void lks__settings_write(const lks__settings *s, unsigned flags, const lks__settings *other,
                         lks__jsonw *w)
{
    for (const lks__setting *d = next(NULL, LKS__CMD_TRAIN, flags); d;
         d = next(d, LKS__CMD_TRAIN, flags)) {
        lks__setting_value v = lks__setting_load(s, d);
        if (!lks__setting_is_used(s, d) ||
            (other && lks__setting_same(d, v, lks__setting_load(other, d))))
            continue;
        switch (d->type) {
        case LKS__SETTING_IS_INT:
            lks__jsonw_int(w, d->name, v.i);
            break;
        case LKS__SETTING_IS_FLOAT:
            lks__jsonw_double(w, d->name, v.f);
            break;
        case LKS__SETTING_IS_BOOL:
            lks__jsonw_bool(w, d->name, v.b);
            break;
        case LKS__SETTING_IS_STR:
            lks__jsonw_str(w, d->name, v.s);
            break;
        case LKS__SETTING_IS_CHOICE:
            lks__jsonw_str(w, d->name, d->word((int)v.i));
            break;
        }
    }
}

lks_status lks__settings_lines(const lks__settings *s, unsigned command, char *out, size_t bytes)
{
    const unsigned flags = LKS__SETTING_CONFIG | LKS__SETTING_SAME;
    out[0] = '\0';
    for (const lks__setting *d = next(NULL, command, flags); d; d = next(d, command, flags)) {
        const lks__setting_value v = lks__setting_load(s, d);
        char text[LKS__SETTING_STR];
        if (!lks__setting_is_used(s, d) || d->flags & LKS__SETTING_FIRST)
            continue;
        if (command != LKS__CMD_TRAIN && d->flags & LKS__SETTING_SHAPE &&
            s->from[d - lks__setting_table] < LKS__FROM_ARG)
            text[0] = '\0'; /* the model's own value applies */
        else if (d->type == LKS__SETTING_IS_FLOAT)
            lks__json_shortest(v.f, text, sizeof text);
        else
            lks__settings_text(s, (int)(d - lks__setting_table), text);
        const char *shown = lks__shown(text, 4 * LKS__SETTING_STR);
        if (!lks__append(out, bytes, "", "%s=%s\n", d->name, shown))
            return lks__fail(LKS_ERR_NOMEM, "the settings need more than %zu bytes", bytes);
    }
    return LKS_OK;
}

/* Check the type; the caller checks the range. A string points into `json`. */
static bool json_value(const lks__setting *d, const json_t *json, lks__setting_value *v)
{
    switch (d->type) {
    case LKS__SETTING_IS_INT:
        v->i = json_integer_value(json);
        return json_is_integer(json);
    case LKS__SETTING_IS_FLOAT: /* %.17g writes 1.0 as 1 */
        v->f = json_number_value(json);
        return json_is_number(json);
    case LKS__SETTING_IS_BOOL:
        v->b = json_is_true(json);
        return json_is_boolean(json);
    case LKS__SETTING_IS_STR:
        v->s = json_string_value(json);
        return v->s && strlen(v->s) == json_string_length(json);
    case LKS__SETTING_IS_CHOICE: {
        const char *word = json_string_value(json);
        v->i = word == NULL || strlen(word) != json_string_length(json)
                   ? -1
                   : lks__setting_choice(d, word);
        return word != NULL;
    }
    }
    return false;
}

static lks_status take(lks__settings *s, const lks__setting *d, const json_t *value,
                       const char *where)
{
    char range[LKS__SETTING_RANGE];
    lks__setting_value v;
    if (!json_value(d, value, &v) || !lks__setting_in_range(d, v))
        return lks__fail(LKS_ERR_FORMAT, "%s: the setting %s is not %s", where, d->name,
                         lks__setting_describe(d, range));
    lks__setting_store(s, d, v, LKS__FROM_CHECKPOINT);
    return LKS_OK;
}

lks_status lks__settings_from_json(const json_t *json, const char *where, lks__settings *s_p)
{
    if (!json_is_object(json))
        return lks__fail(LKS_ERR_FORMAT, "%s: the settings are not a JSON object", where);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)json, key, member)
    {
        if (lks__setting_find(key) < 0 || strchr(key, '-'))
            return lks__fail(LKS_ERR_FORMAT,
                             "%s: there is no setting \"%s\" in this version of lockstep", where,
                             lks__shown(key, 120));
    }
    lks__settings s;
    lks__settings_defaults(&s);
    for (const lks__setting *d = next(NULL, LKS__CMD_TRAIN, LKS__SETTING_CONFIG); d;
         d = next(d, LKS__CMD_TRAIN, LKS__SETTING_CONFIG)) {
        const json_t *member_d = json_object_get(json, d->name);
        if (!member_d && (!(d->flags & (LKS__SETTING_SHAPE | LKS__SETTING_RUN)) ||
                          d->flags & LKS__SETTING_LATER || !lks__setting_is_used(&s, d)))
            continue; /* from a version without this setting: the default has the same effect */
        if (!member_d)
            return lks__fail(LKS_ERR_FORMAT, "%s: the setting %s is missing", where, d->name);
        LKS__TRY(take(&s, d, member_d, where));
    }
    *s_p = s;
    return LKS_OK;
}

lks_status lks__settings_keep(lks__settings *s, const json_t *kept, const char *where)
{
    const unsigned command = LKS__CMD_TRAIN, flags = LKS__SETTING_KEPT;
    for (const lks__setting *d = next(NULL, command, flags); d; d = next(d, command, flags)) {
        const json_t *value = json_object_get(kept, d->name);
        const bool unset = json_is_string(value) && json_string_length(value) == 0;
        if (value != NULL && !unset && s->from[d - lks__setting_table] < LKS__FROM_FILE)
            LKS__TRY(take(s, d, value, where));
    }
    return LKS_OK;
}

/* The source of an invalid value, for a message. */
static const char *given_in(const lks__settings *s, const lks__setting *d)
{
    const int from = s->from[d - lks__setting_table];
    return from == LKS__FROM_FILE  ? " in the config file"
           : from == LKS__FROM_ENV ? " in the environment"
                                   : "";
}

enum { SHOWN = 400, WAY = 2 * SHOWN + 200 };

/* The value as a word for the command line; "..." if it can't be shown. Returns `out`. */
static const char *show(const lks__settings *s, const lks__setting *d, char out[SHOWN])
{
    char text[LKS__SETTING_STR];
    lks__settings_text(s, (int)(d - lks__setting_table), text);
    return text[0] == '\0' ? "" : lks__shell_word(out, SHOWN, text);
}

/* A remedy: files and variables may contain other settings, too, and the command line overrides
 * them. */
static const char *instead(const lks__settings *s, const lks__setting *d, const char *theirs,
                           const char *mine, char out[WAY])
{
    if (s->from[d - lks__setting_table] == LKS__FROM_ARG)
        snprintf(out, WAY, "leave the setting out");
    else if (d->flags & LKS__SETTING_SEGMENT)
        snprintf(out, WAY,
                 "give --%s=%s on the command line, which wins, or --%s=%s there to continue with "
                 "another batch",
                 d->name, theirs, d->name, mine);
    else
        snprintf(out, WAY, "give --%s=%s on the command line, which wins", d->name, theirs);
    return out;
}

/* Refuse a value that was given, because `their` ("the run in X has") has another one. `so`
 * precedes the remedy, `or_else` follows it. */
static lks_status refuse(const lks__settings *s, const lks__settings *other, const lks__setting *d,
                         const char *their, const char *so, const char *or_else)
{
    char a[SHOWN], b[SHOWN], way[WAY], name[LKS__SETTING_KEY];
    const char *mine = show(s, d, a), *theirs = show(other, d, b);
    lks__family_name_of(s, (int)(d - lks__setting_table), name);
    return lks__fail(LKS_ERR_CONFIG, "%s=%s was given%s, but %s %s=%s%s %s%s", name, mine,
                     given_in(s, d), their, name, theirs, so, instead(s, d, theirs, mine, way),
                     or_else);
}

/* Adopt the family of a run or of weights, with its variables and defaults, if none was given. */
static lks_status adopt_family(lks__settings *s, const lks__settings *theirs)
{
    if (s->from[LKS__SETTING_family] != LKS__FROM_DEFAULT || s->family == theirs->family)
        return LKS_OK;
    s->family = theirs->family;
    LKS__TRY(lks__family_environment(s, LKS__CMD_TRAIN, NULL));
    return lks__family_presets(s, LKS__CMD_TRAIN);
}

lks_status lks__settings_resume(lks__settings *s, const lks__settings *run, const char *where)
{
    const unsigned flags = LKS__SETTING_CONFIG;
    char their[600];
    lks__settings merged = *s;
    LKS__TRY(adopt_family(&merged, run));
    for (const lks__setting *d = next(NULL, LKS__CMD_TRAIN, flags); d;
         d = next(d, LKS__CMD_TRAIN, flags)) {
        lks__setting_value mine = lks__setting_load(&merged, d), theirs = lks__setting_load(run, d);
        const int at = (int)(d - lks__setting_table);
        bool given = merged.from[at] >= LKS__FROM_FILE;
        if (merged.auto_batch != 0 && /* the run has already chosen */
            (at == LKS__SETTING_batch_size || at == LKS__SETTING_gradient_accumulation_steps))
            given = false;
        if (d->flags & LKS__SETTING_AUTO && mine.i == 0)
            given = false;
        if (given && (d->flags & LKS__SETTING_FREE ||
                      (d->flags & LKS__SETTING_SEGMENT && merged.from[at] == LKS__FROM_ARG)))
            continue;
        if (given && !lks__setting_same(d, mine, theirs)) {
            snprintf(their, sizeof their, "the run in %s has", where);
            return refuse(&merged, run, d, their, ", which it keeps;",
                          ", or start a new run in another out_dir");
        }
        lks__setting_store(&merged, d, theirs, LKS__FROM_CHECKPOINT);
    }
    merged.auto_batch = 0;
    *s = merged;
    return LKS_OK;
}

/* True if a run that begins with weights may keep its own value. */
static bool may_keep(const lks__setting *d, lks__setting_value mine, lks__setting_value theirs)
{
    switch ((int)(d - lks__setting_table)) {
    case LKS__SETTING_block_size: /* crops the table of positions */
        return mine.i < theirs.i;
    case LKS__SETTING_vocab_size: /* adds rows to the table of tokens */
        return mine.i > theirs.i;
    case LKS__SETTING_gelu:
        return mine.i != LKS__gelu_auto;
    }
    return false;
}

lks_status lks__settings_begin(lks__settings *s, const lks__settings *source, const char *where)
{
    char their[600];
    lks__settings merged = *s;
    LKS__TRY(adopt_family(&merged, source));
    for (const lks__setting *d = next(NULL, LKS__CMD_TRAIN, LKS__SETTING_SHAPE); d;
         d = next(d, LKS__CMD_TRAIN, LKS__SETTING_SHAPE)) {
        const int i = (int)(d - lks__setting_table);
        lks__setting_value mine = lks__setting_load(&merged, d),
                           theirs = lks__setting_load(source, d);
        if (source->from[i] != LKS__FROM_CHECKPOINT || !lks__setting_is_used(source, d))
            continue;
        bool given = merged.from[i] >= LKS__FROM_FILE;
        if (given && may_keep(d, mine, theirs))
            continue;
        if (given && !lks__setting_same(d, mine, theirs) &&
            !(d->flags & LKS__SETTING_AUTO && mine.i == 0)) {
            snprintf(their, sizeof their, "the weights in %s have", where);
            return refuse(&merged, source, d, their, ":",
                          i == LKS__SETTING_block_size   ? ", or give a smaller one"
                          : i == LKS__SETTING_vocab_size ? ", or give a larger one"
                                                         : "");
        }
        lks__setting_store(&merged, d, theirs, LKS__FROM_CHECKPOINT);
    }
    *s = merged;
    return LKS_OK;
}

bool lks__settings_same_batch(const lks__settings *a, const lks__settings *b)
{
    return lks__settings_diff(a, b, LKS__CMD_TRAIN, LKS__SETTING_SEGMENT, NULL) == 0;
}

int lks__settings_diff(const lks__settings *a, const lks__settings *b, unsigned command,
                       unsigned flags, const char **names_p)
{
    int n = 0;
    for (const lks__setting *d = next(NULL, command, flags); d; d = next(d, command, flags)) {
        if (lks__setting_same(d, lks__setting_load(a, d), lks__setting_load(b, d)))
            continue;
        if (names_p)
            names_p[n] = d->name;
        n++;
    }
    return n;
}
