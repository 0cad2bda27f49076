#include "train/procedure.h"

#include "settings/family.h"

const struct lks__procedure *lks__procedure_of(const lks__settings *s)
{
    return lks__family_of(s)->procedure;
}

void lks__procedure_share(const lks__trainer *t, size_t *first, size_t *end)
{
    *first = 0;
    *end = t->table.n_blocks;
    if (t->shared)
        lks__ddp_share(t->ddp, first, end);
}

int lks__procedure_n_updates(const lks__trainer *t)
{
    return t->shared ? lks__ddp_n_updates(t->ddp) : 1;
}

void lks__procedure_update_range(const lks__trainer *t, int i, size_t *first, size_t *end)
{
    if (t->shared)
        lks__ddp_update_range(t->ddp, i, first, end);
    else
        lks__procedure_share(t, first, end);
}
