/* settings/family.c - the settings' side of families: the words of --family, names, environment. */
#include "settings/family.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

const char *lks__family_setting(const char *name)
{
    for (int i = 0; lks__families[i] != NULL; i++)
        for (const lks__setting_alias *a = lks__families[i]->names; a && a->theirs; a++)
            if (strcmp(a->theirs, name) == 0)
                return a->ours;
    return NULL;
}

static lks_status take(lks__settings *s, unsigned command, const char *name)
{
    char variable[LKS__SETTING_KEY];
    size_t n = strlen(name);
    if (n >= sizeof variable)
        return LKS_OK;
    for (size_t i = 0; i <= n; i++)
        variable[i] = (char)toupper((unsigned char)name[i]);
    const char *value = getenv(variable);
    return value == NULL ? LKS_OK
                         : lks__settings_set(s, command, name, value, LKS__FROM_ENV, variable);
}

lks_status lks__family_environment(lks__settings *s, unsigned command)
{
    const lks__family *family = lks__family_of(s);
    if (family->names == NULL)
        return LKS_OK;
    if (family->check_environment != NULL)
        LKS__TRY(family->check_environment());
    for (const lks__setting_alias *a = family->names; a->theirs != NULL; a++)
        LKS__TRY(take(s, command, a->theirs));
    for (int i = 0; i < LKS__N_SETTINGS; i++)
        if (lks__setting_table[i].flags & family->settings)
            LKS__TRY(take(s, command, lks__setting_table[i].name));
    return LKS_OK;
}

lks_status lks__family_check_heads(const lks__settings *s)
{
    if (s->n_embd % s->n_head == 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG,
                     "n_embd=%" PRId64 " is no multiple of n_head=%" PRId64
                     ": every head gets n_embd / n_head columns",
                     s->n_embd, s->n_head);
}
