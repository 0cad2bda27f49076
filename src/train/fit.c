#include "train/fit.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/sys.h"
#include "comm/shm/memory.h"
#include "lockstep/comm.h"
#include "train/advice.h"
#include "train/needs.h"
#include "train/procedure.h"

/* What a rank takes later, beside its arenas: the matrix library's code, threads' scratch, buffers
 * of files. Measured: 3 to 6 MB. */
static const double LATER = 8e6;

lks_status lks__fit_bytes(const lks__settings *s, const lks__fit *fit, double *bytes_p)
{
    /* If hosts have different numbers of ranks: fewer hosts, as each then needs more. */
    const lks__place place = {fit->W / fit->local, fit->local};
    const lks__process process = {.own = fit->process + LATER};
    lks__needs needs;
    LKS__TRY(lks__needs_on(fit->layers, s, fit->vocab_size, &place, &process, &needs));
    *bytes_p = needs.host_bytes;
    return LKS_OK;
}

/* --- choosing --------------------------------------------------------------------------------- */

enum { MOST_BATCH = 65536, MOST_STEPS = 65535 };

lks_status lks__fit_take(lks__settings *s, int W, int64_t batch)
{
    const int64_t samples = s->batch_size * s->gradient_accumulation_steps;
    s->batch_size = batch;
    s->gradient_accumulation_steps = samples / batch;
    s->auto_batch = 0;
    LKS__TRY(lks__settings_check(s, W)); /* golf's batch follows from its tokens */
    if (s->batch_size != batch)
        return lks__fail(LKS_ERR_CONFIG,
                         "train_batch_tokens=%" PRId64 " can't be divided into micro-batches of "
                         "%" PRId64 " sequences",
                         s->train_batch_tokens, batch);
    return LKS_OK;
}

lks_status lks__fit_batch(const lks__settings *s, const lks__fit *fit, int64_t *batch_p,
                          double *least_p)
{
    const int64_t samples = s->batch_size * s->gradient_accumulation_steps;
    int64_t most = samples / s->virtual_ranks;
    *batch_p = 0;
    for (int64_t b = most < MOST_BATCH ? most : MOST_BATCH; b >= 1 && *batch_p == 0; b--) {
        lks__settings other = *s;
        double bytes;
        if (samples % b != 0 || samples / b % s->virtual_ranks != 0 || samples / b > MOST_STEPS ||
            lks__fit_take(&other, fit->W, b) != LKS_OK)
            continue;
        if (lks__fit_bytes(&other, fit, &bytes) != LKS_OK)
            continue; /* more than memory can address; or an error that the run reports, too */
        *least_p = bytes;
        if (bytes <= fit->room)
            *batch_p = b;
    }
    return LKS_OK;
}

lks_status lks__fit_choose(const lks__settings *s, const lks__fit *fit, int64_t *batch_p)
{
    double least = 0.0;
    LKS__TRY(lks__fit_batch(s, fit, batch_p, &least));
    if (*batch_p > 0)
        return LKS_OK;
    return lks__fail(LKS_ERR_NOMEM,
                     "batch_size=auto: the smallest micro-batch needs %.1f MB on this host, and it "
                     "may use %.1f MB: use %sfewer ranks with more threads each%s, or give it more "
                     "memory",
                     least / 1e6, fit->room / 1e6,
                     s->recompute == LKS__recompute_block ? "" : "--recompute=block, ",
                     s->virtual_ranks > 1 ? ", a smaller --virtual_ranks (another run)" : "");
}

/* --- a rank's part ---------------------------------------------------------------------------- */

/* Bytes for the arenas of this host's ranks, and for what its processes take. */
static lks_status find_room(const lks__trainer *t, double process, double *room_p)
{
    uint64_t limit = 0;
    LKS__TRY(lks__settings_memory(&t->s, &limit));
    /* What the ranks take already isn't available any more. */
    *room_p = limit > 0 ? (double)limit
                        : (double)lks__memory_available() + process * t->ses.world.local_world_size;
    return LKS_OK;
}

/* This rank's choice: *batch_p, 0 if none fits. */
static lks_status choose(lks__trainer *t, int64_t *batch_p)
{
    char dir[LKS__SETTING_STR + 8];
    lks__meta meta = {0};
    bool found;
    const int W = t->ses.world.world_size;
    const double process = (double)lks__sys_proc_bytes("/proc/self/smaps_rollup", "Pss");
    LKS__TRY(lks__settings_check(&t->s, W));
    LKS__TRY(lks__settings_data_dir(&t->s, dir));
    LKS__TRY(lks__procedure_meta(&t->s, dir, t->weights != NULL, &found, &meta));
    lks__fit fit = {
        .W = W,
        .local = t->ses.world.local_world_size,
        .vocab_size = t->weights != NULL ? (uint32_t)t->s.vocab_size : meta.vocab_size,
        .layers = t->ses.device->layers,
        .process = process,
    };
    lks__meta_free(&meta);
    LKS__TRY(find_room(t, process, &fit.room));
    t->fit_room = fit.room;
    return lks__fit_choose(&t->s, &fit, batch_p);
}

lks_status lks__train_check_fits(const lks__trainer *t)
{
    const lks_world *w = &t->ses.world;
    const int local = w->local_world_size;
    const lks__process process = {
        .own = (double)lks__sys_proc_bytes("/proc/self/smaps_rollup", "Anonymous")};
    /* If hosts have different numbers of ranks: more hosts, as each then needs less. */
    lks__place place = {(w->world_size + local - 1) / local, local};
    if (t->s.skip_fit_check || w->local_rank != 0)
        return LKS_OK;
    if (lks__place_world(&place) > t->V)
        place.n_hosts--;
    /* What the ranks take already isn't available any more. */
    return lks__advice_check(t->ses.device->layers, &t->s, (uint32_t)t->s.vocab_size, &place,
                             &process, (double)lks__memory_available() + process.own * local);
}

lks_status lks__train_fit(lks__trainer *t)
{
    const int W = t->ses.world.world_size;
    int64_t mine = 0, least = 0, *all = calloc((size_t)W, sizeof *all);
    lks_status st = all == NULL ? lks__fail(LKS_ERR_NOMEM, "no memory for %d ranks", W) : LKS_OK;
    if (st == LKS_OK)
        st = choose(t, &mine);
    st = lks__session_agree(&t->ses, st);
    if (st == LKS_OK)
        st = lks_comm_all_gather(t->ses.comm, &mine, all, sizeof mine, LKS_UINT8);
    for (int i = 0; i < W && st == LKS_OK; i++)
        least = i == 0 || all[i] < least ? all[i] : least;
    free(all);
    return st == LKS_OK ? lks__fit_take(&t->s, W, least) : st;
}
