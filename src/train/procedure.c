#include "train/procedure.h"

#include <inttypes.h>
#include <string.h>

#include "settings/family.h"

const struct lks__procedure *lks__procedure_of(const lks__settings *s)
{
    return lks__family_of(s)->procedure;
}

lks_status lks__procedure_meta(const lks__settings *s, const char *dir, lks__meta *meta)
{
    bool found;
    char shown[LKS__SETTING_STR];
    LKS__TRY(lks__meta_load(dir, &found, meta));
    if (found && s->vocab_size != 0 && s->vocab_size != (int64_t)meta->vocab_size) {
        const uint32_t size = meta->vocab_size;
        lks__meta_free(meta);
        return lks__fail(LKS_ERR_CONFIG,
                         "vocab_size = %" PRId64
                         ", but the meta.json or meta.pkl in %s has %" PRIu32
                         ": leave --vocab_size out",
                         s->vocab_size, lks__escape(shown, sizeof shown, dir, strlen(dir)), size);
    }
    if (!found)
        meta->vocab_size =
            s->vocab_size != 0 ? (uint32_t)s->vocab_size : lks__procedure_of(s)->vocab_size;
    return LKS_OK;
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
