/* settings/family.c - families and optimizers as settings: words, names, environment. */
#include "settings/family.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/optim/optimizer.h"
#include "settings/settings_table.h"

const lks__family *lks__family_of(const lks__settings *s)
{
    return lks__families[s->family];
}

const char *lks__family_word(int i)
{
    return lks__families[i] == NULL ? NULL : lks__families[i]->name;
}

const char *lks__family_about(int i)
{
    return lks__families[i] == NULL ? NULL : lks__families[i]->about;
}

/* Word 0 of --optimizer is "auto", word i is the list's i-1. */
static const lks__optimizer *optimizer_at(int i)
{
    return i == 0 ? NULL : lks__optimizers[i - 1];
}

const char *lks__optimizer_word(int i)
{
    return i == 0 ? "auto" : optimizer_at(i) == NULL ? NULL : optimizer_at(i)->name;
}

const char *lks__optimizer_about(int i)
{
    if (i == 0)
        return "the optimizer of the family's script";
    return optimizer_at(i) == NULL ? NULL : optimizer_at(i)->about;
}

unsigned lks__optimizer_settings(int i)
{
    return optimizer_at(i) == &lks__optimizer_muon ? LKS__SETTING_MUON : 0;
}

void lks__choose_optimizer(lks__settings *s)
{
    for (int i = 1; s->optimizer == 0; i++)
        if (optimizer_at(i) == lks__family_of(s)->optimizer)
            s->optimizer = i;
}

const lks__optimizer *lks__optimizer_of(const lks__settings *s)
{
    return optimizer_at(s->optimizer);
}

const char *lks__family_setting(const char *name)
{
    for (int i = 0; lks__families[i] != NULL; i++)
        for (const lks__setting_alias *a = lks__families[i]->names; a && a->theirs; a++)
            if (strcmp(a->theirs, name) == 0)
                return a->ours;
    return NULL;
}

const char *lks__family_name_of(const lks__settings *s, int setting, char out[LKS__SETTING_KEY])
{
    const bool env = s->from[setting] == LKS__FROM_ENV;
    const lks__family *ours = lks__family_of(s);
    const char *name = lks__setting_name(setting);
    for (int f = 0; lks__families[f] != NULL; f++)
        for (const lks__setting_alias *a = lks__families[f]->names; a && a->theirs; a++)
            if (strcmp(a->ours, lks__setting_name(setting)) == 0 &&
                (env || (lks__families[f] == ours &&
                         lks__setting_table[setting].flags & LKS__SETTING_SHAPE)))
                name = a->theirs;
    snprintf(out, LKS__SETTING_KEY, "%s", name);
    for (char *c = out; env && *c != '\0'; c++)
        *c = (char)toupper((unsigned char)*c);
    return out;
}

struct taking {
    lks__settings *s;
    unsigned command;
    lks__args *args; /* notes ignored variables; may be NULL */
    const lks__family *family;
    bool ours; /* the run is of this family */
};

static bool is_file(const lks__family *f, const char *name)
{
    for (const char *const *file = f->files; file != NULL && *file != NULL; file++)
        if (strcmp(*file, name) == 0)
            return true;
    return false;
}

/* True if the setting's value stays: variables of another family's script lose to files, too. */
static bool gives_way(const struct taking *t, int setting)
{
    return !t->ours && t->s->from[setting] > LKS__FROM_DEFAULT;
}

static lks_status take(const struct taking *t, const char *name)
{
    char variable[LKS__SETTING_KEY];
    size_t n = strlen(name);
    const int setting = lks__setting_find(name);
    if (n >= sizeof variable || setting < 0)
        return LKS_OK;
    for (size_t i = 0; i <= n; i++)
        variable[i] = (char)toupper((unsigned char)name[i]);
    const char *value = getenv(variable);
    if (value == NULL || !(lks__setting_table[setting].commands & t->command))
        return LKS_OK;
    if (t->ours || (is_file(t->family, name) && !gives_way(t, setting)))
        return lks__settings_set(t->s, t->command, name, value, LKS__FROM_ENV, variable);
    if (t->args != NULL && t->command & (LKS__CMD_TRAIN | LKS__CMD_BENCH)) {
        char where[80];
        snprintf(where, sizeof where, "environment, for --family=%s", t->family->name);
        lks__args_note(t->args, where, variable);
    }
    return LKS_OK;
}

lks_status lks__family_environment(lks__settings *s, unsigned command, lks__args *args)
{
    const lks__family *ours = lks__family_of(s);
    for (int f = 0; lks__families[f] != NULL; f++) {
        const lks__family *family = lks__families[f];
        const struct taking t = {s, command, args, family, family == ours};
        if (family->names == NULL)
            continue;
        for (const lks__setting_alias *a = family->names; a->theirs != NULL; a++)
            LKS__TRY(take(&t, a->theirs));
        for (int i = 0; i < LKS__N_SETTINGS; i++)
            if (lks__setting_table[i].flags & family->settings)
                LKS__TRY(take(&t, lks__setting_table[i].name));
    }
    return LKS_OK;
}

lks_status lks__family_presets(lks__settings *s, unsigned command)
{
    for (const lks__setting_preset *p = lks__family_of(s)->presets; p && p->name; p++) {
        const int setting = lks__setting_find(p->name);
        if (setting >= 0 && lks__setting_table[setting].commands & command)
            LKS__TRY(lks__settings_set(s, command, p->name, p->value, LKS__FROM_DEFAULT, p->name));
    }
    return LKS_OK;
}

static lks_status no_effect(const lks__settings *s, const char *name, const char *use)
{
    return lks__fail(LKS_ERR_CONFIG, "--%s has no effect in a run with family=%s: %s%s", name,
                     lks__family_of(s)->name, use[0] == '\0' ? "leave it out" : "use --", use);
}

/* The setting of another family with the same effect as `name`, or "". */
static const char *counterpart(const char *name)
{
    for (int f = 0; lks__families[f] != NULL; f++)
        for (const lks__setting_alias *a = lks__families[f]->unused; a && a->theirs; a++)
            if (strcmp(a->ours, name) == 0)
                return a->theirs;
    return "";
}

lks_status lks__family_check_given(const lks__settings *s)
{
    for (const lks__setting_alias *a = lks__family_of(s)->unused; a && a->theirs; a++) {
        const int setting = lks__setting_find(a->theirs);
        const bool fits = setting == LKS__SETTING_batch_size && s->auto_batch != 0;
        if (setting >= 0 && s->from[setting] == LKS__FROM_ARG && !fits)
            return no_effect(s, a->theirs, a->ours);
    }
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        if (s->from[i] == LKS__FROM_ARG && lks__setting_table[i].flags & LKS__SETTING_CONFIG &&
            !lks__setting_is_used(s, &lks__setting_table[i]))
            return no_effect(s, lks__setting_table[i].name,
                             counterpart(lks__setting_table[i].name));
    return LKS_OK;
}

lks_status lks__family_check_heads(const lks__settings *s)
{
    char width[LKS__SETTING_KEY], heads[LKS__SETTING_KEY];
    if (s->n_embd % s->n_head == 0)
        return LKS_OK;
    lks__family_name_of(s, LKS__SETTING_n_embd, width);
    lks__family_name_of(s, LKS__SETTING_n_head, heads);
    return lks__fail(LKS_ERR_CONFIG,
                     "%s=%" PRId64 " is not a multiple of %s=%" PRId64
                     ": every head gets %s / %s columns",
                     width, s->n_embd, heads, s->n_head, width, heads);
}
