/* session/device.c - the device of a session, and checks that the ranks' kernels and devices match.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/number/units.h"
#include "comm/liveness.h"
#include "compute/exchange.h"
#include "lockstep/reduce.h"
#include "session/session.h"

static void mark_passed(void *comm)
{
    (void)lks__comm_among_devices(comm, false);
    lks_comm_beat(comm);
}

/* The reason to stop a wait for the device. The waiting rank starts no collective, so it learns of
 * the group's failure only from lks_comm_progress(). */
static lks_status failure(void *comm, bool others)
{
    LKS__TRY(lks__comm_among_devices(comm, others));
    return lks_comm_progress(comm);
}

void lks__session_watch(lks__session *s)
{
    s->device->waiter = (lks__waiter){
        .progress = mark_passed, .failure = failure, .ctx = s->comm, .timeout_s = s->timeout_s};
}

/* *device_p is unchanged for the CPU, which is already open. */
static lks_status open_device(const char *name, const lks__device_place *place,
                              lks__device **device_p)
{
    lks_status st = LKS_ERR_SUPPORT;
    lks__device_place at = *place;
    const lks__device_row *row = lks__device_find(name, &at.number);
    if (row != NULL)
        return row->open(&at, device_p);
    if (strcmp(name, "auto") == 0)
        for (row = lks__device_rows; row->name != NULL && st == LKS_ERR_SUPPORT; row++)
            st = row->open(&at, device_p);
    else if (strcmp(name, "cpu") != 0)
        return lks__fail(LKS_ERR_CONFIG, "there is no device \"%s\" in this build", name);
    return st == LKS_ERR_SUPPORT ? LKS_OK : st;
}

/* --- comparisons between ranks ---------------------------------------------------------------- */

lks__place_text lks__session_place(int rank, const char host[LKS__HOST_NAME])
{
    lks__place_text place;
    char shown[4 * LKS__HOST_NAME];
    snprintf(place.text, sizeof place.text, "rank %d (host %s)", rank,
             lks__escape(shown, sizeof shown, host, strnlen(host, LKS__HOST_NAME)));
    return place;
}

void lks__session_host(char host[LKS__HOST_NAME])
{
    memset(host, 0, LKS__HOST_NAME);
    gethostname(host, LKS__HOST_NAME - 1);
}

enum { SAME_TEXT = 17, SAME_ABOUT = 160 };

struct same {
    char text[SAME_TEXT], about[SAME_ABOUT], host[LKS__HOST_NAME];
};

/* `about`, if not empty, is shown with the text but not compared. */
static lks_status same_text(lks__session *s, const char *what, const char *text, const char *about)
{
    const int W = s->world.world_size;
    struct same mine = {0};
    lks_status st = LKS_OK;
    snprintf(mine.text, sizeof mine.text, "%s", text);
    lks__escape(mine.about, sizeof mine.about, about, strlen(about));
    lks__session_host(mine.host);
    struct same *all = lks__session_gather(s, &mine, sizeof mine, &st);
    int r = 0;
    while (st == LKS_OK && r < W && strncmp(all[r].text, all[0].text, SAME_TEXT) == 0)
        r++;
    if (st == LKS_OK && r < W) {
        st = lks__fail(LKS_ERR_DIVERGED,
                       "%s differs between ranks: %s has %.16s%.159s, %s has "
                       "%.16s%.159s",
                       what, lks__session_place(0, all[0].host).text, all[0].text, all[0].about,
                       lks__session_place(r, all[r].host).text, all[r].text, all[r].about);
    }
    free(all);
    return lks__session_agree(s, st);
}

lks_status lks__session_same_word(lks__session *s, const char *what, const char *text)
{
    return same_text(s, what, text, "");
}

lks_status lks__session_same(lks__session *s, const char *what, uint64_t value)
{
    return same_text(s, what, lks__hex(value), "");
}

/* The bits of a run depend on the CPU's kernels, in bfloat16 also on the kind of their products,
 * or, if the device has its own kernels and products, on those. */
static lks_status agree_on_fingerprint(lks__session *s)
{
    const uint64_t prints[] = {s->ex.bf16 && s->device->fingerprint == 0
                                   ? lks__kernels_fingerprint(&s->kernels, true)
                                   : LKS__FINGERPRINT, /* set_up() has verified it */
                               s->device->fingerprint};
    const uint64_t print = prints[1] == 0 ? prints[0] : XXH3_64bits(prints, sizeof prints);
    lks__hex_to(s->fingerprint, print);
    char about[SAME_ABOUT];
    snprintf(about, sizeof about, " (level %s, products by %s, %s)",
             lks__cpu_level_name(s->kernels.level), lks__kernels_gemm_library(&s->kernels),
             lks__cpu_model());
    LKS__TRY(same_text(s, "the kernel fingerprint (equal machines have the same)",
                       lks__hex(prints[0]), about));
    for (int i = 0; i < LKS__DEVICE_PARTS && s->device->parts[i].name != NULL; i++)
        LKS__TRY(lks__session_same(s, s->device->parts[i].name, s->device->parts[i].value));
    return LKS_OK;
}

