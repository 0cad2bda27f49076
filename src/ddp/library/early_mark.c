#include "ddp/library/early_mark.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/status.h"

lks_status lks__check_is_on(bool *on_p)
{
    const char *text = getenv("LOCKSTEP_CHECK");
    *on_p = text != NULL && strcmp(text, "1") == 0;
    if (text == NULL || text[0] == '\0' || strcmp(text, "0") == 0 || *on_p)
        return LKS_OK;
    return lks__fail(LKS_ERR_CONFIG, "the environment has LOCKSTEP_CHECK=%s: use 0 or 1",
                     lks__shown(text, 64));
}

static uint64_t hash_of(const lks_param *p)
{
    return p->grad != NULL ? XXH3_64bits(p->grad, p->count * sizeof *p->grad) : 0;
}

void lks__early_mark_note(uint64_t *hashes, size_t i, const lks_param *p)
{
    if (hashes != NULL)
        hashes[i] = hash_of(p);
}

lks_status lks__early_mark_compare(uint64_t hash, const lks_param *p, int v, int m)
{
    if (hash == hash_of(p))
        return LKS_OK;
    return lks__fail(
        LKS_ERR_ARG,
        "lks_ddp_accumulate: the gradient of %s changed after lks_ddp_mark_ready() in "
        "micro-step %d of virtual rank %d (both counted from 0): mark a parameter when "
        "its gradient is complete",
        lks__shown(p->name, 128), m, v);
}

lks_status lks__settled_compare(uint64_t hash, const lks_param *p)
{
    if (hash == hash_of(p))
        return LKS_OK;
    return lks__fail(LKS_ERR_ARG,
                     "lks_ddp_step: the gradient of %s changed after the last "
                     "lks_ddp_accumulate(), which had taken it: complete it before that call",
                     lks__shown(p->name, 128));
}

/* A quiet NaN: processors keep its bits when a gradient is added to it. */
enum { UNSTORED = 0x7fd15a17 };

void lks__unstored_fill(const lks_param *p)
{
    const uint32_t bits = UNSTORED;
    for (size_t k = 0; k < p->count; k++)
        memcpy(p->grad + k, &bits, sizeof bits);
}

lks_status lks__unstored_find(const lks_param *p, int v)
{
    const uint32_t bits = UNSTORED;
    for (size_t k = 0; k < p->count; k++)
        if (memcmp(p->grad + k, &bits, sizeof bits) == 0)
            return lks__fail(LKS_ERR_ARG,
                             "lks_ddp_accumulate: element %zu of the gradient of %s wasn't stored "
                             "in micro-step 0 of virtual rank %d (both counted from 0): with "
                             "`overwrites`, that micro-step stores each gradient, and adds to none",
                             k, lks__shown(p->name, 128), v);
    return LKS_OK;
}
