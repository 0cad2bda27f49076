#include "train/recipe.h"

#include <string.h>

const struct lks__recipe *lks__recipe_of(const lks__settings *s)
{
    return strcmp(s->family, "golf") == 0 ? &lks__recipe_golf : &lks__recipe_nanogpt;
}

void lks__recipe_share(const lks__trainer *t, size_t *first, size_t *end)
{
    *first = 0;
    *end = t->table.n_blocks;
    if (t->shared)
        lks__ddp_share(t->ddp, first, end);
}