/* Ranks of a host may share a device only with `share`. A launcher may show each rank a different
 * part of the host's devices, so they are compared, not counted. */
static lks_status agree_on_units(lks__session *s, bool share)
{
    const lks_world *w = &s->world;
    const int first = w->rank - w->local_rank, end = first + w->local_world_size;
    const char *which = s->device->which;
    int units = 0, other = -1;
    s->device->ranks = 0;
    lks_status st = LKS_OK;
    uint64_t *all = lks__session_gather(s, &s->device->unit, sizeof *all, &st);
    for (int r = first; r < end && st == LKS_OK; r++) {
        bool is_new = true;
        for (int before = first; before < r; before++)
            is_new = is_new && all[before] != all[r];
        units += is_new;
        s->device->ranks += all[r] == all[w->rank];
        if (r != w->rank && all[r] == all[w->rank] && other < 0)
            other = r;
    }
    free(all);
    if (st == LKS_OK && other >= 0 && s->device->unit != 0 && !share)
        st = lks__fail(
            LKS_ERR_CONFIG,
            "%d ranks on this host, but %d GPU%s: ranks %d and %d both have %s; start at "
            "most %d rank%s here, or let several compute on one GPU with --share_gpu",
            w->local_world_size, units, units == 1 ? "" : "s", w->rank < other ? w->rank : other,
            w->rank < other ? other : w->rank, which, units, units == 1 ? "" : "s");
    return lks__session_agree(s, st);
}

lks_status lks__session_device(lks__session *s, const char *name, bool share)
{
    const lks__device_place place = {
        .cpu = &s->ex,
        .local_rank = s->world.local_rank,
        .note = strcmp(name, "auto") == 0 ? s->device_note : NULL,
    };
    LKS__TRY(lks__session_agree(s, open_device(name, &place, &s->device)));
    lks__session_watch(s);
    lks__comm_uses(s->comm, s->device->which);
    LKS__TRY(lks__session_same_word(s, "device", s->device->ops->name));
    if (!s->device->ops->host_memory)
        LKS__TRY(agree_on_units(s, share));
    return s->device->fingerprint == 0 ? LKS_OK : agree_on_fingerprint(s);
}

/* --- joining devices -------------------------------------------------------------------------- */

enum { WHY_BYTES = 400 };

/* The first rank that can't join, and its reason; -1: all can. */
static lks_status find_lacking(lks__session *s, int *rank_p, char why[WHY_BYTES])
{
    struct answer {
        int32_t can;
        char why[WHY_BYTES];
    };
    const struct lks__exchange_ops *ops = s->device->ops->exchange;
    const int W = s->world.world_size;
    struct answer mine = {0};
    lks_status st = LKS_OK;
    *rank_p = -1;
    if (ops == NULL)
        snprintf(mine.why, sizeof mine.why, "device=%s moves nothing between ranks",
                 s->device->ops->name);
    else
        mine.can = ops->can(s->device, mine.why, sizeof mine.why);
    struct answer *all = lks__session_gather(s, &mine, sizeof mine, &st);
    for (int r = W - 1; r >= 0 && st == LKS_OK; r--)
        if (!all[r].can) {
            *rank_p = r;
            lks__escape(why, WHY_BYTES, all[r].why, strnlen(all[r].why, WHY_BYTES));
        }
    free(all);
    return st;
}

extern char **environ;

/* Write into device_note how GPUs exchange data, with the variables of the environment that
 * configure NCCL. */
static void note_join(lks__session *s)
{
    char text[LKS__DEVICE_TEXT];
    s->device->ops->exchange->about(s->device, text, sizeof text);
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "NCCL_", 5) == 0)
            lks__append(text, sizeof text, "", " %s", *e);
    const size_t n = (size_t)snprintf(s->device_note, sizeof s->device_note,
                                      "gradients and parameters go from GPU to GPU by ");
    lks__escape(s->device_note + n, sizeof s->device_note - n, text, strlen(text));
}

