#include "model/table/parts.h"

#include <string.h>

/* The next part that isn't empty, and its length; NULL after the last. */
static const char *next_part(const char **parts, size_t *n_p)
{
    const char *part = *parts + strspn(*parts, ",");
    *n_p = strcspn(part, ",");
    *parts = part + *n_p;
    return *n_p > 0 ? part : NULL;
}

static bool contains(const char *name, const char *part, size_t n)
{
    return memmem(name, strlen(name), part, n) != NULL;
}

bool lks__parts_match(const char *parts, const char *name)
{
    const char *part;
    size_t n;
    while ((part = next_part(&parts, &n)) != NULL)
        if (contains(name, part, n))
            return true;
    return false;
}

static bool is_listed(const char *part, size_t n, const char *list)
{
    const char *other;
    size_t m;
    while ((other = next_part(&list, &m)) != NULL)
        if (m == n && memcmp(other, part, n) == 0)
            return true;
    return false;
}

static bool is_used(const char *part, size_t n, const lks__table *table)
{
    for (size_t i = 0; i < table->n_tensors; i++)
        if (contains(table->tensors[i].name, part, n))
            return true;
    return false;
}

const char *lks__parts_unused(const char **parts, const lks__table *table, const char *known,
                              size_t *n_p)
{
    const char *part;
    while ((part = next_part(parts, n_p)) != NULL)
        if (!is_used(part, *n_p, table) && !is_listed(part, *n_p, known))
            break;
    return part;
}
