#include "train/setup/fit.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/number/units.h"
#include "base/system/memory.h"
#include "base/system/sys.h"
#include "data/read/sampler.h"
#include "lockstep/comm.h"
#include "plan/bytes/advice.h"
#include "plan/bytes/needs.h"
#include "train/procedure/procedure.h"

/* Bytes that a rank allocates later in addition to its arenas: the matrix library's code, threads'
 * scratch, buffers of files. Measured: 3 to 6 MB. */
static const double LATER_BYTES = 8e6;

static lks_status needs_of(const lks__settings *s, const lks__fit *fit, lks__needs *needs)
{
    /* With different numbers of ranks per host, assume fewer hosts, as each then needs more. */
    const lks__place place = {fit->W / fit->local, fit->local};
    const lks__process process = {.own = fit->process + LATER_BYTES};
    return lks__needs_on(fit->rooms[0].device, s, fit->vocab_size, &place, &process, needs);
}

/* --- choosing --------------------------------------------------------------------------------- */

enum { MOST_BATCH = 65536, MOST_STEPS = 65535 };

lks_status lks__fit_set_batch(lks__settings *s, int W, int64_t batch)
{
    const int64_t samples = s->batch_size * s->gradient_accumulation_steps;
    s->batch_size = batch;
    s->gradient_accumulation_steps = samples / batch;
    s->auto_batch = 0;
    LKS__TRY(lks__settings_complete(s, W)); /* for golf, train_batch_tokens sets batch_size */
    if (s->batch_size != batch)
        return lks__fail(LKS_ERR_CONFIG,
                         "train_batch_tokens=%" PRId64 " can't be divided into micro-batches of "
                         "%" PRId64 " sequences",
                         s->train_batch_tokens, batch);
    return LKS_OK;
}

/* The largest batch_size that fits; 0: none. *lacks_p: the room that is too small for the smallest
 * one, and *least_p: the bytes it needs there. */
static int64_t find_batch(const lks__settings *s, const lks__fit *fit, const lks__room **lacks_p,
                          double *least_p)
{
    const int64_t samples = s->batch_size * s->gradient_accumulation_steps;
    int64_t most = samples / s->virtual_ranks;
    for (int64_t b = most < MOST_BATCH ? most : MOST_BATCH; b >= 1; b--) {
        lks__settings other = *s;
        lks__needs needs;
        if (samples % b != 0 || samples / b % s->virtual_ranks != 0 || samples / b > MOST_STEPS ||
            lks__fit_set_batch(&other, fit->W, b) != LKS_OK)
            continue;
        if (needs_of(&other, fit, &needs) != LKS_OK)
            continue; /* more than memory can address, or an error that the run itself reports */
        *lacks_p = lks__rooms_lack(fit->rooms, fit->n_rooms, &needs);
        if (*lacks_p == NULL)
            return b;
        *least_p = lks__room_needs(*lacks_p, &needs);
    }
    return 0;
}

lks_status lks__fit_choose(const lks__settings *s, const lks__fit *fit, int64_t *batch_p)
{
    double least = 0.0;
    const lks__room *lacks = &fit->rooms[0];
    *batch_p = find_batch(s, fit, &lacks, &least);
    if (*batch_p > 0)
        return LKS_OK;
    const char *where = lacks->ranks == 0                 ? "this host"
                        : lacks->device->which[0] != '\0' ? lacks->device->which
                                                          : "a GPU";
    return lks__fail(LKS_ERR_NOMEM,
                     "batch_size=auto: the smallest micro-batch needs %s on %s, and it "
                     "may use %s: use %sfewer ranks with more threads each%s, or give it more "
                     "memory",
                     lks__units_memory(least), where,
                     lks__units_memory(lacks->bytes > 0.0 ? lacks->bytes : 0.0),
                     s->recompute == LKS__recompute_block ? "" : "--recompute=block, ",
                     s->virtual_ranks > 1 ? ", a smaller --virtual_ranks (another run)" : "");
}

/* --- a rank's part ---------------------------------------------------------------------------- */

static int sharers(const lks__device *device)
{
    return device->unit != 0 ? device->ranks : 1;
}

/* Find the bytes of this host for its ranks' processes and arenas, and those of the device.
 * --memory limits the memory in which models compute. */
