#include "train/recipe.h"

#include "settings/family.h"

const struct lks__recipe *lks__recipe_of(const lks__settings *s)
{
    return lks__family_of(s)->recipe;
}

void lks__recipe_share(const lks__trainer *t, size_t *first, size_t *end)
{
    *first = 0;
    *end = t->table.n_blocks;
    if (t->shared)
        lks__ddp_share(t->ddp, first, end);
}

int lks__recipe_n_updates(const lks__trainer *t)
{
    return t->shared ? lks__ddp_n_updates(t->ddp) : 1;
}

void lks__recipe_update_range(const lks__trainer *t, int i, size_t *first, size_t *end)
{
    if (t->shared)
        lks__ddp_update_range(t->ddp, i, first, end);
    else
        lks__recipe_share(t, first, end);
}
