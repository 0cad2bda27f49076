/* settings/family.c - families and optimizers as words of settings. */
#include "settings/family.h"

#include <string.h>

#include "model/optim/optimizer.h"

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
    return s->optimizer == 0 ? lks__family_of(s)->optimizer : optimizer_at(s->optimizer);
}

const char *lks__family_setting(const char *name)
{
    for (int i = 0; lks__families[i] != NULL; i++)
        for (const lks__setting_alias *a = lks__families[i]->names; a && a->theirs; a++)
            if (strcmp(a->theirs, name) == 0)
                return a->ours;
    return NULL;
}
