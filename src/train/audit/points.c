#include "train/audit/points.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "files/checkpoint/folder.h"

bool lks__points_seed(const lks__claims *c)
{
    uint64_t first, end;
    lks__claims_range(c, &first, &end);
    return c->config != NULL && first == 0 && json_object_get(c->config, "init_hash") == NULL;
}

lks_status lks__points_find(const char *run, const lks__claims *c, lks__points *p)
{
    uint64_t first, end;
    lks__entry *entries;
    size_t n;
    lks__claims_range(c, &first, &end);
    LKS__TRY(lks__ckpt_scan(run, &entries, &n));
    p->at = malloc((n + 1) * sizeof *p->at);
    if (p->at != NULL && lks__points_seed(c))
        p->at[p->n++] = 0;
    for (size_t i = n; i-- > 0 && p->at != NULL;) /* the newest is the first */
        if (entries[i].kind == LKS__ENTRY_CKPT && entries[i].iter > 0 && entries[i].iter >= first &&
            entries[i].iter < end)
            p->at[p->n++] = entries[i].iter;
    free(entries);
    return p->at != NULL ? LKS_OK : lks__no_memory("for an audit");
}

void lks__points_free(lks__points *p)
{
    free(p->at);
    *p = (lks__points){.n = 0};
}

lks_status lks__points_before(const lks__points *p, uint64_t from, uint64_t *start_p)
{
    size_t i = p->n;
    while (i > 0 && p->at[i - 1] > from)
        i--;
    if (i == 0)
        return lks__fail(LKS_ERR_SUPPORT,
                         "the run's first weights aren't in its folder, and there is no checkpoint "
                         "up to step %" PRIu64,
                         from);
    *start_p = p->at[i - 1];
    return LKS_OK;
}

const char *lks__point_text(uint64_t point, char out[LKS__POINT_TEXT])
{
    snprintf(out, LKS__POINT_TEXT, point == 0 ? "the seed" : "checkpoint %" PRIu64, point);
    return out;
}
