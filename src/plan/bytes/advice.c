#include "plan/bytes/advice.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/number/units.h"
#include "settings/family.h"
#include "settings/settings_table.h"

/* Error of the needs, as a part of the whole or per rank, whichever is more. */
static const double ERROR = 0.03, ERROR_OF_RANK = 5e6;

int lks__rooms_find(const lks__device *device, double host_bytes, uint64_t limit,
                    lks__room rooms[2])
{
    const struct lks__device_ops *ops = device->ops;
    const bool own = !ops->host_memory;
    const double given = limit > 0 ? (double)limit : INFINITY;
    rooms[0] = (lks__room){device, limit > 0 && !own ? given : host_bytes, 0};
    rooms[1] = (lks__room){device, given - (double)(ops->open_bytes + ops->spare_bytes), 1};
    return own ? 2 : 1;
}

double lks__room_needs(const lks__room *room, const lks__needs *n)
{
    const int ranks = room->ranks < n->place.local ? room->ranks : n->place.local;
    return room->ranks == 0 ? n->host_bytes : lks__needs_of_device(n, ranks);
}

const lks__room *lks__rooms_lack(const lks__room *rooms, int n, const lks__needs *needs)
{
    for (int i = 0; i < n; i++)
        if (lks__room_needs(&rooms[i], needs) > rooms[i].bytes)
            return &rooms[i];
    return NULL;
}

/* On a host, library pages count as cache, which the kernel can drop, and untouched arenas are
 * pages of the segment that a limit counts. A device's allocations are known. */
static double least_bytes(const lks__room *room, const lks__needs *n)
{
    if (room->ranks > 0)
        return lks__room_needs(room, n);
    const double bytes = n->host_bytes - n->libraries;
    const double error = bytes * ERROR, of_ranks = ERROR_OF_RANK * n->place.local;
    return bytes - (error > of_ranks ? error : of_ranks);
}

struct advice {
    const lks__room *room;
    const lks__settings *s;
    uint32_t vocab;
    const lks__process *process;
    char *text;
    size_t used;
};

/* If the run of `s` fits without subtracting the error, add a piece of advice: the settings
 * (`fmt`), the bytes that they need, and their cost. */