lks_status lks__session_join(lks__session *s, bool must)
{
    const struct lks__exchange_ops *ops = s->device->ops->exchange;
    lks__exchange_id id = {0};
    char why[WHY_BYTES];
    lks_status st = LKS_OK;
    int rank;
    if (ops == NULL && !must)
        return LKS_OK;
    if (s->world.world_size == 1 && !must) { /* it only needs sums on the device */
        LKS__TRY(ops->join(s->device, 0, 1, NULL));
        s->device->joined = 1;
        return LKS_OK;
    }
    LKS__TRY(find_lacking(s, &rank, why));
    if (rank >= 0 && must)
        st = lks__fail(LKS_ERR_SUPPORT,
                       "--exchange=nccl: rank %d: %s; --exchange=staged doesn't need NCCL: "
                       "docs/guides/cuda.md",
                       rank, why);
    LKS__TRY(lks__session_agree(s, st));
    if (rank >= 0) {
        if (ops != NULL)
            snprintf(s->device_note, sizeof s->device_note,
                     "gradients and parameters go from GPU to GPU through the host's memory: rank "
                     "%d: %s",
                     rank, why);
        return LKS_OK;
    }
    if (s->world.rank == 0)
        st = ops->id(s->device, &id);
    LKS__TRY(lks__session_agree(s, st));
    LKS__TRY(lks_comm_broadcast(s->comm, &id, sizeof id, LKS_UINT8, 0));
    /* A failure is published at once, because the other ranks wait for this one. */
    st = lks__session_fail(s, ops->join(s->device, s->world.rank, s->world.world_size, &id));
    LKS__TRY(lks__session_agree(s, st));
    s->device->joined = s->world.world_size;
    note_join(s);
    return LKS_OK;
}

const char *lks__session_device_note(const lks__session *s)
{
    return s->device_note[0] != '\0' && s->world.rank == 0 ? s->device_note : NULL;
}

lks_status lks__session_describe(const char *name, lks__device *asked)
{
    char note[LKS__DEVICE_TEXT] = "";
    const lks__exec none = {0};
    const lks__device_place place = {
        .cpu = &none,
        .questions = true,
        .note = strcmp(name, "auto") == 0 ? note : NULL,
    };
    lks__device *device = NULL;
    LKS__TRY(open_device(name, &place, &device));
    *asked = lks__device_cpu(NULL);
    if (device != NULL)
        *asked = (lks__device){.ops = device->ops, .layers = device->layers, .bf16 = device->bf16};
    lks__device_close(device);
    return LKS_OK;
}

lks_status lks__session_products(lks__session *s, bool bf16)
{
    if (s->device->ops->products != NULL)
        LKS__TRY(lks__session_agree(s, s->device->ops->products(s->device, bf16)));
    s->ex.bf16 = bf16;
    return agree_on_fingerprint(s);
}

/* --- algorithms of matrix products ------------------------------------------------------------ */

static lks_status rehearse(const lks__session *s, const char *table, bool complete,
                           lks__rehearsal *rehearsal, void *ctx)
{
    lks__device *device = s->device;
    device->ops->rehearse(device, table, complete);
    const lks_status st = rehearsal(ctx);
    const lks_status performed = device->ops->perform(device);
    return st != LKS_OK ? st : performed;
}

/* Rank 0's choice. */
static lks_status choose_algorithms(lks__session *s, const char *kept, lks__rehearsal *rehearsal,
                                    void *ctx)
{
    if (kept != NULL) {
        const lks_status st = rehearse(s, kept, false, rehearsal, ctx);
        if (st != LKS_ERR_SUPPORT)
            return st;
        snprintf(s->algorithms_note, sizeof s->algorithms_note, "%s", lks_last_error());
    }
    return rehearse(s, NULL, false, rehearsal, ctx);
}

/* Rank 0's table on all ranks: *table_p, to be freed. */
static lks_status send_table(lks__session *s, char **table_p)
{
    const char *mine = s->world.rank == 0 ? s->device->ops->algorithms(s->device) : NULL;
    uint64_t bytes = mine != NULL ? strlen(mine) + 1 : 0;
    LKS__TRY(lks_comm_broadcast(s->comm, &bytes, sizeof bytes, LKS_UINT8, 0));
    char *table = *table_p = calloc(1, (size_t)bytes + 1);
    const lks_status st = table != NULL ? LKS_OK : lks__no_memory("for the table of algorithms");
    LKS__TRY(lks__session_agree(s, st));
    if (mine != NULL)
        memcpy(table, mine, (size_t)bytes);
    return lks_comm_broadcast(s->comm, table, (size_t)bytes, LKS_UINT8, 0);
}

lks_status lks__session_rehearse(lks__session *s, const char *kept, lks__rehearsal *rehearsal,
                                 void *ctx)
{
    char *table = NULL;
    lks_status st = LKS_OK;
    if (s->device->ops->rehearse == NULL)
        return LKS_OK;
    if (s->world.rank == 0)
        st = choose_algorithms(s, kept, rehearsal, ctx);
    LKS__TRY(lks__session_agree(s, st));
    st = send_table(s, &table);
    if (st == LKS_OK && s->world.rank != 0)
        st = rehearse(s, table, true, rehearsal, ctx);
    free(table);
    LKS__TRY(lks__session_agree(s, st));
    return agree_on_fingerprint(s);
}
