/* With LOCKSTEP_CHECK=1: at a step, all ranks have the same parameters, and are in the same step.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "comm/backend.h"
#include "comm/samelist.h"
#include "ddp/library/params.h"

/* A rank's last lks_comm_note(), if its program calls that. */
struct noted {
    uint64_t noted, step;
};

static lks_status compare_steps(const lks_ddp *d)
{
    struct noted first = {d->comm->noted, d->comm->step}, one;
    int of = -1;
    _Static_assert(sizeof first <= sizeof(struct lks__ddp_tally), "room in d->all");
    LKS__TRY(lks_comm_all_gather(d->comm, &first, d->all, sizeof first, LKS_UINT8));
    for (int r = 0; r < lks_comm_world_size(d->comm); r++) {
        memcpy(&one, d->all + (size_t)r * sizeof one, sizeof one);
        if (one.noted && of >= 0 && one.step != first.step)
            return lks__fail(LKS_ERR_DIVERGED,
                             "lks_ddp_step: ranks are in different steps: rank %d has noted step "
                             "%" PRIu64 " by lks_comm_note(), and rank %d step %" PRIu64
                             ": has a rank skipped a step?",
                             r, one.step, of, first.step);
        if (one.noted && of < 0) {
            first = one;
            of = r;
        }
    }
    return LKS_OK;
}

static const lks_param *trained(const lks_ddp *d, uint64_t t)
{
    return &d->params[d->param_of[t]].p;
}

static uint64_t hash_values(const void *ctx, uint64_t t)
{
    const lks_param *p = trained(ctx, t);
    return XXH3_64bits(p->value, p->count * sizeof *p->value);
}

static void show_values(const void *ctx, uint64_t t, char out[LKS__LIST_TEXT])
{
    const char *name = trained(ctx, t)->name;
    snprintf(out, LKS__LIST_TEXT, "%s with hash %016" PRIx64, lks__shown(name, 64),
             hash_values(ctx, t));
}

lks_status lks__ddp_check_step(const lks_ddp *d)
{
    const lks__list list = {d, d->table.n_tensors, hash_values, show_values};
    LKS__TRY(compare_steps(d));
    return lks__list_compare(
        d->comm,
        d->steps == 0
            ? "lks_ddp_step: ranks have different parameters; lks_ddp_broadcast() gives "
              "all of them rank 0's, before the first step"
            : "lks_ddp_step: ranks have different parameters; they were equal at the step "
              "before, so the ranks' updates since then differ",
        &list, true);
}