static bool offer(struct advice *a, const lks__settings *s, const lks__place *place,
                  const char *cost, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static bool offer(struct advice *a, const lks__settings *s, const lks__place *place,
                  const char *cost, const char *fmt, ...)
{
    char what[160];
    lks__needs needs;
    lks__settings checked = *s;
    va_list ap;
    if (lks__settings_complete(&checked, lks__place_world(place)) != LKS_OK ||
        lks__needs_on(a->room->device, &checked, a->vocab, place, a->process, &needs) != LKS_OK)
        return false;
    const double bytes = lks__room_needs(a->room, &needs);
    if (!(bytes < a->room->bytes))
        return false;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (a->used + 1 < LKS__ADVICE_TEXT)
        a->used +=
            (size_t)snprintf(a->text + a->used, LKS__ADVICE_TEXT - a->used, "%s%s: %s, %s",
                             a->used > 0 ? "; or " : "", what, lks__units_memory(bytes), cost);
    return true;
}

static void try_fewer_ranks(struct advice *a, const lks__place *place)
{
    for (int local = place->local - 1; local >= 1; local--) {
        const lks__place fewer = {place->n_hosts, local};
        if (offer(a, a->s, &fewer, "the same run", "--nproc_per_node=%d (with more threads each)",
                  local))
            return;
    }
}

static void try_recompute(struct advice *a, const lks__place *place)
{
    static const struct {
        lks__recompute_choice choice;
        const char *word, *cost;
    } ways[] = {
        {LKS__recompute_rows, "rows", "the same run, a little slower"},
        {LKS__recompute_block, "block", "the same run, about a fifth slower"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        lks__settings s = *a->s;
        s.recompute = ways[i].choice;
        if (offer(a, &s, place, ways[i].cost, "--recompute=%s", ways[i].word))
            return;
    }
}

/* True if the family computes batch_size from other settings. */
static bool computes_batch(const lks__settings *s)
{
    for (const lks__setting_alias *a = lks__family_of(s)->unused; a && a->theirs; a++)
        if (strcmp(a->theirs, "batch_size") == 0)
            return true;
    return false;
}

/* Keep the tokens per step, in smaller micro-batches. */
static void try_smaller_batch(struct advice *a, const lks__place *place)
{
    const lks__setting *steps = &lks__setting_table[LKS__SETTING_gradient_accumulation_steps];
    char batch[40] = "";
    for (int64_t by = 2; by <= a->s->batch_size; by++) {
        lks__settings s = *a->s;
        if (s.batch_size % by != 0)
            continue;
        s.batch_size /= by;
        s.gradient_accumulation_steps *= by;
        if (!computes_batch(&s))
            snprintf(batch, sizeof batch, "--batch_size=%" PRId64 " ", s.batch_size);
        if (lks__setting_in_range(steps, lks__setting_load(&s, steps)) &&
            offer(a, &s, place, "a different run, with the same number of tokens per step",
                  "%s--gradient_accumulation_steps=%" PRId64, batch, s.gradient_accumulation_steps))
            return;
    }
}

static void try_one_arena(struct advice *a, const lks__place *place)
{
    lks__settings s = *a->s;
    const int W = lks__place_world(place);
    s.virtual_ranks = W;
    offer(a, &s, place,
          W == 1 ? "a different run, which always needs exactly one rank"
                 : "a different run, with at most that many ranks",
          "--virtual_ranks=%d", W);
}

static void try_more_hosts(struct advice *a, const lks__place *place)
{
    for (int n = place->n_hosts + 1; n * place->local <= a->s->virtual_ranks; n++) {
        const lks__place more = {n, place->local};
        lks__settings s = *a->s;
        for (int zero = 0; zero < 2; zero++) {
            s.zero = zero;
            if (offer(a, &s, &more, "on each, the same run", "%d hosts%s", n,
                      zero != 0 ? " with --zero=1" : ""))
                return;
        }
    }
}

void lks__advice_find(const lks__room *room, const lks__settings *s, uint32_t vocab_size,
                      const lks__place *place, const lks__process *process,
                      char text[LKS__ADVICE_TEXT])
{
    struct advice a = {room, s, vocab_size, process, text, 0};
    text[0] = '\0';
    try_recompute(&a, place);
    try_fewer_ranks(&a, place);
    try_smaller_batch(&a, place);
    try_one_arena(&a, place);
    try_more_hosts(&a, place);
}

lks_status lks__advice_check(const lks__room *room, const lks__settings *s, uint32_t vocab_size,
                             const lks__place *place, const lks__process *process)
{
    lks__needs needs;
    char advice[LKS__ADVICE_TEXT], where[LKS__DEVICE_WHICH + 80];
    LKS__TRY(lks__needs_on(room->device, s, vocab_size, place, process, &needs));
    if (least_bytes(room, &needs) <= room->bytes)
        return LKS_OK;
    lks__advice_find(room, s, vocab_size, place, process, advice);
    if (room->ranks == 0)
        snprintf(where, sizeof where,
                 "on this host, and %s are available to this machine or container",
                 lks__units_memory(room->bytes));
    else
        snprintf(where, sizeof where, "of %s for %d rank%s, and %s of it are free",
                 room->device->which, room->ranks, room->ranks == 1 ? "" : "s",
                 lks__units_memory(room->bytes));
    return lks__fail(LKS_ERR_NOMEM, "the run takes %s %s%s%s; --skip_fit_check starts it anyway",
                     lks__units_memory(lks__room_needs(room, &needs)), where,
                     advice[0] != '\0' ? "; these fit: " : ": use a smaller model", advice);
}