static lks_status find_rooms(const lks__run *run, const lks__session *ses, lks__fit *fit)
{
    lks__device *device = ses->device;
    uint64_t limit = 0;
    size_t left = 0, all;
    const bool own = device->ops->memory != NULL;
    LKS__TRY(lks__settings_memory(&run->s, &limit));
    /* Memory that the ranks have taken already is no longer available: add it. */
    fit->rooms[0] =
        (lks__room){device, (double)lks__memory_available() + fit->process * fit->local, 0};
    fit->n_rooms = 1;
    if (limit > 0 && !own)
        fit->rooms[0].bytes = (double)limit;
    if (!own)
        return LKS_OK;
    LKS__TRY(device->ops->memory(device, &left, &all));
    const double bytes = limit > 0 ? (double)limit - (double)device->ops->open_bytes : (double)left;
    fit->rooms[1] = (lks__room){device, bytes - (double)device->ops->spare_bytes, sharers(device)};
    fit->n_rooms = 2;
    return LKS_OK;
}

/* *batch_p: this rank's choice. */
static lks_status choose(lks__run *run, const lks__session *ses, int64_t *batch_p)
{
    char dir[LKS__SETTING_STR + 8];
    lks__meta meta = {0};
    bool found;
    const int W = ses->world.world_size;
    const double process = (double)lks__sys_proc_bytes("/proc/self/smaps_rollup", "Pss");
    LKS__TRY(lks__settings_complete(&run->s, W));
    LKS__TRY(lks__settings_data_dir(&run->s, dir));
    LKS__TRY(lks__procedure_meta(&run->s, dir, run->weights != NULL, &found, &meta));
    lks__fit fit = {
        .W = W,
        .local = ses->world.local_world_size,
        .vocab_size = run->weights != NULL ? (uint32_t)run->s.vocab_size : meta.vocab_size,
        .process = process,
    };
    lks__meta_free(&meta);
    LKS__TRY(find_rooms(run, ses, &fit));
    run->fit_room = fit.rooms[fit.n_rooms - 1].bytes;
    return lks__fit_choose(&run->s, &fit, batch_p);
}

/* With different numbers of ranks per host, assume more hosts, as each then needs less. */
static lks__place place_of(const lks__run *run, const lks__session *ses)
{
    const int W = ses->world.world_size, local = ses->world.local_world_size;
    lks__place place = {(W + local - 1) / local, local};
    if (lks__place_world(&place) > run->V)
        place.n_hosts--;
    return place;
}

lks_status lks__train_check_fits(const lks__run *run, const lks__session *ses)
{
    const lks_world *w = &ses->world;
    const double taken = (double)lks__sys_proc_bytes("/proc/self/smaps_rollup", "Anonymous");
    lks__process process = {.own = taken};
    const lks__place place = place_of(run, ses);
    if (run->s.skip_fit_check || w->local_rank != 0)
        return LKS_OK;
    if (run->s.sampler == LKS__sampler_epoch)
        process.own += (double)lks__batch_sampler_order_bytes(
            lks__shards_count(run->data[LKS__SPLIT_TRAIN]), (int)run->s.block_size);
    /* Memory that the ranks have taken already is no longer available: add it. */
    const lks__room room = {ses->device,
                            (double)lks__memory_available() + taken * w->local_world_size, 0};
    return lks__advice_check(&room, &run->s, (uint32_t)run->s.vocab_size, &place, &process);
}

lks_status lks__train_check_device(const lks__run *run, const lks__session *ses)
{
    lks__device *device = ses->device;
    const lks__process process = {0};
    const lks__place place = place_of(run, ses);
    size_t left, all;
    if (run->s.skip_fit_check || device->ops->memory == NULL)
        return LKS_OK;
    LKS__TRY(device->ops->memory(device, &left, &all));
    const lks__room room = {device, (double)left, sharers(device)};
    return lks__advice_check(&room, &run->s, (uint32_t)run->s.vocab_size, &place, &process);
}

lks_status lks__train_fit(lks__run *run, lks__session *ses)
{
    const int W = ses->world.world_size;
    int64_t mine = 0, least = 0;
    lks_status st = lks__session_agree(ses, choose(run, ses, &mine));
    int64_t *all = lks__session_gather(ses, &mine, sizeof mine, &st);
    for (int i = 0; i < W && st == LKS_OK; i++)
        least = i == 0 || all[i] < least ? all[i] : least;
    free(all);
    return st == LKS_OK ? lks__fit_set_batch(&run->s, W, least) : st;
}
